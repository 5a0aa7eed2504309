"""Recurrent and hybrid models after a restart: a chat goes on at the nearest stored state; few states are stored."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest
from services import GREEDY, counted_forwards, open_service, runtime_of
from slow_disk import SlowDisk
from tiny_models import RECURRENT, SLIDING, tiny_model, with_model

from chatcache.chat import ChatService
from chatcache.events import Reply
from chatcache.loader import LoadedModel
from storage.segment_format import FileKind
from storage.segment_models import SegmentFileRow, SegmentRow
from storage.sentence import Sentence

TIMEOUT_S = 60


def fast_for(*names: str) -> list[object]:
    """Every recurrent model, slow but for these."""
    return [name if name in names else pytest.param(name, marks=pytest.mark.slow) for name in RECURRENT]


def loaded_as(name: str, tiny_llama: LoadedModel) -> LoadedModel:
    return with_model(tiny_llama, tiny_model(name, 384), name=name)


def send(service: ChatService, session_id: str, text: str) -> Reply:
    return service.send(session_id, text, GREEDY).result(TIMEOUT_S)


def stored(service: ChatService, kind: FileKind) -> dict[int, str]:
    """Where the stored files of this kind end, with their names."""
    runtime = runtime_of(service)
    runtime.persistence.flush()
    with runtime.segments._database.read() as db:
        rows = db.query(SegmentRow.start, SegmentRow.token_ids, SegmentRow.key).join(
            SegmentFileRow, SegmentFileRow.segment_id == SegmentRow.id
        )
        found = rows.where(SegmentFileRow.kind == kind).all()
    return {start + len(ids) // 4: runtime.segments._folder.name(key, kind) for start, ids, key in found}


def talk(service: ChatService, num_turns: int) -> str:
    session = service.create_session(system_prompt="Be brief.")
    for number in range(num_turns):
        send(service, session.id, f"Word {number}.")
    return session.id


@pytest.mark.parametrize("name", fast_for("lfm2"))
def test_the_next_reply_after_a_restart_is_that_of_an_uninterrupted_chat(
    name: str, tiny_llama: LoadedModel, tmp_path: Path
) -> None:
    loaded = loaded_as(name, tiny_llama)
    with open_service(loaded, tmp_path / "whole") as service:
        session_id = talk(service, 3)
        uninterrupted = [send(service, session_id, text) for text in ("Go on.", "And on.")]
        again = service.regenerate(session_id, sampling=GREEDY).result(TIMEOUT_S)
    with open_service(loaded, tmp_path / "cut") as service:
        session_id = talk(service, 3)
    with open_service(loaded, tmp_path / "cut") as service, counted_forwards(loaded) as forwarded:
        forwarded.clear()
        resumed = send(service, session_id, "Go on.")
        assert sum(forwarded) == resumed.stats.num_computed_tokens + resumed.stats.num_completion_tokens - 1
    with open_service(loaded, tmp_path / "cut") as service:
        replies = [resumed, send(service, session_id, "And on.")]
    with open_service(loaded, tmp_path / "cut") as service:
        regenerated = service.regenerate(session_id, sampling=GREEDY).result(TIMEOUT_S)
    for reply, expected in zip((*replies, regenerated), (*uninterrupted, again), strict=True):
        assert reply.message.token_ids == expected.message.token_ids
        assert reply.stats.num_cached_tokens == expected.stats.num_cached_tokens
        assert reply.stats.reuse[-1].source == "disk"
        assert reply.stats.fallbacks == ()
    assert regenerated.stats.num_computed_tokens == 1


@pytest.mark.slow
@pytest.mark.parametrize("name", ["lfm2", "mamba2"])
def test_only_the_states_worth_keeping_stay_on_disk(name: str, tiny_llama: LoadedModel, tmp_path: Path) -> None:
    loaded = loaded_as(name, tiny_llama)
    counts: list[int] = []
    session_id = None
    for first in range(0, 30, 10):
        with open_service(loaded, tmp_path) as service:
            session_id = session_id or service.create_session(system_prompt="Be brief.").id
            for number in range(first, first + 10):
                send(service, session_id, f"Word {number}.")
                counts.append(len(stored(service, FileKind.STATE)))
    # Four of the last two turns, and the end of every eighth.
    assert max(counts) <= 4 + 30 // 8 + 1, counts
    assert counts[-1] >= 30 // 8


@pytest.mark.slow
@pytest.mark.parametrize("name", ["lfm2", "mamba2", SLIDING[0]])
def test_what_is_stored_grows_evenly_over_thirty_turns_and_all_of_it_is_reused(
    name: str, tiny_llama: LoadedModel, tmp_path: Path
) -> None:
    loaded = loaded_as(name, tiny_llama)
    sizes: list[int] = []
    with open_service(loaded, tmp_path) as service:
        session = service.create_session()
        for number in range(30):
            stats = send(service, session.id, f"Word {number:02}.").stats
            assert stats.miss_reason is None
            runtime_of(service).persistence.flush()
            sizes.append(service.storage_report().cache.used_bytes)
        num_held = service.cache_report(session.id).num_tokens
    assert sizes[29] - sizes[19] < 1.5 * (sizes[19] - sizes[9])
    with open_service(loaded, tmp_path) as service:
        assert service.prefetch(session.id) == num_held


@pytest.mark.parametrize("who", ["chat", "fork", "fork of an older version"])
def test_states_that_are_dropped_while_a_chat_is_restored_end_nothing_where_a_later_one_is_there(
    who: str, tiny_llama: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fork from the middle holds the state at its end. One that an older version made does not, and is computed again
    from its beginning where that state was dropped."""
    loaded = loaded_as("lfm2", tiny_llama)
    with open_service(loaded, tmp_path) as service:
        if who == "fork of an older version":
            monkeypatch.setattr(service, "_hold_stored", lambda _fork: None)
        session_id = origin_id = talk(service, 3)
        states = stored(service, FileKind.STATE)
        if who != "chat":
            session_id = service.fork(service.messages(session_id)[3].id).id
        num_fed = service.context_use(session_id).num_fed_tokens
    assert len(states) > 3
    num_held = 0 if who == "fork of an older version" else max(state for state in states if state < num_fed)
    disk = SlowDisk(monkeypatch)
    with open_service(loaded, tmp_path) as service:
        turn = service.send(session_id, "Go on.", GREEDY)
        disk.wait_until_asked()
        segments = runtime_of(service).segments
        for name in states.values():
            segments.drop_state(segments._folder.key(name), origin_id)
        disk.allow_all()
        reply = turn.result(TIMEOUT_S)
        assert reply.stats.num_cached_tokens == num_held
        assert reply.stats.fallbacks == ()
        assert service.cache_report(session_id).problem is None
    with open_service(loaded, tmp_path / "fresh", cache="none") as service:
        other = talk(service, 3 if who == "chat" else 2)
        assert send(service, other, "Go on.").message.token_ids == reply.message.token_ids


