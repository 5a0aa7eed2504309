"""`SessionPool`: the live caches of all sessions, one for each, in order of last use.

It knows which cache belongs to which owner's session and whose tokens begin alike. It does not know models, text or
disks. Not thread-safe: used on the model thread only.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from chatcache.cache.errors import CacheStateError
from chatcache.cache.session_cache import Alignment, SessionCache, common_length
from chatcache.stats import MissReason, Reuse

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Acquired:
    """A session's cache, aligned to the ids a turn wants, and where its tokens came from."""

    cache: SessionCache
    alignment: Alignment
    reuse: tuple[Reuse, ...]


@dataclass(frozen=True, slots=True)
class LiveCache:
    """What one session's cache takes. `is_pinned`: a turn is using it."""

    owner: str
    session_id: str
    kind: str
    num_tokens: int
    num_bytes: int
    is_pinned: bool


@dataclass(frozen=True, slots=True)
class _Key:
    owner: str
    session_id: str


class SessionPool:
    """Live caches by owner and session. A cache is never read for another owner, not even to compare its tokens."""

    def __init__(self, make_cache: Callable[[], SessionCache]) -> None:
        self._make_cache = make_cache
        self._caches: dict[_Key, SessionCache] = {}  # least recently used first
        self._pinned: set[_Key] = set()

    def acquire(self, owner: str, session_id: str, wanted_ids: Sequence[int]) -> Acquired:
        """The session's cache, aligned to `wanted_ids` and pinned until `release`.

        Where another session of the same owner holds a longer beginning of `wanted_ids`, the cache is a copy of that.
        Raises RuntimeError while the session's cache is pinned.
        """
        key = _Key(owner, session_id)
        if key in self._pinned:
            raise RuntimeError("This session's cache is in use by a turn.")
        own = self._caches.get(key)
        copied = self._copied_prefix(key, wanted_ids)
        cache = copied or own or self._make_cache()
        try:
            alignment = cache.align(wanted_ids)
        except CacheStateError:
            logger.exception("A cache was damaged; its tokens are computed again")
            cache, copied = self._make_cache(), None
            alignment = cache.align(wanted_ids)
        if copied is not None and alignment.num_cached_tokens < len(wanted_ids) - 1:
            # The copy held what it could; what is missing was missing in the session's own cache, or there was none.
            reason = MissReason.NO_CACHE if own is None else MissReason.HISTORY
            alignment = dataclasses.replace(alignment, mismatch_index=alignment.num_cached_tokens, reason=reason)
        self._put_last(key, cache)
        self._pinned.add(key)
        source = "live" if copied is None else "prefix"
        reuse = (Reuse(source, alignment.num_cached_tokens),) if alignment.num_cached_tokens else ()
        return Acquired(cache, alignment, reuse)

    def release(self, owner: str, session_id: str) -> None:
        """The turn is over: its cache stays, as the one used last."""
        key = _Key(owner, session_id)
        self._pinned.discard(key)
        if key in self._caches:
            self._put_last(key, self._caches[key])

    def drop(self, owner: str, session_id: str) -> None:
        """Let a session's cache go; also when there is none. A turn that uses it keeps it to its end."""
        self._caches.pop(_Key(owner, session_id), None)

    def report(self) -> tuple[LiveCache, ...]:
        """Every cache that holds tokens, the least recently used first."""
        return tuple(
            LiveCache(key.owner, key.session_id, cache.kind, cache.num_tokens, cache.num_bytes, key in self._pinned)
            for key, cache in self._caches.items()
            if cache.num_tokens
        )

    def _copied_prefix(self, key: _Key, wanted_ids: Sequence[int]) -> SessionCache | None:
        """A copy of the longest beginning of `wanted_ids` that the owner's other caches hold; None if `key`'s own
        holds as much."""
        useful_ids = wanted_ids[:-1]  # the last one is always forwarded
        held = {
            other: common_length(cache.token_ids, useful_ids)
            for other, cache in self._caches.items()
            if other.owner == key.owner
        }
        num_own = held.pop(key, 0)
        if max(held.values(), default=0) <= num_own:
            return None
        donor = max(held, key=lambda other: held[other])
        try:
            copy = self._caches[donor].fork(held[donor])
        except Exception:
            logger.exception("A cache could not be copied; its tokens are computed again")
            return None
        return copy if copy.num_tokens > num_own else None

    def _put_last(self, key: _Key, cache: SessionCache) -> None:
        self._caches.pop(key, None)
        self._caches[key] = cache
