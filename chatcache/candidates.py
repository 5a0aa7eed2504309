"""`PromptLookup`: guesses of the tokens to come, copied from where the same words stood before.

It knows ids and how well its guesses did. It does not know the model, the cache, or who checks a guess: a reply is the
same with it and without, it only takes fewer forwards where it repeats what was said.
Method: prompt lookup decoding (https://github.com/apoorvumang/prompt-lookup-decoding), in the library's form.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import torch
from transformers.generation.candidate_generator import PromptLookupCandidateGenerator

FIRST_LENGTH = 3
MAX_LENGTH = 24
MAX_FAILURES = 4
FIRST_PAUSE = 16
MAX_PAUSE = 128
_NGRAM_TOKENS = 3


@dataclass(frozen=True, slots=True)
class GuessLength:
    """How many tokens to guess next, from how the last guesses did.

    Longer by two after a guess that was all right, down to what was right (one at least) after any other. After
    `MAX_FAILURES` without a single right token there is a pause of `num_skips` steps, then one try of one token;
    while these fail, pauses double.
    """

    num_tokens: int = FIRST_LENGTH
    num_failures: int = 0
    num_skips: int = 0
    next_pause: int = FIRST_PAUSE

    def after(self, num_guessed: int, num_accepted: int) -> GuessLength:
        """The length to use when `num_accepted` of `num_guessed` tokens were right."""
        if num_accepted == num_guessed:
            return GuessLength(min(max(self.num_tokens, num_guessed + 2), MAX_LENGTH))
        if num_accepted:
            return GuessLength(num_accepted + 1)
        if self.num_failures + 1 < MAX_FAILURES:
            return GuessLength(max(1, self.num_tokens - 1), self.num_failures + 1, 0, self.next_pause)
        return GuessLength(1, MAX_FAILURES - 1, self.next_pause, min(self.next_pause * 2, MAX_PAUSE))

    def skipped(self) -> GuessLength:
        """The length to use when a step of a pause has passed."""
        return GuessLength(self.num_tokens, self.num_failures, self.num_skips - 1, self.next_pause)


class PromptLookup:
    """Guesses for one turn. `num_drafted` counts guessed tokens."""

    def __init__(self) -> None:
        self.num_drafted = 0
        self._length = GuessLength()
        # Its own limit is on the whole sequence, and 20 unless it is set.
        self._generator = PromptLookupCandidateGenerator(
            num_output_tokens=FIRST_LENGTH, max_matching_ngram_size=_NGRAM_TOKENS, max_length=sys.maxsize
        )

    def guess(self, token_ids: Sequence[int], max_tokens: int) -> tuple[int, ...]:
        """What may follow `token_ids`, `max_tokens` at most; often nothing."""
        if self._length.num_skips:
            self._length = self._length.skipped()
            return ()
        num_tokens = min(self._length.num_tokens, max_tokens)
        if num_tokens < 1:
            return ()
        self._generator.num_output_tokens = num_tokens
        ids = torch.tensor([token_ids], dtype=torch.long)
        guessed, _ = self._generator.get_candidates(cast(torch.LongTensor, ids))
        return tuple(guessed[0, len(token_ids) :].tolist())

    def note(self, num_guessed: int, num_accepted: int) -> None:
        """The first `num_accepted` of `num_guessed` guessed tokens were right."""
        self.num_drafted += num_guessed
        self._length = self._length.after(num_guessed, num_accepted)
