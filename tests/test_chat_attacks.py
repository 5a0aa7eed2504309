"""Attacks on the service: failures at every seam, calls at the worst moment. No chat gets stuck, no word is lost."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from services import GREEDY, every_message, open_service

from chatcache.chat import ChatService
from chatcache.engine import TurnRun
from chatcache.errors import StorageError
from chatcache.events import Reply
from chatcache.loader import LoadedModel
from chatcache.persistence import Persistence
from chatcache.stats import FinishReason, Sampling
from storage.chat_store import ChatStore
from storage.errors import DatabaseError
from storage.records import MessageStatus

LONG = Sampling(temperature=0.0, max_new_tokens=1500)
TIMEOUT_S = 60


@pytest.fixture
def service(tiny_llama: LoadedModel, tmp_path: Path) -> Iterator[ChatService]:
    with open_service(tiny_llama, tmp_path) as opened:
        yield opened


def send(service: ChatService, session_id: str, text: str, sampling: Sampling = GREEDY) -> Reply:
    return service.send(session_id, text, sampling).result(TIMEOUT_S)


def raising(error: BaseException) -> object:
    def fail(*_args: object, **_kwargs: object) -> None:
        raise error

    return fail


# ---------------------------------------------------------------- failures where a turn begins and ends


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("odd"), DatabaseError("The disk is full.")], ids=repr)
def test_whatever_storing_a_reply_raises_the_turn_ends_and_the_reply_is_stored_later(
    service: ChatService, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    session = service.create_session()
    with monkeypatch.context() as patch:
        patch.setattr(ChatStore, "finish_turn", raising(error))
        reply = send(service, session.id, "One")
        with pytest.raises(StorageError, match="not saved"):
            service.send(session.id, "Two", GREEDY)
    assert reply.message.text
    send(service, session.id, "Two")
    assert service.messages(session.id)[1].text == reply.message.text
    assert len(every_message(service, session.id)) == 4


def test_a_reply_whose_commit_was_reported_as_failed_does_not_block_its_chat(
    service: ChatService, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = ChatStore.finish_turn

    def commits_and_raises(store: ChatStore, *args: object, **kwargs: object) -> None:
        original(store, *args, **kwargs)
        raise DatabaseError("disk I/O error")

    session = service.create_session()
    with monkeypatch.context() as patch:
        patch.setattr(ChatStore, "finish_turn", commits_and_raises)
        reply = send(service, session.id, "One")
    send(service, session.id, "Two")
    assert service.messages(session.id)[1].text == reply.message.text


@pytest.mark.parametrize("name", ["hold", "save", "let_go"])
def test_a_failure_around_the_cache_ends_the_turn_and_nothing_else(
    service: ChatService, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    session = service.create_session()
    send(service, session.id, "One")
    with monkeypatch.context() as patch:
        patch.setattr(Persistence, name, raising(RuntimeError("injected")))
        failed = send(service, session.id, "Two")
    assert failed.stats.finish_reason is FinishReason.ERROR
    assert any("injected" in sentence for sentence in failed.stats.fallbacks)
    again = service.regenerate(session.id, sampling=GREEDY).result(TIMEOUT_S)
    assert again.stats.finish_reason is not FinishReason.ERROR
    other = service.create_session()
    send(service, other.id, "One")
    assert send(service, other.id, "Two").message.token_ids == again.message.token_ids


def test_a_turn_that_cannot_even_be_set_up_ends_with_an_error_and_the_chat_goes_on(
    service: ChatService, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = service.create_session()
    with monkeypatch.context() as patch:
        patch.setattr(TurnRun, "__init__", raising(MemoryError("injected")))
        failed = send(service, session.id, "One")
    assert failed.stats.finish_reason is FinishReason.ERROR
    assert [message.status for message in service.messages(session.id)] == [MessageStatus.COMPLETE] * 2
    assert service.active_turn(session.id) is None
    assert service.regenerate(session.id, sampling=GREEDY).result(TIMEOUT_S).message.text


def test_a_message_is_sent_though_its_title_could_not_be_stored(
    service: ChatService, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = service.create_session()
    with monkeypatch.context() as patch:
        patch.setattr(ChatStore, "update_session", raising(DatabaseError("The disk is full.")))
        assert send(service, session.id, "One").message.text
    send(service, session.id, "Two")
    assert service.get_session(session.id).title == "One"
