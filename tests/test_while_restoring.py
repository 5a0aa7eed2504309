"""What happens to a chat while its cache is read from disk, and what others may do meanwhile."""

from __future__ import annotations

import dataclasses
import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
from services import GREEDY, counted_forwards, open_service, runtime_of
from slow_disk import SlowDisk

from chatcache.chat import LOCAL_OWNER, ChatService
from chatcache.errors import ServiceClosedError
from chatcache.events import CacheEvent, Phase, Reply, StatusEvent
from chatcache.loader import LoadedModel
from chatcache.prefetches import IsWanted, Prefetches
from chatcache.restore import Restore
from chatcache.session_key import SessionKey
from chatcache.stats import FinishReason, MissReason, Reuse, Sampling
from chatcache.turn import Turn
from storage.segment_files import SegmentFolder

TIMEOUT_S = 60


def send(service: ChatService, session_id: str, text: str, sampling: Sampling = GREEDY) -> Reply:
    return service.send(session_id, text, sampling).result(TIMEOUT_S)


@pytest.fixture
def stored_chat(tiny_llama: LoadedModel, tmp_path: Path) -> str:
    """A chat of several segments that an earlier process left behind."""
    with open_service(tiny_llama, tmp_path) as service:
        session = service.create_session()
        send(service, session.id, "word " * 200)
        send(service, session.id, "Two")
        runtime_of(service).persistence.flush()
        assert service.storage_report().cache.num_segments > 4
    return session.id


def wait_until(is_so: Callable[[], bool]) -> None:
    until_s = time.monotonic() + TIMEOUT_S
    while not is_so():
        assert time.monotonic() < until_s
        time.sleep(0.001)


def wait_until_restored_in_part(turn: Turn) -> int:
    """How many tokens have come."""
    states = (event for event in turn.events() if isinstance(event, StatusEvent))
    return next(event.done for event in states if event.phase is Phase.RESTORING and event.done)


def prefetched_in_part(
    service: ChatService,
    session_id: str,
    pool: ThreadPoolExecutor,
    disk: SlowDisk,
    is_wanted: Callable[[], bool] = lambda: True,
) -> Future[int]:
    """A prefetch that has brought some tokens and now waits for the disk."""
    prefetch = pool.submit(service.prefetch, session_id, is_wanted)
    disk.allow_first(2)
    wait_until(lambda: service.cache_report(session_id).num_tokens > 0)
    return prefetch


