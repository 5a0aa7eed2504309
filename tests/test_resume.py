"""The cache survives the process: a chat goes on after a restart exactly as if there had been none."""

from __future__ import annotations

import dataclasses
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from endings import ENDINGS
from services import GREEDY, counted_forwards, open_service, runtime_of
from slow_disk import SlowDisk

from chatcache.chat import ChatService
from chatcache.events import CacheEvent, Reply, TextEvent
from chatcache.loader import LoadedModel
from chatcache.prompt import PromptBuilder
from chatcache.segment_codec import segment_bounds
from chatcache.stats import FinishReason, Reuse, Sampling
from storage.segment_files import SegmentFolder

TIMEOUT_S = 60


def send(service: ChatService, session_id: str, text: str, sampling: Sampling = GREEDY) -> Reply:
    return service.send(session_id, text, sampling).result(TIMEOUT_S)


def segment_files(service: ChatService) -> list[Path]:
    runtime_of(service).persistence.flush()
    folder: SegmentFolder = runtime_of(service).segments._folder
    return sorted(path for path in folder.path.rglob("*") if path.is_file())


@pytest.mark.parametrize("ending", [ending for ending in ENDINGS if ending != "eos"])
def test_the_next_reply_after_a_restart_is_that_of_an_uninterrupted_chat(
    ending: str, tiny_llama: LoadedModel, tmp_path: Path
) -> None:
    with open_service(tiny_llama, tmp_path) as service:
        session = service.create_session(system_prompt="Be brief.")
        reply = ENDINGS[ending](service, session.id)
        num_held = service.cache_report(session.id).num_tokens
        fork = service.fork(reply.message.id)
        uninterrupted = send(service, fork.id, "Go on")
    with open_service(tiny_llama, tmp_path) as service, counted_forwards(tiny_llama) as forwarded:
        turn = service.send(session.id, "Go on", GREEDY)
        resumed = turn.result(TIMEOUT_S)
        assert resumed.message.token_ids == uninterrupted.message.token_ids
        stats = resumed.stats
        assert stats.reuse[0].source == "disk"
        assert stats.num_cached_tokens >= num_held
        assert stats.miss_reason is None
        assert sum(forwarded) == stats.num_computed_tokens + stats.num_completion_tokens - 1
        sentences = [event.message for event in turn.events() if isinstance(event, CacheEvent)]
        assert any("Resumed" in sentence and "from disk" in sentence for sentence in sentences)


def test_restored_tensors_are_the_saved_ones_byte_for_byte(tiny_llama: LoadedModel, tmp_path: Path) -> None:
    with open_service(tiny_llama, tmp_path) as service:
        session = service.create_session()
        send(service, session.id, "word " * 150)
        send(service, session.id, "Two", Sampling(temperature=0.0, max_new_tokens=300))
        runtime = runtime_of(service)
        (live,) = runtime.parts.pool.live.caches.values()
        before = live.export(0, live.num_tokens)
        assert before.start == 0
    with open_service(tiny_llama, tmp_path) as service:
        assert service.prefetch(session.id) == len(before.token_ids)
        (restored,) = runtime_of(service).parts.pool.live.caches.values()
        after = restored.export(0, restored.num_tokens)
    assert after.token_ids == before.token_ids
    for mine, its in zip(before.layers, after.layers, strict=True):
        assert all(torch.equal(mine[name], its[name]) for name in mine)


def test_regenerate_after_a_restart_forwards_one_token(tiny_llama: LoadedModel, tmp_path: Path) -> None:
    with open_service(tiny_llama, tmp_path) as service:
        session = service.create_session()
        first = send(service, session.id, "Hello")
    with open_service(tiny_llama, tmp_path) as service:
        again = service.regenerate(session.id, sampling=GREEDY).result(TIMEOUT_S)
        assert again.stats.num_computed_tokens == 1
        assert again.message.token_ids == first.message.token_ids


def test_the_same_prompt_over_all_that_is_stored_computes_one_token(tiny_llama: LoadedModel, tmp_path: Path) -> None:
    with open_service(tiny_llama, tmp_path) as service:
        first = send(service, service.create_session(system_prompt="Be brief.").id, "Hello " * 60)
    with open_service(tiny_llama, tmp_path) as service, counted_forwards(tiny_llama) as forwarded:
        again = send(service, service.create_session(system_prompt="Be brief.").id, "Hello " * 60)
        assert again.message.token_ids == first.message.token_ids
        assert (again.stats.num_computed_tokens, again.stats.reuse[0].source) == (1, "disk")
        assert sum(forwarded) == again.stats.num_completion_tokens, "the prompt's last token is fed once"


