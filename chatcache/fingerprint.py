"""What decides whether stored KV fits the loaded model: any difference makes another namespace, never an error."""

from __future__ import annotations

import json
from typing import Any

import torch
import transformers

from chatcache.loader import LoadedModel


def fingerprint(loaded: LoadedModel, kind: str) -> dict[str, Any]:
    """For caches of `kind`, as plain JSON values. Owner and layout are the store's to add."""
    config = loaded.model.config
    rope = getattr(config.get_text_config(decoder=True), "rope_parameters", None)
    return {
        "model": loaded.digest,
        "weights": loaded.weights,
        "dtype": str(loaded.model.dtype).removeprefix("torch."),
        "cache": kind,
        "architecture": type(loaded.model).__name__,
        "attention": config._attn_implementation,
        "rope": json.dumps(rope, sort_keys=True, default=str),
        "torch": _minor(torch.__version__),
        "transformers": _minor(transformers.__version__),
    }


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])
