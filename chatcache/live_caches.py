"""`LiveCaches`: the caches in memory, the least recently used first, within one budget: reserved, spilled, saved.

It knows which cache a session has, the form it is to have, and which ones turns are using. It does not know where a
cache's tokens come from (`cache_sources`), nor models or text. Not thread-safe: used on the model thread only.

Room is reserved before it is allocated, for caches and for copies of them on their way to disk; what is reserved is
never less than what a cache takes.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

from chatcache.cache.session_cache import SessionCache
from chatcache.cache_form import CacheForm
from chatcache.cache_saving import CacheSaving, Saving
from chatcache.memory.budget import Budget, IdleCache, Need, choose_spills
from chatcache.memory.ladder import SMALLEST_CHUNK_TOKENS
from chatcache.memory.room import Room
from chatcache.out_of_memory import return_to_system
from chatcache.persistence import Persistence
from chatcache.restore import Restore
from chatcache.running_turns import RunningTurns
from chatcache.session_key import SessionKey

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Spilled:
    """How many idle caches left memory for the disk, and how many of them are not there to their end: what is not is
    computed again when their chats go on. `num_ahead_sessions`: how many more left that no turn had used. These are
    not written; what they held is where it came from."""

    num_sessions: int = 0
    num_unsaved_sessions: int = 0
    num_ahead_sessions: int = 0

    def __add__(self, other: Spilled) -> Spilled:
        return Spilled(
            self.num_sessions + other.num_sessions,
            self.num_unsaved_sessions + other.num_unsaved_sessions,
            self.num_ahead_sessions + other.num_ahead_sessions,
        )


@dataclass(frozen=True, slots=True)
class LiveCache:
    """What one session's cache takes. `is_pinned`: a turn is using it."""

    owner: str
    session_id: str
    kind: str
    num_tokens: int
    num_bytes: int
    is_pinned: bool


