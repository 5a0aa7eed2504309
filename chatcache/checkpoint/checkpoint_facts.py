"""`CheckpointFacts`: what a page and its chats need to know of a model's config and tokenizer, and a memory of them.

To find them out, half of the model library is imported, which takes most of a second; remembered, they let a page be
there before that.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import transformers

from chatcache.checkpoint.json_memory import JsonMemory
from chatcache.checkpoint.model_files import ModelFiles


@dataclass(frozen=True, slots=True)
class CheckpointFacts:
    """Of a causal language model that can be used. `layer_types` are the library's, one for each layer;
    `max_context_tokens` is None where the architecture has no limit, `dtype` where the checkpoint names none.

    `tokenizer_class` is the library's class that reads the tokenizer; for `tokenizer_digest` see `digest_of_tokenizer`.
    """

    layer_types: tuple[str, ...]
    num_token_ids: int
    eos_token_ids: tuple[int, ...]
    max_context_tokens: int | None
    dtype: str | None
    tokenizer_class: str
    tokenizer_digest: str


class FactsMemory:
    """Facts of models, each valid as long as no file of its folder and no version of the library changes."""

    def __init__(self, file: Path) -> None:
        self._memory = JsonMemory(file)

    def get(self, files: ModelFiles) -> CheckpointFacts | None:
        """What is remembered of these files; None where that is nothing, or of what they were before."""
        match self._memory.load().get(str(files.folder.resolve())):
            case {"stamp": str(stamp), "facts": dict(facts)} if stamp == _stamp(files):
                return _facts_from(facts)
        return None

    def put(self, files: ModelFiles, facts: CheckpointFacts) -> None:
        self._memory.put(str(files.folder.resolve()), {"stamp": _stamp(files), "facts": dataclasses.asdict(facts)})


def _stamp(files: ModelFiles) -> str:
    # A link to nothing, such as an editor's lock or a file that a hub's cache has lost, is no file.
    present = [(path.name, path.stat()) for path in sorted(files.folder.iterdir()) if path.exists()]
    parts = [f"{name} {status.st_size} {status.st_mtime_ns} {status.st_ctime_ns}" for name, status in present]
    return "\n".join((transformers.__version__, files.digest, *parts))


def _facts_from(data: dict[str, Any]) -> CheckpointFacts | None:
    """None for what no version like this one has written."""
    match data:
        case {
            "layer_types": [*layer_types],
            "num_token_ids": int(num_token_ids),
            "eos_token_ids": [*eos_token_ids],
            "max_context_tokens": int() | None as max_context_tokens,
            "dtype": str() | None as dtype,
            "tokenizer_class": str(tokenizer_class),
            "tokenizer_digest": str(tokenizer_digest),
        }:
            return CheckpointFacts(
                tuple(layer_types),
                num_token_ids,
                tuple(eos_token_ids),
                max_context_tokens,
                dtype,
                tokenizer_class,
                tokenizer_digest,
            )
    return None