def test_while_a_chat_is_restored_others_go_on_and_the_person_sees_how_far_it_is(
    stored_chat: str, tiny_llama: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = SlowDisk(monkeypatch)
    with open_service(tiny_llama, tmp_path) as service:
        resuming = service.send(stored_chat, "Three", GREEDY)
        disk.allow_first(2)
        wait_until_restored_in_part(resuming)
        other = service.create_session()
        send(service, other.id, "Something else", GREEDY)
        assert resuming.events_since(0)[-1].phase is Phase.RESTORING
        disk.allow_all()
        stats = resuming.result(TIMEOUT_S).stats
        last = [event for event in resuming.events() if getattr(event, "phase", None) is Phase.RESTORING][-1]
        assert (last.done, last.total) == (stats.num_cached_tokens, stats.num_cached_tokens)
        assert stats.miss_reason is None


def test_stopping_while_a_chat_is_restored_keeps_what_was_restored(
    stored_chat: str, tiny_llama: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = SlowDisk(monkeypatch)
    with open_service(tiny_llama, tmp_path) as service, counted_forwards(tiny_llama) as forwarded:
        turn = service.send(stored_chat, "Three", GREEDY)
        disk.allow_first(2)
        done = wait_until_restored_in_part(turn)
        forwarded.clear()
        turn.stop()
        reply = turn.result(TIMEOUT_S)
        assert reply.stats.finish_reason is FinishReason.CANCELLED
        assert forwarded == []
        assert service.cache_report(stored_chat).num_tokens >= done
        disk.allow_all()
        again = service.regenerate(stored_chat, sampling=GREEDY).result(TIMEOUT_S)
        assert {reuse.source for reuse in again.stats.reuse} == {"live", "disk"}
        assert again.stats.num_computed_tokens < 25, "the message that was stopped, nothing else"


def test_a_turn_takes_over_from_a_prefetch_that_is_not_done(
    stored_chat: str, tiny_llama: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = SlowDisk(monkeypatch)
    with open_service(tiny_llama, tmp_path) as service, ThreadPoolExecutor(1) as pool:
        prefetched = prefetched_in_part(service, stored_chat, pool, disk)
        turn = service.send(stored_chat, "Three", GREEDY)
        assert prefetched.result(30) > 0
        disk.allow_all()
        stats = turn.result(TIMEOUT_S).stats
        assert stats.reuse == (Reuse("disk", stats.num_cached_tokens),)
        assert stats.miss_reason is None


def test_a_prefetch_gives_way_to_a_turn_of_another_chat_that_needs_the_memory(
    stored_chat: str, tiny_llama: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = SlowDisk(monkeypatch)
    with open_service(tiny_llama, tmp_path) as service, ThreadPoolExecutor(1) as pool:
        prefetched = prefetched_in_part(service, stored_chat, pool, disk)
        budget = runtime_of(service).parts.pool.budget
        unlimited, budget.limit_bytes = budget.limit_bytes, budget.reserved_bytes
        turn = service.send(service.create_session().id, "Hello", GREEDY)
        assert prefetched.result(30) == 0
        disk.allow_all()
        stats = turn.result(TIMEOUT_S).stats
        assert (stats.finish_reason, stats.cache_kind) == (FinishReason.LENGTH, "dynamic")
        told = [e for e in turn.events() if isinstance(e, CacheEvent) and e.kind != "restored"]
        assert [event.kind for event in told] == ["spill"]
        assert "what lay ready for the next message of an idle chat left memory." in told[0].message
        budget.limit_bytes = unlimited
        back = send(service, stored_chat, "Three").stats
        assert back.miss_reason is None
        assert {reuse.source for reuse in back.reuse} <= {"prefix", "disk"}


def test_a_reply_does_not_wait_for_the_disk_from_which_another_chat_is_prefetched(
    stored_chat: str, tiny_llama: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = SlowDisk(monkeypatch)
    with open_service(tiny_llama, tmp_path) as service, ThreadPoolExecutor(1) as pool:
        prefetched = prefetched_in_part(service, stored_chat, pool, disk)
        live = runtime_of(service).parts.pool.live
        (restore,) = live.filling.values()
        steps: set[tuple[bool, bool]] = set()

        def step(*, may_wait: bool) -> bool:
            steps.add((bool(live.turns.active), may_wait))
            return False

        monkeypatch.setattr(restore, "step", step)
        until_s = time.monotonic() + TIMEOUT_S
        while (True, False) not in steps and time.monotonic() < until_s:
            send(service, service.create_session().id, "Something else")
        service.drop_cache(stored_chat)
        prefetched.result(30)
        disk.allow_all()
        assert (True, False) in steps
        assert steps <= {(True, False), (False, True)}


def test_a_reply_does_not_wait_for_the_disk_from_which_another_chat_is_restored(
    stored_chat: str, tiny_llama: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, step, waited = SlowDisk(monkeypatch), Restore.step, list[bool]()

    def watched_step(restore: Restore, *, may_wait: bool) -> bool:
        waited.append(may_wait)
        return step(restore, may_wait=may_wait)

    monkeypatch.setattr(Restore, "step", watched_step)
    with open_service(tiny_llama, tmp_path) as service:
        resuming = service.send(stored_chat, "Three", GREEDY)
        disk.allow_first(2)
        wait_until_restored_in_part(resuming)
        assert set(waited) == {True}, "nothing else is to be done"
        send(service, service.create_session().id, "Something else")
        assert False in waited
        waited.clear()
        wait_until(lambda: bool(waited))
        assert set(waited) == {True}
        disk.allow_all()
        resuming.result(TIMEOUT_S)
        said = [event for event in resuming.events() if getattr(event, "phase", None) is Phase.RESTORING]
        assert len(said) == len({event.done for event in said}), "only what has changed"


def test_dropping_a_cache_during_a_prefetch_ends_it(
    stored_chat: str, tiny_llama: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = SlowDisk(monkeypatch)
    with open_service(tiny_llama, tmp_path) as service, ThreadPoolExecutor(1) as pool:
        prefetched = prefetched_in_part(service, stored_chat, pool, disk)
        service.drop_cache(stored_chat)
        assert prefetched.result(30) == 0
        disk.allow_all()
        assert send(service, stored_chat, "Three").stats.num_cached_tokens == 0


def test_a_prefetch_that_brings_nothing_leaves_no_cache_behind(
    stored_chat: str, tiny_llama: LoadedModel, tmp_path: Path
) -> None:
    with open_service(tiny_llama, tmp_path) as service:
        service.drop_cache(stored_chat)
        assert service.prefetch(stored_chat) == 0
        live = runtime_of(service).parts.pool.live
        assert (live.caches, live.forms, live.ahead, live.filling) == ({}, {}, set(), {})
        assert send(service, stored_chat, "Three").stats.num_cached_tokens == 0


def test_a_prefetch_ends_when_nobody_wants_it_and_goes_on_when_somebody_does_again(
    stored_chat: str, tiny_llama: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, left = SlowDisk(monkeypatch), threading.Event()
    with open_service(tiny_llama, tmp_path) as service, ThreadPoolExecutor(1) as pool:
        prefetched = prefetched_in_part(service, stored_chat, pool, disk, lambda: not left.is_set())
        left.set()
        num_tokens = prefetched.result(TIMEOUT_S)
        assert 0 < num_tokens < service.context_use(stored_chat).num_fed_tokens - 1
        report = service.cache_report(stored_chat)
        assert report.reserved_bytes == report.num_bytes, "what was to come takes no room"
        disk.allow_all()
        assert service.prefetch(stored_chat) == service.context_use(stored_chat).num_fed_tokens - 1
        stats = send(service, stored_chat, "Three").stats
        assert (stats.reuse, stats.miss_reason) == ((Reuse("disk", stats.num_cached_tokens),), None)


def test_a_prefetch_goes_on_until_the_last_one_who_wants_it_has_left(
    stored_chat: str, tiny_llama: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, first_left, both_want_it = SlowDisk(monkeypatch), threading.Event(), threading.Event()
    join = Prefetches.join

    def joined(prefetches: Prefetches, key: SessionKey, is_wanted: IsWanted) -> bool:
        is_under_way = join(prefetches, key, is_wanted)
        both_want_it.set()
        return is_under_way

    with open_service(tiny_llama, tmp_path) as service, ThreadPoolExecutor(2) as pool:
        first = prefetched_in_part(service, stored_chat, pool, disk, lambda: not first_left.is_set())
        monkeypatch.setattr(Prefetches, "join", joined)
        second = pool.submit(service.prefetch, stored_chat)
        assert both_want_it.wait(TIMEOUT_S)
        first_left.set()
        disk.allow_all()
        num_fed = service.context_use(stored_chat).num_fed_tokens
        assert (second.result(TIMEOUT_S), first.result(TIMEOUT_S)) == (num_fed - 1, num_fed - 1)


def test_what_nobody_wants_before_it_has_begun_is_not_read(
    stored_chat: str, tiny_llama: LoadedModel, tmp_path: Path
) -> None:
    with open_service(tiny_llama, tmp_path) as service:
        assert service.prefetch(stored_chat, lambda: False) == 0


def test_a_prefetch_takes_no_memory_from_chats_that_were_used_and_has_nothing_written(
    stored_chat: str, tiny_llama: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_write, write = threading.Event(), SegmentFolder.write
    monkeypatch.setattr(SegmentFolder, "write", lambda *arguments: may_write.wait(30) and write(*arguments))
    with open_service(tiny_llama, tmp_path) as service:
        other = service.create_session()
        send(service, other.id, "Hello " * 300)
        budget = runtime_of(service).parts.pool.budget
        unlimited, budget.limit_bytes = budget.limit_bytes, budget.reserved_bytes
        assert service.prefetch(stored_chat) == 0, "whatever is on its way to disk is not waited for"
        may_write.set()
        runtime_of(service).persistence.flush()
        budget.limit_bytes = service.cache_report(other.id).num_bytes
        assert service.prefetch(stored_chat) == 0
        assert service.cache_report(other.id).is_live
        budget.limit_bytes = unlimited
        assert service.prefetch(stored_chat) > 0


def test_what_was_read_ahead_and_never_used_leaves_for_what_is_read_ahead_next(
    stored_chat: str, tiny_llama: LoadedModel, tmp_path: Path
) -> None:
    with open_service(tiny_llama, tmp_path) as service:
        other = service.create_session()
        send(service, other.id, "Hello " * 200)
        runtime_of(service).persistence.flush()
    with open_service(tiny_llama, tmp_path) as service:
        used = service.create_session()
        send(service, used.id, "Hi")
        runtime_of(service).persistence.flush()
        num_tokens = service.prefetch(stored_chat)
        budget = runtime_of(service).parts.pool.budget
        budget.limit_bytes = budget.reserved_bytes + budget.free_layer_bytes
        assert service.prefetch(other.id) > 0
        assert [service.cache_report(chat).is_live for chat in (used.id, stored_chat)] == [True, False]
        assert service.prefetch(stored_chat) == num_tokens
        send(service, stored_chat, "Three")
        runtime_of(service).persistence.flush()
        budget.limit_bytes = budget.reserved_bytes
        assert service.prefetch(other.id) == 0
        assert service.cache_report(stored_chat).is_live, "it is used now"


def test_what_was_copied_ahead_from_another_chat_and_never_used_is_not_written_when_it_leaves(
    tiny_llama: LoadedModel, tmp_path: Path
) -> None:
    with open_service(tiny_llama, tmp_path) as service:
        origin = service.create_session()
        send(service, origin.id, "Hello")
        fork = service.fork(service.messages(origin.id)[-1].id)
        send(service, origin.id, "And on")
        runtime = runtime_of(service)
        runtime.persistence.flush()
        stored = runtime.segments.report(LOCAL_OWNER)
        assert service.prefetch(fork.id) > 0
        runtime.call(lambda parts: parts.pool.live.spill(SessionKey(LOCAL_OWNER, origin.id), None))
        assert not service.cache_report(fork.id).is_live
        runtime.persistence.flush()
        assert runtime.segments.report(LOCAL_OWNER) == stored


def test_what_leaves_memory_is_told_as_moved_to_disk_only_where_it_was(tiny_llama: LoadedModel, tmp_path: Path) -> None:
    with open_service(tiny_llama, tmp_path) as service:
        origin, other = service.create_session(), service.create_session()
        send(service, origin.id, "Hello")
        forks = [service.fork(service.messages(origin.id)[-1].id) for _ in range(2)]
        send(service, origin.id, "And on")
        assert all(service.prefetch(fork.id) > 0 for fork in forks)
        budget = runtime_of(service).parts.pool.budget
        runtime_of(service).persistence.flush()
        budget.limit_bytes = budget.reserved_bytes // 2
        turn = service.send(other.id, "Something else " + "word " * 150, GREEDY)
        turn.result(TIMEOUT_S)
        told = [event.message for event in turn.events() if isinstance(event, CacheEvent) and event.kind == "spill"]
        assert not any(service.cache_report(chat.id).is_live for chat in (origin, *forks))
    assert [sentence.split(": ")[1] for sentence in told] == [
        "the cache of an idle chat was moved to disk.",
        "what lay ready for the next messages of 2 idle chats left memory.",
    ]


def test_caches_dropped_while_one_is_restored_are_no_failure(
    stored_chat: str,
    tiny_llama: LoadedModel,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    disk = SlowDisk(monkeypatch)
    with open_service(tiny_llama, tmp_path) as service:
        turn = service.send(stored_chat, "Three", GREEDY)
        disk.allow_first(2)
        num_restored = wait_until_restored_in_part(turn)
        assert service.drop_all_caches().num_running == 1
        disk.allow_all()
        stats = turn.result(TIMEOUT_S).stats
        assert (stats.finish_reason, stats.fallbacks) == (FinishReason.LENGTH, ())
        assert stats.miss_reason is MissReason.NO_CACHE
        assert num_restored <= stats.num_cached_tokens < stats.num_prompt_tokens - 20
        assert service.cache_report(stored_chat).problem is None
        assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []
        said = turn.result().message.token_ids
        assert service.regenerate(stored_chat, sampling=GREEDY).result(TIMEOUT_S).message.token_ids == said


@pytest.mark.parametrize("is_prefetch", [False, True], ids=["turn", "prefetch"])
def test_a_service_closed_while_a_chat_is_restored_ends_in_order_and_the_chat_goes_on_later(
    is_prefetch: bool,
    stored_chat: str,
    tiny_llama: LoadedModel,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    disk = SlowDisk(monkeypatch)
    with open_service(tiny_llama, tmp_path) as service, ThreadPoolExecutor(2) as pool:
        if is_prefetch:
            prefetched = prefetched_in_part(service, stored_chat, pool, disk)
        else:
            turn = service.send(stored_chat, "Three", GREEDY)
            disk.allow_first(2)
            wait_until_restored_in_part(turn)
        closed = pool.submit(service.close)
        if is_prefetch:
            assert isinstance(prefetched.exception(TIMEOUT_S), ServiceClosedError)
        else:
            assert turn.result(TIMEOUT_S).stats.finish_reason is FinishReason.INTERRUPTED
        disk.allow_all()
        closed.result(TIMEOUT_S)
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []
    with open_service(tiny_llama, tmp_path) as service:
        stats = send(service, stored_chat, "Four").stats
        assert (stats.finish_reason, stats.fallbacks) == (FinishReason.LENGTH, ())
        assert stats.reuse == (Reuse("disk", stats.num_cached_tokens),)
        assert stats.num_computed_tokens < 40, "the new message, and the one that was interrupted"


def test_where_the_context_is_full_while_a_chat_is_restored_the_reply_is_that_of_an_uninterrupted_chat(
    tiny_llama: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    short = dataclasses.replace(tiny_llama, max_context_tokens=512)
    texts = [f"{number} " + "word " * 6 for number in range(100)]
    with open_service(short, tmp_path) as service:
        session = service.create_session(system_prompt="You are a fox. " * 12)
        num_fitting = 0
        while send(service, session.id, texts[num_fitting]).stats.context_start == 0:
            num_fitting += 1
        expected = service.messages(session.id)[-1]
        service.rollback(session.id)
    disk = SlowDisk(monkeypatch)
    with open_service(short, tmp_path) as service:
        turn = service.send(session.id, texts[num_fitting], GREEDY)
        disk.wait_until_asked()
        service.update_session(session.id, settings={"context_full": "stop"})  # for the turns to come
        disk.allow_all()
        reply = turn.result(TIMEOUT_S)
        assert reply.message.token_ids == expected.token_ids
        assert reply.stats.miss_reason is MissReason.CONTEXT
        assert reply.stats.reuse[0].source == "disk"
