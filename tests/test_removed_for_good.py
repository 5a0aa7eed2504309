"""What a chat that was removed for good had alone is gone from the disk, and chats that begin like it lose nothing."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from services import GREEDY, HeldWeights, counted_forwards, loading_service, open_service, runtime_of

from chatcache.cache_saving import CacheSaving
from chatcache.chat import LOCAL_OWNER, ChatService
from chatcache.events import Reply
from chatcache.loader import LoadedModel
from chatcache.prefix import common_length
from chatcache.prompt import PromptBuilder
from chatcache.session_key import SessionKey
from chatcache.stats import Sampling
from storage.database import DATABASE_NAME
from storage.models import pack_token_ids, unpack_token_ids
from storage.segment_format import decode_segment

TIMEOUT_S = 60
SYSTEM = "You are a careful assistant. " * 8
SECRET = "Please tell me the secret word, which is swordfish, and why it was chosen at all."
OTHER = "Please tell me the secret of a good soup."
SEEN_IDS = 4
"""So many of a chat's ids in a row are recognized as its own."""


def send(service: ChatService, session_id: str, text: str) -> Reply:
    return service.send(session_id, text, GREEDY).result(TIMEOUT_S)


def begun(service: ChatService, *texts: str) -> str:
    """The id of a chat in which these were sent, and all of it is stored."""
    session = service.create_session(system_prompt=SYSTEM)
    for text in texts:
        send(service, session.id, text)
    runtime_of(service).persistence.flush()
    return session.id


def remove(service: ChatService, *session_ids: str) -> None:
    for session_id in session_ids:
        service.delete(session_id)
        service.purge(session_id)


def fed_ids(service: ChatService, session_id: str) -> tuple[int, ...]:
    return service._starter.fed_ids(service.get_session(session_id), service.messages(session_id))


def fed_ids_to(service: ChatService, session_id: str, message_id: str) -> tuple[int, ...]:
    """Of the branch that this message is on, down to its end."""
    service.select(message_id)
    return fed_ids(service, session_id)


def stored_runs(data_dir: Path) -> list[tuple[int, tuple[int, ...]]]:
    """The token ids of every file, with the place in a prompt where they begin."""
    paths = [path for path in (data_dir / "segments").rglob("*") if path.is_file()]
    headers = [decode_segment(bytearray(path.read_bytes()))[0] for path in paths]
    return [(header.start, unpack_token_ids(header.token_ids)) for header in headers]


