"""When memory runs out the reply goes on, in a smaller cache where it must; what was said never changes."""

from __future__ import annotations

import dataclasses
import random
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from services import GREEDY, open_service, runtime_of

from chatcache.cache.layers import AppendLayer
from chatcache.cache.quantized_layer import QuantizedLayer
from chatcache.cache.session_cache import SessionCache
from chatcache.cache.token_buffer import TokenBuffer
from chatcache.cache.token_range import TokenRange
from chatcache.chat import ChatService
from chatcache.events import CacheEvent, Reply
from chatcache.live_caches import LiveCaches, Spilled
from chatcache.loader import LoadedModel
from chatcache.memory.room import Room
from chatcache.prompt import PromptBuilder
from chatcache.stats import FinishReason, MissReason, Sampling
from chatcache.turn import Turn
from storage.segment_files import SegmentFolder

TIMEOUT_S = 60
BLOCK_BYTES = 256 * 2 * 2 * 2 * 16 * 4
"""What 256 tokens take in `tiny_llama`: two layers, keys and values, two heads of 16 float32."""
LONG = Sampling(temperature=0.0, max_new_tokens=1200)


@pytest.fixture(scope="module")
def loaded(tiny_llama: LoadedModel) -> Iterator[LoadedModel]:
    """A model that never ends a reply by itself."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PromptBuilder, "_terminator", lambda *_: frozenset())
        yield dataclasses.replace(tiny_llama, eos_token_ids=frozenset())


@contextmanager
def watched(service: ChatService, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """All cache bytes together, measured whenever any layer wrote: never above the budget."""
    pool, seen = runtime_of(service).parts.pool, []

    def look() -> None:
        measured = sum(cache.num_bytes for cache in pool.live.caches.values())
        assert measured <= pool.budget.reserved_bytes <= pool.budget.limit_bytes
        seen.append(measured)

    with monkeypatch.context() as patch:
        advance = SessionCache.advance
        patch.setattr(SessionCache, "advance", lambda self, ids: (look(), advance(self, ids), look())[1])
        yield seen


def run(turn: Turn) -> tuple[Reply, list[CacheEvent]]:
    reply = turn.result(TIMEOUT_S)
    return reply, [event for event in turn.events() if isinstance(event, CacheEvent)]


@pytest.fixture(scope="module")
def said_without_limit(loaded: LoadedModel, tmp_path_factory: pytest.TempPathFactory) -> tuple[int, ...]:
    with open_service(loaded, tmp_path_factory.mktemp("unlimited")) as service:
        return ids_of(run(service.send(service.create_session().id, "Hello", LONG))[0])


def ids_of(reply: Reply) -> tuple[int, ...]:
    assert reply.message.token_ids is not None
    return reply.message.token_ids


@pytest.mark.parametrize(
    ("num_blocks", "cache", "steps", "kind"),
    [
        pytest.param(9.0, "auto", [], "dynamic", marks=pytest.mark.slow),
        pytest.param(6.5, "auto", ["convert"], "quantized-int8", marks=pytest.mark.slow),
        pytest.param(5.2, "auto", ["convert", "convert"], "quantized-int4", marks=pytest.mark.slow),
        pytest.param(4.3, "auto", ["convert", "convert", "stop"], "quantized-int4", marks=pytest.mark.slow),
        (1.0, "auto", ["stop"], "dynamic"),
        (4.5, "dynamic", ["stop"], "dynamic"),
        pytest.param(3.0, "quantized-int8", ["stop"], "quantized-int8", marks=pytest.mark.slow),
    ],
)
def test_a_reply_goes_on_in_a_smaller_cache_and_keeps_what_it_said(
    loaded: LoadedModel,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    said_without_limit: tuple[int, ...],
    num_blocks: float,
    cache: str,
    steps: list[str],
    kind: str,
) -> None:
    budget = int(num_blocks * BLOCK_BYTES)
    with (
        open_service(loaded, tmp_path, memory_budget_bytes=budget, cache=cache) as service,
        watched(service, monkeypatch),
    ):
        reply, events = run(service.send(service.create_session().id, "Hello", LONG))
    stats = reply.stats
    assert [event.kind for event in events] == steps
    assert stats.fallbacks == tuple(event.message for event in events)
    assert stats.cache_kind == kind
    assert stats.num_recomputed_tokens == 0
    num_exact = events[0].token_index - stats.num_prompt_tokens if events else LONG.max_new_tokens
    if cache != "quantized-int8":
        assert ids_of(reply)[:num_exact] == said_without_limit[:num_exact], "nothing differs before the first step"
    if "stop" in steps:
        assert stats.finish_reason is FinishReason.CONTEXT_FULL
        assert f"{events[-1].token_index:,} tokens of this chat fit" in events[-1].message
    else:
        assert stats.finish_reason is FinishReason.LENGTH
    if "convert" in steps:
        assert (
            events[0].message == f"Memory was short at token {events[0].token_index:,}: this chat's cache is now 8-bit."
        )


@pytest.mark.parametrize(
    ("num_blocks", "cache"),
    [(4.5, "auto"), (4.5, "dynamic"), pytest.param(3.2, "quantized-int8", marks=pytest.mark.slow)],
)
def test_of_a_prompt_that_does_not_fit_the_number_of_tokens_that_do_is_told(
    loaded: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_blocks: float, cache: str
) -> None:
    monkeypatch.setattr(Room, "most_tokens", lambda _self, _form, limit_tokens: limit_tokens)  # let it begin
    with open_service(loaded, tmp_path, memory_budget_bytes=int(num_blocks * BLOCK_BYTES), cache=cache) as service:
        grown, told = run(service.send(service.create_session().id, "Hello", LONG))
        num_fitting = told[-1].token_index
        assert grown.stats.finish_reason is FinishReason.CONTEXT_FULL
        service.drop_all_caches()
        reply, (*_, told) = run(service.send(service.create_session().id, "word " * (num_fitting // 2 + 200), GREEDY))
        assert reply.stats.finish_reason is FinishReason.CONTEXT_FULL
        assert f"{num_fitting:,} tokens of this chat fit" in told.message


def test_when_there_is_room_again_new_turns_go_back_up(loaded: LoadedModel, tmp_path: Path) -> None:
    with open_service(loaded, tmp_path / "unlimited") as service:
        session = service.create_session()
        first, _ = run(service.send(session.id, "Hello", dataclasses.replace(LONG, max_new_tokens=600)))
        service.rollback(session.id)
    with open_service(loaded, tmp_path / "limited", memory_budget_bytes=int(4.2 * BLOCK_BYTES)) as service:
        session = service.create_session()
        reply, events = run(service.send(session.id, "Hello", dataclasses.replace(LONG, max_new_tokens=600)))
        assert [event.kind for event in events] == ["convert"]
        num_exact = events[0].token_index
        assert ids_of(reply)[: num_exact - 16] == ids_of(first)[: num_exact - 16]
        small, events = run(service.send(session.id, "Go on", GREEDY))
        assert small.stats.cache_kind == "quantized-int8", "there is no more room than before"
        assert small.stats.reuse[0].source == "live"
        runtime_of(service).parts.pool.budget.limit_bytes = 40 * BLOCK_BYTES
        back, events = run(service.send(session.id, "And?", GREEDY))
        stats = back.stats
        assert stats.cache_kind == "dynamic"
        assert (stats.miss_reason, stats.miss_index) == (MissReason.SMALLER_FORM, num_exact)
        assert stats.reuse[-1].source == "disk"
        assert stats.num_cached_tokens == num_exact, "the part that was computed in full precision is on disk"
        assert any("full precision again" in event.message for event in events)
        after, _ = run(service.send(session.id, "More", GREEDY))
        assert (after.stats.miss_reason, after.stats.num_computed_tokens < 40) == (None, True)
    with open_service(loaded, tmp_path / "limited") as service:
        resumed, _ = run(service.send(session.id, "Resumed", GREEDY))
        assert (resumed.stats.miss_reason, resumed.stats.reuse[0].source) == (None, "disk")


@pytest.mark.slow
@pytest.mark.parametrize("cache", ["auto", "dynamic"])
def test_of_two_turns_that_do_not_fit_together_the_later_one_waits_and_goes_on(
    loaded: LoadedModel,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    said_without_limit: tuple[int, ...],
    cache: str,
) -> None:
    """Either fits alone: nobody shrinks, nothing is computed twice, and both say what they would have said."""
    budget = 8 * BLOCK_BYTES
    with (
        open_service(loaded, tmp_path, memory_budget_bytes=budget, cache=cache) as service,
        watched(service, monkeypatch),
    ):
        turns = [service.send(service.create_session().id, "Hello", LONG) for _ in range(2)]
        (first, first_events), (second, events) = (run(turn) for turn in turns)
    for reply in (first, second):
        assert ids_of(reply) == said_without_limit
        assert reply.stats.finish_reason is FinishReason.LENGTH
        assert reply.stats.cache_kind == "dynamic"
        assert reply.stats.num_recomputed_tokens == 0
        assert reply.stats.num_prompt_tokens == reply.stats.num_cached_tokens + reply.stats.num_computed_tokens
    assert {event.kind for event in first_events} <= {"spill"}
    assert "wait" in [event.kind for event in events]
    assert {event.kind for event in events} <= {"wait", "spill"}
    assert any("this reply goes on when another one has ended" in sentence for sentence in second.stats.fallbacks)


@pytest.mark.slow
def test_a_chat_that_would_fit_alone_in_small_pieces_waits_for_the_others(loaded: LoadedModel, tmp_path: Path) -> None:
    """Whatever runs beside it, a reply ends as it would alone."""
    chats = [
        ("quantized-int8", "word " * 90),
        ("dynamic", "Numbers such as 1, 22, 333"),
        ("quantized-int4", "naïve café " * 30),
        ("dynamic", "The quick brown fox " * 25),
        ("quantized-int8", "lazy"),
    ]
    most = dataclasses.replace(GREEDY, max_new_tokens=60)

    def reasons(folder: str, asked: Sequence[tuple[str, str]]) -> list[FinishReason]:
        with open_service(
            loaded, tmp_path / folder, max_concurrent_turns=5, memory_budget_bytes=int(2.25 * BLOCK_BYTES)
        ) as service:
            ids = [service.create_session(settings={"cache": kind}).id for kind, _ in asked]
            turns = [service.send(each, text, most) for each, (_, text) in zip(ids, asked, strict=True)]
            return [turn.result(TIMEOUT_S).stats.finish_reason for turn in turns]

    alone = [reasons(f"alone {number}", [chat])[0] for number, chat in enumerate(chats)]
    assert alone.count(FinishReason.CONTEXT_FULL) == 1
    for number in range(3):
        assert reasons(f"together {number}", chats) == alone


def test_a_turn_that_waits_for_memory_can_be_stopped_and_its_chat_goes_on(loaded: LoadedModel, tmp_path: Path) -> None:
    with open_service(loaded, tmp_path, memory_budget_bytes=8 * BLOCK_BYTES) as service:
        sessions = [service.create_session() for _ in range(2)]
        first, second = (service.send(session.id, "Hello", LONG) for session in sessions)
        next(event for event in second.events() if isinstance(event, CacheEvent) and event.kind == "wait")
        second.stop()
        stopped, _ = run(second)
        assert stopped.stats.finish_reason is FinishReason.CANCELLED
        assert run(first)[0].stats.finish_reason is FinishReason.LENGTH
        again, _ = run(service.send(sessions[1].id, "Go on", GREEDY))
        assert again.stats.miss_reason is None
        assert again.stats.num_recomputed_tokens == 0


@pytest.mark.parametrize("num_blocks", [pytest.param(4.3, marks=pytest.mark.slow), 3.0])
def test_turns_of_which_not_even_one_fits_shrink_one_after_the_other_and_both_end(
    loaded: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_blocks: float
) -> None:
    with (
        open_service(loaded, tmp_path, memory_budget_bytes=int(num_blocks * BLOCK_BYTES)) as service,
        watched(service, monkeypatch),
    ):
        turns = [service.send(service.create_session().id, "Hello", LONG) for _ in range(2)]
        for reply, events in (run(turn) for turn in turns):
            assert reply.stats.finish_reason is FinishReason.CONTEXT_FULL
            assert "tokens of this chat fit" in events[-1].message
            assert ids_of(reply)


def test_copies_on_their_way_to_disk_count_and_are_waited_for_where_they_are_in_the_way(
    loaded: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_open, write = threading.Event(), SegmentFolder.write
    monkeypatch.setattr(SegmentFolder, "write", lambda *args: (is_open.wait(TIMEOUT_S), write(*args))[1])
    with open_service(loaded, tmp_path, cache="dynamic") as service:
        session = service.create_session()
        run(service.send(session.id, "Hello", dataclasses.replace(LONG, max_new_tokens=150)))
        report = service.cache_report(session.id)
        copies_bytes = report.num_tokens * BLOCK_BYTES // 256
        assert (report.num_bytes, report.reserved_bytes) == (BLOCK_BYTES, BLOCK_BYTES + copies_bytes)
        # A second block fits, and a layer beside it, but not the copies, too.
        runtime_of(service).parts.pool.budget.limit_bytes = 3 * BLOCK_BYTES + copies_bytes // 2
        turn = service.send(session.id, "Go on", dataclasses.replace(LONG, max_new_tokens=150))
        with pytest.raises(TimeoutError):
            turn.result(0.1)
        is_open.set()
        reply, events = run(turn)
        assert (reply.stats.finish_reason, events) == (FinishReason.LENGTH, [])
        runtime_of(service).persistence.flush()
        report = service.cache_report(session.id)
        assert report.num_bytes == report.reserved_bytes == 2 * BLOCK_BYTES


def test_without_memory_for_a_copy_a_cache_is_saved_in_pieces_when_it_leaves(
    loaded: LoadedModel, tmp_path: Path
) -> None:
    most, budget = dataclasses.replace(LONG, max_new_tokens=150), int(1.6 * BLOCK_BYTES)
    with open_service(loaded, tmp_path, memory_budget_bytes=budget, cache="dynamic") as service:
        first, second = service.create_session(), service.create_session()
        run(service.send(first.id, "Hello", most))
        assert "Memory is short" in (service.cache_report(first.id).problem or "")
        run(service.send(second.id, "Hello", most))
        back, events = run(service.send(first.id, "Go on", GREEDY))
    assert [event.kind for event in events] == ["spill", "restored"]
    assert (back.stats.miss_reason, back.stats.num_recomputed_tokens) == (None, 0)


def test_a_chat_that_outgrew_memory_goes_on_without_its_oldest_turns(loaded: LoadedModel, tmp_path: Path) -> None:
    with open_service(loaded, tmp_path, memory_budget_bytes=2 * BLOCK_BYTES) as service:
        session = service.create_session()
        for number in range(40):
            reply, events = run(service.send(session.id, f"{number} " + "word " * 20, GREEDY))
            if reply.stats.finish_reason is FinishReason.CONTEXT_FULL:
                break
        assert events[-1].kind == "stop"
        assert reply.stats.context_start == 0
        again, events = run(service.regenerate(session.id, sampling=GREEDY))
        assert again.stats.finish_reason is FinishReason.LENGTH
        assert again.stats.context_start == service.context_start(session.id) > 0
        assert "left out" in again.stats.fallbacks[0]
        following, _ = run(service.send(session.id, "And?", GREEDY))
        assert following.stats.finish_reason is FinishReason.LENGTH
        assert following.stats.num_computed_tokens < 40


# ------------------------------------------------------------------- real failures, injected


@contextmanager
def failing_writes(monkeypatch: pytest.MonkeyPatch, *numbers: int) -> Iterator[list[int]]:
    """The writes into any layer of any cache with these numbers run out of memory, others do not; counted."""
    counted = [0]
    write = TokenBuffer.write

    def fail(self: TokenBuffer, start: int, rows: torch.Tensor) -> None:
        counted[0] += 1
        if counted[0] - 1 in numbers:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB.")
        write(self, start, rows)

    with monkeypatch.context() as patch:
        patch.setattr(TokenBuffer, "write", fail)
        yield counted


@pytest.mark.parametrize("num_places", [2, pytest.param(50, marks=pytest.mark.slow)])
def test_an_allocation_that_fails_anywhere_changes_no_reply(
    loaded: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_places: int
) -> None:
    monkeypatch.setattr("chatcache.prefill_chunks.ChunkSchedule.num_tokens", lambda *_: 16)
    prompts, sampling = ("word " * 30, "Go on"), dataclasses.replace(GREEDY, temperature=0.8, max_new_tokens=12, seed=3)
    with open_service(loaded, tmp_path / "reference") as service, failing_writes(monkeypatch) as counted:
        session = service.create_session()
        expected = [ids_of(run(service.send(session.id, text, sampling))[0]) for text in prompts]
        num_writes = counted[0]
    with open_service(loaded, tmp_path / "failing") as service:
        for number in random.Random(7).sample(range(num_writes), num_places):
            session = service.create_session()
            with failing_writes(monkeypatch, number):
                replies = [run(service.send(session.id, text, sampling)) for text in prompts]
            assert [ids_of(reply) for reply, _ in replies] == expected
            told = [event.kind for _, events in replies for event in events if event.kind != "restored"]
            assert told == ["retry"]
            *_, cache = runtime_of(service).parts.pool.live.caches.values()
            cache.check()
            for reply, _ in replies:
                assert reply.stats.num_prompt_tokens == reply.stats.num_cached_tokens + reply.stats.num_computed_tokens
            service.delete(session.id)
            service.purge(session.id)


def test_memory_that_stays_short_takes_the_ladder_step_by_step(
    loaded: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Full-precision forwards of more than 8 tokens fail for good."""
    monkeypatch.setattr("chatcache.prefill_chunks.ChunkSchedule.num_tokens", lambda *_: 64)
    import_ = AppendLayer.import_

    def fail(self: AppendLayer, rows: dict[str, torch.Tensor]) -> None:
        if rows["keys"].shape[0] > 8:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB.")
        import_(self, rows)

    with open_service(loaded, tmp_path) as service:
        idle, session = service.create_session(), service.create_session()
        run(service.send(idle.id, "Hello", GREEDY))
        with monkeypatch.context() as patch:
            patch.setattr(AppendLayer, "import_", fail)
            reply, events = run(service.send(session.id, "word " * 60, GREEDY))
        assert [event.kind for event in events] == ["retry", "spill", "smaller-chunks", "smaller-chunks", "convert"]
        assert "32 tokens at a time" in events[2].message
        assert reply.stats.finish_reason is FinishReason.LENGTH
        assert reply.stats.cache_kind == "quantized-int8"
        assert len(ids_of(reply)) > 0
        back, _ = run(service.send(idle.id, "Are you there?", GREEDY))
        assert (back.stats.miss_reason, back.stats.finish_reason) == (None, FinishReason.LENGTH)


