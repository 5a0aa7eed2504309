"""A GGUF file, converted once into a folder that transformers loads in about a second.

A converted folder is trusted only if its manifest, which is written last, names every file with the size and SHA-256
it still has. Everything else (half written, truncated, changed) is converted again. Two processes may ask at once.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from filelock import FileLock, Timeout
from transformers.integrations.gguf.reader import GgufHeader, read_gguf_metadata

from chatcache.checkpoint.file_digests import FileDigests, sha256_of_file
from chatcache.errors import ModelLoadError, StorageError
from chatcache.first_sentence import first_sentence
from chatcache.library_calls import quiet_transformers
from chatcache.out_of_memory import is_out_of_memory
from chatcache.told import Told
from storage.sentence import Sentence

MANIFEST_NAME = "chatcache-manifest.json"
MANIFEST_FORMAT = 1
LOCK_TIMEOUT_S = 600.0
PARTIAL_SUFFIX = ".partial"


def ensure_converted(
    gguf_file: Path, models_dir: Path, name: str, digests: FileDigests, progress: Callable[[str], None]
) -> Path:
    """The folder under `models_dir` that holds `gguf_file` converted, verified; made if it is not there or damaged.

    Raises ModelLoadError if the file is no usable GGUF model and StorageError if the folder cannot be written.
    """
    dtype = _dtype_of(gguf_file)
    folder = models_dir / f"{name}-{digests.sha256(gguf_file)[:16]}"
    try:
        models_dir.mkdir(parents=True, exist_ok=True)
        _remove_leftovers(models_dir)
        with _lock(_lock_file(folder), progress):
            damage = damage_of(folder, digests)
            if damage is not None:
                if folder.exists():
                    again = f"The converted model in {folder} {damage}. It is converted again."
                    progress(Sentence(again, Told.CONVERTED_AGAIN, folder=str(folder)))
                _replace(folder, gguf_file, dtype, progress)
    except OSError as error:
        raise StorageError(_cannot_write(models_dir, f"{error.strerror or error}.")) from error
    return folder


def damage_of(folder: Path, digests: FileDigests) -> str | None:
    """What is wrong with a converted folder, as the end of a sentence; None if it is whole. Raises OSError."""
    try:
        manifest = json.loads((folder / MANIFEST_NAME).read_text("utf-8"))
        files = {str(name): (int(entry["size"]), str(entry["sha256"])) for name, entry in manifest["files"].items()}
    except FileNotFoundError:
        return "is not complete"
    except (ValueError, TypeError, KeyError, AttributeError):
        return "has an unreadable manifest"
    if manifest.get("format") != MANIFEST_FORMAT:
        return "was written by another version"
    for name, (size, sha256) in files.items():
        path = folder / name
        if not path.is_file():
            return f"lacks {name}"
        if path.stat().st_size != size or digests.sha256(path) != sha256:
            return f"has a damaged {name}"
    return None


def _dtype_of(gguf_file: Path) -> torch.dtype:
    """What to convert into: the type of the file's weights, bfloat16 where they are quantized.

    Raises ModelLoadError for what is no GGUF file, or not a whole one.
    """
    try:
        read_gguf_metadata(str(gguf_file))
    except OSError as error:
        raise ModelLoadError(
            f"{gguf_file} cannot be read: {error.strerror or error}. Make it readable, or choose another model."
        ) from error
    except Exception as error:  # the reader meets damaged files with whatever its parsing runs into
        raise ModelLoadError(
            f"{gguf_file} is not a GGUF file that can be read: {first_sentence(error)} Download it again."
        ) from error
    try:
        header = GgufHeader.from_file(str(gguf_file))
    except ValueError:  # tensors of a type unknown to this reader (Q5_0, MXFP4); most architectures use another one
        return torch.bfloat16
    end = max((header.data_start + tensor.offset + tensor.nbytes for tensor in header.tensors), default=0)
    size = gguf_file.stat().st_size
    if size < end:
        raise ModelLoadError(f"{gguf_file} is cut off: {size} of at least {end} bytes are there. Download it again.")
    return header.dtype or torch.bfloat16


def _remove_leftovers(models_dir: Path) -> None:
    """What processes that were ended have converted halfway, of whichever model: it may be a large one, never asked
    for again."""
    for partial in models_dir.glob(f"*{PARTIAL_SUFFIX}"):
        with contextlib.suppress(Timeout), FileLock(_lock_file(partial.with_suffix("")), timeout=0):
            shutil.rmtree(partial, ignore_errors=True)  # perhaps another one that starts has removed it meanwhile


def _lock_file(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.lock")


@contextlib.contextmanager
def _lock(path: Path, progress: Callable[[str], None]) -> Iterator[None]:
    lock = FileLock(path)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        progress(Sentence("Another process is converting this model; waiting for it.", Told.CONVERTED_ELSEWHERE))
        try:
            lock.acquire(timeout=LOCK_TIMEOUT_S)
        except Timeout as error:
            raise StorageError(f"Another process has held {path} for {LOCK_TIMEOUT_S:.0f} s. End it.") from error
    try:
        yield
    finally:
        lock.release()


def _replace(folder: Path, gguf_file: Path, dtype: torch.dtype, progress: Callable[[str], None]) -> None:
    sentence = f"Converting {gguf_file.name}, once; later starts use the result …"
    progress(Sentence(sentence, Told.CONVERTING, name=gguf_file.name))
    started = time.monotonic()
    temporary = folder.with_name(f"{folder.name}{PARTIAL_SUFFIX}")
    for leftover in (temporary, folder):
        if leftover.exists():
            shutil.rmtree(leftover)
    temporary.mkdir(mode=0o700)
    try:
        _convert(gguf_file, temporary, dtype)
        _write_manifest(temporary, gguf_file)
        temporary.rename(folder)
        _fsync(folder.parent)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    seconds = round(time.monotonic() - started)
    progress(Sentence(f"Converted in {seconds} s.", Told.CONVERTED_MODEL, seconds=seconds))


def _convert(gguf_file: Path, folder: Path, dtype: torch.dtype) -> None:
    # Most starts convert nothing, and these take long to import.
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    source, name = str(gguf_file.parent), gguf_file.name
    # Some of the library's bars on stderr have no switch.
    with quiet_transformers(), contextlib.redirect_stderr(io.StringIO()):
        try:
            model = AutoModelForCausalLM.from_pretrained(
                source, gguf_file=name, quantization_config=GgufConfig(dequantize=True), dtype=dtype
            )
            tokenizer = AutoTokenizer.from_pretrained(source, gguf_file=name)
        except Exception as error:  # an unknown architecture, tensor type or tokenizer: each has its own exception
            _refuse_if_out_of_memory(error, gguf_file)
            raise ModelLoadError(
                f"{gguf_file} cannot be converted: {first_sentence(error)} Choose another quantization of this model, "
                "such as Q8_0, its original folder, or a model of an architecture that transformers supports; if the "
                "file was perhaps not downloaded to its end, download it again."
            ) from error
        try:
            model.save_pretrained(folder)
            tokenizer.save_pretrained(folder)
        except Exception as error:  # safetensors has an exception of its own for a full disk
            _refuse_if_out_of_memory(error, gguf_file)
            raise StorageError(_cannot_write(folder.parent, first_sentence(error))) from error


def _refuse_if_out_of_memory(error: Exception, gguf_file: Path) -> None:
    if is_out_of_memory(error):
        raise ModelLoadError(
            f"There is not enough memory to convert {gguf_file}, which is done once. Close other programs, or choose a "
            "smaller model."
        ) from error


def _write_manifest(folder: Path, gguf_file: Path) -> None:
    files = {}
    for path in sorted(folder.iterdir()):
        _fsync(path)
        files[path.name] = {"size": path.stat().st_size, "sha256": sha256_of_file(path)}
    manifest = {"format": MANIFEST_FORMAT, "source": gguf_file.name, "files": files}
    path = folder / MANIFEST_NAME
    path.write_text(json.dumps(manifest, indent=1), "utf-8")
    _fsync(path)
    _fsync(folder)


def _cannot_write(models_dir: Path, reason: str) -> str:
    return f"The converted model cannot be written into {models_dir}: {reason} Make room or name another --data-dir."


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