@pytest.mark.parametrize("has_turn", [False, True], ids=["no turn yet", "a turn"])
def test_a_chat_that_goes_on_takes_no_state_from_a_fork_that_ended_where_it_was(
    has_turn: bool, tiny_llama: LoadedModel, tmp_path: Path
) -> None:
    loaded = loaded_as("lfm2", tiny_llama)
    with open_service(loaded, tmp_path) as service:
        session_id = talk(service, 3)
        fork = service.fork(service.messages(session_id)[-1].id)
        if has_turn:
            service.regenerate(fork.id, sampling=GREEDY).result(TIMEOUT_S)
        for number in range(4):
            send(service, session_id, f"Going on {number}")
    with open_service(loaded, tmp_path) as service:
        stats = service.regenerate(fork.id, sampling=GREEDY).result(TIMEOUT_S).stats
        assert stats.num_computed_tokens == 1
    with open_service(loaded, tmp_path) as service:
        prompt, before = service.messages(fork.id)[-2], service.messages(fork.id)[:-2]
        num_fed = len(service._starter.fed_ids(fork, before))
        stats = service.edit(prompt.id, "Something else", GREEDY).result(TIMEOUT_S).stats
        assert stats.num_cached_tokens == num_fed - 1


@pytest.mark.parametrize(
    ("harm", "position", "kind"),
    [
        ("missing", 0, FileKind.STATE),
        ("damaged", 2, FileKind.KV),
        *(
            pytest.param(harm, position, kind, marks=pytest.mark.slow)
            for harm, position, kind in product(("missing", "damaged"), (0, 2, -1), FileKind)
        ),
    ],
)
def test_reuse_stops_before_what_is_missing_and_the_reply_is_the_same(
    harm: str, position: int, kind: FileKind, tiny_llama: LoadedModel, tmp_path: Path
) -> None:
    loaded = loaded_as("lfm2", tiny_llama)
    with open_service(loaded, tmp_path) as service:
        session_id = talk(service, 3)
        files, states = stored(service, kind), sorted(stored(service, FileKind.STATE))
        end = sorted(files)[position]
        path = runtime_of(service).segments._folder.path / files[end]
    data = bytearray(path.read_bytes())
    path.unlink()
    if harm == "damaged":
        data[-3] ^= 1
        path.write_bytes(data)
    with open_service(loaded, tmp_path) as service:
        reply = send(service, session_id, "Go on!")
        stats = reply.stats
        ends_there = kind is FileKind.KV or end == states[-1]
        if ends_there:
            assert stats.num_cached_tokens == max((each for each in states if each < end), default=0)
        else:
            assert stats.num_cached_tokens == states[-1], "later states do not need this one"
        assert stats.num_computed_tokens == stats.num_prompt_tokens - stats.num_cached_tokens
        problem = service.cache_report(session_id).problem
        if harm == "damaged" and ends_there:
            assert isinstance(problem, Sentence)
            assert problem.facts["index"] == stats.num_cached_tokens
        else:
            assert problem is None
    with open_service(loaded, tmp_path / "fresh") as service:
        other = talk(service, 3)
        assert send(service, other, "Go on!").message.token_ids == reply.message.token_ids
