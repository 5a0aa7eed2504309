"""Live caches stay within their budget whoever talks, and a chat whose cache had to leave goes on from disk."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from examples import few_quick
from services import GREEDY, counted_forwards, open_service, runtime_of

from chatcache.chat import ChatService
from chatcache.errors import InvalidInputError
from chatcache.events import CacheEvent, Reply
from chatcache.loader import LoadedModel
from chatcache.memory.budget import Budget
from chatcache.stats import FinishReason, Sampling
from chatcache.turn import Turn

TIMEOUT_S = 60
BLOCK_BYTES = 256 * 2 * 2 * 2 * 16 * 4
"""What 256 tokens take in `tiny_llama`: two layers, keys and values, two heads of 16 float32."""
LAYER_BYTES = BLOCK_BYTES // 2


@contextmanager
def watched(service: ChatService) -> Iterator[list[int]]:
    """All cache bytes together, measured after every layer of every forward: never above the budget."""
    pool, seen = runtime_of(service).parts.pool, []

    def look(*_: object) -> None:
        measured = sum(cache.num_bytes for cache in pool.live.caches.values())
        assert measured <= pool.budget.reserved_bytes <= pool.budget.limit_bytes
        seen.append(measured)

    handles = [layer.register_forward_hook(look) for layer in runtime_of(service).parts.loaded.model.model.layers]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


def run(turn: Turn) -> tuple[Reply, list[CacheEvent]]:
    reply = turn.result(TIMEOUT_S)
    return reply, [event for event in turn.events() if isinstance(event, CacheEvent)]


def talk(service: ChatService, num_sessions: int, num_rounds: int) -> list[list[Reply]]:
    """Chats of a few hundred tokens, talking in turn."""
    sessions = [service.create_session(system_prompt=f"You are number {n}.") for n in range(num_sessions)]
    rounds = []
    for number in range(num_rounds):
        texts = [f"{n} {number} " + "word " * 100 for n in range(num_sessions)]
        pairs = zip(sessions, texts, strict=True)
        rounds.append([service.send(session.id, text, GREEDY).result(TIMEOUT_S) for session, text in pairs])
    return rounds


@pytest.fixture(scope="module")
def said_without_limit(tiny_llama: LoadedModel, tmp_path_factory: pytest.TempPathFactory) -> list[list[Reply]]:
    with open_service(tiny_llama, tmp_path_factory.mktemp("unlimited")) as service:
        return talk(service, 4, 3)


@pytest.mark.parametrize("num_blocks", few_quick([5, 40, 9]))
def test_chats_in_turn_say_the_same_within_any_budget_that_holds_the_running_ones(
    said_without_limit: list[list[Reply]], tiny_llama: LoadedModel, tmp_path: Path, num_blocks: int
) -> None:
    budget = num_blocks * BLOCK_BYTES
    with open_service(tiny_llama, tmp_path, memory_budget_bytes=budget) as service, watched(service) as seen:
        rounds = talk(service, 4, 3)
        report = service.cache_report(rounds[0][0].message.session_id)
    assert max(seen) > 0
    assert report.budget_bytes == budget
    assert report.total_bytes <= report.reserved_bytes <= budget
    for replies, references in zip(rounds, said_without_limit, strict=True):
        assert [r.message.text for r in replies] == [r.message.text for r in references]
        assert all(r.stats.finish_reason in (FinishReason.LENGTH, FinishReason.STOP) for r in replies)


def test_a_spilled_chat_comes_back_from_disk_and_recomputes_nothing(tiny_llama: LoadedModel, tmp_path: Path) -> None:
    budget = 3 * BLOCK_BYTES
    with open_service(tiny_llama, tmp_path, memory_budget_bytes=budget) as service:
        first, second = service.create_session(), service.create_session()
        run(service.send(first.id, "1 " + "word " * 150, GREEDY))
        num_held = service.cache_report(first.id).num_tokens
        _, events = run(service.send(second.id, "2 " + "word " * 150, GREEDY))
        assert events[0].kind == "spill"
        assert "moved to disk" in events[0].message
        assert not service.cache_report(first.id).is_live
        with counted_forwards(tiny_llama) as forwarded:
            back, _ = run(service.send(first.id, "And?", GREEDY))
    stats = back.stats
    assert stats.reuse[-1].source == "disk"
    assert stats.num_cached_tokens == num_held
    assert (stats.miss_reason, stats.num_recomputed_tokens) == (None, 0)
    assert sum(forwarded) == stats.num_computed_tokens + stats.num_completion_tokens - 1
    assert any("moved to disk" in sentence for sentence in stats.fallbacks)


def test_what_a_rollback_or_a_chat_removed_for_good_frees_is_returned(tiny_llama: LoadedModel, tmp_path: Path) -> None:
    with open_service(tiny_llama, tmp_path, memory_budget_bytes=20 * BLOCK_BYTES) as service:
        session = service.create_session()
        run(service.send(session.id, "Hello", GREEDY))
        run(service.send(session.id, "word " * 300, GREEDY))
        before = service.cache_report(session.id).num_bytes
        service.rollback(session.id)
        run(service.send(session.id, "Again", GREEDY))
        runtime_of(service).persistence.flush()
        after = service.cache_report(session.id)
        assert after.reserved_bytes == after.num_bytes == BLOCK_BYTES < before
        other = service.create_session()
        service.delete(session.id)
        service.purge(session.id)
        assert service.cache_report(other.id).reserved_bytes == 0


def test_a_chat_that_does_not_fit_stops_with_the_number_of_tokens_that_do(
    tiny_llama: LoadedModel, tmp_path: Path
) -> None:
    budget = BLOCK_BYTES + LAYER_BYTES
    long = Sampling(temperature=0.0, max_new_tokens=1000)
    with open_service(tiny_llama, tmp_path / "unlimited") as service:
        whole = run(service.send(service.create_session().id, "Hello", long))[0].message.text
    with open_service(tiny_llama, tmp_path / "limited", cache="dynamic", memory_budget_bytes=budget) as service:
        session = service.create_session()
        with watched(service):
            reply, events = run(service.send(session.id, "Hello", long))
        assert reply.stats.finish_reason is FinishReason.CONTEXT_FULL
        assert "256 tokens" in reply.stats.fallbacks[-1]
        assert events[-1].message == reply.stats.fallbacks[-1]
        assert reply.message.text
        assert whole.startswith(reply.message.text)
        assert reply.stats.num_prompt_tokens + reply.stats.num_completion_tokens == 257
        other = service.create_session()
        assert run(service.send(other.id, "Hello", GREEDY))[0].stats.finish_reason is FinishReason.LENGTH


def test_whoever_asks_the_budget_is_kept_by_the_model_thread_alone(
    tiny_llama: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[threading.Thread] = []
    hold = Budget.hold

    def noted_hold(*arguments: Any) -> None:
        threads.append(threading.current_thread())
        hold(*arguments)

    monkeypatch.setattr(Budget, "hold", noted_hold)
    with open_service(tiny_llama, tmp_path) as service:
        session = service.create_session()
        run(service.send(session.id, "Hello", GREEDY))
        service.cache_report(session.id)
        service.memory_plan(100)
    assert {thread.name for thread in threads} == {"chatcache-model"}


def test_prefetch_and_fork_stay_within_the_budget(tiny_llama: LoadedModel, tmp_path: Path) -> None:
    with open_service(tiny_llama, tmp_path, memory_budget_bytes=3 * BLOCK_BYTES) as service, watched(service):
        session = service.create_session()
        reply, _ = run(service.send(session.id, "word " * 130, GREEDY))
        fork = service.fork(reply.message.id)
        forked, _ = run(service.send(fork.id, "Go on", GREEDY))
        assert forked.stats.miss_reason is None
        assert service.prefetch(session.id) == 0, "the other one was used"
        assert service.cache_report(fork.id).is_live
        service.drop_cache(fork.id)
        assert service.prefetch(session.id) > 0
        report = service.cache_report(session.id)
        assert report.total_bytes <= report.reserved_bytes <= report.budget_bytes


@pytest.mark.parametrize("options", [{"memory_budget_bytes": -1}])
def test_a_budget_that_means_nothing_is_refused(
    tiny_llama: LoadedModel, tmp_path: Path, options: dict[str, Any]
) -> None:
    with pytest.raises(InvalidInputError, match="budget"), open_service(tiny_llama, tmp_path, **options):
        pass


def test_without_a_setting_the_budget_is_what_is_free_less_a_reserve(tiny_llama: LoadedModel, tmp_path: Path) -> None:
    with open_service(tiny_llama, tmp_path) as service:
        assert service.cache_report(service.create_session().id).budget_bytes > 0
