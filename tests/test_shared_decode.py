"""Turns that write at the same time share forwards, and none of them can tell."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest
import torch
from services import counted_forwards, open_service

from chatcache.cache.kinds import make_session_cache
from chatcache.cache_form import CacheForm
from chatcache.decode_step import DecodeStep
from chatcache.engine import TurnRun
from chatcache.events import Event
from chatcache.loader import LoadedModel
from chatcache.prefill_chunks import ChunkSchedule
from chatcache.prompt import PromptBuilder
from chatcache.session_key import SessionKey
from chatcache.session_pool import SessionPool
from chatcache.shared_decode import feed_together
from chatcache.stats import FinishReason, Sampling
from chatcache.template_chat import PromptMessage
from chatcache.turn_request import TurnRequest
from storage.records import Role

TEXTS = ["Hello.", "And you, my friend?", "Grüße 🙂", "The quick brown fox jumps over the lazy dog. " * 20]
GREEDY = Sampling(
    temperature=0.0, top_p=1.0, top_k=0, min_p=0.0, repetition_penalty=1.0, max_new_tokens=12, stop=(), seed=1
)


class Table:
    """Several turns on one model, each in a session of its own."""

    def __init__(
        self, loaded: LoadedModel, samplings: Sequence[Sampling] = (GREEDY,) * len(TEXTS), kind: str = "dynamic"
    ) -> None:
        self.loaded = loaded
        self.pool = SessionPool(partial(make_session_cache, loaded.model), CacheForm(kind))
        step = DecodeStep.of(loaded.model)
        assert step is not None
        self.decode_step = step
        self.stopped: set[int] = set()
        self.runs = [self._run(i, *each) for i, each in enumerate(zip(TEXTS, samplings, strict=True))]

    def _run(self, index: int, text: str, sampling: Sampling) -> TurnRun:
        loaded = self.loaded
        prompts = PromptBuilder(loaded.tokenizer, loaded.chat_template, loaded.eos_token_ids)
        prompt = prompts.build([PromptMessage(Role.USER, text)], system_prompt=f"You are {index}.", template_vars={})
        request = TurnRequest("ann", f"s{index}", prompt.token_ids, (), sampling)
        events: list[Event] = []
        return TurnRun(
            loaded,
            prompts,
            self.pool,
            request,
            events.append,
            should_stop=lambda: index in self.stopped,
            decode_step=self.decode_step,
            chunks=ChunkSchedule.of(loaded.model),
        )

    def step(self, active: list[TurnRun], *, together: bool = True) -> None:
        """A round, as the scheduler makes it; turns that end leave `active`."""
        with torch.inference_mode():
            if together:
                feed_together(self.decode_step, active)
            for run in list(active):
                if run.step():
                    active.remove(run)

    def finish(self, *, together: bool = True) -> list[tuple[int, ...]]:
        active = [run for run in self.runs if run.outcome is None]
        while active:
            self.step(active, together=together)
        return self.replies()

    def replies(self) -> list[tuple[int, ...]]:
        return [run.outcome.reply.token_ids for run in self.runs if run.outcome is not None]


@pytest.mark.parametrize("kind", ["dynamic", "quantized-int8", "quantized-int4"])
def test_each_turn_says_what_it_would_have_said_alone_in_fewer_forwards(tiny_llama: LoadedModel, kind: str) -> None:
    with counted_forwards(tiny_llama) as alone:
        expected = Table(tiny_llama, kind=kind).finish(together=False)
    table = Table(tiny_llama, kind=kind)
    with counted_forwards(tiny_llama) as together:
        assert table.finish() == expected
    assert sum(together) == sum(alone), "no token is computed twice"
    assert len(together) < len(alone) / 2
    for run in table.runs:
        assert run.outcome.stats.num_recomputed_tokens == 0
        assert run.outcome.stats.num_completion_tokens == 12


def test_each_turn_keeps_its_own_way_of_choosing_tokens(tiny_llama: LoadedModel) -> None:
    samplings = [
        GREEDY,
        Sampling(temperature=0.9, seed=5).merged(GREEDY),
        Sampling(temperature=1.2, top_p=0.8, seed=6, max_new_tokens=3).merged(GREEDY),
        Sampling(repetition_penalty=1.5).merged(GREEDY),
    ]
    assert Table(tiny_llama, samplings).finish() == Table(tiny_llama, samplings).finish(together=False)


def test_turns_join_and_leave_at_any_step(tiny_llama: LoadedModel) -> None:
    expected = Table(tiny_llama).finish(together=False)
    table = Table(tiny_llama)
    active = [table.runs[0]]
    for joining in table.runs[1:]:
        for _ in range(3):
            table.step(active)
        active.append(joining)
    while active:
        table.step(active)
    assert table.replies() == expected


def test_a_turn_that_is_stopped_disturbs_no_other_and_its_cache_stays_sound(tiny_llama: LoadedModel) -> None:
    expected = Table(tiny_llama).finish(together=False)
    table = Table(tiny_llama)
    active = list(table.runs)
    for _ in range(6):
        table.step(active)
    with torch.inference_mode():
        feed_together(table.decode_step, active)
    table.stopped.add(1)  # its token has just been fed
    replies = table.finish()
    stopped = replies.pop(1)
    assert table.runs[1].outcome.stats.finish_reason is FinishReason.CANCELLED
    assert 0 < len(stopped) < 12
    assert replies == [ids for i, ids in enumerate(expected) if i != 1]
    for run in table.runs:
        acquired = table.pool.acquire(
            SessionKey("ann", run._request.session_id), [*run._request.prompt_ids, *expected[0], 1]
        )
        acquired.cache.check()


def test_a_failure_in_one_turns_cache_ends_that_turn_only(tiny_llama: LoadedModel) -> None:
    expected = Table(tiny_llama).finish(together=False)
    table = Table(tiny_llama)
    active = list(table.runs)
    for _ in range(5):
        table.step(active)
    layer = table.runs[2]._held.cache.cache.layers[1]
    layer.update = lambda *_: 1 / 0
    replies = table.finish()
    assert table.runs[2].outcome.stats.finish_reason is FinishReason.ERROR
    assert replies[2]
    assert [ids for i, ids in enumerate(replies) if i != 2] == [ids for i, ids in enumerate(expected) if i != 2]


def test_a_failure_that_does_not_come_again_costs_no_reply(
    tiny_llama: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = Table(tiny_llama).finish(together=False)
    table = Table(tiny_llama)
    active = list(table.runs)
    for _ in range(5):
        table.step(active)
    failures = iter([True])
    feed = DecodeStep.__call__

    def fails_once(self: DecodeStep, token_ids: Sequence[int], caches: Sequence) -> torch.Tensor:
        logits = feed(self, token_ids, caches)
        if next(failures, False):
            raise RuntimeError("once")
        return logits

    monkeypatch.setattr(DecodeStep, "__call__", fails_once)
    assert table.finish() == expected


def test_a_service_with_several_turns_at_once_says_the_same(tiny_llama: LoadedModel, tmp_path: Path) -> None:
    said: list[list[str]] = []
    num_forwards: list[int] = []
    for max_turns in (1, 4):
        with open_service(tiny_llama, tmp_path / str(max_turns), max_concurrent_turns=max_turns) as service:
            sessions = [service.create_session(system_prompt=text[:20]).id for text in TEXTS]
            release = threading.Event()
            waiting = threading.Thread(target=service._runtime.scheduler.call, args=(release.wait,))
            waiting.start()  # so that all turns begin at once
            with counted_forwards(tiny_llama) as forwards:
                turns = [
                    service.send(each, text, Sampling(temperature=0.0, max_new_tokens=24))
                    for each, text in zip(sessions, TEXTS, strict=True)
                ]
                release.set()
                said.append([turn.result().message.text for turn in turns])
            waiting.join()
            num_forwards.append(len(forwards))
    assert said[0] == said[1]
    assert num_forwards[1] < 0.8 * num_forwards[0]
