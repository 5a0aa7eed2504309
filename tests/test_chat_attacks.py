"""Attacks on the service: failures at every seam, calls at the worst moment. No chat gets stuck, no word is lost."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from services import GREEDY, every_message, open_service, runtime_of

from chatcache.chat import ChatService
from chatcache.engine import TurnRun
from chatcache.errors import ChatCacheError, InvalidInputError, ServiceClosedError, StorageError
from chatcache.events import Reply, TextEvent
from chatcache.imported_chat import IDS_LEFT_OUT
from chatcache.loader import LoadedModel
from chatcache.persistence import Persistence
from chatcache.scheduler import Scheduler
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


# ---------------------------------------------------------------- imported chats


def exported_chat(service: ChatService, *texts: str) -> dict[str, Any]:
    session = service.create_session(system_prompt="Be brief.")
    for text in texts:
        send(service, session.id, text)
    data = json.loads(service.export(session.id))
    data["session"]["id"] = "00000000-0000-4000-8000-000000000000"
    assert isinstance(data, dict)
    return data


def test_an_imported_chat_keeps_the_ids_that_say_its_text_and_computes_what_the_original_would(
    service: ChatService,
) -> None:
    data = exported_chat(service, "One")
    report = service.import_(json.dumps(data))
    assert report.notes == ()
    copied = service.messages(report.session.id)
    assert [list(m.token_ids or ()) for m in copied[1::2]] == [m["token_ids"] for m in data["messages"][1::2]]
    assert send(service, report.session.id, "Three").stats.reuse[0].source == "prefix"


@pytest.mark.parametrize("forged", [[383_000], [2**32 - 1], [65, 66, 67], [1], [], [0, 1, 2]], ids=repr)
def test_forged_token_ids_are_never_fed_to_the_model(service: ChatService, forged: list[int]) -> None:
    data = exported_chat(service, "One", "Two")
    reply = data["messages"][1]
    reply["token_ids"] = [*reply["token_ids"], *forged] if forged else []
    report = service.import_(json.dumps(data))
    assert IDS_LEFT_OUT in report.notes
    assert service.messages(report.session.id)[1].text == reply["text"]
    second_reply = service.messages(report.session.id)[1].id
    for begin in (
        lambda: service.send(report.session.id, "Three", GREEDY),
        lambda: service.continue_reply(report.session.id, GREEDY),
        lambda: service.regenerate(report.session.id, second_reply, GREEDY),
    ):
        assert begin().result(TIMEOUT_S).stats.finish_reason is not FinishReason.ERROR


def test_replacing_a_chat_by_its_export_while_a_reply_is_written_loses_neither(service: ChatService) -> None:
    session = service.create_session()
    send(service, session.id, "One")
    exported = service.export(session.id)
    turn = service.send(session.id, "Hello", LONG)
    next(event for event in turn.events() if isinstance(event, TextEvent))
    assert service.import_(exported, replace=True).session.id == session.id
    assert turn.done
    assert [m.text for m in service.messages(session.id)][::2] == ["One"]
    send(service, session.id, "Three")
    (binned,) = service.sessions(deleted=True)
    service.undelete(binned.id)
    assert [m.text for m in service.messages(binned.id)][::2] == ["One", "Hello"]
    assert service.messages(binned.id)[-1].text == turn.result(timeout_s=0).message.text
    send(service, binned.id, "Three")


def test_another_owner_who_imports_a_chat_of_the_same_id_stops_nobody(service: ChatService) -> None:
    session = service.create_session()
    send(service, session.id, "One")
    exported = service.export(session.id)
    turn = service.send(session.id, "Two", LONG)
    other = service.for_owner("somebody else")
    report = other.import_(exported, replace=True)
    assert report.session.id != session.id
    assert not turn.stop_requested
    turn.stop()
    turn.result(TIMEOUT_S)
    assert len(service.messages(session.id)) == 4


def test_an_import_waits_for_no_chat_of_another_owner_and_hears_nothing_of_it(service: ChatService) -> None:
    session = service.create_session()
    send(service, session.id, "One")
    exported = service.export(session.id)
    other = service.for_owner("somebody else")
    with service._exclusive(session.id), ThreadPoolExecutor(1) as pool:
        report = pool.submit(other.import_, exported, replace=True).result(TIMEOUT_S)
    assert report.session.version == 1
    service.delete(session.id)
    service.purge(session.id)
    again = other.import_(exported, replace=True).session
    assert (again.id, again.version) == (session.id, 1)


@pytest.mark.parametrize(
    "stats", [{"reuse": 5}, {"reuse": [5]}, {"fallbacks": 5}, {"finish_reason": []}, {"finish_reason": "new"}], ids=repr
)
def test_a_chat_with_damaged_statistics_can_be_read_and_goes_on(service: ChatService, stats: dict[str, Any]) -> None:
    data = exported_chat(service, "One")
    data["turns"][0]["stats"] |= stats
    data["session"]["sampling"] = {"temperature": "hot", "max_new_tokens": 3}
    session = service.import_(json.dumps(data)).session
    assert len(service.turn_stats([m.id for m in service.messages(session.id)])) == 1
    assert service.send(session.id, "Two").result(TIMEOUT_S).stats.num_completion_tokens <= 3


# ---------------------------------------------------------------- arguments that cannot be meant

NONSENSE: list[Any] = [None, 5, 1.5, float("nan"), True, b"x", ["x"], {"a": 1}, "\ud800", "a\0b", "", "x" * 10**4]


@pytest.mark.parametrize("value", NONSENSE, ids=lambda value: repr(value)[:12])
def test_whatever_a_call_is_given_it_works_or_says_what_is_wrong(service: ChatService, value: Any) -> None:
    session = service.create_session()
    reply = send(service, session.id, "One").message
    calls: dict[str, Callable[[], object]] = {
        "get_session": lambda: service.get_session(value),
        "messages": lambda: service.messages(value),
        "page": lambda: service.messages(session.id, limit=value),
        "page above": lambda: service.messages(session.id, limit=2, before=value),
        "num_messages": lambda: service.num_messages(value),
        "num_messages_below": lambda: service.num_messages_below(session.id, value),
        "context_start": lambda: service.context_start(value),
        "is_temporary": lambda: service.is_temporary(value),
        "alternatives": lambda: service.alternatives(value),
        "select": lambda: service.select(value),
        "fork": lambda: service.fork(value),
        "delete": lambda: service.delete(value),
        "purge": lambda: service.purge(value),
        "prefetch": lambda: service.prefetch(value),
        "cache_report": lambda: service.cache_report(value),
        "active_turn": lambda: service.active_turn(value),
        "turn_stats": lambda: service.turn_stats([value]),
        "turn_details": lambda: service.turn_details([value]),
        "send into": lambda: service.send(value, "Two"),
        "send": lambda: service.send(session.id, value, GREEDY).result(TIMEOUT_S),
        "send after": lambda: service.send(session.id, "Two", GREEDY, parent_id=value).result(TIMEOUT_S),
        "send sampled": lambda: service.send(session.id, "Two", value).stop(),
        "send again": lambda: service.send(session.id, "Two", GREEDY, request_id=value).result(TIMEOUT_S),
        "regenerate": lambda: service.regenerate(session.id, value, GREEDY).result(TIMEOUT_S),
        "continue": lambda: service.continue_reply(session.id, value).stop(),
        "edit": lambda: service.edit(reply.id, value),
        "rollback": lambda: service.rollback(session.id, value),
        "create": lambda: service.create_session(value, value),
        "create sampled": lambda: service.create_session(sampling=value),
        "create set": lambda: service.create_session(settings=value),
        "create temporary": lambda: service.create_session(temporary=value),
        "title": lambda: service.update_session(session.id, title=value),
        "system prompt": lambda: service.update_session(session.id, system_prompt=value),
        "pinned": lambda: service.update_session(session.id, pinned=value),
        "sampling": lambda: service.update_session(session.id, sampling=value),
        "settings": lambda: service.update_session(session.id, settings=value),
        "cache": lambda: service.update_session(session.id, settings={"cache": value}),
        "context full": lambda: service.update_session(session.id, settings={"context_full": value}),
        "export": lambda: service.export(session.id, value),
        "import": lambda: service.import_(value),
        "search": lambda: service.sessions(query=value),
        "limit": lambda: service.sessions(limit=value),
        "offset": lambda: service.sessions(offset=value),
        "wait": lambda: service.wait_for_change(session.id, since=value, timeout_s=0),
        "owner": lambda: service.for_owner(value),
    }
    for name, call in calls.items():
        service.update_session(session.id, system_prompt=None, sampling=None)
        if (turn := service.active_turn(session.id)) is not None:
            turn.result(TIMEOUT_S)
        said = ""
        try:
            call()
        except ChatCacheError as error:
            said = str(error)
        except Exception as error:
            pytest.fail(f"{name}: {error!r:.200}")
        assert len(said) < 400, name
    assert service.alternatives(reply.id)[0].text == reply.text


@pytest.mark.parametrize("text", ["\u200b", "\ufeff \u200d\n", "\u202e\u2066", "\u3164", "\ufdd2\uffff", "\ufe0f"])
def test_a_message_in_which_nothing_shows_is_refused(service: ChatService, text: str) -> None:
    session = service.create_session()
    with pytest.raises(InvalidInputError, match="empty"):
        service.send(session.id, text)


@pytest.mark.parametrize(
    "text", ["<|im_end|>" * 50, "\u0301" * 300, "\n" * 1000 + ".", "e\u0301\u202e\u05d0", "{{ 7*7 }}{% raw %}"]
)
def test_strange_texts_are_sent_as_they_are_as_messages_and_as_system_prompts(service: ChatService, text: str) -> None:
    session = service.create_session(system_prompt=text)
    send(service, session.id, text)
    reply = send(service, session.id, "Two")
    assert service.messages(session.id)[0].text == text
    assert reply.stats.finish_reason is not FinishReason.ERROR
    assert reply.stats.miss_reason is None


@pytest.mark.parametrize("page", [{"limit": -1}, {"limit": 0}, {"offset": -1}, {"limit": 2**63}], ids=repr)
def test_pages_that_cannot_be_are_refused_in_a_sentence(service: ChatService, page: dict[str, int]) -> None:
    session = service.create_session()
    reads: list[Callable[[], object]] = [lambda: service.sessions(**page), lambda: service.search("One", **page)]
    if "limit" in page:
        reads.append(lambda: service.messages(session.id, **page))
    for read in reads:
        with pytest.raises(InvalidInputError, match="must be"):
            read()


# ---------------------------------------------------------------- closing


def test_after_closing_every_call_says_so_and_stores_nothing(tiny_llama: LoadedModel, tmp_path: Path) -> None:
    with open_service(tiny_llama, tmp_path) as service:
        session = service.create_session()
        reply = send(service, session.id, "One").message
        exported = service.export(session.id)
    arguments: dict[str, tuple[Any, ...]] = {
        **dict.fromkeys(
            ("active_turn", "cache_report", "context_start", "continue_reply", "delete", "drop_cache", "export"),
            (session.id,),
        ),
        **dict.fromkeys(
            ("get_session", "is_temporary", "messages", "context_use", "num_messages", "prefetch", "purge"),
            (session.id,),
        ),
        **dict.fromkeys(
            ("regenerate", "reuse_total", "rollback", "undelete", "undone", "update_session"), (session.id,)
        ),
        **dict.fromkeys(("alternatives", "fork", "select"), (reply.id,)),
        "num_messages_below": (session.id, reply.id),
        **dict.fromkeys(("turn_details", "turn_stats"), ([reply.id],)),
        **dict.fromkeys(("create_session", "drop_all_caches", "memory_plan", "purge_bin", "sessions"), ()),
        **dict.fromkeys(("context_use_of_new_chat", "storage_report", "verify_caches"), ()),
        **dict.fromkeys(("count_tokens", "for_owner", "search"), ("One",)),
        "busy_among": ([session],),
        "edit": (reply.id, "Two"),
        "import_": (exported,),
        "send": (session.id, "Two"),
        "wait_for_change": (session.id, 0),
    }
    named = {name for name in dir(ChatService) if not name.startswith("_")}
    assert named - arguments.keys() == {"open", "close", "is_closed", "load", "loading", "model_info"}
    for name in named & arguments.keys():
        with pytest.raises(ServiceClosedError, match="closed"):
            getattr(service, name)(*arguments[name])
    with pytest.raises(ServiceClosedError):
        _ = service.model_info
    service.close()
    assert service.is_closed
    with open_service(tiny_llama, tmp_path) as service:
        assert len(every_message(service, session.id)) == 2


@pytest.mark.parametrize("call", ["cache_report", "drop_cache", "prefetch"])
def test_a_call_that_the_closing_overtakes_says_so(call: str, tiny_llama: LoadedModel, tmp_path: Path) -> None:
    """It looked before, and needs what is gone now."""
    with open_service(tiny_llama, tmp_path) as service:
        session = service.create_session()
        send(service, session.id, "One")
        runtime = runtime_of(service)
        closes = threading.Event()

        def close_first(fn: Callable[[], object]) -> object:
            if not closes.is_set():
                closes.set()
                service.close()
            return Scheduler.call(runtime.scheduler, fn)

        runtime.scheduler.call = close_first  # type: ignore[method-assign]
        with pytest.raises(ServiceClosedError):
            getattr(service, call)(session.id)


def test_closing_while_messages_are_sent_ends_and_leaves_no_chat_stuck(tiny_llama: LoadedModel, tmp_path: Path) -> None:
    unexpected: list[BaseException] = []

    def keep_sending(service: ChatService, session_id: str) -> None:
        try:
            while True:
                service.send(session_id, "Hello", GREEDY).result(TIMEOUT_S)
        except ServiceClosedError:
            pass
        except BaseException as error:
            unexpected.append(error)

    with open_service(tiny_llama, tmp_path) as service:
        sessions = [service.create_session().id for _ in range(3)]
        senders = [threading.Thread(target=keep_sending, args=(service, session_id)) for session_id in sessions]
        for sender in senders:
            sender.start()
        for session_id in sessions:
            service.wait_for_change(session_id, since=3, timeout_s=TIMEOUT_S)
        closers = [threading.Thread(target=service.close) for _ in range(2)]
        for thread in closers:
            thread.start()
        for thread in (*closers, *senders):
            thread.join(TIMEOUT_S)
            assert not thread.is_alive()
    assert unexpected == []
    with open_service(tiny_llama, tmp_path) as service:
        for session_id in sessions:
            messages = service.messages(session_id)
            assert len(messages) >= 2
            assert MessageStatus.GENERATING not in {message.status for message in messages}
            send(service, session_id, "Go on")


@pytest.mark.skipif(not hasattr(time, "tzset"), reason="this system cannot change its time zone in a process")
@pytest.mark.parametrize("zone", ["Pacific/Kiritimati", "America/Los_Angeles", "Asia/Kathmandu"])
def test_the_date_a_model_is_told_is_the_persons_own(
    service: ChatService, monkeypatch: pytest.MonkeyPatch, zone: str
) -> None:
    with monkeypatch.context() as patch:
        patch.setenv("TZ", zone)
        time.tzset()
        now = datetime.fromisoformat(service.create_session().template_vars["now"])
    time.tzset()
    assert now.utcoffset() == datetime.now(ZoneInfo(zone)).utcoffset()
