"""Temporary chats: everything works, and nothing of them is anywhere once they are gone."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from services import GREEDY, counted_forwards, every_message, open_service, runtime_of

from chatcache.chat import ChatService
from chatcache.errors import InvalidInputError, NotFoundError
from chatcache.events import Reply
from chatcache.loader import LoadedModel
from chatcache.session_key import SessionKey
from chatcache.stats import Sampling
from storage.chat_store import ChatStore
from storage.database import Database
from storage.errors import InvalidRecordError

TIMEOUT_S = 60
SECRET = "xylophone"


@pytest.fixture
def service(tiny_llama: LoadedModel, tmp_path: Path) -> Iterator[ChatService]:
    with open_service(tiny_llama, tmp_path) as opened:
        yield opened


def send(service: ChatService, session_id: str, text: str, sampling: Sampling = GREEDY) -> Reply:
    return service.send(session_id, text, sampling).result(TIMEOUT_S)


def files_with(folder: Path, text: str) -> list[str]:
    return [path.name for path in folder.rglob("*") if path.is_file() and text.encode() in path.read_bytes()]


def segment_files(folder: Path) -> list[Path]:
    return list(folder.rglob("*.safetensors"))


def test_nothing_of_a_temporary_chat_reaches_a_file(tiny_llama: LoadedModel, tmp_path: Path) -> None:
    with open_service(tiny_llama, tmp_path) as service:
        session = service.create_session(
            title=f"{SECRET} title", system_prompt=f"{SECRET} prompt", settings={"context_full": "stop"}, temporary=True
        )
        reply = send(service, session.id, f"{SECRET} one " * 30)
        service.regenerate(session.id, sampling=GREEDY).result(TIMEOUT_S)
        service.edit(reply.message.id, f"{SECRET} by hand").result(TIMEOUT_S)
        service.update_session(session.id, title=f"{SECRET} again", pinned=True)
        service.fork(reply.message.id)
        runtime_of(service).persistence.flush()
        assert files_with(tmp_path, SECRET) == []
        assert segment_files(tmp_path) == []
        kept = service.create_session()
        send(service, kept.id, "a chat that is kept: marimba")
        runtime_of(service).persistence.flush()
        assert files_with(tmp_path, "marimba"), "the test sees what is kept"
        assert segment_files(tmp_path)
    assert files_with(tmp_path, SECRET) == []
    with open_service(tiny_llama, tmp_path) as service:
        with pytest.raises(NotFoundError):
            service.get_session(session.id)
        assert [s.id for s in service.sessions()] == [kept.id]


def test_a_temporary_chat_is_in_no_list_and_no_count(service: ChatService) -> None:
    session = service.create_session(title="Secret", temporary=True)
    send(service, session.id, SECRET)
    assert service.sessions() == service.sessions(query=SECRET) == service.sessions(query="Secret") == ()
    report = service.storage_report()
    assert (report.num_sessions, report.num_messages, report.cache.num_bytes) == (0, 0, 0)
    assert service.is_temporary(session.id)
    assert not service.is_temporary(service.create_session().id)


def test_every_operation_works_as_in_other_chats(service: ChatService, tiny_llama: LoadedModel) -> None:
    session = service.create_session(temporary=True)
    first = send(service, session.id, "Hello")
    with counted_forwards(tiny_llama) as forwarded:
        second = send(service, session.id, "Go on")
    assert second.stats.reuse[0].source == "live"
    assert sum(forwarded) == second.stats.num_computed_tokens + second.stats.num_completion_tokens - 1
    other = service.regenerate(session.id, sampling=GREEDY).result(TIMEOUT_S)
    assert [m.id for m in service.alternatives(other.message.id)] == [second.message.id, other.message.id]
    service.continue_reply(session.id, GREEDY).result(TIMEOUT_S)
    assert service.get_session(session.id).title == "Hello"
    undone = service.rollback(session.id).undone
    assert service.select(undone.id).tip_id == undone.id
    edited = service.edit(service.messages(session.id)[0].id, "Hi", GREEDY).result(TIMEOUT_S)
    assert service.messages(session.id, limit=1) == (edited.message,)
    assert service.num_messages(session.id) == 2
    assert set(service.turn_stats([first.message.id, edited.message.id])) == {first.message.id, edited.message.id}
    assert len(every_message(service, session.id)) == 7
    assert service.cache_report(session.id).is_live
    assert service.prefetch(session.id) > 0
    assert service.drop_cache(session.id) == 0
    assert send(service, session.id, "Once more").stats.num_cached_tokens == 0
    assert service.context_start(session.id) == 0
    assert "Once more" in service.export(session.id, "markdown")
    version = service.get_session(session.id).version
    assert service.update_session(session.id, sampling=Sampling(top_k=3)).version == version + 1


def test_a_fork_of_a_temporary_chat_is_temporary_too(service: ChatService) -> None:
    session = service.create_session(temporary=True)
    fork = service.fork(send(service, session.id, "Hello").message.id)
    assert service.is_temporary(fork.id)
    assert send(service, fork.id, "Go on").stats.reuse[0].source in ("live", "prefix")
    assert service.sessions() == ()


def test_a_deleted_temporary_chat_is_gone_and_not_in_the_bin(service: ChatService) -> None:
    session = service.create_session(temporary=True)
    turn = service.send(session.id, "Hello", Sampling(temperature=0.0, max_new_tokens=1500))
    deleted = service.delete(session.id)
    assert (deleted.deleted_at is not None, turn.result(TIMEOUT_S).message.id) == (True, turn.reply_id)
    assert service.sessions(deleted=True) == ()
    for read in (service.get_session, service.messages, service.undelete, service.purge, service.is_temporary):
        with pytest.raises(NotFoundError):
            read(session.id)
    assert runtime_of(service).parts.pool.report() == ()


def test_nobody_else_sees_a_temporary_chat(service: ChatService) -> None:
    session = service.create_session(temporary=True)
    reply = send(service, session.id, "Hello")
    other = service.for_owner("ann")
    for read in (other.get_session, other.messages, other.is_temporary, other.delete, other.export):
        with pytest.raises(NotFoundError):
            read(session.id)
    with pytest.raises(NotFoundError):
        other.select(reply.message.id)
    assert other.turn_stats([reply.message.id]) == {}


def test_a_temporary_chat_is_kept_by_exporting_and_importing_it(service: ChatService) -> None:
    session = service.create_session(temporary=True)
    send(service, session.id, "Hello")
    kept = service.import_(service.export(session.id)).session
    assert kept.id != session.id
    assert not service.is_temporary(kept.id)
    assert [s.id for s in service.sessions()] == [kept.id]
    assert [m.text for m in service.messages(kept.id)] == [m.text for m in service.messages(session.id)]
    replaced = service.import_(service.export(session.id), replace=True).session
    assert {s.id for s in service.sessions()} == {kept.id, replaced.id}
    service.delete(session.id)
    assert service.get_session(kept.id).id == kept.id


@pytest.mark.parametrize("owner", ["local", "ann"])
def test_an_import_that_names_messages_of_a_temporary_chat_gets_other_ids(service: ChatService, owner: str) -> None:
    temporary = service.create_session(temporary=True)
    send(service, temporary.id, "Hello")
    data = json.loads(service.export(temporary.id))
    data["session"]["id"] = "by-hand"
    importing = service.for_owner(owner)
    imported = importing.import_(json.dumps(data), replace=True).session
    user, reply = importing.messages(imported.id)
    importing.edit(reply.id, "Changed")
    importing.edit(user.id, "Changed, too", GREEDY).result(TIMEOUT_S)
    assert [m.text for m in service.messages(temporary.id)] == [m["text"] for m in data["messages"]]
    assert importing.messages(imported.id)[0].text == "Changed, too"


def test_a_cache_that_left_memory_is_computed_again_and_not_looked_for_on_disk(
    tiny_llama: LoadedModel, tmp_path: Path
) -> None:
    with open_service(tiny_llama, tmp_path) as service:
        session = service.create_session(temporary=True)
        send(service, session.id, "Hello")
        runtime = runtime_of(service)
        runtime.scheduler.call(lambda: runtime.parts.pool.drop(SessionKey("local", session.id)))
        reply = send(service, session.id, "Go on")
        assert (reply.stats.num_cached_tokens, reply.stats.reuse) == (0, ())
        assert service.cache_report(session.id).problem is None


def test_many_threads_read_a_temporary_chat_while_it_is_written(service: ChatService) -> None:
    session = service.create_session(temporary=True)
    send(service, session.id, "Hello")
    turn = service.send(session.id, "Go on", Sampling(temperature=0.0, max_new_tokens=60))
    with ThreadPoolExecutor(8) as pool:
        pages = list(pool.map(lambda _: service.messages(session.id, limit=2), range(100)))
    turn.result(TIMEOUT_S)
    assert {page[0].text for page in pages} == {"Go on"}


def test_a_store_without_a_place_for_temporary_chats_says_so(database: Database) -> None:
    store = ChatStore(database)
    with pytest.raises(InvalidRecordError, match="no temporary"):
        store.create_session(
            "me", title="", system_prompt=None, sampling={}, settings={}, template_vars={}, is_temporary=True
        )


@pytest.mark.parametrize("value", [[], {}, object(), 7, b"x", "x" * 100, None])
def test_strange_ids_are_reported_as_missing(service: ChatService, value: object) -> None:
    service.create_session(temporary=True)
    for call in (service.get_session, service.is_temporary, service.select, service.delete):
        with pytest.raises((NotFoundError, InvalidInputError)):
            call(value)  # type: ignore[operator]
