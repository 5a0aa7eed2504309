"""`SessionPool`: the live caches of all sessions, one for each, in order of last use, within one memory budget.

It knows which cache belongs to which owner's session, whose tokens begin alike, when to ask the disk (`persistence`),
and which caches leave memory when room is needed. It does not know models or text. Not thread-safe: used on the model
thread only.

Room is reserved before it is allocated, for turns, copies and restores alike; what is reserved is never less than what
a cache takes.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, auto

from chatcache.cache.errors import CacheStateError
from chatcache.cache.session_cache import Alignment, SessionCache
from chatcache.cache.token_buffer import BLOCK_TOKENS
from chatcache.cache_form import CacheForm
from chatcache.memory.budget import Budget, IdleCache, Need, choose_spills
from chatcache.memory.room import Room
from chatcache.persistence import Persistence
from chatcache.prefix import common_length
from chatcache.restore import Restore
from chatcache.stats import MissReason, Reuse

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Spilled:
    """How many idle caches left memory, and how many of them are not on disk to their end: what is not is computed
    again when their chats go on."""

    num_sessions: int = 0
    num_unsaved_sessions: int = 0

    def __add__(self, other: Spilled) -> Spilled:
        return Spilled(self.num_sessions + other.num_sessions, self.num_unsaved_sessions + other.num_unsaved_sessions)


@dataclass(frozen=True, slots=True)
class Acquired:
    """A session's cache, aligned to the ids a turn wants, and where its tokens came from.

    `restore`: more is perhaps on disk; when it has ended, `restored` says what came of it. `restore_s`: how long
    reading from disk took; None where nothing came from there. `problem`: what was wrong with it, as a sentence.
    `spilled`: what had to leave. `is_converted`: what it holds was taken over from another kind.
    """

    cache: SessionCache
    alignment: Alignment
    reuse: tuple[Reuse, ...]
    restore_s: float | None = None
    spilled: Spilled = Spilled()
    restore: Restore | None = None
    problem: str | None = None
    is_converted: bool = False


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


@dataclass(frozen=True, slots=True)
class _Prefetched:
    """Tokens `[start, end)` of a live cache came from disk before any turn asked for them."""

    start: int
    end: int
    seconds: float


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
        self._room = room or Room()
        self._caches: dict[_Key, SessionCache] = {}  # least recently used first
        self._forms: dict[_Key, CacheForm] = {}  # what each of them was last asked to be
        self._pinned: set[_Key] = set()
        self._dropped: set[_Key] = set()  # while pinned
        self._prefetches: dict[_Key, Restore] = {}  # under way
        self._prefetched: dict[_Key, _Prefetched] = {}  # until the next turn, which says so

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
        key = _Key(owner, session_id)
        if key in self._pinned:
            raise RuntimeError("This session's cache is in use by a turn.")
        self._end_prefetch(key)
        if self._persistence is not None:
            self._persistence.hold(owner, session_id)
        try:
            acquired = self._prepare(key, wanted_ids, form or self._form, num_expected_tokens)
        except BaseException:
            if self._persistence is not None:
                self._persistence.let_go(owner, session_id)
            raise
        self._pinned.add(key)
        return acquired

    def restore_rest(self, owner: str, session_id: str, acquired: Acquired, wanted_ids: Sequence[int]) -> Acquired:
        """Begin once more to restore what `acquired` still lacks."""
        if self._persistence is None:
            return acquired
        key = _Key(owner, session_id)
        restore, spilled = self._restore(self._persistence, key, acquired.cache, wanted_ids[:-1], is_miss=False)
        return dataclasses.replace(acquired, restore=restore, spilled=spilled)

    def restored(self, owner: str, session_id: str, acquired: Acquired) -> Acquired:
        """What was acquired, with what its restore has added; ends the restore where it has not ended."""
        restore = acquired.restore
        if restore is None:
            return acquired
        restore.end()
        self._settle(_Key(owner, session_id))
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
        key = _Key(owner, session_id)
        self._pinned.discard(key)
        if key in self._dropped:
            self.drop(owner, session_id)
        elif key in self._caches:
            self._put_last(key, self._caches[key])
            self._settle(key)
            self.save(owner, session_id, cuts)
        if self._persistence is not None:
            self._persistence.let_go(owner, session_id)

    def save(self, owner: str, session_id: str, cuts: Sequence[int] = ()) -> bool:
        """Have what the session's cache holds written to disk in the background; stored runs end at `cuts`.

        While a turn uses it, only what has its lasting form. False where not all of it will be on disk.
        """
        key = _Key(owner, session_id)
        cache = self._caches.get(key)
        if self._persistence is None or cache is None or not self._is_worth_saving(key):
            return False
        num_tokens = cache.num_settled_tokens if key in self._pinned else cache.num_tokens
        return self._persistence.save(owner, session_id, cache, cuts, num_tokens)

    def save_all(self) -> None:
        """Save what could not be saved before, waiting for the disk: the process is about to end."""
        for key in self._caches:
            if self._persistence is not None and self._persistence.is_behind(key.owner, key.session_id):
                self._save_at_last(key)

    def prefetch(self, owner: str, session_id: str, wanted_ids: Sequence[int], form: CacheForm | None = None) -> bool:
        """Begin to restore what is stored of `wanted_ids` before a turn needs it; whether `prefetch_more` has to go on.

        Does nothing where the session has a live cache.
        """
        key = _Key(owner, session_id)
        if key in self._caches or not wanted_ids:
            return False
        # One more, for the message to come.
        acquired = self._prepare(key, (*wanted_ids, wanted_ids[-1]), form or self._form)
        if acquired.restore is None:
            self._settle(key)
            return False
        self._prefetches[key] = acquired.restore
        return True

    def prefetch_more(self, owner: str, session_id: str) -> bool:
        """Take in a little more; whether there is more. A turn that begins meanwhile ends it, and restores the rest."""
        key = _Key(owner, session_id)
        restore = self._prefetches.get(key)
        if restore is None or not restore.step():
            return restore is not None
        self._end_prefetch(key)
        return False

    def drop(self, owner: str, session_id: str) -> None:
        """Let a session's cache go; also when there is none. A turn that uses it keeps it to its end."""
        key = _Key(owner, session_id)
        if key in self._pinned:
            self._dropped.add(key)
            return
        self._end_prefetch(key)
        self._prefetched.pop(key, None)
        self._dropped.discard(key)
        self._caches.pop(key, None)
        self._forms.pop(key, None)
        self.budget.release(key)

    def report(self) -> tuple[LiveCache, ...]:
        """Every cache that holds tokens, the least recently used first."""
        return tuple(
            LiveCache(key.owner, key.session_id, cache.kind, cache.num_tokens, cache.num_bytes, key in self._pinned)
            for key, cache in self._caches.items()
            if cache.num_tokens
        )

    # ----------------------------------------------------------------- memory

    @property
    def budget(self) -> Budget:
        return self._room.budget

    def reserve(self, owner: str, session_id: str, num_tokens: int) -> bool:
        """Whether the session's cache may grow to `num_tokens` tokens; the room is reserved then."""
        key = _Key(owner, session_id)
        return self._room.reserve(key, self._need(key, num_tokens))

    def can_spill(self, owner: str, session_id: str, num_tokens: int | None) -> bool:
        """Whether idle caches can make the room; see `spill`."""
        return bool(self._spillable(_Key(owner, session_id), num_tokens))

    def spill(self, owner: str, session_id: str, num_tokens: int | None) -> Spilled:
        """Move idle caches to disk, the least recently used first, until the session's cache may grow to `num_tokens`
        tokens; None: all of them. Where that would not do, they stay."""
        return self._spill(self._spillable(_Key(owner, session_id), num_tokens))

    def fits_in_pieces(self, owner: str, session_id: str, num_tokens: int, piece_tokens: int) -> bool:
        """Whether the session's cache could grow to `num_tokens` tokens if each forward fed `piece_tokens` only."""
        key = _Key(owner, session_id)
        need = self._room.need(self._caches[key], num_tokens, piece_tokens=piece_tokens)
        return self._room.can_fit(key, need, self._idle(key))

    def smaller_kinds(self, owner: str, session_id: str, num_tokens: int) -> tuple[str, ...]:
        """The smaller kinds in which the session's cache may and could grow to `num_tokens` tokens, the best first."""
        key = _Key(owner, session_id)
        return self._room.smaller_kinds(key, self._caches[key], self._forms[key], num_tokens, self._idle(key))

    def convert(self, owner: str, session_id: str, kind: str) -> bool:
        """Let a running turn's cache take a smaller form; what it holds in its present one is saved first.

        False where memory ran out on the way: the cache is sound, and may be asked to take another form.
        """
        key = _Key(owner, session_id)
        self._save_at_last(key)
        is_converted = self._room.convert(self._caches[key], kind)
        self._settle(key)
        return is_converted

    def settle(self, owner: str, session_id: str) -> None:
        """Give back what the session's cache has reserved and does not take."""
        self._settle(_Key(owner, session_id))

    def _need(self, key: _Key, num_tokens: int) -> Need:
        return self._room.need(self._caches[key], num_tokens)

    def _spillable(self, key: _Key, num_tokens: int | None) -> Sequence[_Key]:
        if num_tokens is None:
            return [one.key for one in self._idle(key) if one.need.num_bytes]
        return choose_spills(self.budget, key, self._need(key, num_tokens), self._idle(key))

    def _idle(self, *kept: _Key) -> list[IdleCache[_Key]]:
        in_use = {*self._pinned, *self._prefetches, *kept}
        keys = (key for key in self._caches if key not in in_use)
        return [IdleCache(key, self.budget.held(key)) for key in keys]

    def _spill(self, keys: Sequence[_Key]) -> Spilled:
        num_unsaved = 0
        for key in keys:
            if not self._save_at_last(key):
                num_unsaved += 1
            # Emptied, not only forgotten: a finished turn may still know the value.
            self._caches.pop(key).crop_to(0)
            self._forms.pop(key, None)
            self._prefetched.pop(key, None)
            self.budget.release(key)
        if keys:
            logger.info("Memory: %d idle caches left memory, %d of them not saved to the end", len(keys), num_unsaved)
        return Spilled(len(keys), num_unsaved)

    def _save_at_last(self, key: _Key) -> bool:
        """Like `save`, but a piece at a time where there is no memory to copy all, and where the disk is behind it is
        waited for; as long as it makes progress."""
        if self._persistence is None or self.save(key.owner, key.session_id):
            return self._persistence is not None
        cache, num_saved = self._caches[key], -1
        num_tokens = cache.num_settled_tokens if key in self._pinned else cache.num_tokens
        if not self._is_worth_saving(key):
            return self._num_saved(key, cache) >= num_tokens
        while (reached := self._num_saved(key, cache)) > num_saved:
            if reached >= num_tokens:
                return True
            self._persistence.flush()
            num_saved, stop = reached, min(reached + BLOCK_TOKENS, num_tokens)
            self._persistence.save(key.owner, key.session_id, cache, (), stop)
        return False

    def _num_saved(self, key: _Key, cache: SessionCache) -> int:
        if self._persistence is None:
            return 0
        return self._persistence.num_saved(key.owner, key.session_id, cache.token_ids, self._forms[key].kind)

    def _is_worth_saving(self, key: _Key) -> bool:
        """Nothing of a temporary chat is; and a form that was taken for want of memory is not the one in which the chat
        will go on."""
        form = self._forms[key]
        return form.is_saved and self._caches[key].kind == form.kind

    def _reserve_or_spill(self, key: _Key, need: Need, *kept: _Key) -> tuple[bool, Spilled]:
        spilled = self._spill(choose_spills(self.budget, key, need, self._idle(key, *kept)))
        return self.budget.reserve(key, need), spilled

    def _settle(self, key: _Key, num_tokens: int = 0) -> None:
        """Give back the room that neither the tokens held nor `num_tokens` tokens need."""
        cache = self._caches.get(key)
        if cache is None:
            self.budget.release(key)
        else:
            self._room.settle(key, cache, num_tokens)

    # ------------------------------------------------------------ where tokens come from

    def _prepare(self, key: _Key, wanted_ids: Sequence[int], form: CacheForm, num_expected_tokens: int = 0) -> Acquired:
        """See `acquire`; pins nothing."""
        num_tokens = max(num_expected_tokens, len(wanted_ids))
        change = self._change_of_form(key, form, num_tokens)
        is_converted = change is _FormChange.CONVERT and self._take_over(key, form)
        if change is not None and not is_converted:
            self.drop(key.owner, key.session_id)
        self._forms[key] = form
        own = self._caches.get(key)
        copied, spilled = self._copied_prefix(key, wanted_ids)
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
            alignment = dataclasses.replace(alignment, reason=_FORM_REASONS[change])
        self._put_last(key, cache)
        self._settle(key, num_tokens=len(wanted_ids))
        reuse, restore_s = self._live_reuse(key, alignment.num_cached_tokens, is_copy=copied is not None)
        acquired = Acquired(cache, alignment, reuse, restore_s, spilled, is_converted=is_converted)
        if self._persistence is None or alignment.num_cached_tokens == len(wanted_ids) - 1:
            return acquired
        # Also where the cache held nothing else: its own end may be missing, or other chats have stored more.
        restore, spilled_too = self._restore(
            self._persistence, key, cache, wanted_ids[:-1], is_miss=alignment.reason is not None
        )
        return dataclasses.replace(acquired, restore=restore, spilled=spilled + spilled_too)

    def _change_of_form(self, key: _Key, form: CacheForm, num_tokens: int) -> _FormChange | None:
        """What brings the session's live cache into `form`; None where it has it, has none, or has a smaller one that
        it must keep, because there is no room for `num_tokens` tokens in its own."""
        cache = self._caches.get(key)
        if cache is None or (cache.kind == form.kind and not cache.is_mixed):
            return None
        is_asked_for = self._forms[key].kind != form.kind
        if form.smaller_kinds and (cache.is_mixed or cache.kind in form.smaller_kinds):
            need = self._room.need(self._make_cache(form.kind), num_tokens)
            if not self._room.can_fit(key, need, self._idle(key)):
                return None
        elif (
            not cache.is_mixed
            and self._room.can_convert(cache, form.kind)
            and self.budget.fits(key, self._room.need(cache, cache.num_tokens, form.kind))
        ):
            return _FormChange.CONVERT
        return _FormChange.REPLACE if is_asked_for else _FormChange.GROW

    def _take_over(self, key: _Key, form: CacheForm) -> bool:
        """Convert the session's cache; what it holds in its old kind is saved first. False where memory ran out."""
        self._save_at_last(key)
        if not self._room.convert(self._caches[key], form.kind):
            return False
        self._settle(key)
        return True

    def _live_reuse(self, key: _Key, num_tokens: int, *, is_copy: bool) -> tuple[tuple[Reuse, ...], float | None]:
        """Where the first `num_tokens` tokens of the cache came from, and how long the disk took for its part."""
        prefetched = self._prefetched.pop(key, None)
        if is_copy or prefetched is None or num_tokens <= prefetched.start:
            return _joined([Reuse("prefix" if is_copy else "live", num_tokens)]), None
        num_from_disk = min(num_tokens, prefetched.end) - prefetched.start
        live = Reuse("live", num_tokens - num_from_disk)
        return _joined([live, Reuse("disk", num_from_disk)]), prefetched.seconds

    def _restore(
        self, persistence: Persistence, key: _Key, cache: SessionCache, ids: Sequence[int], *, is_miss: bool
    ) -> tuple[Restore | None, Spilled]:
        """Begin to append what is stored of `ids` to the cache, as far as there is room."""
        num_tokens = len(ids)
        has_room, spilled = self._reserve_or_spill(key, self._room.need(cache, num_tokens, piece_tokens=1))
        while not has_room and num_tokens > cache.num_tokens:
            num_tokens = (num_tokens - 1) // BLOCK_TOKENS * BLOCK_TOKENS
            has_room, more = self._reserve_or_spill(key, self._room.need(cache, num_tokens, piece_tokens=1))
            spilled += more
        if num_tokens <= cache.num_tokens:
            return None, spilled
        return persistence.restore(key.owner, key.session_id, cache, ids[:num_tokens], is_miss=is_miss), spilled

    def _end_prefetch(self, key: _Key) -> None:
        """The tokens a prefetch has brought stay, and the next turn is told of them."""
        restore = self._prefetches.pop(key, None)
        if restore is not None:
            restore.end()
            self._settle(key)
            end = restore.cache.num_tokens
            if restore.num_tokens:
                self._prefetched[key] = _Prefetched(end - restore.num_tokens, end, restore.seconds)

    def _copied_prefix(self, key: _Key, wanted_ids: Sequence[int]) -> tuple[SessionCache | None, Spilled]:
        """A copy of the longest beginning of `wanted_ids` that the owner's other caches hold; None if `key`'s own
        holds as much, or if there is no room for a copy."""
        useful_ids = wanted_ids[:-1]  # the last one is always forwarded
        held = {
            other: common_length(cache.token_ids, useful_ids)
            for other, cache in self._caches.items()
            if other.owner == key.owner
            and other not in self._dropped
            and cache.kind == self._forms[key].kind
            and cache.is_pure
        }
        held.pop(key, None)
        num_own = common_length(self._caches[key].token_ids, useful_ids) if key in self._caches else 0
        if max(held.values(), default=0) <= num_own:
            return None, Spilled()
        donor = max(held, key=lambda other: held[other])
        copy, own = self._need(donor, held[donor]), self.budget.held(key)
        # For a moment there are both, the copy and what it replaces.
        both = Need(copy.num_bytes + own.num_bytes, max(copy.largest_layer_bytes, own.largest_layer_bytes))
        has_room, spilled = self._reserve_or_spill(key, both, donor)
        try:
            copied = self._caches[donor].fork(held[donor]) if has_room else None
        except Exception:
            logger.exception("A cache could not be copied; its tokens are computed again")
            copied = None
        if copied is None or copied.num_tokens <= num_own:
            copied = None
            self._settle(key)
        return copied, spilled

    def _put_last(self, key: _Key, cache: SessionCache) -> None:
        self._caches.pop(key, None)
        self._caches[key] = cache


class _FormChange(Enum):
    """How a live cache is brought into the form it is to have."""

    CONVERT = auto()
    REPLACE = auto()
    """Another kind was asked for: a new cache."""
    GROW = auto()
    """It had become smaller for want of memory, and there is room again: a new cache."""


_FORM_REASONS = {
    _FormChange.CONVERT: MissReason.CACHE_KIND,  # where it failed
    _FormChange.REPLACE: MissReason.CACHE_KIND,
    _FormChange.GROW: MissReason.SMALLER_FORM,
}


def _joined(reuse: Sequence[Reuse]) -> tuple[Reuse, ...]:
    """One entry for each source, without those that gave nothing."""
    sources = dict.fromkeys(one.source for one in reuse)
    totals = (Reuse(source, sum(one.num_tokens for one in reuse if one.source == source)) for source in sources)
    return tuple(total for total in totals if total.num_tokens)