def test_a_conversion_that_fails_half_way_leaves_every_token_and_the_next_form_is_tried(
    loaded: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    append, num_calls = QuantizedLayer.append, [0]

    def fail(self: QuantizedLayer, *states: torch.Tensor) -> None:
        num_calls[0] += 1
        if num_calls[0] == 4:  # the second layer, its second block
            raise torch.OutOfMemoryError
        append(self, *states)

    monkeypatch.setattr(QuantizedLayer, "append", fail)
    with open_service(loaded, tmp_path, memory_budget_bytes=int(4.2 * BLOCK_BYTES)) as service:
        reply, events = run(
            service.send(service.create_session().id, "Hello", dataclasses.replace(LONG, max_new_tokens=700))
        )
    assert [event.kind for event in events] == ["convert"]
    assert "4-bit" in events[0].message
    assert reply.stats.finish_reason is FinishReason.LENGTH
    assert reply.stats.num_recomputed_tokens == 0


@pytest.mark.parametrize("num_failures", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_a_restore_that_runs_out_of_memory_is_tried_once_more(
    loaded: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_failures: int
) -> None:
    with open_service(loaded, tmp_path) as service:
        session = service.create_session()
        first, _ = run(service.send(session.id, "word " * 150, GREEDY))
    num_held = first.stats.num_prompt_tokens + first.stats.num_completion_tokens - 1
    with open_service(loaded, tmp_path) as service:
        idle = service.create_session()
        run(service.send(idle.id, "Hello", GREEDY))
        import_, num_calls = SessionCache.import_, [0]

        def fail(self: SessionCache, tokens: TokenRange) -> None:
            num_calls[0] += bool(tokens.token_ids)
            if tokens.token_ids and num_calls[0] <= num_failures:
                raise torch.OutOfMemoryError
            import_(self, tokens)

        monkeypatch.setattr(SessionCache, "import_", fail)
        reply, events = run(service.send(session.id, "Go on", GREEDY))
        assert reply.stats.finish_reason is FinishReason.LENGTH
        assert "spill" in [event.kind for event in events]
        if num_failures == 1:
            assert reply.stats.num_cached_tokens == num_held
            assert reply.stats.miss_reason is None
        else:
            assert reply.stats.num_cached_tokens < num_held


def test_a_restore_for_which_there_is_no_room_any_more_is_told(
    loaded: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_service(loaded, tmp_path) as service:
        session = service.create_session()
        run(service.send(session.id, "word " * 150, GREEDY))

    def fail(*_: object) -> None:
        monkeypatch.setattr(LiveCaches, "reserve_or_spill", lambda *_, **__: (False, Spilled()))
        raise torch.OutOfMemoryError

    with open_service(loaded, tmp_path) as service:
        monkeypatch.setattr(SessionCache, "import_", fail)
        reply, events = run(service.send(session.id, "Go on", GREEDY))
    assert [event.kind for event in events] == ["retry", "not-restored"]
    assert reply.stats.finish_reason is FinishReason.LENGTH
    assert reply.stats.num_cached_tokens == 0
    assert events[-1].message in reply.stats.fallbacks


def test_without_memory_for_anything_the_reply_stops_and_the_next_one_works(
    loaded: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_service(loaded, tmp_path) as service:
        session = service.create_session()
        first, _ = run(service.send(session.id, "Hello", GREEDY))
        with failing_writes(monkeypatch, *range(10_000)):
            failed, events = run(service.send(session.id, "Go on", GREEDY))
        assert failed.stats.finish_reason is FinishReason.CONTEXT_FULL
        assert events[-1].kind == "stop"
        assert failed.message.text == ""
        again = service.regenerate(session.id, sampling=GREEDY).result(TIMEOUT_S)
        assert again.stats.finish_reason is FinishReason.LENGTH
        assert again.stats.num_cached_tokens >= first.stats.num_prompt_tokens
