"""`TurnCache`: the cache of one running turn: acquired, filled from disk, kept waiting, repaired, given back.

It knows the pool, whose cache it is and what to say of it. It does not know which ids come next, nor the model.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Sequence

from chatcache.acquired import Acquired
from chatcache.cache.session_cache import SessionCache
from chatcache.events import CacheEvent, Event, Phase, StatusEvent
from chatcache.prefix import common_length
from chatcache.relief import Relief
from chatcache.restore import Restore
from chatcache.session_key import SessionKey
from chatcache.session_pool import SessionPool
from chatcache.stats import MissReason
from chatcache.told import Told
from chatcache.turn_request import TurnRequest
from storage.sentence import Sentence

logger = logging.getLogger(__name__)


class TurnCache:
    """`acquired`: what the pool gave, until it is given back. `told`: sentences for the turn's stats."""

    def __init__(
        self, pool: SessionPool, request: TurnRequest, relief: Relief, emit: Callable[[Event], None], room_tokens: int
    ) -> None:
        """`room_tokens`: how many the reply is expected to add."""
        self.acquired: Acquired | None = None
        self.told: list[str] = []
        self._pool = pool
        self._request = request
        self._key = SessionKey(request.owner, request.session_id)
        self._relief = relief
        self._emit = emit
        self._room_tokens = room_tokens
        self._was_ready = False
        self._told_progress: StatusEvent | None = None

    @property
    def cache(self) -> SessionCache:
        """Once it is acquired."""
        assert self.acquired is not None
        return self.acquired.cache

    @property
    def is_ready(self) -> bool:
        """Whether a forward may feed it, as far as the disk is concerned."""
        return self.acquired is not None and self.acquired.restore is None

    def prepare(self, wanted_ids: Sequence[int]) -> bool:
        """Acquire it; or take in a little of what is on disk. Whether it is ready now."""
        if self.acquired is None:
            self._acquire(wanted_ids)
        elif self.acquired.restore is not None:
            self.acquired = self._fill(self.acquired, self.acquired.restore, wanted_ids)
        self._was_ready |= self.is_ready
        return self.is_ready

    def stop_filling(self) -> None:
        """Go on with what has come from disk so far."""
        if self.acquired is not None and self.acquired.restore is not None:
            self.acquired = self._filled(self.acquired)

    def must_wait(self, wanted_ids: Sequence[int], phase: Phase) -> bool:
        """Whether the turn gives way to others for which there is no memory beside it. When it goes on, with `phase`,
        what its cache lost meanwhile is restored, or computed again."""
        assert self.acquired is not None
        live, key, cache = self._pool.live, self._key, self.cache
        if live.turns.is_asked(key):
            live.turns.wait(key)
            self._relief.tell_waiting(cache.num_tokens)
        if not live.turns.is_waiting(key):
            return False
        if live.can_go_on(key, cache, len(wanted_ids)):
            self.acquired = self._pool.go_on(key, self.acquired, wanted_ids)
            self._relief.tell_spilled(self.acquired.spilled, cache.num_tokens)
            self._emit(StatusEvent(phase))
        return True

    @property
    def may_share(self) -> bool:
        """Whether its turn needs no step of its own for it: it is ready, and need not wait."""
        turns = self._pool.live.turns
        return self.is_ready and not turns.is_waiting(self._key) and not turns.is_asked(self._key)

    @property
    def is_behind(self) -> bool:
        """Whether the last save of it, in this turn or one before, did not go to its end."""
        return self._pool.live.is_behind(self._key)

    def reserve(self, num_tokens: int) -> bool:
        """Whether it may grow to `num_tokens` tokens; the room is reserved then."""
        return self._pool.live.reserve(self._key, num_tokens)

    def save(self, cuts: Sequence[int], num_tokens: int | None = None) -> None:
        """Have what it holds in its lasting form of its first `num_tokens` tokens (default: all) written in the
        background; stored runs end at `cuts`."""
        self._pool.live.save(self._key, cuts, num_tokens)

    def save_at_last(self) -> None:
        """Have it written now, waiting for the disk where need be: it forgets what a later save would ask for."""
        self._pool.live.save_at_last(self._key)

    def repair(self, wanted_ids: Sequence[int]) -> None:
        """After a failed forward: sound again, with at least one wanted token to forward."""
        if self.cache.repair() >= len(wanted_ids):  # the forward had succeeded, the choice of a token failed
            self.cache.align(wanted_ids)
        self._pool.live.settle(self._key)

    def repair_or_drop(self) -> None:
        """Whatever failed, leave nothing unsound behind; also where none was acquired."""
        if self.acquired is not None:
            try:
                self.cache.repair()
            except Exception:
                logger.exception("A cache could not be repaired and is dropped")
                self.drop()

    def drop(self) -> None:
        """Nothing that it holds is to be used again."""
        self.cache.crop_to(0)
        self._pool.drop(self._key)

    def release(self, kept_ids: Sequence[int], cuts: Sequence[int]) -> Acquired | None:
        """The turn has ended, and only `kept_ids` may stay; see `SessionPool.release`. What it was; None where none was
        acquired."""
        acquired, self.acquired = self.acquired, None  # whoever keeps the handle of an ended turn must not keep it
        if acquired is not None:
            if acquired.cache.is_croppable:
                acquired.cache.crop_to(common_length(acquired.cache.token_ids, kept_ids))
            self._pool.release(self._key, cuts)
        return acquired

    def _acquire(self, wanted_ids: Sequence[int]) -> None:
        key, form = self._key, self._request.form
        num_expected = len(wanted_ids) + self._room_tokens
        acquired = self.acquired = self._pool.acquire(key, wanted_ids, num_expected, form)
        num_held, kind = acquired.cache.num_tokens, acquired.cache.kind
        if acquired.is_converted:
            sentence = f"This chat's cache is kept as {kind} from here on; nothing is computed again."
            told = Sentence(sentence, Told.CONVERTED, kind=kind)
            self._emit(CacheEvent(MissReason.CACHE_KIND.value, num_held, told))
        if form is not None and form.problem is not None:
            self.told.append(form.problem)
            self._emit(CacheEvent("cache-kind-refused", num_held, form.problem))
        self._relief.tell_spilled(acquired.spilled, num_held)
        if acquired.is_shortened:
            self._relief.tell_shortened(num_held)

    def _fill(self, acquired: Acquired, restore: Restore, wanted_ids: Sequence[int]) -> Acquired:
        has_ended = restore.step(may_wait=self._pool.live.turns.may_wait_for_disk(self._key))
        progress = StatusEvent(Phase.RESTORING, restore.num_tokens, restore.num_total_tokens)
        if restore.num_total_tokens and progress != self._told_progress:
            self._told_progress = progress
            self._emit(progress)
        if not has_ended:
            return acquired
        acquired = self._filled(acquired)
        if restore.ran_out_of_memory and self._relief.relieve_restore(acquired.cache):
            return self._pool.restore_rest(self._key, acquired, wanted_ids)
        return acquired

    def _filled(self, acquired: Acquired) -> Acquired:
        """What was acquired when its restore has ended. Where it had been ready before, it had only lost what it held
        already."""
        self._told_progress = None
        restored = self._pool.restored(self._key, acquired)
        return dataclasses.replace(acquired, restore=None) if self._was_ready else restored
