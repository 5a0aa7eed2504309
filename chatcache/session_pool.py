"""`SessionPool`: where a turn's cache comes from: the session's own, a copy of another one's beginning, the disk.

It knows whose tokens begin alike, which form a session's cache is to have, and when to ask the disk (`persistence`).
What caches take together, and which leave memory, is `live_caches`'. It does not know models or text. Not thread-safe:
used on the model thread only.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from chatcache.cache.errors import CacheStateError
from chatcache.cache.session_cache import Alignment, SessionCache
from chatcache.cache.token_buffer import BLOCK_TOKENS
from chatcache.cache_form import CacheForm
from chatcache.form_change import FormChange, change_of_form
from chatcache.live_caches import LiveCache, LiveCaches, Spilled
from chatcache.memory.budget import Budget
from chatcache.memory.out_of_memory import return_to_system
from chatcache.memory.room import Room
from chatcache.persistence import Persistence
from chatcache.prefetches import Prefetch, Prefetches
from chatcache.prefix import common_length
from chatcache.restore import Restore
from chatcache.session_key import SessionKey
from chatcache.stats import MissReason, Reuse

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Acquired:
    """A session's cache, aligned to the ids a turn wants, and where its tokens came from.

    `restore`: more is perhaps on disk; when it has ended, `restored` says what came of it. `restore_s`: how long
    reading from disk took; None where nothing came from there. `problem`: what was wrong with it, as a sentence.
    `spilled`: what had to leave. `is_converted`: what it holds was taken over from another kind. `is_shortened`: there
    would have been no room for all of it, so layers with a window keep less from now on.
    """

    cache: SessionCache
    alignment: Alignment
    reuse: tuple[Reuse, ...]
    restore_s: float | None = None
    spilled: Spilled = field(default_factory=Spilled)
    restore: Restore | None = None
    problem: str | None = None
    is_converted: bool = False
    is_shortened: bool = False


class SessionPool:
    """Live caches by owner and session. A cache is never read for another owner, not even to compare its tokens."""

    def __init__(
        self,
        make_cache: Callable[[str], SessionCache],
        form: CacheForm,
        persistence: Persistence | None = None,
        room: Room | None = None,
    ) -> None:
        """`make_cache` makes an empty cache of a kind; `form` is what sessions have where nothing else is said. `room`
        keeps the caches within their budget; without it there is no limit."""
        self._make_cache = make_cache
        self._form = form
        self._persistence = persistence
        self.live = LiveCaches(persistence, room or Room())
        self._prefetches = Prefetches(self.live)

    def acquire(
        self,
        owner: str,
        session_id: str,
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
        key = SessionKey(owner, session_id)
        if key in self.live.turns:
            raise RuntimeError("This session's cache is in use by a turn.")
        self._prefetches.end(key)
        if self._persistence is not None:
            self._persistence.hold(owner, session_id)
        try:
            acquired = self._prepare(key, wanted_ids, form or self._form, num_expected_tokens)
        except BaseException:
            if self._persistence is not None:
                self._persistence.let_go(owner, session_id)
            raise
        self.live.turns.begin(key)
        return acquired

    def go_on(self, owner: str, session_id: str, acquired: Acquired, wanted_ids: Sequence[int]) -> Acquired:
        """The turn has waited for memory and goes on: what its cache lost meanwhile is restored, as by `acquire`."""
        key = SessionKey(owner, session_id)
        self.live.turns.go_on(key)
        self.live.put(key, acquired.cache)
        if acquired.cache.num_tokens >= len(wanted_ids) - 1:
            return acquired
        return self.restore_rest(owner, session_id, acquired, wanted_ids)

    def restore_rest(self, owner: str, session_id: str, acquired: Acquired, wanted_ids: Sequence[int]) -> Acquired:
        """Begin once more to restore what `acquired` still lacks."""
        if self._persistence is None:
            return acquired
        key = SessionKey(owner, session_id)
        restore, spilled = self._restore(self._persistence, key, acquired.cache, wanted_ids[:-1], is_miss=False)
        return dataclasses.replace(acquired, restore=restore, spilled=spilled)

    def restored(self, owner: str, session_id: str, acquired: Acquired) -> Acquired:
        """What was acquired, with what its restore has added; ends the restore where it has not ended."""
        restore = acquired.restore
        if restore is None:
            return acquired
        restore.end()
        self.live.settle(SessionKey(owner, session_id))
        if not restore.num_tokens:
            return dataclasses.replace(acquired, restore=None, problem=restore.problem)
        return dataclasses.replace(
            acquired,
            alignment=dataclasses.replace(acquired.alignment, num_cached_tokens=acquired.cache.num_tokens),
            reuse=_joined((*acquired.reuse, Reuse("disk", restore.num_tokens))),
            restore_s=(acquired.restore_s or 0.0) + restore.seconds,
            restore=None,
            problem=restore.problem,
        )

    def release(self, owner: str, session_id: str, cuts: Sequence[int] = ()) -> None:
        """The turn is over: its cache stays, as the one used last, and is saved; see `save`."""
        key = SessionKey(owner, session_id)
        self.live.turns.end(key)
        cache = self.live.caches.get(key)
        if cache is None or key in self.live.leaving:
            self.drop(owner, session_id)
        else:
            self.live.put(key, cache)
            self.live.settle(key)
            self.live.save(key, cuts)
        if self._persistence is not None:
            self._persistence.let_go(owner, session_id)

    def prefetch(
        self, owner: str, session_id: str, wanted_ids: Sequence[int], form: CacheForm | None = None
    ) -> Prefetch:
        """Begin to restore what is stored of `wanted_ids` before a turn needs it.

        Does nothing where the session has a live cache. It takes what room there is without waiting: turns go on.
        """
        key = SessionKey(owner, session_id)
        if key in self.live.caches or key in self.live.turns or not wanted_ids:
            return Prefetch.ENDED
        # One more, for the message to come.
        acquired = self._prepare(key, (*wanted_ids, wanted_ids[-1]), form or self._form, may_wait=False)
        if acquired.restore is None:
            self.live.settle(key)
            if acquired.cache.num_tokens:
                return Prefetch.ENDED
            self.drop(owner, session_id)
            return Prefetch.LACKS_ROOM
        self._prefetches.begin(key, acquired.restore)
        return Prefetch.UNDER_WAY

    def prefetch_more(self, owner: str, session_id: str) -> bool:
        """Take in a little more; whether there is more. A turn that begins meanwhile ends it, and restores the rest; so
        does one of another session that needs the memory."""
        return self._prefetches.step(SessionKey(owner, session_id))

    def drop(self, owner: str, session_id: str) -> None:
        """Let a session's cache go; also when there is none. A turn that uses it keeps it to its end."""
        key = SessionKey(owner, session_id)
        if key in self.live.turns:
            self.live.leaving.add(key)
            return
        self._prefetches.end(key)
        self._prefetches.take(key)
        self.live.leaving.discard(key)
        is_there = key in self.live.caches
        self.live.remove(key)
        if is_there:
            return_to_system()

    def drop_all(self, owner: str) -> int:
        """`drop` for all of the owner's; how many of them turns are using."""
        keys = [key for key in {*self.live.caches, *self.live.turns} if key.owner == owner]
        for key in keys:
            self.drop(key.owner, key.session_id)
        return sum(key in self.live.leaving for key in keys)

    @property
    def budget(self) -> Budget:
        """What all caches take together, and may take."""
        return self.live.budget

    def report(self) -> tuple[LiveCache, ...]:
        """Every cache that holds tokens, the least recently used first."""
        return self.live.report()

    # ------------------------------------------------------------ where tokens come from

    def _prepare(
        self,
        key: SessionKey,
        wanted_ids: Sequence[int],
        form: CacheForm,
        num_expected_tokens: int = 0,
        *,
        may_wait: bool = True,
    ) -> Acquired:
        """See `acquire`; pins nothing. `may_wait`: for room, until what is in the way is written."""
        num_tokens = max(num_expected_tokens, len(wanted_ids))
        change = self._change_of_form(key, form, num_tokens)
        is_converted = change is FormChange.CONVERT and self.live.convert(key, form.kind)
        if change is not None and not is_converted:
            self.drop(key.owner, key.session_id)
        self.live.forms[key] = form
        own = self.live.caches.get(key)
        copied, spilled = self._copied_prefix(key, wanted_ids, may_wait=may_wait)
        cache = copied or own or self._make_cache(form.kind)
        try:
            alignment = cache.align(wanted_ids)
        except CacheStateError:
            logger.exception("A cache was damaged; its tokens are computed again")
            cache, copied = self._make_cache(form.kind), None
            alignment = cache.align(wanted_ids)
        if copied is not None and alignment.num_cached_tokens < len(wanted_ids) - 1:
            # The copy held what it could; what is missing was missing in the session's own cache, or there was none.
            reason = MissReason.NO_CACHE if own is None else MissReason.HISTORY
            alignment = dataclasses.replace(alignment, mismatch_index=alignment.num_cached_tokens, reason=reason)
        if change is not None and alignment.reason is MissReason.NO_CACHE:
            alignment = dataclasses.replace(alignment, reason=change.reason)
        self.live.put(key, cache)
        self.live.settle(key, num_tokens=len(wanted_ids))
        reuse, restore_s = self._live_reuse(key, alignment.num_cached_tokens, is_copy=copied is not None)
        acquired = Acquired(cache, alignment, reuse, restore_s, spilled, is_converted=is_converted)
        if self._persistence is None or alignment.num_cached_tokens == len(wanted_ids) - 1:
            return acquired
        was_shortened = cache.is_shortened
        # Also where the cache held nothing else: its own end may be missing, or other chats have stored more.
        restore, spilled_too = self._restore(
            self._persistence,
            key,
            cache,
            wanted_ids[:-1],
            is_miss=alignment.reason is not None,
            may_wait=may_wait,
        )
        is_shortened = cache.is_shortened and not was_shortened
        return dataclasses.replace(acquired, restore=restore, spilled=spilled + spilled_too, is_shortened=is_shortened)

    def _change_of_form(self, key: SessionKey, form: CacheForm, num_tokens: int) -> FormChange | None:
        """What brings the session's live cache into `form`; see `change_of_form`."""
        cache, live = self.live.caches.get(key), self.live
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

    def _live_reuse(self, key: SessionKey, num_tokens: int, *, is_copy: bool) -> tuple[tuple[Reuse, ...], float | None]:
        """Where the first `num_tokens` tokens of the cache came from, and how long the disk took for its part."""
        prefetched = self._prefetches.take(key)
        if is_copy or prefetched is None or num_tokens <= prefetched.start:
            return _joined([Reuse("prefix" if is_copy else "live", num_tokens)]), None
        num_from_disk = min(num_tokens, prefetched.end) - prefetched.start
        live = Reuse("live", num_tokens - num_from_disk)
        return _joined([live, Reuse("disk", num_from_disk)]), prefetched.seconds

    def _restore(
        self,
        persistence: Persistence,
        key: SessionKey,
        cache: SessionCache,
        ids: Sequence[int],
        *,
        is_miss: bool,
        may_wait: bool = True,
    ) -> tuple[Restore | None, Spilled]:
        """Begin to append what is stored of `ids` to the cache, as far as there is room."""
        spilled = Spilled()

        def has_room_for(num_tokens: int) -> bool:
            nonlocal spilled
            need = self.live.room.need(cache, num_tokens, piece_tokens=1)
            has_room, more = self.live.reserve_or_spill(key, need, may_wait=may_wait)
            spilled += more
            return has_room

        num_tokens = len(ids)
        has_room = has_room_for(num_tokens)
        if not has_room and cache.can_be_shortened:
            self.live.shorten(key)
            has_room = has_room_for(num_tokens)
        while not has_room and num_tokens > cache.num_tokens:
            num_tokens = (num_tokens - 1) // BLOCK_TOKENS * BLOCK_TOKENS
            has_room = has_room_for(num_tokens)
        if num_tokens <= cache.num_tokens:
            return None, spilled
        return persistence.restore(key.owner, key.session_id, cache, ids[:num_tokens], is_miss=is_miss), spilled

    def _copied_prefix(
        self, key: SessionKey, wanted_ids: Sequence[int], *, may_wait: bool
    ) -> tuple[SessionCache | None, Spilled]:
        """A copy of the longest beginning of `wanted_ids` that the owner's other caches hold; None if `key`'s own
        holds as much, or if there is no room for a copy."""
        useful_ids = wanted_ids[:-1]  # the last one is always forwarded
        held = {
            other: common_length(cache.token_ids, useful_ids)
            for other, cache in self.live.caches.items()
            if other.owner == key.owner
            and other not in self.live.leaving
            and cache.kind == self.live.forms[key].kind
            and cache.is_pure
            and not cache.num_forgotten_tokens
        }
        held.pop(key, None)
        num_own = common_length(self.live.caches[key].token_ids, useful_ids) if key in self.live.caches else 0
        if max(held.values(), default=0) <= num_own:
            return None, Spilled()
        donor = max(held, key=lambda other: held[other])
        # For a moment there are both, the copy and what it replaces.
        both = self.live.room.need(self.live.caches[donor], held[donor]).beside(self.live.budget.held(key))
        has_room, spilled = self.live.reserve_or_spill(key, both, donor, may_wait=may_wait)
        try:
            copied = self.live.caches[donor].fork(held[donor]) if has_room else None
        except Exception:
            logger.exception("A cache could not be copied; its tokens are computed again")
            copied = None
        if copied is None or copied.num_tokens <= num_own:
            copied = None
            self.live.settle(key)
        return copied, spilled


def _joined(reuse: Sequence[Reuse]) -> tuple[Reuse, ...]:
    """One entry for each source, without those that gave nothing."""
    sources = dict.fromkeys(one.source for one in reuse)
    totals = (Reuse(source, sum(one.num_tokens for one in reuse if one.source == source)) for source in sources)
    return tuple(total for total in totals if total.num_tokens)