class LiveCaches:
    """`caches` by session, changed by `put` and `remove` only. `forms`: what each of them was last asked to be.
    `filling`: what restores those that no turn needs yet; they give way like idle ones. `ahead`: those that were
    filled before any turn needed them, and that none has used since. `leaving`: those that are to be forgotten, here
    and on disk, when the turns that use them end."""

    def __init__(self, persistence: Persistence | None, room: Room) -> None:
        """`room` keeps the caches within their budget."""
        self.caches: dict[SessionKey, SessionCache] = {}
        self.forms: dict[SessionKey, CacheForm] = {}
        self.filling: dict[SessionKey, Restore] = {}
        self.ahead: set[SessionKey] = set()
        self.leaving: set[SessionKey] = set()
        self.turns = RunningTurns()
        self.room = room
        self._saves = CacheSaving(persistence, room.budget)

    @property
    def budget(self) -> Budget:
        """Who holds how much, copies that are not written yet included."""
        self._saves.count_copies()
        return self.room.budget

    def put(self, key: SessionKey, cache: SessionCache) -> None:
        """It is the session's cache now, and the one used last."""
        self.caches.pop(key, None)
        self.caches[key] = cache

    def remove(self, key: SessionKey) -> None:
        """Forget the session's cache; also when there is none. What a turn's is to be is still known."""
        self.caches.pop(key, None)
        self.ahead.discard(key)
        if key not in self.turns:
            self.forms.pop(key, None)
        self.budget.release(key)

    def report(self) -> tuple[LiveCache, ...]:
        """Every cache that holds tokens, the least recently used first."""
        return tuple(
            LiveCache(key.owner, key.session_id, cache.kind, cache.num_tokens, cache.num_bytes, key in self.turns)
            for key, cache in self.caches.items()
            if cache.num_tokens
        )

    # ------------------------------------------------------------------- room

    def reserve(self, key: SessionKey, num_tokens: int) -> bool:
        """Whether the cache may grow to `num_tokens` tokens; the room is reserved then."""
        return self.reserve_need(key, self._need(key, num_tokens))

    def reserve_need(self, key: SessionKey, need: Need, *, may_wait: bool = True) -> bool:
        """Like `reserve`; copies that wait for the disk are waited for, where they are in the way and it `may_wait`."""
        if need.is_within(self.room.budget.held(key)):
            return True
        self._saves.count_copies()
        if self.room.reserve(key, need):
            return True
        return may_wait and self._saves.wait_for_copies() and self.room.reserve(key, need)

    def reserve_or_spill(
        self, key: SessionKey, need: Need, *kept: SessionKey, is_ahead: bool = False
    ) -> tuple[bool, Spilled]:
        """Reserve, moving idle caches but `kept` to disk where that makes the room. `is_ahead`: for what no turn needs
        yet. Then nothing is waited for nor written, and only those leave memory that are `ahead` as well."""
        if self.reserve_need(key, need, may_wait=not is_ahead):
            return True, Spilled()
        idle = [one for one in self.idle(key, *kept) if one.key in self.ahead or not is_ahead]
        spilled = self._spill(choose_spills(self.budget, key, need, idle))
        return self.reserve_need(key, need, may_wait=not is_ahead), spilled

    def settle(self, key: SessionKey, num_tokens: int = 0) -> None:
        """Give back the room that neither the tokens held nor `num_tokens` tokens need."""
        cache = self.caches.get(key)
        if cache is None:
            self.budget.release(key)
        else:
            self.room.settle(key, cache, num_tokens)

    def idle(self, *kept: SessionKey) -> list[IdleCache[SessionKey]]:
        """The caches that may leave memory, all but `kept`."""
        in_use, budget = {*self.turns.active, *kept}, self.budget
        return [IdleCache(key, budget.held(key)) for key in self.caches if key not in in_use]

    def can_spill(self, key: SessionKey, num_tokens: int | None) -> bool:
        """Whether idle caches can make the room; see `spill`."""
        return bool(self._spillable(key, num_tokens))

    def spill(self, key: SessionKey, num_tokens: int | None) -> Spilled:
        """Move idle caches to disk, the least recently used first, until the cache may grow to `num_tokens` tokens;
        None: all of them. Where that would not do, they stay."""
        return self._spill(self._spillable(key, num_tokens))

    def fits_in_pieces(self, key: SessionKey, num_tokens: int, piece_tokens: int) -> bool:
        """Whether the cache could grow to `num_tokens` tokens if each forward fed `piece_tokens` only."""
        need = self.room.need(self.caches[key], num_tokens, piece_tokens=piece_tokens)
        return self.room.can_fit(key, need, self.idle(key))

    def smaller_kinds(self, key: SessionKey, num_tokens: int) -> tuple[str, ...]:
        """The smaller kinds in which the cache may and could grow to `num_tokens` tokens, the best first."""
        return self.room.smaller_kinds(key, self.caches[key], self.forms[key], num_tokens, self.idle(key))

    def most_tokens(self, key: SessionKey, num_wanted: int) -> int:
        """How many tokens, fewer than `num_wanted` but no fewer than it holds, the cache may and could grow to, in its
        kind or a smaller one."""

        def lacks_room(num_tokens: int) -> bool:
            fits = self.fits_in_pieces(key, num_tokens, SMALLEST_CHUNK_TOKENS)
            return not fits and not self.smaller_kinds(key, num_tokens)

        num_held = self.caches[key].num_tokens
        return num_held + bisect_left(range(num_held + 1, num_wanted), True, key=lacks_room)

    def convert(self, key: SessionKey, kind: str) -> bool:
        """Let the cache take another form; what it holds in its present one is saved first.

        False where memory ran out on the way: the cache is sound, and may be asked to take another form.
        """
        self.save_at_last(key)
        is_converted = self.room.convert(self.caches[key], kind)
        self.settle(key)
        return is_converted

    def can_shorten(self, key: SessionKey, num_tokens: int) -> bool:
        """Whether the cache, grown to `num_tokens` tokens, takes less where sliding layers forget."""
        cache = self.caches[key]
        if not cache.can_be_shortened:
            return False
        short, whole = (self.room.need(cache, num_tokens, is_shortened=is_short) for is_short in (True, False))
        return short.num_bytes < whole.num_bytes

    def shorten(self, key: SessionKey) -> None:
        """Have the cache's sliding layers forget what lies far behind their window; it is saved first."""
        self.save_at_last(key)
        self.caches[key].shorten()
        self.settle(key)

    def can_wait(self, key: SessionKey, num_tokens: int | None) -> bool:
        """Whether the turn could go on with `num_tokens` tokens if the other running ones waited, or it for them; None:
        nobody knows what it needs."""
        others = [other for other in self.turns.active if other != key]
        if not others or num_tokens is None:
            return bool(others)
        idle = [*self.idle(key), *(IdleCache(other, self.budget.held(other)) for other in others)]
        need = self.room.need(self.caches[key], num_tokens, piece_tokens=SMALLEST_CHUNK_TOKENS)
        return self.room.can_fit(key, need, idle)

    def can_go_on(self, key: SessionKey, cache: SessionCache, num_tokens: int) -> bool:
        """Whether the turn, which waits, has room again for `num_tokens` tokens in `cache`, or is the first by now."""
        if self.turns.is_first(key):
            return True
        return self.turns.may_try(key) and self.room.can_fit(key, self.room.need(cache, num_tokens), self.idle(key))

    def _need(self, key: SessionKey, num_tokens: int) -> Need:
        return self.room.need(self.caches[key], num_tokens)

    def _spillable(self, key: SessionKey, num_tokens: int | None) -> Sequence[SessionKey]:
        if num_tokens is None:
            return [one.key for one in self.idle(key) if one.need != Need()]
        return choose_spills(self.budget, key, self._need(key, num_tokens), self.idle(key))

    def _spill(self, keys: Sequence[SessionKey]) -> Spilled:
        spilled = Spilled()
        for key in keys:
            if (restore := self.filling.pop(key, None)) is not None:
                restore.end()
            if key in self.ahead:
                spilled += Spilled(num_ahead_sessions=1)
            else:
                spilled += Spilled(1, 0 if self.save_at_last(key) else 1)
            # Emptied, not only forgotten: a turn may still know the value.
            self.caches[key].crop_to(0)
            self.remove(key)
        if keys:
            return_to_system()
            logger.info("Memory: idle caches left memory: %s", spilled)
        return spilled

    # ------------------------------------------------------------------- disk

    def save(self, key: SessionKey, cuts: Sequence[int] = (), num_tokens: int | None = None) -> bool:
        """Have what the cache holds of its first `num_tokens` tokens (default: all) written to disk in the background;
        stored runs end at `cuts`.

        While a turn has it, only what has its lasting form. False where not all of it will be on disk: also where there
        is no memory for a copy.
        """
        return key in self.caches and self._saves.save(self._saving(key, num_tokens), cuts)

    def save_at_last(self, key: SessionKey) -> bool:
        """Like `save`, but a piece at a time where there is no memory to copy all, and where the disk is behind it is
        waited for; as long as it makes progress."""
        return self._saves.save_at_last(self._saving(key))

    def save_all(self) -> None:
        """Save what could not be saved before, waiting for the disk: the process is about to end."""
        for key in self.caches:
            if self.is_behind(key):
                self.save_at_last(key)

    def is_behind(self, key: SessionKey) -> bool:
        """Whether the last save of the session's cache did not go to its end."""
        return self._saves.is_behind(key)

    def _saving(self, key: SessionKey, num_tokens: int | None = None) -> Saving:
        cache, form = self.caches[key], self.forms[key]
        num_lasting = cache.num_settled_tokens if key in self.turns else cache.num_tokens
        num_tokens = num_lasting if num_tokens is None else min(num_tokens, num_lasting)
        return Saving(key, cache, num_tokens, form.kind, form.is_saved and key not in self.leaving)
