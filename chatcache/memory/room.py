"""`Room`: what live caches take and may take: reserved before they grow, given back when they shrink.

It knows the budget, what a cache takes at any length in any form, and how it takes another one. Whose cache it is,
which forms it may have and which one leaves is the pool's. Used on the model thread only.
"""

from __future__ import annotations

import dataclasses
import logging
import sys
from collections.abc import Callable, Hashable, Sequence

from chatcache.cache.kinds import codec_of
from chatcache.cache.session_cache import SessionCache
from chatcache.cache_form import CacheForm
from chatcache.memory.budget import Budget, IdleCache, Key, Need, choose_spills
from chatcache.memory.cache_sizes import CacheSizes
from chatcache.memory.ladder import SMALLEST_CHUNK_TOKENS
from chatcache.memory.planner import OFFLOADED_KINDS
from chatcache.out_of_memory import is_out_of_memory

logger = logging.getLogger(__name__)


class Room:
    """Reservations of live caches by key. Without a budget there is no limit, without sizes nothing is known ahead,
    without `convert`, which holds a cache in another kind, none is converted."""

    def __init__(
        self,
        budget: Budget | None = None,
        sizes: CacheSizes | None = None,
        convert: Callable[[SessionCache, str], None] | None = None,
    ) -> None:
        self.budget = budget or Budget(sys.maxsize)
        self._sizes = sizes or CacheSizes(())
        self._convert = convert

    def need(
        self,
        cache: SessionCache,
        num_tokens: int,
        kind: str | None = None,
        piece_tokens: int | None = None,
        is_shortened: bool | None = None,
    ) -> Need:
        """What `cache`, in its kind or in another, shortened or not, takes when it has grown to `num_tokens` tokens: by
        one forward, or by `piece_tokens` in each."""
        num_new = max(num_tokens - cache.num_tokens, 0)
        return self._sizes.need(
            kind or cache.kind,
            num_tokens,
            min(num_new, piece_tokens or num_new),
            is_shortened=cache.is_shortened if is_shortened is None else is_shortened,
        )

    def most_tokens(self, form: CacheForm, limit_tokens: int) -> int:
        """How many tokens, up to `limit_tokens`, a cache can hold in its smallest form when it is alone. Any thread."""
        smallest = (form.kind, *form.smaller_kinds)[-1]
        low, high = 0, limit_tokens
        while low < high:
            middle = (low + high + 1) // 2
            need = self._sizes.need(smallest, middle, min(middle, SMALLEST_CHUNK_TOKENS), is_shortened=True)
            if need.num_bytes + need.largest_layer_bytes <= self.budget.limit_bytes:
                low = middle
            else:
                high = middle - 1
        return low

    def reserve(self, key: Hashable, need: Need) -> bool:
        """Whether `key` may hold `need`, if it does not hold as much already; reserved then."""
        return need.is_within(self.budget.held(key)) or self.budget.reserve(key, need)

    def settle(self, key: Hashable, cache: SessionCache, num_tokens: int = 0) -> None:
        """Have `cache` give back the room that neither the tokens it holds nor `num_tokens` tokens need."""
        try:
            cache.trim(num_tokens)
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            logger.warning("There was no memory to shorten a cache; it keeps its spare room")
        planned = self.need(cache, cache.num_tokens)
        # An offloaded cache takes its bytes elsewhere.
        measured = 0 if cache.kind in OFFLOADED_KINDS else cache.num_bytes
        self.budget.hold(key, dataclasses.replace(planned, num_bytes=max(planned.num_bytes, measured)))

    def can_fit(self, key: Hashable, need: Need, idle: Sequence[IdleCache[Key]]) -> bool:
        """Whether `key` could hold `need`, perhaps without the `idle` caches."""
        return self.budget.fits(key, need) or bool(choose_spills(self.budget, key, need, idle))

    def smaller_kinds(
        self, key: Hashable, cache: SessionCache, form: CacheForm, num_tokens: int, idle: Sequence[IdleCache[Key]]
    ) -> tuple[str, ...]:
        """The kinds, smaller than the one it has, in which `cache` may grow to `num_tokens` tokens and could, perhaps
        without the `idle` ones and in small pieces."""
        kinds = form.smaller_kinds if self._convert is not None else ()
        left = kinds[kinds.index(cache.kind) + 1 :] if cache.kind in kinds else kinds
        needs = {kind: self.need(cache, num_tokens, kind, SMALLEST_CHUNK_TOKENS) for kind in left}
        return tuple(kind for kind, need in needs.items() if self.can_fit(key, need, idle))

    def can_convert(self, cache: SessionCache, kind: str) -> bool:
        """Whether `kind` can take over what `cache` holds without rounding it twice."""
        return self._convert is not None and "none" not in (cache.kind, kind) and codec_of(cache.kind) is None

    def convert(self, cache: SessionCache, kind: str) -> bool:
        """Hold what `cache` holds in another kind; False where memory ran out on the way. Every token is held still,
        by some layers in the old form."""
        assert self._convert is not None
        try:
            self._convert(cache, kind)
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            logger.warning("There was no memory to convert a cache to %s", kind, exc_info=True)
        else:
            return True
        return False