@pytest.mark.parametrize("settings", [{}, {"prompt_lookup": True}], ids=repr)
def test_penalty_and_seed_work_after_a_restart_as_before(
    settings: dict[str, object], tiny_llama: LoadedModel, tmp_path: Path
) -> None:
    wild = Sampling(temperature=1.5, repetition_penalty=1.3, seed=3, max_new_tokens=24)
    texts = ("One two three four. " * 10, "One two three four, and once more", "Again")

    def said_by(service: ChatService, session_id: str, *texts: str) -> list[tuple[int, ...] | None]:
        return [send(service, session_id, text, wild).message.token_ids for text in texts]

    with open_service(tiny_llama, tmp_path / "whole") as service:
        expected = said_by(service, service.create_session(settings=settings).id, *texts)
    with open_service(tiny_llama, tmp_path / "cut") as service:
        session = service.create_session(settings=settings)
        said = said_by(service, session.id, *texts[:1])
    for text in texts[1:]:
        with open_service(tiny_llama, tmp_path / "cut") as service:
            said += said_by(service, session.id, text)
    assert said == expected


def test_going_back_to_another_branch_reads_it_from_disk(tiny_llama: LoadedModel, tmp_path: Path) -> None:
    with open_service(tiny_llama, tmp_path) as service:
        session = service.create_session()
        send(service, session.id, "One")
        old = send(service, session.id, "Two, and it is a rather long message for this model")
        service.rollback(session.id)
        send(service, session.id, "Another")
        runtime_of(service).persistence.flush()
        service.select(old.message.id)
        back = send(service, session.id, "Three")
        assert [reuse.source for reuse in back.stats.reuse] == ["live", "disk"]
        assert back.stats.miss_reason is None


def test_a_new_chat_of_the_same_owner_starts_from_the_stored_system_prompt(
    tiny_llama: LoadedModel, tmp_path: Path
) -> None:
    prompt = "You are a careful assistant. " * 10
    with open_service(tiny_llama, tmp_path) as service:
        send(service, service.create_session(system_prompt=prompt).id, "One")
    with open_service(tiny_llama, tmp_path) as service:
        mine = send(service, service.create_session(system_prompt=prompt).id, "Two")
        theirs = service.for_owner("other")
        other = send(theirs, theirs.create_session(system_prompt=prompt).id, "Two")
    assert mine.stats.reuse[0].source == "disk"
    assert mine.stats.num_cached_tokens > 50
    assert other.stats.reuse == ()


@pytest.mark.parametrize("has_restarted", [False, True])
def test_a_chat_taken_out_of_the_bin_goes_on_as_if_it_had_not_been_there(
    tiny_llama: LoadedModel, tmp_path: Path, has_restarted: bool
) -> None:
    with open_service(tiny_llama, tmp_path) as service:
        session_id = service.create_session().id
        send(service, session_id, "Hello")
        service.delete(session_id)
        num_held = service.context_use(session_id).num_fed_tokens - 1  # what was said last is not fed yet
        if not has_restarted:
            service.undelete(session_id)
            stats = send(service, session_id, "And now?").stats
    if has_restarted:
        with open_service(tiny_llama, tmp_path) as service:
            service.undelete(session_id)
            stats = send(service, session_id, "And now?").stats
    assert stats.num_cached_tokens >= num_held
    assert stats.miss_reason is None


@pytest.mark.parametrize("at_once", [False, True])
def test_a_chat_removed_for_good_frees_what_nobody_else_holds(
    tiny_llama: LoadedModel, tmp_path: Path, at_once: bool
) -> None:
    with open_service(tiny_llama, tmp_path) as service:
        kept, *removed = (service.create_session(system_prompt="Shared. " * 20).id for _ in range(3))
        for session_id in (kept, *removed):
            send(service, session_id, session_id)
        files = segment_files(service)
        for session_id in removed:
            service.delete(session_id)
        assert segment_files(service) == files
        assert service.storage_report().cache.session_bytes.keys() == {kept, *removed}
        if at_once:
            service.purge_bin()
        else:
            for session_id in removed:
                service.purge(session_id)
        left, report = segment_files(service), service.storage_report().cache
        assert 0 < len(left) < len(files)
        assert report.used_bytes == sum(path.stat().st_size for path in left) == report.session_bytes[kept]
        assert report.session_bytes.keys() == {kept}
        service.delete(kept)
        service.purge(kept)
        assert segment_files(service) == []


