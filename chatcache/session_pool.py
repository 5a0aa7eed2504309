"""`SessionPool`: the live caches of all sessions, one for each, in order of last use.

It knows which cache belongs to which owner's session, whose tokens begin alike, and when to ask the disk
(`persistence`). It does not know models or text. Not thread-safe: used on the model thread only.
"""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from chatcache.cache.errors import CacheStateError
from chatcache.cache.session_cache import Alignment, SessionCache, common_length
from chatcache.persistence import Persistence
from chatcache.stats import MissReason, Reuse

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Acquired:
    """A session's cache, aligned to the ids a turn wants, and where its tokens came from.

    `restore_s`: how long reading from disk took; None where the disk was not asked.
    """

    cache: SessionCache
    alignment: Alignment
    reuse: tuple[Reuse, ...]
    restore_s: float | None = None


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

    def __init__(self, make_cache: Callable[[], SessionCache], persistence: Persistence | None = None) -> None:
        self._make_cache = make_cache
        self._persistence = persistence
        self._caches: dict[_Key, SessionCache] = {}  # least recently used first
        self._pinned: set[_Key] = set()

    def acquire(self, owner: str, session_id: str, wanted_ids: Sequence[int]) -> Acquired:
        """The session's cache, aligned to `wanted_ids` and pinned until `release`.

        Where another session of the same owner holds a longer beginning of `wanted_ids`, the cache is a copy of that;
        what is still missing comes from disk where it is stored. Raises RuntimeError while the cache is pinned.
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
        if self._persistence is None or alignment.reason is None:
            return Acquired(cache, alignment, reuse)
        began_s = time.perf_counter()
        num_restored = self._persistence.extend(owner, session_id, cache, wanted_ids[:-1])
        restore_s = time.perf_counter() - began_s
        if num_restored:
            alignment = dataclasses.replace(alignment, num_cached_tokens=cache.num_tokens)
            reuse = (*reuse, Reuse("disk", num_restored))
        return Acquired(cache, alignment, reuse, restore_s)

    def release(self, owner: str, session_id: str, cuts: Sequence[int] = ()) -> None:
        """The turn is over: its cache stays, as the one used last, and is saved; see `save`."""
        key = _Key(owner, session_id)
        self._pinned.discard(key)
        if key in self._caches:
            self._put_last(key, self._caches[key])
            self.save(owner, session_id, cuts)

    def save(self, owner: str, session_id: str, cuts: Sequence[int] = ()) -> None:
        """Have what the session's cache holds written to disk in the background; stored runs end at `cuts`."""
        cache = self._caches.get(_Key(owner, session_id))
        if self._persistence is not None and cache is not None:
            self._persistence.save(owner, session_id, cache, cuts)

    def prefetch(self, owner: str, session_id: str, wanted_ids: Sequence[int]) -> int:
        """Restore what is stored of `wanted_ids` before a turn needs it; how many tokens are held then."""
        key = _Key(owner, session_id)
        if key not in self._caches and key not in self._pinned and wanted_ids:
            self.acquire(owner, session_id, (*wanted_ids, wanted_ids[-1]))  # one more, for the message to come
            self._pinned.discard(key)
        cache = self._caches.get(key)
        return 0 if cache is None else cache.num_tokens

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