def stored_values(data_dir: Path) -> list[bytes]:
    """Every binary value of every row in the database."""
    with closing(sqlite3.connect(data_dir / DATABASE_NAME)) as db:
        tables = [name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        rows = [row for table in tables for row in db.execute(f'SELECT * FROM "{table}"')]
    return [value for row in rows for value in row if isinstance(value, bytes)]


def num_seen(data_dir: Path, ids: tuple[int, ...], *others: tuple[int, ...]) -> int:
    """In how many files and values there is anything that `ids` have and none of `others`."""
    known = {other[i : i + SEEN_IDS] for other in others for i in range(len(other))}
    own = {ids[i : i + SEEN_IDS] for i in range(len(ids) - SEEN_IDS + 1)} - known
    runs = [run for _, run in stored_runs(data_dir)]
    packed = [pack_token_ids(some) for some in own]
    in_files = sum(not own.isdisjoint(run[i : i + SEEN_IDS] for i in range(len(run))) for run in runs)
    return in_files + sum(any(some in value for some in packed) for value in stored_values(data_dir))


def two_chats(service: ChatService) -> tuple[str, str]:
    removed = begun(service, SECRET, "And the second word?")
    return removed, begun(service, OTHER)


def two_chats_the_other_way_round(service: ChatService) -> tuple[str, str]:
    kept = begun(service, OTHER)
    return begun(service, SECRET, "And the second word?"), kept


def chats_saved_at_once(service: ChatService) -> tuple[str, str]:
    removed, kept = (service.create_session(system_prompt=SYSTEM).id for _ in range(2))
    turns = [service.send(removed, SECRET, GREEDY), service.send(kept, OTHER, GREEDY)]
    for turn in turns:
        turn.result(TIMEOUT_S)
    return removed, kept


def one_message_is_the_beginning_of_the_others(service: ChatService) -> tuple[str, str]:
    return begun(service, SECRET), begun(service, SECRET[:40])


def fork_from_the_middle(service: ChatService) -> tuple[str, str]:
    removed = begun(service, OTHER, SECRET, "And the second word?")
    kept = service.fork(service.messages(removed)[1].id).id
    send(service, kept, "Please tell me the secret of good bread.")
    return removed, kept


def fork_of_an_edited_message(service: ChatService) -> tuple[str, str]:
    removed = begun(service, SECRET)
    edited = service.edit(service.messages(removed)[0].id, SECRET.replace("swordfish", "mackerel"), GREEDY)
    kept = service.fork(edited.result(TIMEOUT_S).message.id).id
    send(service, kept, "Thank you")
    service.select(service.alternatives(service.messages(removed)[0].id)[0].id)
    return removed, kept


def saved_late(service: ChatService, text: str) -> str:
    """The id of a chat for whose first save there was no memory."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(CacheSaving, "_room_bytes", lambda _: 0)
        session_id = begun(service, text)
    send(service, session_id, "And the second word?")
    return session_id


def two_chats_of_which_one_was_saved_late(service: ChatService) -> tuple[str, str]:
    return saved_late(service, SECRET), begun(service, OTHER)


@pytest.mark.parametrize("kind", ["auto", "quantized-int8"])
@pytest.mark.parametrize(
    "chats",
    [
        two_chats,
        two_chats_the_other_way_round,
        chats_saved_at_once,
        one_message_is_the_beginning_of_the_others,
        fork_from_the_middle,
        fork_of_an_edited_message,
        two_chats_of_which_one_was_saved_late,
    ],
)
def test_nothing_that_it_had_alone_stays_and_the_other_chat_resumes_as_before(
    chats: Callable[[ChatService], tuple[str, str]], kind: str, tiny_llama: LoadedModel, tmp_path: Path
) -> None:
    with open_service(tiny_llama, tmp_path, cache=kind) as service:
        removed, kept = chats(service)
        num_held = service.cache_report(kept).num_tokens
        own, others = fed_ids(service, removed), fed_ids(service, kept)
        fork = service.fork(service.messages(kept)[-1].id).id
        uninterrupted = send(service, fork, "Go on")
        runtime_of(service).persistence.flush()
        assert num_seen(tmp_path, own, others) > 0
        remove(service, removed, fork)
        assert num_seen(tmp_path, own, others) == 0
        assert all(run == others[start : start + len(run)] for start, run in stored_runs(tmp_path))
    with open_service(tiny_llama, tmp_path, cache=kind) as service, counted_forwards(tiny_llama) as forwarded:
        assert num_seen(tmp_path, own, others) == 0
        resumed = send(service, kept, "Go on")
    assert resumed.message.token_ids == uninterrupted.message.token_ids
    assert resumed.stats.num_cached_tokens == num_held
    assert resumed.stats.miss_reason is None
    assert sum(forwarded) == resumed.stats.num_computed_tokens + resumed.stats.num_completion_tokens - 1


@pytest.mark.parametrize("kind", ["auto", "quantized-int8"])
def test_a_fork_without_a_turn_of_its_own_keeps_what_is_stored_of_it_and_no_more(
    kind: str, tiny_llama: LoadedModel, tmp_path: Path
) -> None:
    with open_service(tiny_llama, tmp_path, cache=kind) as service:
        removed = begun(service, OTHER)
        num_held = service.cache_report(removed).num_tokens
        send(service, removed, SECRET)
        kept = service.fork(service.messages(removed)[1].id).id
        own, others = fed_ids(service, removed), fed_ids(service, kept)
        remove(service, removed)
        assert num_seen(tmp_path, own, others) == 0
    with open_service(tiny_llama, tmp_path, cache=kind) as service:
        assert send(service, kept, "Thank you").stats.num_cached_tokens == num_held
        service.drop_cache(kept)
    assert stored_runs(tmp_path) == []


def test_a_fork_made_before_the_model_is_there_holds_what_is_stored_of_it_from_then_on(
    tiny_llama: LoadedModel, tmp_path: Path
) -> None:
    with open_service(tiny_llama, tmp_path) as service:
        removed = begun(service, OTHER)
        num_held = service.cache_report(removed).num_tokens
    weights = HeldWeights(tiny_llama)
    with loading_service(weights, tmp_path) as service:
        kept, gone = (service.fork(service.messages(removed)[1].id).id for _ in range(2))
        remove(service, gone)
        weights.arrive()
        until_s = time.monotonic() + TIMEOUT_S
        while kept not in runtime_of(service).segments.report(LOCAL_OWNER).session_bytes:
            assert time.monotonic() < until_s
            time.sleep(0.01)
        remove(service, removed)
        assert send(service, kept, "Thank you").stats.num_cached_tokens == num_held
        service.drop_cache(kept)
    assert stored_runs(tmp_path) == []


def test_what_a_file_took_the_place_of_leaves_nothing_behind_and_the_chat_resumes_on_all_its_branches(
    tiny_llama: LoadedModel, tmp_path: Path
) -> None:
    short = Sampling(temperature=0.0, max_new_tokens=3)  # of a longer reply no file would keep what is no text
    with open_service(tiny_llama, tmp_path) as service:
        chat = service.create_session(system_prompt=SYSTEM).id
        for text in (OTHER, "Thank you"):
            service.send(chat, text, short).result(TIMEOUT_S)
        edited = service.edit(service.messages(chat)[2].id, "And cheese?", short).result(TIMEOUT_S)
        ends = [service.messages(chat)[-1].id, service.alternatives(edited.message.parent_id)[0].id]
        exported = service.export(chat)
        send(service, chat, SECRET)
        own = fed_ids(service, chat)
        assert service.import_(exported, replace=True).notes == ()
        others = [fed_ids_to(service, chat, end) for end in ends]
        runtime_of(service).persistence.flush()
        assert num_seen(tmp_path, own, *others) > 0
        service.purge_bin()
        assert num_seen(tmp_path, own, *others) == 0
        other = SessionKey(LOCAL_OWNER, "another")
        runtime_of(service).call(lambda parts: parts.pool.live.spill(other, None))  # what memory holds is saved
    with open_service(tiny_llama, tmp_path) as service:
        assert num_seen(tmp_path, own, *others) == 0
        for end, ids in zip(ends, others, strict=True):
            service.select(end)
            assert send(service, chat, "Go on").stats.num_cached_tokens == len(ids) - 1


@pytest.mark.parametrize("is_old", [False, True], ids=["", "an older version began"])
def test_chats_with_one_system_prompt_share_all_that_they_begin_with(
    is_old: bool, tiny_llama: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_service(tiny_llama, tmp_path) as service:
        if is_old:
            with monkeypatch.context() as patched:
                patched.setattr(PromptBuilder, "num_shared_tokens", lambda *_, **__: 0)
                begun(service, "Dates")
        old = set(stored_runs(tmp_path))
        chats = [begun(service, text) for text in ("Apples", "Bread", "Cheese")]
        ids = [fed_ids(service, chat)[: service.cache_report(chat).num_tokens] for chat in chats]
        runtime_of(service).persistence.flush()
        new = set(stored_runs(tmp_path)) - old
    num_shared = common_length(ids[0], ids[1])
    assert num_shared == common_length(ids[1], ids[2]) > 50
    assert sum(len(run) for _, run in new) == num_shared + sum(len(each) - num_shared for each in ids)


def test_a_chat_for_whose_first_save_there_was_no_memory_shares_its_beginning_all_the_same(
    tiny_llama: LoadedModel, tmp_path: Path
) -> None:
    with open_service(tiny_llama, tmp_path) as service:
        chats = saved_late(service, "Apples"), begun(service, "Bread")
        ids = [fed_ids(service, chat)[: service.cache_report(chat).num_tokens] for chat in chats]
    num_shared = common_length(*ids)
    assert num_shared > 50
    assert sum(len(run) for _, run in stored_runs(tmp_path)) == sum(map(len, ids)) - num_shared
