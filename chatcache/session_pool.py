"""`SessionPool`: the live caches of all sessions: given to one turn at a time, filled ahead of one, dropped.

It knows which sessions' turns run. Where a cache's tokens come from is `cache_sources`', what caches take together and
which leave memory is `live_caches`'. It does not know models or text. Not thread-safe: used on the model thread only.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from chatcache.acquired import Acquired
from chatcache.cache.alignment import Alignment
from chatcache.cache.session_cache import SessionCache
from chatcache.cache_form import CacheForm
from chatcache.cache_sources import CacheSources
from chatcache.live_caches import LiveCache, LiveCaches, Spilled
from chatcache.memory.budget import Budget
from chatcache.memory.room import Room
from chatcache.persistence import Persistence
from chatcache.prefetches import IsWanted, Prefetched, Prefetches
from chatcache.prefix import common_length
from chatcache.session_key import SessionKey


class SessionPool:
    """Live caches by owner and session."""

    def __init__(
        self,
        make_cache: Callable[[str], SessionCache],
        form: CacheForm,
        persistence: Persistence | None = None,
        room: Room | None = None,
    ) -> None:
        """`make_cache` makes an empty cache of a kind; `form` is what sessions have where nothing else is said. `room`
        keeps the caches within their budget; without it there is no limit."""
        self.live = LiveCaches(persistence, room or Room())
        self._form = form
        self._persistence = persistence
        self._prefetches = Prefetches(self.live)
        self._sources = CacheSources(make_cache, self.live, self._prefetches, persistence)

    def acquire(
        self,
        key: SessionKey,
        wanted_ids: Sequence[int],
        num_expected_tokens: int = 0,
        form: CacheForm | None = None,
    ) -> Acquired:
        """The session's cache, in `form` and aligned to `wanted_ids`, pinned until `release`.

        Where another session of the same owner holds a longer beginning of `wanted_ids`, the cache is a copy of that;
        what is still missing comes from disk where it is stored and there is room for it: the caller steps `restore`
        to its end, then asks `restored`. A live cache of another kind is converted, or made anew where the kinds do not
        allow that. Where the cache had to take a smaller form and there is room again for `num_expected_tokens` tokens
        in its own, it is made anew. Raises RuntimeError while the cache is pinned.
        """
        if key in self.live.turns:
            raise RuntimeError("This session's cache is in use by a turn.")
        self._prefetches.end(key)
        self.live.ahead.discard(key)
        if self._persistence is not None:
            self._persistence.hold(key)
        try:
            acquired = self._sources.prepare(key, wanted_ids, form or self._form, num_expected_tokens)
        except BaseException:
            if self._persistence is not None:
                self._persistence.let_go(key)
            raise
        self.live.turns.begin(key)
        if acquired.restore is not None:
            self.live.turns.restore(key)
        return acquired

    def go_on(self, key: SessionKey, acquired: Acquired, wanted_ids: Sequence[int]) -> Acquired:
        """The turn has waited for memory and goes on: what its cache lost meanwhile is restored, as by `acquire`."""
        self.live.turns.go_on(key)
        self.live.put(key, acquired.cache)
        return self.restore_rest(key, acquired, wanted_ids)

    def restore_rest(self, key: SessionKey, acquired: Acquired, wanted_ids: Sequence[int]) -> Acquired:
        """Begin once more to restore what `acquired` still lacks; `spilled` is what had to leave for that."""
        lacking = dataclasses.replace(acquired, spilled=Spilled())
        more = self._sources.with_rest(key, lacking, wanted_ids, is_miss=False)
        if more.restore is not None:
            self.live.turns.restore(key)
        return more

    def restored(self, key: SessionKey, acquired: Acquired) -> Acquired:
        """What was acquired, with what its restore has added; ends the restore where it has not ended."""
        if acquired.restore is not None:
            acquired.restore.end()
            self.live.settle(key)
            self.live.turns.go_on(key)
        return acquired.restored()

    def release(self, key: SessionKey, cuts: Sequence[int] = ()) -> None:
        """The turn is over: its cache stays, as the one used last, and is saved; see `save`."""
        self.live.turns.end(key)
        cache = self.live.caches.get(key)
        if cache is None or key in self.live.leaving:
            self.drop(key)
        else:
            self.live.put(key, cache)
            self.live.settle(key)
            self.live.save(key, cuts)
        if self._persistence is not None:
            self._persistence.let_go(key)

    def prefetch(
        self, key: SessionKey, wanted_ids: Sequence[int], is_wanted: IsWanted, form: CacheForm | None = None
    ) -> bool:
        """Begin to restore what is stored of `wanted_ids` before a turn needs it, or join who does; whether there is
        more to come, by `prefetch_more`.

        Does nothing where the session has a live cache that is no beginning of that. It waits for no room, and takes
        none from a cache that a turn has used.
        """
        form = form or self._form
        if self._prefetches.join(key, is_wanted):
            return True
        if key in self.live.turns or not wanted_ids:
            return False
        ids = (*wanted_ids, wanted_ids[-1])  # one more, for the message to come
        own = self.live.caches.get(key)
        if own is None:
            acquired = self._sources.prepare(key, ids, form, is_ahead=True)
            self.live.ahead.add(key)
        elif self._lacks_only_the_end(key, own, wanted_ids, form):
            held = Acquired(own, Alignment(own.num_tokens), ())
            acquired = self._sources.with_rest(key, held, ids, is_miss=False, is_ahead=True)
        else:
            return False
        if acquired.restore is not None:
            self._prefetches.begin(key, acquired.restore, is_wanted)
            return True
        self.live.settle(key)
        if not acquired.cache.num_tokens:
            self.drop(key)
        return False

    def prefetch_more(self, key: SessionKey) -> bool:
        """Take in a little more; whether there is more. It ends when nobody wants it any more, when a turn begins,
        which takes over, and when one of another session needs the memory."""
        return self._prefetches.step(key)

    def prefetched(self, key: SessionKey) -> Prefetched | None:
        """What prefetches have brought since the session's last turn."""
        return self._prefetches.brought(key)

    def _lacks_only_the_end(
        self, key: SessionKey, cache: SessionCache, wanted_ids: Sequence[int], form: CacheForm
    ) -> bool:
        """Whether a prefetch may go on with the session's live cache: as it is, without losing anything of it."""
        if (self.live.forms[key], cache.kind) != (form, form.kind) or not cache.is_pure:
            return False
        num_held = cache.num_tokens
        # The last token that was said was never fed.
        return num_held < len(wanted_ids) - 1 and common_length(cache.token_ids, wanted_ids) == num_held

    def drop(self, key: SessionKey) -> None:
        """Let a session's cache go; also when there is none. A turn that uses it keeps it to its end."""
        if key in self.live.turns:
            self.live.leaving.add(key)
        else:
            self._sources.forget(key)

    def drop_all(self, owner: str) -> int:
        """`drop` for all of the owner's; how many of them turns are using."""
        keys = [key for key in {*self.live.caches, *self.live.turns} if key.owner == owner]
        for key in keys:
            self.drop(key)
        return sum(key in self.live.leaving for key in keys)

    @property
    def budget(self) -> Budget:
        """What all caches take together, and may take."""
        return self.live.budget

    def report(self) -> tuple[LiveCache, ...]:
        """Every cache that holds tokens, the least recently used first."""
        return self.live.report()
