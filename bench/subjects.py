"""The programs that are compared: each reads a prompt anew, then writes from its end, as often as it is asked to."""

from __future__ import annotations

import dataclasses
import itertools
import time
from collections.abc import Sequence
from typing import Any, Protocol

import torch
from transformers import DynamicCache
from transformers.generation.streamers import BaseStreamer
from transformers.modeling_utils import PreTrainedModel

from chatcache.chat import ChatService
from chatcache.stats import Sampling, TurnStats

GREEDY = Sampling(temperature=0.0, repetition_penalty=1.0)
"""The likeliest token, whatever the model's own settings are."""
SETTLED_S = 0.1
"""What is written has settled when the disk has been quiet for so long."""


class BenchError(Exception):
    """A figure could not be taken; the sentence says why."""


class Subject(Protocol):
    """A program that runs the model. Its tokens are chosen greedily unless it is told otherwise."""

    name: str

    def read(self, text: str) -> float:
        """Compute a prompt anew: tokens per second."""

    def write(self, num_tokens: int) -> float:
        """Write so many tokens after the prompt that was read last, whose cache is there: tokens per second."""

    def close(self) -> None:
        """Let memory and processes go."""


class Ours:
    """chatcache, through its own service and with its own stats: what a person at the page would have."""

    name = "chatcache"

    def __init__(self, service: ChatService) -> None:
        self._service = service
        self._mine = service
        self._session_id = ""
        self._numbers = itertools.count(1)

    def read(self, text: str) -> float:
        """Each time as another owner, so that nothing computed before is used."""
        if self._session_id:
            self._mine.delete(self._session_id)
            self._mine.purge(self._session_id)
        self._mine = self._service.for_owner(f"subject-{next(self._numbers)}-{time.time_ns()}")
        self._session_id = self._mine.create_session().id
        stats = self._mine.send(self._session_id, text, greedy(1)).result().stats
        settle(self._mine)
        if stats.num_cached_tokens or not stats.prefill_s:
            raise BenchError(f"The prompt was not computed anew: {stats}.")
        return stats.num_computed_tokens / stats.prefill_s

    def write(self, num_tokens: int, sampling: Sampling = GREEDY) -> float:
        speed = self.rewrite(num_tokens, sampling).decode_tokens_per_s
        if speed is None:
            raise BenchError("The model ended its reply at once; choose another text.")
        return speed

    def rewrite(self, num_tokens: int, sampling: Sampling = GREEDY) -> TurnStats:
        """What an alternative reply of so many tokens cost."""
        wanted = sampling.merged(greedy(num_tokens))
        stats = self._mine.regenerate(self._session_id, sampling=wanted).result().stats
        settle(self._mine)
        return stats

    def close(self) -> None:
        """The service is closed by who opened it."""


class PlainTransformers:
    """The library as it is: the model in its own dtype, sdpa, a `DynamicCache`, one forward per prompt, `generate`.

    A subject by way of `worker`, which gives it ids.
    """

    name = "transformers"

    def __init__(self, model: PreTrainedModel) -> None:
        self._model: Any = model
        self._ids = torch.empty((1, 0), dtype=torch.long)
        self._cache: DynamicCache | None = None

    @torch.inference_mode()
    def read(self, ids: Sequence[int]) -> float:
        """Compute a prompt anew: tokens per second."""
        self._ids = torch.tensor([list(ids)], device=self._model.device)
        self._cache = DynamicCache(config=self._model.config)
        began_s = time.perf_counter()
        logits = self._model(self._ids, cache=self._cache, use_cache=True, logits_to_keep=1).logits
        int(logits[0, -1].argmax())  # on an accelerator the work is done only when its result is here
        return len(ids) / (time.perf_counter() - began_s)

    @torch.inference_mode()
    def write(self, num_tokens: int) -> float:
        """As a subject does."""
        assert self._cache is not None
        self._cache.crop(self._ids.shape[1] - 1 - self._cache.get_seq_length())
        clock = _TokenClock()
        self._model.generate(
            self._ids,
            attention_mask=torch.ones_like(self._ids),
            cache=self._cache,
            do_sample=False,
            min_new_tokens=num_tokens,
            max_new_tokens=num_tokens,
            streamer=clock,
        )
        return clock.tokens_per_s


class _TokenClock(BaseStreamer):
    """Notes when each token of `generate` came; the first call is the prompt."""

    def __init__(self) -> None:
        self._times_s: list[float] = []

    def put(self, value: Any) -> None:  # noqa: ARG002
        self._times_s.append(time.perf_counter())

    def end(self) -> None:
        """Nothing to hand on."""

    @property
    def tokens_per_s(self) -> float:
        """From the first new token to the last, as our stats count it."""
        first_s, last_s = self._times_s[1], self._times_s[-1]
        return (len(self._times_s) - 2) / (last_s - first_s)


def settle(service: ChatService) -> None:
    """Wait until what was computed is written to disk, so that the writing does not weigh on the next figure."""
    before = -1
    while (now := service.storage_report().cache.num_bytes) != before:
        before = now
        time.sleep(SETTLED_S)


def greedy(num_tokens: int) -> Sampling:
    return dataclasses.replace(GREEDY, max_new_tokens=num_tokens)
