"""`TurnFeed`: the ids of one turn, prompt and reply so far, and which of them go into the next forward.

It knows ids, chunks, guesses and how the model is fed. It does not know how a token is chosen, what is said, or when
the turn ends.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from chatcache.cache.session_cache import SessionCache
from chatcache.candidates import PromptLookup
from chatcache.decode_step import DecodeStep
from chatcache.library_calls import can_keep_logits
from chatcache.loader import LoadedModel
from chatcache.prefill_chunks import ChunkSchedule
from chatcache.turn_account import TurnAccount
from chatcache.turn_request import TurnRequest


@dataclass(frozen=True, slots=True)
class Piece:
    """Ids `[start, stop)`, and what is guessed to follow them."""

    start: int
    stop: int
    guess: tuple[int, ...] = ()


class TurnFeed:
    """`ids`: all that is wanted so far. `lookup` guesses what follows; None where nothing is to be guessed. `account`
    is told what goes into forwards."""

    def __init__(
        self,
        loaded: LoadedModel,
        request: TurnRequest,
        account: TurnAccount,
        decode_step: DecodeStep | None,
        chunks: ChunkSchedule,
    ) -> None:
        self.ids = [*request.prompt_ids, *request.prior_reply_ids]
        self.lookup = PromptLookup() if request.prompt_lookup else None
        self._account = account
        self._model = loaded.model
        self._keeps_logits = can_keep_logits(loaded.model)
        self._decode_step = decode_step
        self._chunks = chunks
        self._max_context_tokens = loaded.max_context_tokens
        self._max_new_tokens = request.sampling.max_new_tokens

    @property
    def is_context_full(self) -> bool:
        """Whether the model has room for no further token."""
        return len(self.ids) >= self._max_context_tokens

    def is_last_next(self, cache: SessionCache) -> bool:
        """Whether all but the last id are held, so that the next forward gives a token."""
        return cache.keeps_tokens and cache.num_tokens == len(self.ids) - 1

    def next_piece(self, cache: SessionCache, most_tokens: int | None) -> Piece:
        """What is forwarded next; all but the last id in chunks, of `most_tokens` each where that is given."""
        num_wanted = len(self.ids)
        if not cache.keeps_tokens:
            return Piece(0, num_wanted)
        start = cache.num_tokens
        if start == num_wanted - 1:
            return Piece(start, num_wanted)
        num_left = num_wanted - 1 - start
        num_tokens = self._chunks.num_tokens(start, num_left)
        return Piece(start, start + min(num_tokens, num_left, most_tokens or num_left))

    def with_guess(self, piece: Piece, cache: SessionCache, has_room: Callable[[int], bool]) -> Piece:
        """`piece` with tokens that may follow it, as far as the cache `has_room` for so many in all; none before the
        reply's first, which always comes from a forward of one token."""
        if self.lookup is None or self._account.num_sampled_tokens == 0 or not self.is_last_next(cache):
            return piece
        num_left = self._max_context_tokens - len(self.ids)
        if self._max_new_tokens is not None:
            num_left = min(num_left, self._max_new_tokens - self._account.num_sampled_tokens)
        guess = self.lookup.guess(self.ids, min(cache.max_candidate_tokens, num_left - 1))
        return Piece(piece.start, piece.stop, guess) if has_room(len(self.ids) + len(guess)) else piece

    def forward(self, piece: Piece, cache: SessionCache) -> torch.Tensor:
        """Feed it to `cache`; the logits of its last id and of each guessed one, shape (1 + guessed, vocabulary)."""
        cache.check()
        if cache.keeps_tokens:
            self._account.feed(piece.start, piece.stop)
        self._account.num_fed = max(self._account.num_fed, piece.stop)
        ids, num_logits = [*self.ids[piece.start : piece.stop], *piece.guess], 1 + len(piece.guess)
        if self._decode_step is not None and self._decode_step.fits(cache, len(ids)):
            logits = self._decode_step([ids], [cache], num_logits=num_logits)
        else:
            logits = self._model(
                input_ids=torch.tensor([ids], device=self._model.device),
                cache=cache.cache,
                use_cache=cache.keeps_tokens,
                **({"logits_to_keep": num_logits} if self._keeps_logits else {}),
            ).logits[0]
        cache.advance(ids)
        return logits[-num_logits:]

    def note_fed_elsewhere(self, cache: SessionCache) -> None:
        """The last id went into a forward that other turns shared."""
        cache.advance(self.ids[-1:])
        self._account.feed(len(self.ids) - 1, len(self.ids))

    def note_accepted(self, guess: tuple[int, ...], num_accepted: int, cache: SessionCache) -> None:
        """Tokens were chosen; of the guess `num_accepted` are among them, the rest leaves the cache."""
        self._account.num_runs += 1
        if self.lookup is not None and guess:
            cache.crop_to(len(self.ids) + num_accepted)
            self._account.num_fed = cache.num_tokens
            self.lookup.note(len(guess), num_accepted)
