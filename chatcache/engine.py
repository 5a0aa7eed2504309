"""`TurnRun`: one turn's steps on known state: prepare the cache, compute what is missing, choose, say, end.

It knows what a step does and how a turn ends, whatever fails. It does not know messages, rows, threads or other turns;
the cache is `turn_cache`'s, what is fed next `turn_feed`'s. Runs on the model thread, in inference mode.

One rule drives it: the ids wanted so far are prompt + reply, the cache holds a beginning of them, and a step forwards
the next piece of what is missing. All but the last id go in chunks; the last one always goes alone, and its logits give
the next token. So the first token comes from the same 1-token forward whether its prompt was computed just now, reused
or restored, and after a failure the same rule goes on from what the repaired cache still holds.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError

import torch

from chatcache.acquired import Acquired
from chatcache.cache.session_cache import SessionCache
from chatcache.context_window import ContextWindow
from chatcache.decode_step import DecodeStep
from chatcache.events import CacheEvent, Event, Phase, StatusEvent, TextEvent
from chatcache.first_sentence import first_sentence
from chatcache.loader import LoadedModel
from chatcache.out_of_memory import is_out_of_memory
from chatcache.prefill_chunks import ChunkSchedule
from chatcache.prompt import PromptBuilder
from chatcache.relief import Relief
from chatcache.reply_stream import StreamedReply, TextPiece
from chatcache.reuse_report import FALLBACKS, reuse_events, with_reuse
from chatcache.sampler import NonFiniteLogitsError, Sampler
from chatcache.session_key import SessionKey
from chatcache.session_pool import SessionPool
from chatcache.stats import FinishReason, TurnStats
from chatcache.told import Told, ended_early
from chatcache.turn_account import TurnAccount
from chatcache.turn_cache import TurnCache
from chatcache.turn_feed import Piece, TurnFeed
from chatcache.turn_request import TurnOutcome, TurnRequest
from storage.sentence import Sentence

logger = logging.getLogger(__name__)

CANNOT_GUESS = Sentence(
    "Prompt lookup is off: a wrong guess could not be taken back from this chat's cache.", Told.CANNOT_GUESS
)

SAVE_EVERY_TOKENS = 256
"""A long prompt is saved when it has been read, a long reply while it grows, so that a crash then costs at most so much
computing."""


class TurnRun:
    """Runs one turn step by step; `outcome` is set when it has ended.

    `emit` is given events while it runs, `should_stop` is asked before each step. `decode_step`: how single tokens go
    through the model, where not through its own modules. `chunks`: the model's schedule.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        prompts: PromptBuilder,
        pool: SessionPool,
        request: TurnRequest,
        emit: Callable[[Event], None],
        should_stop: Callable[[], bool],
        decode_step: DecodeStep | None,
        chunks: ChunkSchedule,
    ) -> None:
        self.outcome: TurnOutcome | None = None
        self._request = request
        self._emit = emit
        self._should_stop = should_stop
        self._can_share = decode_step is not None
        self._sampler = Sampler(request.sampling)
        self._stream = prompts.reply_stream(
            stop=request.sampling.stop or (),
            prior_ids=request.prior_reply_ids,
            starts_in_reasoning=request.starts_in_reasoning,
        )
        self._account = TurnAccount(len(request.prompt_ids) + len(request.prior_reply_ids), request.submitted_s)
        self._feed = TurnFeed(loaded, request, self._account, decode_step, chunks)
        self._relief = Relief(pool.live, SessionKey(request.owner, request.session_id), loaded.model.device, emit)
        # What is expected is what the context's window keeps free for a reply, not the most that it may write.
        window = ContextWindow.of(loaded.max_context_tokens, request.sampling.max_new_tokens)
        self._held = TurnCache(pool, request, self._relief, emit, window.room_tokens)
        self._has_told_reuse = False
        self._shared_logits: torch.Tensor | None = None
        """What followed the last token, where it was fed together with those of other turns."""
        self._has_failed = False
        self._told: list[str] = []

    def step(self) -> bool:
        """One forward: a prefill chunk or one token; or a little from disk; the first finds the cache and does no more.
        True when the turn has ended."""
        feed, held = self._feed, self._held
        if self._should_stop():
            return self._end(FinishReason.CANCELLED)
        if not held.is_ready:
            if held.acquired is None:
                self._account.begin()
            if held.prepare(feed.ids):  # and no more: the first token, too, may be fed together with those of others
                self._tell_reuse()
            return False
        if held.must_wait(feed.ids, Phase.DECODE if self._account.num_sampled_tokens else Phase.PREFILL):
            return False
        if feed.is_context_full:
            return self._end(FinishReason.CONTEXT_FULL)
        logits, self._shared_logits = self._shared_logits, None
        if logits is not None:
            piece = Piece(len(feed.ids) - 1, len(feed.ids))
        else:
            piece = feed.next_piece(held.cache, self._relief.max_chunk_tokens)
            if not held.reserve(piece.stop):
                return self._relieve(piece, was_allocating=False)
            piece = feed.with_guess(piece, held.cache, held.reserve)
        try:
            if logits is None:
                logits = feed.forward(piece, held.cache)
            is_last = piece.stop == len(feed.ids)
            chosen = self._sampler.choose_run(feed.ids, piece.guess, logits) if is_last else []
        except NonFiniteLogitsError:
            return self._end_untrusted()
        except Exception as error:
            failure, is_memory = first_sentence(error), is_out_of_memory(error)
            if logits is not None and not is_memory:
                raise
            logger.warning("A forward of tokens [%d, %d) failed", piece.start, piece.stop, exc_info=True)
        else:
            return self._go_on(piece, chosen)
        # Outside the `except` block: until it is left, the failed frames hold their tensors.
        held.repair(feed.ids)
        return self._relieve(piece, was_allocating=True) if is_memory else self._go_on_after(failure)

    def next_token(self) -> tuple[int, SessionCache] | None:
        """The token that the next step feeds alone, and the cache it goes to, with room for it; None where that step is
        another one. `DecodeStep` may then feed it with those of other turns; see `take_shared`."""
        feed, held = self._feed, self._held
        if not self._can_share or not held.may_share or self._should_stop():
            return None
        if feed.lookup is not None or feed.is_context_full or not feed.is_last_next(held.cache):
            return None
        return (feed.ids[-1], held.cache) if held.reserve(len(feed.ids)) else None

    def take_shared(self, logits: torch.Tensor) -> None:
        """The token that `next_token` named was fed; the next step goes on from `logits`, shape (vocabulary,)."""
        self._feed.note_fed_elsewhere(self._held.cache)
        self._shared_logits = logits[None]

    def undo_shared(self) -> None:
        """The forward with other turns' tokens failed: the next step feeds the token alone."""
        self._held.repair(self._feed.ids)

    def partial(self) -> StreamedReply:
        """The reply if it ended here, for saving it while it grows."""
        return self._stream.finish()

    def abandon(self, error: BaseException) -> TurnOutcome:
        """Something escaped from `step`, or the turn was cancelled from outside: end with the text so far."""
        if self.outcome is None and isinstance(error, CancelledError):
            self._end(FinishReason.CANCELLED)
        elif self.outcome is None:
            logger.error("A turn failed outside its forward", exc_info=error)
            self._held.repair_or_drop()
            self._end(FinishReason.ERROR, ended_early(error))
        assert self.outcome is not None
        return self.outcome

    # ------------------------------------------------------------------ steps

    def _tell_reuse(self) -> None:
        """Say what was reused, once in a turn."""
        acquired, feed = self._held.acquired, self._feed
        if self._has_told_reuse or acquired is None:
            return
        self._has_told_reuse = True
        self._account.num_fed = acquired.alignment.num_cached_tokens
        for event in reuse_events(self._request, acquired, self._account.num_prompt_tokens):
            if event.kind in FALLBACKS:
                self._told.append(event.message)
            self._emit(event)
        if feed.lookup is not None and not acquired.cache.can_take_candidates:
            feed.lookup = None
            self._told.append(CANNOT_GUESS)
            self._emit(CacheEvent("prompt-lookup-off", self._account.num_fed, CANNOT_GUESS))
        self._tell_prefill(acquired)

    def _tell_prefill(self, acquired: Acquired) -> None:
        num_cached = acquired.alignment.num_cached_tokens
        num_to_read = self._account.num_prompt_tokens - num_cached
        self._emit(StatusEvent(Phase.PREFILL, self._num_read_tokens(acquired), num_to_read, num_cached))

    def _num_read_tokens(self, acquired: Acquired) -> int:
        """How many of the prompt's tokens were not in the cache and have been computed."""
        return self._account.num_fed - acquired.alignment.num_cached_tokens

    def _go_on(self, piece: Piece, chosen: Sequence[int]) -> bool:
        """A forward succeeded, and the tokens in `chosen` follow."""
        held = self._held
        assert held.acquired is not None
        self._relief.note_success()
        if self._account.num_sampled_tokens == 0:
            self._tell_prefill(held.acquired)
            is_due = piece.stop // SAVE_EVERY_TOKENS > piece.start // SAVE_EVERY_TOKENS
            if is_due and held.cache.is_shortened:
                held.save_at_last()
        if chosen:
            self._feed.note_accepted(piece.guess, len(chosen) - 1, held.cache)
        return any(self._take(token_id) for token_id in chosen)

    def _take(self, token_id: int) -> bool:
        """Say what the token makes certain, and end where it ends the turn."""
        self._account.sample()
        num_sampled = self._account.num_sampled_tokens
        if num_sampled == 1:
            self._emit(StatusEvent(Phase.DECODE))
        self._feed.ids.append(token_id)
        self._say(self._stream.push(token_id))
        if self._stream.stopped:
            return self._end(FinishReason.STOP)
        if self._feed.is_context_full:
            return self._end(FinishReason.CONTEXT_FULL)
        if num_sampled == self._request.sampling.max_new_tokens:
            return self._end(FinishReason.LENGTH)
        self._save_if_due(num_sampled)
        return False

    def _save_if_due(self, num_sampled: int) -> None:
        held = self._held
        assert held.acquired is not None
        if num_sampled % SAVE_EVERY_TOKENS == 0:
            held.save(self._cuts)
        elif num_sampled == 1 and self._num_read_tokens(held.acquired) >= SAVE_EVERY_TOKENS:
            # Another reply to the prompt begins at its last token, and so does what is saved next.
            held.save(self._cuts, self._account.num_prompt_tokens - 1)

    def _relieve(self, piece: Piece, *, was_allocating: bool) -> bool:
        """Memory is short: the next step tries again with more room, or the turn ends with what exists."""
        if self._relief.relieve(self._held.cache, piece.stop, was_allocating=was_allocating):
            return False
        return self._end(FinishReason.CONTEXT_FULL)

    def _go_on_after(self, failure: str) -> bool:
        """The cache is repaired; the next step tries again, once in a turn."""
        num_kept = self._held.cache.num_tokens
        if self._has_failed:
            sentence = f"The model failed twice: {failure} The text so far was kept; try again."
            return self._end(FinishReason.ERROR, Sentence(sentence, Told.FAILED_TWICE, failure=failure))
        self._has_failed = True
        num_again = self._account.num_fed - num_kept
        sentence = f"The model failed: {failure} The cache was repaired; {num_again:,} tokens are computed again."
        told = Sentence(sentence, Told.REPAIRED, failure=failure, num_tokens=num_again)
        self._emit(CacheEvent("repair", num_kept, told))
        return False

    def _say(self, pieces: Sequence[TextPiece]) -> None:
        for piece in pieces:
            self._emit(TextEvent(piece.text, piece.is_reasoning))

    # -------------------------------------------------------------------- end

    @functools.cached_property
    def _cuts(self) -> tuple[int, ...]:
        """Where chats part: the end of what others begin with, too, and the token before the prompt's end, at which a
        regenerated reply begins. A chat that was live has been saved to the former before, if there was room for it."""
        held = self._held
        was_live = held.acquired is None or any(reuse.source == "live" for reuse in held.acquired.reuse)
        beginning = () if was_live and not held.is_behind else (self._request.num_shared_tokens(),)
        return (*beginning, self._account.num_prompt_tokens - 1)

    def _end_untrusted(self) -> bool:
        """What a model that returns such numbers has put into the cache is not to be trusted either."""
        self._held.drop()
        sentence = (
            "The model returned numbers that are not finite, so no token could be chosen. The text so far was "
            "kept. Try again; if it happens again, load the model with another dtype."
        )
        return self._end(FinishReason.ERROR, Sentence(sentence, Told.NOT_FINITE))

    def _end(self, reason: FinishReason, *problems: str) -> bool:
        reply, held = self._stream.finish(), self._held
        held.stop_filling()
        self._tell_reuse()
        # What was sampled but is not part of the reply (a stop string, half a character) leaves the cache too. The last
        # one sampled was never fed, except as a guess: it is fed first when the chat goes on.
        kept_ids = (*self._request.prompt_ids, *reply.token_ids)[: len(self._feed.ids) - 1]
        acquired = held.release(kept_ids, self._cuts)
        self._say(reply.pieces)
        told = (*held.told, *self._told, *self._relief.told, *problems)
        self.outcome = TurnOutcome(reply, self._stats(acquired, reason, told))
        return True

    def _stats(self, acquired: Acquired | None, reason: FinishReason, told: tuple[str, ...]) -> TurnStats:
        num_cached = 0 if acquired is None else acquired.alignment.num_cached_tokens
        stats = dataclasses.replace(
            self._account.stats(num_cached),
            num_drafted_tokens=self._feed.lookup.num_drafted if self._feed.lookup else 0,
            finish_reason=reason,
            context_start=self._request.context_start,
            fallbacks=told,
            seed=self._sampler.seed,
        )
        return stats if acquired is None else with_reuse(stats, self._request, acquired)
