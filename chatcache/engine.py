"""`TurnRun`: one turn's steps on known state: align the cache, compute what is missing, sample, stop, outlive failures.

It knows ids, the model, the cache as a value and what to say meanwhile. It does not know messages, rows, threads or
other turns. Runs on the model thread, in inference mode.

One rule drives it: the ids wanted so far are prompt + reply, the cache holds a beginning of them, and a step forwards
the next piece of what is missing. All but the last id go in chunks; the last one always goes alone, and its logits give
the next token. So the first token comes from the same 1-token forward whether its prompt was computed just now, reused
or restored, and after a failure the same rule goes on from what the repaired cache still holds.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable
from concurrent.futures import CancelledError

import torch

from chatcache.cache.session_cache import SessionCache
from chatcache.candidates import PromptLookup
from chatcache.context_window import ContextWindow
from chatcache.decode_step import DecodeStep
from chatcache.events import CacheEvent, Event, Phase, StatusEvent, TextEvent
from chatcache.library_calls import can_keep_logits, first_sentence
from chatcache.loader import LoadedModel
from chatcache.memory.out_of_memory import is_out_of_memory
from chatcache.prefill_chunks import ChunkSchedule
from chatcache.prefix import common_length
from chatcache.prompt import PromptBuilder
from chatcache.relief import Relief
from chatcache.reply_stream import StreamedReply, TextPiece
from chatcache.restore import Restore
from chatcache.reuse_report import FALLBACKS, miss_reason, reuse_events
from chatcache.sampler import NonFiniteLogitsError, Sampler
from chatcache.session_key import SessionKey
from chatcache.session_pool import Acquired, SessionPool
from chatcache.stats import FinishReason, MissReason, TurnStats
from chatcache.told import Told, ended_early
from chatcache.turn_account import TurnAccount
from chatcache.turn_request import TurnOutcome, TurnRequest
from storage.sentence import Sentence

logger = logging.getLogger(__name__)

CANNOT_GUESS = Sentence(
    "Prompt lookup is off: a wrong guess could not be taken back from this chat's cache.", Told.CANNOT_GUESS
)

SAVE_EVERY_TOKENS = 256
"""A long reply is saved while it grows, so that a crash costs at most so much computing."""


class TurnRun:
    """Runs one turn step by step; `outcome` is set when it has ended.

    `emit` is given events while it runs, `should_stop` is asked before each step. `decode_step`: how single tokens go
    through the model, where not through its own modules. `chunks`: the model's schedule, where somebody has it.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        prompts: PromptBuilder,
        pool: SessionPool,
        request: TurnRequest,
        emit: Callable[[Event], None],
        should_stop: Callable[[], bool],
        decode_step: DecodeStep | None = None,
        chunks: ChunkSchedule | None = None,
    ) -> None:
        self.outcome: TurnOutcome | None = None
        self._model = loaded.model
        self._max_context_tokens = loaded.max_context_tokens
        self._pool = pool
        self._request = request
        self._emit = emit
        self._should_stop = should_stop
        self._decode_step = decode_step
        self._sampler = Sampler(request.sampling)
        self._chunks = chunks or ChunkSchedule.of(loaded.model)
        self._key = SessionKey(request.owner, request.session_id)
        self._relief = Relief(pool.live, self._key, loaded.model.device, emit)
        self._keeps_logits = can_keep_logits(loaded.model)
        self._lookup = PromptLookup() if request.prompt_lookup else None
        self._stream = prompts.reply_stream(
            stop=request.sampling.stop or (),
            prior_ids=request.prior_reply_ids,
            starts_in_reasoning=request.starts_in_reasoning,
        )
        self._ids = [*request.prompt_ids, *request.prior_reply_ids]
        self._account = TurnAccount(len(self._ids), request.submitted_s)
        self._acquired: Acquired | None = None
        self._has_begun = False
        """Whether what was reused is told."""
        self._shared_logits: torch.Tensor | None = None
        """What followed the last token, where it was fed together with those of other turns."""
        self._has_failed = False
        self._told: list[str] = []

    def step(self) -> bool:
        """One forward: a prefill chunk or one token; or a little from disk; the first finds the cache and does no more.
        True when the turn has ended."""
        if self._should_stop():
            return self._end(FinishReason.CANCELLED)
        acquired = self._acquired
        if acquired is None:
            self._begin()  # and no more: the first token, too, may be fed together with those of other turns
            return False
        if acquired.restore is not None:
            return self._restore(acquired, acquired.restore)
        if self._must_wait(acquired):
            return False
        if len(self._ids) >= self._max_context_tokens:
            return self._end(FinishReason.CONTEXT_FULL)
        logits, self._shared_logits = self._shared_logits, None
        guess: tuple[int, ...] = ()
        if logits is not None:
            start, stop = len(self._ids) - 1, len(self._ids)
        else:
            start, stop = self._next_piece(acquired.cache)
            if not self._reserve(stop):
                return self._relieve(acquired.cache, stop, was_allocating=False)
            guess = self._guess(acquired.cache)
        try:
            if logits is None:
                logits = self._forward(acquired.cache, start, stop, guess)
            chosen = self._sampler.choose_run(self._ids, guess, logits) if stop == len(self._ids) else []
        except NonFiniteLogitsError:
            return self._end_untrusted()
        except Exception as error:
            failure, is_memory = first_sentence(error), is_out_of_memory(error)
            if logits is not None and not is_memory:
                raise
            logger.warning("A forward of tokens [%d, %d) failed", start, stop, exc_info=True)
        else:
            self._relief.forget_failures()
            if self._account.num_sampled_tokens == 0:
                self._report_prefill(acquired)
                if acquired.cache.is_shortened and stop // SAVE_EVERY_TOKENS > start // SAVE_EVERY_TOKENS:
                    self._pool.live.save_at_last(self._key)  # now: it forgets what a later save would ask for
            if chosen:
                self._end_run(acquired.cache, guess, len(chosen) - 1)
            return any(self._take(token_id) for token_id in chosen)
        # Outside the `except` block: until it is left, the failed frames hold their tensors.
        self._repair(acquired.cache)
        return self._relieve(acquired.cache, stop, was_allocating=True) if is_memory else self._go_on_after(failure)

    def next_token(self) -> tuple[int, SessionCache] | None:
        """The token that the next step feeds alone, and the cache it goes to, with room for it; None where that step is
        another one. `DecodeStep` may then feed it with those of other turns; see `take_shared`."""
        acquired = self._acquired
        if self._decode_step is None or acquired is None or acquired.restore is not None or self._should_stop():
            return None
        num_wanted, cache = len(self._ids), acquired.cache
        is_next = cache.cache is not None and cache.num_tokens == num_wanted - 1
        if not is_next or self._lookup is not None or num_wanted >= self._max_context_tokens:
            return None
        turns = self._pool.live.turns
        if turns.is_waiting(self._key) or turns.is_asked(self._key):
            return None
        return (self._ids[-1], cache) if self._reserve(num_wanted) else None

    def take_shared(self, logits: torch.Tensor) -> None:
        """The token that `next_token` named was fed; the next step goes on from `logits`, shape (vocabulary,)."""
        assert self._acquired is not None
        self._acquired.cache.advance(self._ids[-1:])
        self._account.feed(len(self._ids) - 1, len(self._ids))
        self._shared_logits = logits[None]

    def undo_shared(self) -> None:
        """The forward with other turns' tokens failed: the next step feeds the token alone."""
        assert self._acquired is not None
        self._repair(self._acquired.cache)

    def partial(self) -> StreamedReply:
        """The reply if it ended here, for saving it while it grows."""
        return self._stream.finish()

    def abandon(self, error: BaseException) -> TurnOutcome:
        """Something escaped from `step`, or the turn was cancelled from outside: end with the text so far."""
        if self.outcome is None and isinstance(error, CancelledError):
            self._end(FinishReason.CANCELLED)
        elif self.outcome is None:
            logger.error("A turn failed outside its forward", exc_info=error)
            self._repair_or_drop_cache()
            self._end(FinishReason.ERROR, ended_early(error))
        assert self.outcome is not None
        return self.outcome

    # ------------------------------------------------------------------ steps

    def _begin(self) -> None:
        request = self._request
        self._account.begin()
        # What is expected is what the context's window keeps free for a reply, not the most that it may write.
        room = ContextWindow.of(self._max_context_tokens, request.sampling.max_new_tokens).room_tokens
        self._acquired = acquired = self._pool.acquire(
            request.owner, request.session_id, self._ids, len(self._ids) + room, request.form
        )
        if acquired.is_converted:
            kind = acquired.cache.kind
            sentence = f"This chat's cache is kept as {kind} from here on; nothing is computed again."
            told = Sentence(sentence, Told.CONVERTED, kind=kind)
            self._emit(CacheEvent(MissReason.CACHE_KIND.value, acquired.cache.num_tokens, told))
        if request.form is not None and request.form.problem is not None:
            self._told.append(request.form.problem)
            self._emit(CacheEvent("cache-kind-refused", acquired.cache.num_tokens, request.form.problem))
        self._relief.tell_spilled(acquired.spilled, acquired.cache.num_tokens)
        if acquired.is_shortened:
            self._relief.tell_shortened(acquired.cache.num_tokens)
        if acquired.restore is None:
            self._tell_reuse(acquired)

    def _restore(self, acquired: Acquired, restore: Restore) -> bool:
        """Take in a little of what is on disk."""
        has_ended = restore.step()
        if restore.num_total_tokens:
            self._emit(StatusEvent(Phase.RESTORING, restore.num_tokens, restore.num_total_tokens))
        if has_ended:
            acquired = self._restored(acquired)
            if restore.ran_out_of_memory and self._relief.relieve_restore(acquired.cache):
                acquired = self._pool.restore_rest(self._request.owner, self._request.session_id, acquired, self._ids)
            self._acquired = acquired
            if acquired.restore is None:
                self._tell_reuse(acquired)
        return False

    def _restored(self, acquired: Acquired) -> Acquired:
        """What was acquired when its restore has ended. Where that was not the turn's first, the cache had only lost
        what it held already."""
        restored = self._pool.restored(self._request.owner, self._request.session_id, acquired)
        return dataclasses.replace(acquired, restore=None) if self._has_begun else restored

    def _tell_reuse(self, acquired: Acquired) -> None:
        """Say what was reused, once in a turn."""
        if self._has_begun:
            return
        self._has_begun = True
        self._account.num_fed = acquired.alignment.num_cached_tokens
        for event in reuse_events(self._request, acquired, self._account.num_prompt_tokens):
            if event.kind in FALLBACKS:
                self._told.append(event.message)
            self._emit(event)
        if self._lookup is not None and not acquired.cache.can_take_candidates:
            self._lookup = None
            self._told.append(CANNOT_GUESS)
            self._emit(CacheEvent("prompt-lookup-off", self._account.num_fed, CANNOT_GUESS))
        self._report_prefill(acquired)

    def _must_wait(self, acquired: Acquired) -> bool:
        """Whether the turn gives way to others for which there is no memory beside it. When it goes on, what its cache
        lost meanwhile is restored, or computed again."""
        live, key = self._pool.live, self._key
        if live.turns.is_asked(key):
            live.turns.wait(key)
            self._relief.tell_waiting(acquired.cache.num_tokens)
        if not live.turns.is_waiting(key):
            return False
        if live.can_go_on(key, acquired.cache, len(self._ids)):
            self._acquired = self._pool.go_on(key.owner, key.session_id, acquired, self._ids)
            self._relief.tell_spilled(self._acquired.spilled, acquired.cache.num_tokens)
            self._emit(StatusEvent(Phase.DECODE if self._account.num_sampled_tokens else Phase.PREFILL))
        return True

    def _next_piece(self, cache: SessionCache) -> tuple[int, int]:
        """Ids `[start, stop)` are forwarded next."""
        num_wanted = len(self._ids)
        if cache.cache is None:
            return 0, num_wanted
        start = cache.num_tokens
        if start == num_wanted - 1:
            return start, num_wanted
        num_left = num_wanted - 1 - start
        num_tokens = self._chunks.num_tokens(start, num_left)
        return start, start + min(num_tokens, num_left, self._relief.max_chunk_tokens or num_left)

    def _guess(self, cache: SessionCache) -> tuple[int, ...]:
        """Tokens that may follow, to go into the same forward; none before the reply's first, which always comes from a
        forward of one token."""
        if self._lookup is None or self._account.num_sampled_tokens == 0 or cache.num_tokens != len(self._ids) - 1:
            return ()
        num_left = self._max_context_tokens - len(self._ids)
        if self._request.sampling.max_new_tokens is not None:
            num_left = min(num_left, self._request.sampling.max_new_tokens - self._account.num_sampled_tokens)
        guess = self._lookup.guess(self._ids, min(cache.max_candidate_tokens, num_left - 1))
        has_room = self._reserve(len(self._ids) + len(guess))
        return guess if has_room else ()

    def _end_run(self, cache: SessionCache, guess: tuple[int, ...], num_right: int) -> None:
        """A forward has given tokens to choose; what was guessed wrong leaves the cache again."""
        self._account.num_runs += 1
        if self._lookup is not None and guess:
            cache.crop_to(len(self._ids) + num_right)
            self._account.num_fed = cache.num_tokens
            self._lookup.note(len(guess), num_right)

    def _forward(self, cache: SessionCache, start: int, stop: int, guess: tuple[int, ...]) -> torch.Tensor:
        """Feed ids `[start, stop)` and what is guessed to follow; the logits of the last id and of each guessed one,
        shape (1 + guessed, vocabulary)."""
        cache.check()
        if cache.cache is not None:
            self._account.feed(start, stop)
        self._account.num_fed = max(self._account.num_fed, stop)
        ids = [*self._ids[start:stop], *guess]
        if self._decode_step is not None and self._decode_step.fits(cache, len(ids)):
            logits = self._decode_step([ids], [cache], num_logits=1 + len(guess))
        else:
            logits = self._model(
                input_ids=torch.tensor([ids], device=self._model.device),
                cache=cache.cache,
                use_cache=cache.cache is not None,
                **({"logits_to_keep": 1 + len(guess)} if self._keeps_logits else {}),
            ).logits[0]
        cache.advance(ids)
        return logits[-1 - len(guess) :]

    def _reserve(self, num_tokens: int) -> bool:
        return self._pool.live.reserve(self._key, num_tokens)

    def _repair(self, cache: SessionCache) -> None:
        """Leave the cache sound, with at least one wanted token to forward."""
        num_kept = cache.repair()
        if num_kept >= len(self._ids):  # the forward had succeeded, the choice of a token failed
            cache.align(self._ids)
        self._pool.live.settle(self._key)

    def _go_on_after(self, failure: str) -> bool:
        """The cache is repaired; the next step tries again, once in a turn."""
        assert self._acquired is not None
        num_kept = self._acquired.cache.num_tokens
        if self._has_failed:
            sentence = f"The model failed twice: {failure} The text so far was kept; try again."
            return self._end(FinishReason.ERROR, Sentence(sentence, Told.FAILED_TWICE, failure=failure))
        self._has_failed = True
        num_again = self._account.num_fed - num_kept
        sentence = f"The model failed: {failure} The cache was repaired; {num_again:,} tokens are computed again."
        told = Sentence(sentence, Told.REPAIRED, failure=failure, num_tokens=num_again)
        self._emit(CacheEvent("repair", num_kept, told))
        return False

    def _relieve(self, cache: SessionCache, num_wanted: int, *, was_allocating: bool) -> bool:
        """Memory is short: the next step tries again with more room, or the turn ends with what exists."""
        if self._relief.relieve(cache, num_wanted, was_allocating=was_allocating):
            return False
        return self._end(FinishReason.CONTEXT_FULL)

    def _cuts(self) -> tuple[int, ...]:
        """Where chats fork: the token before the prompt's end, at which a regenerated reply begins."""
        return (self._account.num_prompt_tokens - 1,)

    def _end_untrusted(self) -> bool:
        """What a model that returns such numbers has put into the cache is not to be trusted either."""
        self._drop_cache()
        sentence = (
            "The model returned numbers that are not finite, so no token could be chosen. The text so far was "
            "kept. Try again; if it happens again, load the model with another dtype."
        )
        return self._end(FinishReason.ERROR, Sentence(sentence, Told.NOT_FINITE))

    def _take(self, token_id: int) -> bool:
        """Say what the token makes certain, and end where it ends the turn."""
        self._account.sample()
        num_sampled = self._account.num_sampled_tokens
        if num_sampled == 1:
            self._emit(StatusEvent(Phase.DECODE))
        self._ids.append(token_id)
        if num_sampled % SAVE_EVERY_TOKENS == 0:
            self._pool.live.save(self._key, self._cuts())
        self._say(self._stream.push(token_id))
        if self._stream.stopped:
            return self._end(FinishReason.STOP)
        if len(self._ids) >= self._max_context_tokens:
            return self._end(FinishReason.CONTEXT_FULL)
        if num_sampled == self._request.sampling.max_new_tokens:
            return self._end(FinishReason.LENGTH)
        return False

    def _report_prefill(self, acquired: Acquired) -> None:
        num_cached, account = acquired.alignment.num_cached_tokens, self._account
        self._emit(StatusEvent(Phase.PREFILL, account.num_fed - num_cached, account.num_prompt_tokens - num_cached))

    def _say(self, pieces: list[TextPiece] | tuple[TextPiece, ...]) -> None:
        for piece in pieces:
            self._emit(TextEvent(piece.text, piece.is_reasoning))

    # -------------------------------------------------------------------- end

    def _end(self, reason: FinishReason, *problems: str) -> bool:
        reply = self._stream.finish()
        acquired, request = self._acquired, self._request
        if acquired is not None and acquired.restore is not None:
            acquired = self._restored(acquired)
            self._tell_reuse(acquired)
        if acquired is not None:
            # What was sampled but is not part of the reply (a stop string, half a character) leaves the cache too.
            kept_ids = (*request.prompt_ids, *reply.token_ids)
            # The last one sampled was never fed, except as a guess: it is fed first when the chat goes on.
            num_kept = min(common_length(acquired.cache.token_ids, kept_ids), len(self._ids) - 1)
            if acquired.cache.is_croppable:
                acquired.cache.crop_to(num_kept)
            self._pool.release(request.owner, request.session_id, self._cuts())
        self._say(reply.pieces)
        self.outcome = TurnOutcome(reply, self._stats(acquired, reason, (*self._told, *self._relief.told, *problems)))
        self._acquired = None  # whoever keeps the handle of an ended turn must not keep its cache
        return True

    def _stats(self, acquired: Acquired | None, reason: FinishReason, problems: tuple[str, ...]) -> TurnStats:
        alignment = None if acquired is None else acquired.alignment
        stats = dataclasses.replace(
            self._account.stats(0 if alignment is None else alignment.num_cached_tokens),
            num_drafted_tokens=self._lookup.num_drafted if self._lookup else 0,
            finish_reason=reason,
            context_start=self._request.context_start,
            fallbacks=problems,
            seed=self._sampler.seed,
        )
        if acquired is None or alignment is None:
            return stats
        missed = miss_reason(self._request, alignment)
        return dataclasses.replace(
            stats,
            restore_s=acquired.restore_s,
            cache_kind=acquired.cache.kind,
            cache_bytes=acquired.cache.num_bytes,
            reuse=acquired.reuse,
            miss_reason=missed,
            miss_index=None if missed is None else alignment.num_cached_tokens,
        )

    def _repair_or_drop_cache(self) -> None:
        if self._acquired is not None:
            try:
                self._acquired.cache.repair()
            except Exception:
                logger.exception("A cache could not be repaired and is dropped")
                self._drop_cache()

    def _drop_cache(self) -> None:
        if self._acquired is not None:
            self._acquired.cache.crop_to(0)
            self._pool.drop(self._request.owner, self._request.session_id)