def test_all_caches_of_one_owner_are_dropped_at_once_and_every_word_stays(
    tiny_llama: LoadedModel, tmp_path: Path
) -> None:
    with open_service(tiny_llama, tmp_path) as service:
        theirs = service.for_owner("somebody else")
        their_chat = theirs.create_session()
        send(theirs, their_chat.id, "Mine")
        chats = [service.create_session(system_prompt="Shared. " * 20) for _ in range(3)]
        for chat in chats:
            send(service, chat.id, "Hello")
        segment_files(service)  # waits until everything is written
        before = service.storage_report().cache.used_bytes
        freed = service.drop_all_caches().num_bytes
        report = service.storage_report().cache
        assert freed == before - report.used_bytes > 0
        assert report.session_bytes == {}
        assert theirs.storage_report().cache.session_bytes.keys() == {their_chat.id}
        assert [service.cache_report(chat.id).num_tokens for chat in chats] == [0, 0, 0]
        assert theirs.cache_report(their_chat.id).num_tokens > 0
        assert [len(service.messages(chat.id)) for chat in chats] == [2, 2, 2]
        again = send(service, chats[0].id, "Go on")
        assert again.stats.num_cached_tokens == 0
        segment_files(service)
        assert service.storage_report().cache.session_bytes.keys() == {chats[0].id}


def test_what_a_turn_writes_is_what_is_new(tiny_llama: LoadedModel, tmp_path: Path) -> None:
    with open_service(tiny_llama, tmp_path) as service:
        session = service.create_session()
        for number in range(6):
            before = sum(path.stat().st_size for path in segment_files(service))
            num_before = service.cache_report(session.id).num_tokens
            send(service, session.id, f"Message {number}", Sampling(temperature=0.0, max_new_tokens=100))
            num_new = service.cache_report(session.id).num_tokens - num_before
            written = sum(path.stat().st_size for path in segment_files(service)) - before
        per_token = 2 * 2 * 2 * 16 * 4  # two layers, keys and values, two heads of 16 float32
        assert num_new * per_token <= written < num_new * per_token * 1.1 + 4096


@pytest.mark.parametrize(
    ("start", "stop", "cuts", "expected"),
    [
        (0, 10, (), [(0, 10)]),
        (0, 10, (4,), [(0, 4), (4, 10)]),
        (0, 10, (0, 10, 12), [(0, 10)]),
        (5, 5, (), []),
        (0, 300, (), [(0, 256), (256, 300)]),
        (0, 300, (100,), [(0, 100), (100, 300)]),
        (7, 1000, (500,), [(7, 263), (263, 500), (500, 756), (756, 1000)]),
    ],
)
def test_segments_end_at_cuts_and_are_never_too_long(
    start: int, stop: int, cuts: tuple[int, ...], expected: list[tuple[int, int]]
) -> None:
    assert segment_bounds(start, stop, cuts, max_tokens=256) == expected


def test_the_source_of_every_reused_token_is_named(tiny_llama: LoadedModel, tmp_path: Path) -> None:
    with open_service(tiny_llama, tmp_path) as service:
        session = service.create_session()
        send(service, session.id, "One")
    with open_service(tiny_llama, tmp_path) as service:
        first = send(service, session.id, "Two").stats
        second = send(service, session.id, "Three").stats
    assert first.reuse == (Reuse("disk", first.num_cached_tokens),)
    assert first.restore_s is not None
    assert second.reuse == (Reuse("live", second.num_cached_tokens),)
    assert second.restore_s is None


def test_a_prefetched_chat_says_that_it_came_from_disk(tiny_llama: LoadedModel, tmp_path: Path) -> None:
    with open_service(tiny_llama, tmp_path) as service:
        session = service.create_session()
        send(service, session.id, "One")
    with open_service(tiny_llama, tmp_path) as service:
        num_held = service.prefetch(session.id)
        turn = service.send(session.id, "Two", GREEDY)
        stats = turn.result(TIMEOUT_S).stats
        assert stats.reuse == (Reuse("disk", num_held),)
        assert stats.restore_s is not None
        sentence = f"Resumed {num_held} tokens from disk"
        (told,) = (e.message for e in turn.events() if isinstance(e, CacheEvent) and e.kind == "restored")
        assert told.startswith(sentence)
        assert told.endswith(f"{stats.num_computed_tokens} to compute.")
        again = send(service, session.id, "Three").stats
        assert again.reuse == (Reuse("live", again.num_cached_tokens),)


def test_dropping_all_caches_waits_for_no_reply_and_what_that_needs_is_dropped_at_its_end(
    tiny_llama: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PromptBuilder, "_terminator", lambda *_: frozenset())
    endless = dataclasses.replace(tiny_llama, eos_token_ids=frozenset())
    with open_service(endless, tmp_path) as service:
        idle, busy, temporary = (service.create_session(temporary=number == 2) for number in range(3))
        for chat in (idle, busy, temporary):
            send(service, chat.id, "Hello")
        turn = service.send(busy.id, "Go on", Sampling(temperature=0.0, max_new_tokens=1000))
        next(event for event in turn.events() if isinstance(event, TextEvent))
        dropped = service.drop_all_caches()
        assert not turn.done
        assert (dropped.num_running, dropped.num_bytes > 0) == (1, True)
        assert [service.cache_report(chat.id).is_live for chat in (idle, busy, temporary)] == [False, True, False]
        stats = turn.result(TIMEOUT_S).stats
        assert (stats.finish_reason, stats.num_recomputed_tokens) == (FinishReason.LENGTH, 0)
        assert not service.cache_report(busy.id).is_live
        assert segment_files(service) == []
        send(service, busy.id, "And now it is kept again", GREEDY)
        segment_files(service)
        assert service.storage_report().cache.session_bytes.keys() == {busy.id}
        assert service.drop_all_caches().num_running == 0


