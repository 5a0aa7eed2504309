"""Which files of a model folder hold its weights, and whether they are all there and whole in length."""

from __future__ import annotations

import json
from pathlib import Path

from chatcache.errors import ModelLoadError
from chatcache.first_sentence import first_sentence

WEIGHT_FILES = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)
"""In the order in which transformers looks for them."""


def weight_files(folder: Path) -> tuple[Path, ...]:
    """The weight files that transformers will read from `folder`, an index and its shards included.

    Raises ModelLoadError, naming what is missing.
    """
    if not (folder / "config.json").is_file():
        raise ModelLoadError(f"{folder} has no config.json. Name the folder that holds a model's config.json.")
    entry = next((folder / name for name in WEIGHT_FILES if (folder / name).is_file()), None)
    if entry is None:
        raise ModelLoadError(f"{folder} holds no weights (model.safetensors). Copy or download the model again.")
    if entry.suffix != ".json":
        return (entry,)
    try:
        shards = sorted({str(name) for name in json.loads(entry.read_text("utf-8"))["weight_map"].values()})
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise ModelLoadError(
            f"{entry} cannot be read: {first_sentence(error)} Copy or download the model again."
        ) from error
    missing = [name for name in shards if not (folder / name).is_file()]
    if missing:
        raise ModelLoadError(f"{folder} lacks {', '.join(missing)}. Copy or download the model again.")
    return (entry, *(folder / name for name in shards))
