"""How the cache of one chat is held: its kind, and what it may become when memory is short."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from chatcache.told import Told
from storage.sentence import Sentence

SETTING = "cache"
"""The chat setting that names a kind."""


@dataclass(frozen=True, slots=True)
class CacheForm:
    """`smaller_kinds`: what the cache may be converted to when memory is short, the one that costs least first; none
    where a person has chosen the kind. `is_saved`: nothing of a temporary chat's cache is. `problem`: why the kind is
    not what was asked for, as a sentence."""

    kind: str
    smaller_kinds: tuple[str, ...] = ()
    is_saved: bool = True
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class CacheForms:
    """`default` is the service's, `kinds` are those that the model and its device allow."""

    default: CacheForm
    kinds: tuple[str, ...]

    def of(self, settings: Mapping[str, Any], *, is_saved: bool = True) -> CacheForm:
        """What a chat with these settings has. A kind that is not allowed (any more: another model may be loaded, or
        the chat may be another machine's) gives the default."""
        kind = settings.get(SETTING)
        if kind is None:
            form = self.default
        elif kind in self.kinds:
            form = CacheForm(kind)
        else:
            asked, default = f"{kind!s:.40}", self.default.kind
            sentence = f"The cache kind {asked} of this chat cannot be had here; {default} is used."
            problem = Sentence(sentence, Told.KIND_REFUSED, kind=asked, default=default)
            form = dataclasses.replace(self.default, problem=problem)
        return dataclasses.replace(form, is_saved=is_saved)