def test_dropping_all_caches_withdraws_what_is_being_written(
    tiny_llama: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = SlowDisk(monkeypatch, "write")
    with open_service(tiny_llama, tmp_path) as service, ThreadPoolExecutor(1) as pool:
        session = service.create_session()
        send(service, session.id, "word " * 400)
        disk.wait_until_asked()
        dropped = pool.submit(service.drop_all_caches)
        persistence = runtime_of(service).persistence
        num_copied_bytes = persistence.pending.num_bytes
        while len(persistence._pending):
            time.sleep(0.001)
        assert persistence.pending.num_bytes == num_copied_bytes, "the writer holds them still"
        disk.allow_first(1)
        assert dropped.result(30).num_running == 0
        assert service.storage_report().cache.used_bytes == 0
        assert not persistence.has_pending
        disk.allow_all()


def test_a_branch_left_a_moment_ago_is_not_computed_again(
    tiny_llama: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What of it is not written yet is in memory on its way to the disk."""
    may_write = threading.Event()
    write = SegmentFolder.write
    monkeypatch.setattr(SegmentFolder, "write", lambda *arguments: may_write.wait(30) and write(*arguments))
    with open_service(tiny_llama, tmp_path) as service:
        session = service.create_session()
        old = send(service, session.id, "One")
        service.regenerate(session.id, sampling=Sampling(temperature=1.5, seed=1, max_new_tokens=8)).result(TIMEOUT_S)
        service.select(old.message.id)
        stats = send(service, session.id, "Two").stats
        assert stats.miss_reason is None
        assert [reuse.source for reuse in stats.reuse] == ["live", "disk"]
        may_write.set()


def test_what_could_not_be_saved_for_a_while_is_saved_when_the_service_ends(
    tiny_llama: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_service(tiny_llama, tmp_path) as service:
        session = service.create_session()
        with monkeypatch.context() as patch:
            patch.setattr(SegmentFolder, "write", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left")))
            send(service, session.id, "One")
            runtime_of(service).persistence.flush()
        num_held = service.cache_report(session.id).num_tokens
    with open_service(tiny_llama, tmp_path) as service:
        assert service.prefetch(session.id) == num_held


@pytest.mark.parametrize("is_extended", [False, True], ids=["same", "extended"])
def test_a_chat_replaced_by_a_file_goes_on_from_what_was_stored_for_it_also_after_restarts(
    is_extended: bool, tiny_llama: LoadedModel, tmp_path: Path
) -> None:
    def goes_on(service: ChatService, text: str) -> Reply:
        with counted_forwards(tiny_llama) as forwarded:
            reply = send(service, session.id, text)
        stats = reply.stats
        assert stats.num_cached_tokens == num_held
        assert sum(forwarded) == stats.num_computed_tokens + stats.num_completion_tokens - 1
        return reply

    def held_after(reply: Reply) -> int:
        return reply.stats.num_prompt_tokens + reply.stats.num_completion_tokens - 1

    with open_service(tiny_llama, tmp_path) as service:
        session = service.create_session(system_prompt="Be brief.")
        send(service, session.id, "One " * 100)
        shorter = service.export(session.id)
        num_held = held_after(send(service, session.id, "Two"))
        exported = service.export(session.id)
        if is_extended:
            service.import_(shorter, replace=True)
        runtime_of(service).persistence.flush()
        before = service.storage_report().cache
        assert service.import_(exported, replace=True).outcome == "replaced"
        runtime_of(service).persistence.flush()
        after = service.storage_report().cache
        assert (after.used_bytes, after.num_bytes) == (before.used_bytes, before.num_bytes)
        assert after.session_bytes[session.id] == before.num_bytes
        service.purge_bin()
        assert service.storage_report().cache.session_bytes == {session.id: before.num_bytes}
        num_held = held_after(goes_on(service, "Three"))
        exported = service.export(session.id)
    with open_service(tiny_llama, tmp_path) as service:
        service.import_(exported, replace=True)
        num_held = held_after(goes_on(service, "Four"))
    with open_service(tiny_llama, tmp_path) as service:
        goes_on(service, "Five")
        service.drop_all_caches()
        assert service.storage_report().cache.used_bytes == 0
