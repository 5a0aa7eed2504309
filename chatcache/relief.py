"""`Relief`: takes the ladder's steps for one running turn when memory is short, and tells each of them.

It knows the live caches, which one is the turn's, and what was tried since the last forward that succeeded. What comes
next is decided in `memory.ladder`; what the turn feeds and says is the engine's.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import torch

from chatcache.cache.session_cache import SessionCache
from chatcache.events import CacheEvent, Event, Phase, StatusEvent
from chatcache.live_caches import LiveCaches, Spilled
from chatcache.memory.ladder import Shortage, Step, next_step, smaller_chunks
from chatcache.out_of_memory import free_unused_memory
from chatcache.session_key import SessionKey
from chatcache.told import Told
from storage.sentence import Sentence

logger = logging.getLogger(__name__)


class Relief:
    """One turn's way down. `told` are the sentences for its stats; `max_chunk_tokens` limits its prefill, once set."""

    def __init__(self, live: LiveCaches, key: SessionKey, device: torch.device, emit: Callable[[Event], None]) -> None:
        self.told: list[Sentence] = []
        self.max_chunk_tokens: int | None = None
        self._live = live
        self._key = key
        self._device = device
        self._emit = emit
        self._has_retried = False

    def note_success(self) -> None:
        """A forward succeeded: the turn has room, and what fails next is another shortage."""
        self._has_retried = False
        self._live.turns.go_on(self._key)

    def tell_spilled(self, spilled: Spilled, token_index: int) -> None:
        """Say which caches had to leave, if any."""
        if spilled.num_sessions:
            self._tell(Step.SPILL, token_index, _spilled_sentence(spilled))
        if num := spilled.num_ahead_sessions:
            chats = "message of an idle chat" if num == 1 else f"messages of {num} idle chats"
            what = f"what lay ready for the next {chats} left memory."
            self._tell(Step.SPILL, token_index, Sentence(what, Told.SPILLED_AHEAD, num_chats=num))

    def tell_shortened(self, token_index: int) -> None:
        """Say that the turn's cache was shortened."""
        what = "layers that see only the last tokens keep no more than the last turns need."
        self._tell(Step.SHORTEN, token_index, Sentence(what, Told.SHORTENED))

    def tell_waiting(self, token_index: int) -> None:
        """Say that the turn waits, if it does."""
        if self._live.turns.is_waiting(self._key):
            what = "this reply goes on when another one has ended."
            self._tell(Step.WAIT, token_index, Sentence(what, Told.WAITS))
            self._emit(StatusEvent(Phase.QUEUED))

    def relieve(self, cache: SessionCache, num_wanted: int, *, was_allocating: bool) -> bool:
        """Take the next step; False where none is left and the turn must end.

        `cache` is sound and could not grow to `num_wanted` tokens: an allocation failed, or there was no room left to
        reserve.
        """
        num_held = cache.num_tokens
        num_needed = None if was_allocating else num_wanted
        chunk_tokens = num_wanted - num_held
        live, key = self._live, self._key
        # A smaller chunk needs less to compute with; a cache that was to be quantized is, after each.
        smaller = [
            chunk
            for chunk in smaller_chunks(chunk_tokens)
            if was_allocating or live.fits_in_pieces(key, num_wanted, chunk)
        ]
        shortage = Shortage(
            was_allocating=was_allocating,
            # Where chunks had to become smaller already, that the next one fails is no moment's peak.
            has_retried=self._has_retried or (bool(smaller) and self.max_chunk_tokens is not None),
            can_spill=live.can_spill(key, num_needed),
            can_shrink_chunk=bool(smaller),
            smaller_kinds=live.smaller_kinds(key, num_wanted),
            can_shorten=live.can_shorten(key, num_wanted),
            can_wait=live.can_wait(key, num_needed),
        )
        step = next_step(shortage)
        if was_allocating:
            free_unused_memory(self._device)
        match step:
            case Step.RETRY:
                self._has_retried = True
                what = "what lay unused was freed and the step is done again."
                self._tell(step, num_held, Sentence(what, Told.RETRIED))
            case Step.SPILL:
                self.tell_spilled(live.spill(key, num_needed), num_held)
            case Step.SHORTEN:
                live.shorten(key)
                self.tell_shortened(num_held)
            case Step.WAIT:
                live.turns.make_way(key)
                self.tell_waiting(num_held)
            case Step.SMALLER_CHUNKS:
                self.max_chunk_tokens = smaller[0]
                what = f"the prompt is read {smaller[0]} tokens at a time from here on."
                self._tell(step, num_held, Sentence(what, Told.SMALLER_CHUNKS, num_tokens=smaller[0]))
            case Step.CONVERT:
                kind = self._convert(shortage.smaller_kinds)
                if kind is None:
                    return self._stop(num_held, num_held)
                what = f"this chat's cache is now {_FORMS.get(kind, kind)}."
                self._tell(step, num_held, Sentence(what, Told.SMALLER_KIND, kind=kind))
            case Step.STOP:
                # An allocation that failed says only that there was no room for more than what is held.
                return self._stop(num_held, num_held if was_allocating else live.most_tokens(key, num_wanted))
        return True

    def relieve_restore(self, cache: SessionCache) -> bool:
        """Memory ran out while `cache` was restored: make room; whether it is worth another try."""
        if self._has_retried:
            return False
        self._has_retried = True
        free_unused_memory(self._device)
        spilled = self._live.spill(self._key, None)
        self.tell_spilled(spilled, cache.num_tokens)
        if spilled == Spilled():
            what = "what lay unused was freed and restoring goes on."
            self._tell(Step.RETRY, cache.num_tokens, Sentence(what, Told.RESTORE_RETRIED))
        return True

    def _convert(self, kinds: Sequence[str]) -> str | None:
        """The first of `kinds` for whose making there is memory; the cache has it then."""
        for kind in kinds:
            if self._live.convert(self._key, kind):
                return kind
            free_unused_memory(self._device)
        return None

    def _stop(self, num_held: int, num_fitting: int) -> bool:
        what = f"{num_fitting:,} tokens of this chat fit. The reply ends here; what exists is kept."
        self._tell(Step.STOP, num_held, Sentence(what, Told.STOPPED, num_tokens=num_fitting))
        return False

    def _tell(self, step: Step, token_index: int, what: Sentence) -> None:
        text = f"Memory was short at token {token_index:,}: {what}"
        sentence = Sentence(text, Told.MEMORY_SHORT, index=token_index, step=what)
        logger.warning("%s", sentence)
        self.told.append(sentence)
        self._emit(CacheEvent(step.value, token_index, sentence))


_FORMS = {
    "offloaded": "kept in the computer's memory instead of the device's",
    "offloaded-non-sliding": "kept in the computer's memory, as far as its layers see all of it",
    "quantized-int8": "8-bit",
    "quantized-int4": "4-bit",
}


def _spilled_sentence(spilled: Spilled) -> Sentence:
    num, unsaved = spilled.num_sessions, spilled.num_unsaved_sessions
    caches = "the cache of an idle chat was" if num == 1 else f"the caches of {num} idle chats were"
    if not unsaved:
        return Sentence(f"{caches} moved to disk.", Told.SPILLED, num_chats=num)
    if num == unsaved:
        dropped = f"{caches} dropped; going on there computes again what is not on disk."
        return Sentence(dropped, Told.SPILLED_UNSAVED, num_chats=num)
    partly = f"{caches} moved to disk, {unsaved} of them not to the end; going on there computes again what is missing."
    return Sentence(partly, Told.SPILLED_PARTLY, num_chats=num, num_unsaved=unsaved)
