"""A model's files from the Hugging Face hub, or from its local cache when they were downloaded before.

A complete download is used as it is, without asking the hub: a model does not change under the chats that were had
with it, and a start needs no network.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from huggingface_hub import HfApi, snapshot_download
from huggingface_hub.errors import GatedRepoError, HFValidationError, RepositoryNotFoundError

from chatcache.checkpoint.weight_files import weight_files
from chatcache.errors import ModelLoadError
from chatcache.first_sentence import first_sentence
from chatcache.told import Told
from storage.sentence import Sentence

TIMEOUT_S = 10.0
TEXT_FILES = ("*.json", "*.jinja", "*.model", "*.txt")
IGNORED_FILES = ("*/*", "consolidated*")
"""Other formats of the same weights, in folders of their own or under the name Mistral gives them."""


def ensure_downloaded(repo_id: str, progress: Callable[[str], None]) -> Path:
    """The local folder that holds the hub's model `repo_id`. Raises ModelLoadError that says what was tried.

    Without a network it fails within `TIMEOUT_S`, or at once where names do not resolve.
    """
    folder = _cached(repo_id)
    if folder is not None:
        return folder
    try:
        names = [file.rfilename for file in HfApi().model_info(repo_id, timeout=TIMEOUT_S).siblings or ()]
    except HFValidationError as error:
        raise ModelLoadError(f'"{repo_id}" is no local folder, no .gguf file and no hub id. Check --model.') from error
    except GatedRepoError as error:
        raise ModelLoadError(
            f"{repo_id} is gated: accept its terms on the hub, then run `hf auth login` and start again."
        ) from error
    except RepositoryNotFoundError as error:
        raise ModelLoadError(
            f'There is no local folder "{repo_id}", and no public model of that name on the hub. '
            "Check --model; for a private model run `hf auth login` first."
        ) from error
    except Exception as error:  # no network, a proxy, the hub's own failures: the HTTP client's many exceptions
        raise ModelLoadError(
            f'There is no local folder "{repo_id}", it was not downloaded before, and the hub cannot be reached '
            f"({first_sentence(error).rstrip('.')}). Go online once, or choose a local folder or a .gguf with --model."
        ) from error
    progress(Sentence(f"Downloading {repo_id}, once …", Told.DOWNLOADING, name=repo_id))
    try:
        return _snapshot(repo_id, _weight_pattern(repo_id, names), local_files_only=False)
    except Exception as error:  # the HTTP client's, the hub's, the disk's
        raise ModelLoadError(
            f"{repo_id} could not be downloaded: {first_sentence(error)} Start again, it goes on where it stopped."
        ) from error


def _cached(repo_id: str) -> Path | None:
    try:
        folder = _snapshot(repo_id, "*.safetensors", local_files_only=True)
        weight_files(folder)
    except (OSError, HFValidationError, ModelLoadError):
        return None
    return folder


def _weight_pattern(repo_id: str, names: list[str]) -> str:
    top = [name for name in names if "/" not in name]
    for pattern, suffix in (("*.safetensors", ".safetensors"), ("pytorch_model*.bin", ".bin")):
        if any(name.endswith(suffix) for name in top):
            return pattern
    if any(name.endswith(".gguf") for name in names):
        raise ModelLoadError(f"{repo_id} holds GGUF files only. Download one of them and give its path with --model.")
    raise ModelLoadError(f"{repo_id} holds no weights that transformers can load. Choose another model.")


def _snapshot(repo_id: str, weight_pattern: str, *, local_files_only: bool) -> Path:
    return Path(
        snapshot_download(
            repo_id,
            allow_patterns=[*TEXT_FILES, weight_pattern],
            ignore_patterns=list(IGNORED_FILES),
            local_files_only=local_files_only,
        )
    )
