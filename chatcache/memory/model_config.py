"""From what a person names as the model to its configuration. Weights are neither read nor downloaded.

A name is, in this order: the embedded model's, a folder, a config.json or `.gguf` file, a hub id.
"""

from __future__ import annotations

from pathlib import Path

import torch
from huggingface_hub import HfApi, hf_hub_download
from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError
from transformers import AutoConfig, PreTrainedConfig
from transformers.integrations.gguf.reader import GgufHeader

from chatcache.checkpoint.model_files import embedded_gguf
from chatcache.config import EMBEDDED_MODEL
from chatcache.errors import ModelLoadError
from chatcache.first_sentence import first_sentence
from chatcache.library_calls import quiet_transformers

HUB_TIMEOUT_S = 10.0


def load_model_config(model: str) -> PreTrainedConfig:
    """The configuration of `model`. Raises ModelLoadError if there is none, or none that transformers understands."""
    path = Path(model).expanduser()
    if model == EMBEDDED_MODEL:
        path = embedded_gguf()
    elif path.is_dir():
        path = path / "config.json"
        if not path.is_file():
            raise ModelLoadError(f"{model} has no config.json, so it is no model that transformers can load.")
    elif not path.is_file():
        path = _hub_config(model)
    try:
        with quiet_transformers():
            return _read_gguf(path) if path.suffix.lower() == ".gguf" else _read_json(path)
    except Exception as error:  # broken JSON, an unknown architecture, code to execute: each has its own exception
        raise ModelLoadError(
            f"The configuration of {model} cannot be used: {first_sentence(error)} "
            "Choose a model that transformers supports without code of its own."
        ) from error


def _read_json(path: Path) -> PreTrainedConfig:
    config: PreTrainedConfig = AutoConfig.from_pretrained(path)
    return config


def _read_gguf(path: Path) -> PreTrainedConfig:
    config: PreTrainedConfig = AutoConfig.from_pretrained(path.parent, gguf_file=path.name)
    if config.dtype is None:
        # As the loader converts it.
        config.dtype = GgufHeader.from_file(str(path)).dtype or torch.bfloat16
    return config


def _hub_config(repo_id: str) -> Path:
    try:
        return Path(hf_hub_download(repo_id, "config.json", local_files_only=True))
    except LocalEntryNotFoundError:
        pass
    except HFValidationError as error:
        raise ModelLoadError(f"There is no folder or file {repo_id}, and it is no hub id. Check --model.") from error
    try:
        # Fails within its time limit, where a download would be tried again and again.
        HfApi().model_info(repo_id, timeout=HUB_TIMEOUT_S)
        return Path(hf_hub_download(repo_id, "config.json"))
    except Exception as error:  # no network, a private or gated model, no such model: the HTTP client has many
        raise ModelLoadError(
            f'There is no folder or file "{repo_id}", its configuration was not downloaded before, and the hub does '
            f"not give it: {first_sentence(error)} Check --model, go online, or give the path of a config.json."
        ) from error
