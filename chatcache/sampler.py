"""`Sampler`: logits → the next token, with the library's processors in `generate`'s order.

It knows ids, logits and `Sampling`; no model, no cache, no text. Each token has a generator of its own, seeded from
the turn's seed and the token's index in the whole sequence, so that stopping, continuing, resuming or sharing a batch
never shifts the stream.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from typing import TypeVar, cast

import torch
from transformers.generation.logits_process import (
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
)

from chatcache.stats import Sampling
from chatcache.top_p import QuickTopP

T = TypeVar("T")

_GREEDY_BELOW = 1e-6
"""At this temperature a logit lead of 1e-4 is already certain; smaller ones would overflow fp32."""


class NonFiniteLogitsError(ArithmeticError):
    """The model returned no usable logits: NaN, infinity, or nothing but minus infinity."""


def token_seed(seed: int, position: int) -> int:
    """The seed of the generator that draws the token at index `position` of the whole sequence; below 2**63."""
    return _hashed(f"token {seed} {position}")


def alternative_seed(seed: int, number: int) -> int:
    """The seed of a reply's alternative `number` (1 is the first one after the original); below 2**63."""
    return _hashed(f"alternative {seed} {number}")


class Sampler:
    """Chooses tokens as one `Sampling` says. Holds no state between tokens.

    Every field of `sampling` that concerns the choice must be set; ValueError names those that are not.
    """

    def __init__(self, sampling: Sampling) -> None:
        temperature = _required("temperature", sampling.temperature)
        top_p = _required("top_p", sampling.top_p)
        top_k = _required("top_k", sampling.top_k)
        min_p = _required("min_p", sampling.min_p)
        penalty = _required("repetition_penalty", sampling.repetition_penalty)
        self.seed = _required("seed", sampling.seed)
        self._is_greedy = temperature < _GREEDY_BELOW
        self._processors = LogitsProcessorList()
        self._reads_ids = penalty != 1.0  # the other processors look at the scores only
        if self._reads_ids:
            self._processors.append(RepetitionPenaltyLogitsProcessor(float(penalty)))
        if self._is_greedy:
            return
        if temperature != 1.0:
            self._processors.append(TemperatureLogitsWarper(float(temperature)))
        if top_k > 0:
            self._processors.append(TopKLogitsWarper(top_k))
        if top_p < 1.0:
            self._processors.append(QuickTopP(float(top_p)))
        if min_p > 0.0:
            self._processors.append(MinPLogitsWarper(float(min_p)))

    def choose(self, token_ids: Sequence[int], logits: torch.Tensor) -> int:
        """The token that follows `token_ids` (prompt and reply so far).

        `logits` are those of the last position, shape (vocabulary,), on any device, of any float dtype; they are not
        changed. Raises NonFiniteLogitsError.
        """
        scores = logits.detach().to(device="cpu", dtype=torch.float32, copy=True)[None]
        # The maximum alone tells: NaN counts as the greatest, and it is minus infinity only if all are. Torch takes ten
        # times as long to find it.
        likeliest = int(scores[0].numpy().argmax())
        if not math.isfinite(scores[0, likeliest]):
            raise NonFiniteLogitsError(f"The logits at token {len(token_ids)} are not finite.")
        if self._is_greedy and not self._processors:
            return likeliest
        if self._processors:
            ids = torch.tensor([token_ids if self._reads_ids else ()], dtype=torch.long)
            scores = self._processors(cast(torch.LongTensor, ids), scores)
        if self._is_greedy:
            return int(scores.argmax())
        generator = torch.Generator().manual_seed(token_seed(self.seed, len(token_ids)))
        probabilities = scores.softmax(dim=-1)
        # A draw takes a random number for each token in the order of their ids: those behind the last possible token
        # change nothing, and drawing them would take longer than all else here.
        num_possible = int(probabilities[0].nonzero()[-1]) + 1
        return int(torch.multinomial(probabilities[:, :num_possible], 1, generator=generator))

    def choose_run(self, token_ids: Sequence[int], candidates: Sequence[int], logits: torch.Tensor) -> list[int]:
        """The tokens that `choose` gives one after another, as far as `candidates` foresaw them, and the one behind.

        `logits`: those of the last token, then of each candidate, shape (1 + candidates, vocabulary).
        Raises NonFiniteLogitsError.
        """
        ids, chosen = list(token_ids), []
        for index in range(1 + len(candidates)):
            token_id = self.choose(ids, logits[index])
            ids.append(token_id)
            chosen.append(token_id)
            if index == len(candidates) or token_id != candidates[index]:
                break
        return chosen


def _required(name: str, value: T | None) -> T:
    if value is None:
        raise ValueError(f"Sampling.{name} must be set before tokens are chosen; merge it with the model's default.")
    return value


def _hashed(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1
