"""How the cache of one chat is held: its kind, and what it may become when memory is short."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

SETTING = "cache"
"""The chat setting that names a kind."""


@dataclass(frozen=True, slots=True)
class CacheForm:
    """`smaller_kinds`: what the cache may be converted to when memory is short, the one that costs least first; none
    where a person has chosen the kind. `problem`: why it is not what was asked for, as a sentence."""

    kind: str
    smaller_kinds: tuple[str, ...] = ()
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class CacheForms:
    """`default` is the service's, `kinds` are those that the model and its device allow."""

    default: CacheForm
    kinds: tuple[str, ...]

    def of(self, settings: Mapping[str, Any]) -> CacheForm:
        """What a chat with these settings has. A kind that is not allowed (any more: another model may be loaded, or
        the chat may be another machine's) gives the default."""
        kind = settings.get(SETTING)
        if kind is None:
            return self.default
        if kind in self.kinds:
            return CacheForm(kind)
        sentence = f"The cache kind {kind!s:.40} of this chat cannot be had here; {self.default.kind} is used."
        return dataclasses.replace(self.default, problem=sentence)
