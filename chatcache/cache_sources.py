"""`CacheSources`: where a session's tokens come from: its own cache, a copy of another one's beginning, the disk.

It knows whose tokens begin alike, which form a session's cache is to have, and when to ask the disk (`persistence`). It
does not know which turns run. Not thread-safe: used on the model thread only.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Sequence

from chatcache.acquired import Acquired, joined_reuse
from chatcache.cache.errors import CacheStateError
from chatcache.cache.session_cache import SessionCache
from chatcache.cache.token_buffer import BLOCK_TOKENS
from chatcache.cache_form import CacheForm
from chatcache.form_change import FormChange, change_of_form
from chatcache.live_caches import LiveCaches, Spilled
from chatcache.out_of_memory import return_to_system
from chatcache.persistence import Persistence
from chatcache.prefetches import Prefetches
from chatcache.prefix import common_length
from chatcache.restore import Restore
from chatcache.session_key import SessionKey
from chatcache.stats import MissReason, Reuse

logger = logging.getLogger(__name__)


class CacheSources:
    """A cache is never read for another owner, not even to compare its tokens."""

    def __init__(
        self,
        make_cache: Callable[[str], SessionCache],
        live: LiveCaches,
        prefetches: Prefetches,
        persistence: Persistence | None,
    ) -> None:
        """`make_cache` makes an empty cache of a kind."""
        self._make_cache = make_cache
        self._live = live
        self._prefetches = prefetches
        self._persistence = persistence

    def prepare(
        self,
        key: SessionKey,
        wanted_ids: Sequence[int],
        form: CacheForm,
        num_expected_tokens: int = 0,
        *,
        is_ahead: bool = False,
    ) -> Acquired:
        """The session's live cache from now on, in `form` and aligned to `wanted_ids`; see `SessionPool.acquire`.
        `is_ahead`: no turn needs it yet; see `LiveCaches.reserve_or_spill`."""
        change = self._change_of_form(key, form, max(num_expected_tokens, len(wanted_ids)))
        is_converted = change is FormChange.CONVERT and self._live.convert(key, form.kind)
        if change is not None and not is_converted:
            self.forget(key)
        self._live.forms[key] = form
        acquired = dataclasses.replace(
            self._from_memory(key, wanted_ids, form.kind, is_ahead=is_ahead), is_converted=is_converted
        )
        if change is not None and acquired.alignment.reason is MissReason.NO_CACHE:
            acquired = _missed(acquired, change.reason)
        # Also where the cache held nothing else: its own end may be missing, or other chats have stored more.
        return self.with_rest(
            key, acquired, wanted_ids, is_miss=acquired.alignment.reason is not None, is_ahead=is_ahead
        )

    def with_rest(
        self, key: SessionKey, acquired: Acquired, wanted_ids: Sequence[int], *, is_miss: bool, is_ahead: bool = False
    ) -> Acquired:
        """What was acquired, with the restore of what is missing, where that may be stored and there is room for it."""
        cache, useful_ids = acquired.cache, wanted_ids[:-1]  # the last one is always forwarded
        if self._persistence is None or cache.num_tokens >= len(useful_ids):
            return acquired
        was_shortened = cache.is_shortened
        num_tokens, spilled = self._make_room(key, cache, len(useful_ids), is_ahead=is_ahead)
        restore: Restore | None = None
        if num_tokens > cache.num_tokens:
            ids = useful_ids[:num_tokens]
            restore = self._persistence.restore(key, cache, ids, is_miss=is_miss)
        return dataclasses.replace(
            acquired,
            restore=restore,
            spilled=acquired.spilled + spilled,
            is_shortened=acquired.is_shortened or (cache.is_shortened and not was_shortened),
        )

    def forget(self, key: SessionKey) -> None:
        """Let a session's cache go, which no turn is using; also when there is none."""
        self._prefetches.end(key)
        self._prefetches.take(key)
        self._live.leaving.discard(key)
        is_there = key in self._live.caches
        self._live.remove(key)
        if is_there:
            return_to_system()

    def _change_of_form(self, key: SessionKey, form: CacheForm, num_tokens: int) -> FormChange | None:
        """What brings the session's live cache into `form`; see `change_of_form`."""
        cache, live = self._live.caches.get(key), self._live
        if cache is None:
            return None
        return change_of_form(
            cache,
            form,
            was_asked_for=live.forms[key].kind,
            can_grow=lambda: live.room.can_fit(
                key, live.room.need(self._make_cache(form.kind), num_tokens), live.idle(key)
            ),
            can_convert=lambda: (
                live.room.can_convert(cache, form.kind)
                and live.budget.fits(key, live.room.need(cache, cache.num_tokens, form.kind))
            ),
        )

    def _from_memory(self, key: SessionKey, wanted_ids: Sequence[int], kind: str, *, is_ahead: bool) -> Acquired:
        """The session's cache, or a copy, or a new one, with as much of `wanted_ids` as caches in memory hold."""
        own = self._live.caches.get(key)
        copied, spilled = self._copied_prefix(key, wanted_ids, is_ahead=is_ahead)
        cache = copied or own or self._make_cache(kind)
        try:
            alignment = cache.align(wanted_ids)
        except CacheStateError:
            logger.exception("A cache was damaged; its tokens are computed again")
            cache, copied = self._make_cache(kind), None
            alignment = cache.align(wanted_ids)
        num_cached = alignment.num_cached_tokens
        self._live.put(key, cache)
        self._live.settle(key, num_tokens=len(wanted_ids))
        reuse, restore_s = self._live_reuse(key, num_cached, is_copy=copied is not None)
        acquired = Acquired(cache, alignment, reuse, restore_s, spilled)
        if copied is None or num_cached == len(wanted_ids) - 1:
            return acquired
        # The copy held what it could; what is missing was missing in the session's own cache, or there was none.
        return _missed(acquired, MissReason.NO_CACHE if own is None else MissReason.HISTORY)

    def _live_reuse(self, key: SessionKey, num_tokens: int, *, is_copy: bool) -> tuple[tuple[Reuse, ...], float | None]:
        """Where the first `num_tokens` tokens of the cache came from, and how long the disk took for its part."""
        prefetched = self._prefetches.take(key)
        if is_copy or prefetched is None or num_tokens <= prefetched.start:
            return joined_reuse([Reuse("prefix" if is_copy else "live", num_tokens)]), None
        num_from_disk = min(num_tokens, prefetched.end) - prefetched.start
        live = Reuse("live", num_tokens - num_from_disk)
        return joined_reuse([live, Reuse("disk", num_from_disk)]), prefetched.seconds

    def _make_room(
        self, key: SessionKey, cache: SessionCache, num_tokens: int, *, is_ahead: bool
    ) -> tuple[int, Spilled]:
        """To how many tokens, up to `num_tokens`, the cache may grow at most, and what has left for that."""
        spilled = Spilled()

        def has_room_for(num_tokens: int) -> bool:
            nonlocal spilled
            need = self._live.room.need(cache, num_tokens, piece_tokens=1)
            has_room, more = self._live.reserve_or_spill(key, need, is_ahead=is_ahead)
            spilled += more
            return has_room

        has_room = has_room_for(num_tokens)
        if not has_room and cache.can_be_shortened and not is_ahead:
            self._live.shorten(key)
            has_room = has_room_for(num_tokens)
        while not has_room and num_tokens > cache.num_tokens:
            num_tokens = (num_tokens - 1) // BLOCK_TOKENS * BLOCK_TOKENS
            has_room = has_room_for(num_tokens)
        return num_tokens, spilled

    def _copied_prefix(
        self, key: SessionKey, wanted_ids: Sequence[int], *, is_ahead: bool
    ) -> tuple[SessionCache | None, Spilled]:
        """A copy of the longest beginning of `wanted_ids` that the owner's other caches hold; None if `key`'s own
        holds as much, or if there is no room for a copy."""
        live, useful_ids = self._live, wanted_ids[:-1]  # the last one is always forwarded
        held = {
            other: common_length(cache.token_ids, useful_ids)
            for other, cache in live.caches.items()
            if other.owner == key.owner
            and other not in live.leaving
            and cache.kind == live.forms[key].kind
            and cache.is_pure
            and not cache.is_mixed
            and not cache.num_forgotten_tokens
        }
        held.pop(key, None)
        num_own = common_length(live.caches[key].token_ids, useful_ids) if key in live.caches else 0
        if max(held.values(), default=0) <= num_own:
            return None, Spilled()
        donor = max(held, key=lambda other: held[other])
        # For a moment there are both, the copy and what it replaces.
        both = live.room.need(live.caches[donor], held[donor]).beside(live.budget.held(key))
        has_room, spilled = live.reserve_or_spill(key, both, donor, is_ahead=is_ahead)
        try:
            copied = live.caches[donor].fork(held[donor]) if has_room else None
        except Exception:
            logger.exception("A cache could not be copied; its tokens are computed again")
            copied = None
        if copied is None or copied.num_tokens <= num_own:
            copied = None
            live.settle(key)
        return copied, spilled


def _missed(acquired: Acquired, reason: MissReason) -> Acquired:
    """`acquired`, whose next token was missed for `reason`."""
    num_cached = acquired.alignment.num_cached_tokens
    alignment = dataclasses.replace(acquired.alignment, mismatch_index=num_cached, reason=reason)
    return dataclasses.replace(acquired, alignment=alignment)
