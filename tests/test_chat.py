"""The service's surface on a tiny real model: what each call does, refuses, keeps and reports."""

import dataclasses
import json
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from services import GREEDY, counted_forwards, every_message, open_service, runtime_of

from chatcache.chat import ChatService
from chatcache.errors import (
    ContextFullError,
    InvalidInputError,
    NotFoundError,
    SessionBusyError,
    StaleTipError,
    UnsupportedOptionError,
)
from chatcache.events import DoneEvent, Reply, TextEvent
from chatcache.loader import LoadedModel
from chatcache.sampler import Sampler
from chatcache.stats import FinishReason, MissReason, Reuse, Sampling
from chatcache.template_chat import PromptMessage
from chatcache.token_text import TokenText
from chatcache.turn import Turn
from storage.chat_store import ChatStore
from storage.errors import DatabaseError
from storage.records import MessageStatus, Role

LONG = Sampling(temperature=0.0, max_new_tokens=1500)
TIMEOUT_S = 60
SEED = 0
"""One with which the tiny model says sixteen tokens, the first eight of them whole characters."""


@pytest.fixture
def service(tiny_llama: LoadedModel, tmp_path: Path) -> Iterator[ChatService]:
    with open_service(tiny_llama, tmp_path) as opened:
        yield opened


def send(service: ChatService, session_id: str, text: str, sampling: Sampling = GREEDY) -> Reply:
    return service.send(session_id, text, sampling).result(TIMEOUT_S)


def texts(service: ChatService, session_id: str) -> list[str]:
    return [message.text for message in service.messages(session_id)]


def wait_for_text(turn: Turn) -> None:
    next(event for event in turn.events() if isinstance(event, TextEvent))


def test_a_reply_is_streamed_stored_and_counted(service: ChatService) -> None:
    session = service.create_session()
    turn = service.send(session.id, "Hello", GREEDY)
    reply = turn.result(TIMEOUT_S)
    streamed = "".join(event.text for event in turn.events() if isinstance(event, TextEvent))
    assert streamed == reply.message.text
    user, answer = service.messages(session.id)
    assert (user.role, user.text) == (Role.USER, "Hello")
    assert answer == reply.message
    assert answer.status is MessageStatus.COMPLETE
    assert answer.token_ids is not None
    assert 0 < len(answer.token_ids) <= 8
    stats = service.turn_stats([answer.id])[answer.id]
    assert stats == reply.stats
    assert stats.finish_reason is FinishReason.LENGTH
    assert stats.num_completion_tokens == 8
    assert stats.num_prompt_tokens == stats.num_computed_tokens > 0
    assert service.get_session(session.id).tip_id == answer.id


def test_the_second_turn_computes_only_what_is_new(service: ChatService, tiny_llama: LoadedModel) -> None:
    session = service.create_session(system_prompt="Be brief.")
    first = send(service, session.id, "One")
    with counted_forwards(tiny_llama) as forwarded:
        second = send(service, session.id, "Two")
    held = first.stats.num_prompt_tokens + first.stats.num_completion_tokens - 1
    assert second.stats.num_cached_tokens == held
    assert second.stats.reuse == (Reuse("live", held),)
    assert second.stats.miss_reason is None
    assert sum(forwarded) == second.stats.num_computed_tokens + second.stats.num_completion_tokens - 1


def test_regenerate_computes_one_token_and_keeps_the_old_reply(service: ChatService, tiny_llama: LoadedModel) -> None:
    session = service.create_session()
    first = send(service, session.id, "Hello")
    with counted_forwards(tiny_llama) as forwarded:
        again = service.regenerate(session.id, sampling=GREEDY).result(TIMEOUT_S)
    assert again.stats.num_computed_tokens == 1
    assert sum(forwarded) == 1 + again.stats.num_completion_tokens - 1
    assert again.message.token_ids == first.message.token_ids, "greedy: the same prompt gives the same reply"
    assert [m.id for m in service.alternatives(again.message.id)] == [first.message.id, again.message.id]
    assert service.messages(session.id)[-1].alternative_number == 2


def test_sampled_alternatives_differ_and_their_seeds_are_reproducible(service: ChatService) -> None:
    sampled = Sampling(temperature=1.0, max_new_tokens=12, seed=7)
    replies = []
    for _ in range(2):
        session = service.create_session(sampling=sampled)
        first = service.send(session.id, "Hello").result(TIMEOUT_S)
        second = service.regenerate(session.id).result(TIMEOUT_S)
        assert first.stats.seed == 7
        assert second.stats.seed != 7
        assert first.message.token_ids != second.message.token_ids
        replies.append((first.message.token_ids, second.message.token_ids, second.stats.seed))
    assert replies[0] == replies[1]


def test_rollback_computes_nothing_and_select_is_redo(service: ChatService, tiny_llama: LoadedModel) -> None:
    session = service.create_session()
    one = send(service, session.id, "One")
    two = send(service, session.id, "Two")
    with counted_forwards(tiny_llama) as forwarded:
        rollback = service.rollback(session.id)
    assert forwarded == []
    assert (rollback.prompt.text, rollback.undone.id, rollback.num_undone_turns) == ("Two", two.message.id, 1)
    assert rollback.session.tip_id == one.message.id
    assert service.select(rollback.undone.id).tip_id == two.message.id
    assert texts(service, session.id)[2] == "Two"


def test_a_first_message_is_refused_where_another_window_has_sent_one(service: ChatService) -> None:
    session = service.create_session()
    first = service.send(session.id, "One", is_first=True, request_id="a")
    first.result(TIMEOUT_S)
    with pytest.raises(StaleTipError, match="Nothing was sent"):
        service.send(session.id, "Me too", is_first=True)
    assert service.send(session.id, "One", is_first=True, request_id="a").id == first.id, "the same click, once more"
    assert texts(service, session.id)[::2] == ["One"]
    service.rollback(session.id)
    service.send(session.id, "Anew", is_first=True).result(TIMEOUT_S)
    service.send(session.id, "Whatever was said").result(TIMEOUT_S)


def test_each_step_forward_takes_one_roll_back_back(service: ChatService, tiny_llama: LoadedModel) -> None:
    session = service.create_session()
    assert service.undone(session.id) is None
    replies = [send(service, session.id, text).message for text in ("One", "Two", "Three")]
    assert service.undone(session.id) is None
    assert [service.rollback(session.id).num_undone_turns for _ in replies] == [1, 2, 3]
    with counted_forwards(tiny_llama) as forwarded:
        for reply in replies:
            undone = service.undone(session.id)
            assert undone is not None
            assert undone.id == reply.id
            assert service.select(undone.id, to_leaf=False).tip_id == undone.id
    assert forwarded == []
    assert service.undone(session.id) is None
    assert texts(service, session.id)[::2] == ["One", "Two", "Three"]


def test_what_was_answered_otherwise_meanwhile_is_undone_no_more(service: ChatService) -> None:
    session = service.create_session()
    send(service, session.id, "One")
    send(service, session.id, "Two")
    service.rollback(session.id)
    running = service.send(session.id, "Three", sampling=Sampling(max_new_tokens=1000))
    assert service.undone(session.id) is None
    running.stop()
    running.result(TIMEOUT_S)
    assert service.undone(session.id) is None
    with pytest.raises(InvalidInputError, match="end at a reply"):
        service.select(service.messages(session.id)[0].id, to_leaf=False)


def test_rollback_then_resend_computes_only_the_new_message(service: ChatService) -> None:
    session = service.create_session()
    one = send(service, session.id, "One")
    send(service, session.id, "Two")
    service.rollback(session.id)
    resent = send(service, session.id, "Three")
    assert resent.stats.num_cached_tokens >= one.stats.num_prompt_tokens + one.stats.num_completion_tokens - 1


def test_rolling_back_everything_and_further_is_told(service: ChatService) -> None:
    session = service.create_session()
    send(service, session.id, "One")
    send(service, session.id, "Two")
    with pytest.raises(InvalidInputError, match="only 2 turns"):
        service.rollback(session.id, turns=3)
    rollback = service.rollback(session.id, turns=2)
    assert (rollback.session.tip_id, rollback.num_undone_turns) == (None, 2)
    assert service.messages(session.id) == ()
    assert len(every_message(service, session.id)) == 4
    assert send(service, session.id, "Anew").message.position == 1


def test_editing_a_user_message_makes_a_branch_and_keeps_the_old_one(service: ChatService) -> None:
    session = service.create_session()
    send(service, session.id, "One")
    send(service, session.id, "Two")
    before = service.messages(session.id)
    service.edit(before[0].id, "Uno", GREEDY).result(TIMEOUT_S)
    assert texts(service, session.id)[0] == "Uno"
    assert len(service.messages(session.id)) == 2
    service.select(before[0].id)
    assert [m.id for m in service.messages(session.id)] == [m.id for m in before]


def test_editing_a_reply_is_a_new_alternative_without_a_model_call(
    service: ChatService, tiny_llama: LoadedModel
) -> None:
    session = service.create_session()
    reply = send(service, session.id, "One")
    with counted_forwards(tiny_llama) as forwarded:
        edited = service.edit(reply.message.id, "Written by hand.").result(timeout_s=0).message
    assert forwarded == []
    assert edited.edited
    assert [m.text for m in service.alternatives(edited.id)] == [reply.message.text, "Written by hand."]
    assert texts(service, session.id) == ["One", "Written by hand."]
    stats = send(service, session.id, "Two").stats
    assert stats.num_cached_tokens == reply.stats.num_prompt_tokens
    assert stats.miss_reason is None, "what a person wrote was never computed"


def test_a_fork_is_a_session_of_its_own(service: ChatService) -> None:
    session = service.create_session(title="Origin")
    one = send(service, session.id, "One")
    send(service, session.id, "Two")
    fork = service.fork(one.message.id)
    assert fork.title == "Origin (2)"
    assert [service.fork(one.message.id).title, service.fork(service.messages(fork.id)[-1].id).title] == [
        "Origin (3)",
        "Origin (4)",
    ]
    assert texts(service, fork.id) == ["One", one.message.text]
    send(service, fork.id, "Elsewhere")
    assert len(service.messages(session.id)) == 4
    assert texts(service, session.id)[2] == "Two"


def test_continue_goes_on_in_the_same_reply_as_if_it_had_never_stopped(service: ChatService) -> None:
    whole, parts = service.create_session(), service.create_session()
    reference = send(service, whole.id, "Hello", Sampling(temperature=1.0, seed=SEED, max_new_tokens=16))
    first = send(service, parts.id, "Hello", Sampling(temperature=1.0, seed=SEED, max_new_tokens=8))
    assert len(reference.message.token_ids or ()) == 2 * len(first.message.token_ids or ()) == 16
    more = service.continue_reply(parts.id, Sampling(temperature=1.0, max_new_tokens=8)).result(TIMEOUT_S)
    assert more.message.id == first.message.id
    assert more.message.token_ids == reference.message.token_ids
    assert more.stats.num_computed_tokens == 1


def test_stop_keeps_what_exists_and_the_chat_goes_on(service: ChatService) -> None:
    session = service.create_session()
    turn = service.send(session.id, "Hello", LONG)
    wait_for_text(turn)
    turn.stop()
    reply = turn.result(TIMEOUT_S)
    assert reply.stats.finish_reason is FinishReason.CANCELLED
    assert 0 < len(reply.message.token_ids or ()) < 1500
    assert send(service, session.id, "Go on").stats.miss_reason is None


def test_a_running_turn_refuses_new_ones_and_yields_to_going_back(service: ChatService) -> None:
    session = service.create_session()
    turn = service.send(session.id, "Hello", LONG)
    for refused in (
        lambda: service.send(session.id, "Again"),
        lambda: service.regenerate(session.id),
        lambda: service.continue_reply(session.id),
    ):
        with pytest.raises(SessionBusyError):
            refused()
    with pytest.raises(SessionBusyError):
        service.fork(turn.reply_id)
    assert service.active_turn(session.id) is turn
    rollback = service.rollback(session.id)
    assert turn.done
    assert rollback.undone.id == turn.reply_id
    assert service.active_turn(session.id) is None
    assert service.messages(session.id) == ()


def test_deleting_stops_the_turn_and_goes_to_the_bin_first(service: ChatService) -> None:
    session = service.create_session()
    turn = service.send(session.id, "Hello", LONG)
    service.delete(session.id)
    assert turn.done
    assert service.sessions() == ()
    assert [s.id for s in service.sessions(deleted=True)] == [session.id]
    with pytest.raises(NotFoundError, match="bin"):
        service.send(session.id, "More")
    service.undelete(session.id)
    assert texts(service, session.id)[0] == "Hello"
    with pytest.raises(InvalidInputError, match="bin"):
        service.purge(session.id)
    service.delete(session.id)
    service.purge(session.id)
    assert service.cache_report(service.create_session().id).num_sessions == 0
    with pytest.raises(NotFoundError):
        service.get_session(session.id)


def test_the_bin_is_emptied_at_once_and_for_its_owner_alone(service: ChatService) -> None:
    kept, *binned = (service.create_session(title=f"{n}") for n in range(4))
    other = service.for_owner("ann")
    others = other.create_session()
    for session in binned:
        service.delete(session.id)
    other.delete(others.id)
    assert service.purge_bin() == 3
    assert (service.purge_bin(), service.sessions(deleted=True)) == (0, ())
    assert [s.id for s in service.sessions()] == [kept.id]
    assert [s.id for s in other.sessions(deleted=True)] == [others.id]
    with pytest.raises(NotFoundError):
        service.undelete(binned[0].id)


def test_an_export_brings_a_chat_back_from_the_bin(service: ChatService) -> None:
    session = service.create_session()
    send(service, session.id, "Hello")
    data = service.export(session.id)
    service.delete(session.id)
    report = service.import_(data)
    assert (report.outcome, report.session.id, report.session.deleted_at) == ("restored", session.id, None)
    assert send(service, session.id, "Go on").message.text
    assert service.import_(data).outcome == "skipped"


@pytest.mark.parametrize("is_purged", [False, True])
def test_windows_hear_of_an_import_in_a_chats_place_and_then_wait_again(service: ChatService, is_purged: bool) -> None:
    session = service.create_session()
    send(service, session.id, "Hello")
    seen = service.get_session(session.id).version
    data = service.export(session.id)
    if is_purged:
        seen = service.delete(session.id).version
        service.purge(session.id)
    report = service.import_(data, replace=True)
    assert report.session.id == session.id
    version = service.wait_for_change(session.id, seen, timeout_s=0)
    assert version == report.session.version > seen
    assert service.wait_for_change(session.id, version, timeout_s=0.01) == version


def test_settings_of_an_imported_chat_that_have_no_effect_here_are_told_and_kept(service: ChatService) -> None:
    session = service.create_session(settings={"cache": "quantized-int8"})
    data = json.loads(service.export(session.id))
    data["session"] |= {"id": "elsewhere", "settings": {"cache": "quantized-hqq99", "colour": "red"}}
    report = service.import_(json.dumps(data))
    assert [note.split(": ")[0] for note in report.notes] == ["Kept, without effect here"] * 2
    assert json.loads(service.export("elsewhere"))["session"]["settings"] == data["session"]["settings"]
    assert send(service, "elsewhere", "Hello").stats.cache_kind == "dynamic"


def test_a_long_chat_is_read_page_by_page(service: ChatService) -> None:
    session = service.create_session()
    for text in ("One", "Two", "Three"):
        send(service, session.id, text)
    whole = service.messages(session.id)
    assert service.messages(session.id, limit=2) == whole[-2:]
    assert service.messages(session.id, limit=3, before=whole[4].id) == whole[1:4]
    assert service.messages(session.id, before=whole[2].id) == whole[:2]
    assert service.messages(session.id, limit=3, before=whole[0].id) == ()
    assert service.num_messages(session.id) == 6
    service.rollback(session.id)
    assert service.num_messages(session.id) == 4
    for limit in (0, -1, 1.5, True):
        with pytest.raises(InvalidInputError, match="limit"):
            service.messages(session.id, limit=limit)  # type: ignore[arg-type]
    elsewhere = service.create_session()
    with pytest.raises(InvalidInputError, match="another"):
        service.messages(elsewhere.id, limit=2, before=whole[0].id)


def test_how_a_reply_was_made_can_be_asked_for_many_at_once(service: ChatService) -> None:
    session = service.create_session(sampling=Sampling(top_k=7), settings={"context_full": "stop"})
    first = send(service, session.id, "One", Sampling(temperature=0.0, max_new_tokens=4, seed=11))
    service.update_session(session.id, settings={"cache": "quantized-int8"}, sampling=None)
    second = send(service, session.id, "Two", Sampling(max_new_tokens=4))
    edited = service.edit(second.message.id, "by hand").result(TIMEOUT_S)
    replies = [message.id for message in service.messages(session.id)] + [second.message.id]
    details = service.turn_details(replies)
    assert details.keys() == {first.message.id, second.message.id}
    assert edited.message.id not in details
    one, two = details[first.message.id], details[second.message.id]
    assert (one.stats, two.stats) == (first.stats, second.stats)
    assert (one.sampling.seed, one.sampling.top_k, one.sampling.temperature) == (11, 7, 0.0)
    assert dict(one.settings) == {"context_full": "stop"}
    assert (two.sampling.seed, two.sampling.temperature) == (second.stats.seed, 0.7), "the model's own default"
    assert (two.stats.cache_kind, dict(two.settings)) == ("quantized-int8", {"cache": "quantized-int8"})
    assert one.finished_at is not None
    assert one.started_at < one.finished_at <= two.started_at
    assert service.for_owner("ann").turn_details(replies) == {}


def test_the_same_request_is_the_same_turn_while_it_runs_and_afterwards(service: ChatService) -> None:
    session = service.create_session()
    turns: list[Turn] = []
    clicks = [
        threading.Thread(target=lambda: turns.append(service.send(session.id, "Hello", GREEDY, request_id="click")))
        for _ in range(4)
    ]
    for click in clicks:
        click.start()
    for click in clicks:
        click.join()
    assert len({turn.reply_id for turn in turns}) == 1
    reply = turns[0].result(TIMEOUT_S)
    late = service.send(session.id, "Hello", GREEDY, request_id="click")
    assert late.result(timeout_s=0) == reply
    assert len(service.messages(session.id)) == 2


def test_a_stale_tip_is_refused_and_nothing_is_stored(service: ChatService) -> None:
    session = service.create_session()
    one = send(service, session.id, "One")
    send(service, session.id, "Two")
    with pytest.raises(StaleTipError):
        service.send(session.id, "From an old tab", parent_id=one.message.id)
    assert len(every_message(service, session.id)) == 4


@pytest.mark.parametrize("text", ["", "  \n ", "\x00\x07"])
def test_an_empty_message_is_refused_and_nothing_is_stored(service: ChatService, text: str) -> None:
    session = service.create_session()
    with pytest.raises(InvalidInputError, match="empty"):
        service.send(session.id, text)
    assert service.messages(session.id) == ()


def test_control_characters_and_lone_surrogates_do_no_harm(service: ChatService) -> None:
    session = service.create_session()
    send(service, session.id, "a\x00b\ud800c <|im_end|>")
    assert texts(service, session.id)[0] == "ab\ufffdc <|im_end|>"


def test_a_message_longer_than_the_context_is_refused_with_numbers(service: ChatService) -> None:
    session = service.create_session()
    send(service, session.id, "One")
    with pytest.raises(ContextFullError, match="2,048") as caught:
        service.send(session.id, "long " * 20_000)
    assert caught.value.num_prompt_tokens > caught.value.max_context_tokens == 2048
    assert len(every_message(service, session.id)) == 2
    assert send(service, session.id, "Two").stats.finish_reason is not FinishReason.ERROR


def test_a_reply_that_meets_the_end_of_the_context_says_so(tiny_llama: LoadedModel, tmp_path: Path) -> None:
    with open_service(dataclasses.replace(tiny_llama, max_context_tokens=20), tmp_path) as service:
        session = service.create_session(settings={"context_full": "stop"})
        reply = send(service, session.id, "Hello", LONG)
        assert reply.stats.finish_reason is FinishReason.CONTEXT_FULL
        assert reply.stats.num_prompt_tokens + reply.stats.num_completion_tokens == 20
        with pytest.raises(ContextFullError):
            service.send(session.id, "And?")


def test_another_owner_sees_nothing_and_reuses_nothing(service: ChatService) -> None:
    session = service.create_session(system_prompt="The same prompt.")
    mine = send(service, session.id, "Hello")
    other = service.for_owner("somebody else")
    for refused in (
        lambda: other.get_session(session.id),
        lambda: other.messages(session.id),
        lambda: other.send(session.id, "Hello"),
        lambda: other.edit(mine.message.id, "Hello"),
        lambda: other.select(mine.message.id),
        lambda: other.fork(mine.message.id),
        lambda: other.delete(session.id),
        lambda: other.cache_report(session.id),
        lambda: other.active_turn(session.id),
        lambda: other.wait_for_change(session.id, since=0, timeout_s=0),
    ):
        with pytest.raises(NotFoundError):
            refused()
    assert other.turn_stats([mine.message.id]) == {}
    assert other.sessions() == ()
    theirs = send(other, other.create_session(system_prompt="The same prompt.").id, "Hello")
    assert theirs.stats.num_cached_tokens == 0
    assert theirs.stats.reuse == ()


def test_a_title_comes_from_the_first_message_unless_one_was_given(service: ChatService) -> None:
    session = service.create_session()
    send(service, session.id, "How do caches work?\nIn detail.")
    send(service, session.id, "Another")
    assert service.get_session(session.id).title == "How do caches work?"
    named = service.create_session(title="Mine")
    send(service, named.id, "Hello")
    assert service.get_session(named.id).title == "Mine"


def test_what_a_session_cannot_have_is_refused_by_name(service: ChatService) -> None:
    session = service.create_session()
    with pytest.raises(InvalidInputError, match="colour"):
        service.update_session(session.id, colour="red")
    with pytest.raises(UnsupportedOptionError, match="draft"):
        service.update_session(session.id, settings={"draft": True})
    changed = service.update_session(session.id, title="New", pinned=True, sampling=Sampling(temperature=0.0))
    assert (changed.title, changed.pinned, changed.sampling) == ("New", True, {"temperature": 0.0})


def test_a_changed_system_prompt_is_used_and_the_miss_is_named(service: ChatService) -> None:
    session = service.create_session(system_prompt="Old.")
    send(service, session.id, "One")
    service.update_session(session.id, system_prompt="New and different.")
    reply = send(service, session.id, "Two")
    assert reply.stats.miss_reason is MissReason.HISTORY
    assert reply.stats.miss_index is not None
    assert reply.stats.num_cached_tokens == reply.stats.miss_index


def test_waiting_for_a_change_ends_with_the_change(service: ChatService) -> None:
    session = service.create_session()
    assert service.wait_for_change(session.id, since=session.version, timeout_s=0.01) == session.version
    seen: list[int] = []
    waiting = threading.Thread(target=lambda: seen.append(service.wait_for_change(session.id, since=session.version)))
    waiting.start()
    changed = service.update_session(session.id, title="Changed")
    waiting.join(TIMEOUT_S)
    assert seen == [changed.version]


def test_dropping_the_cache_loses_no_word_and_is_reported(service: ChatService) -> None:
    session = service.create_session()
    one = send(service, session.id, "One")
    assert service.prefetch(session.id)
    report = service.cache_report(session.id)
    assert report.num_tokens == one.stats.num_prompt_tokens + one.stats.num_completion_tokens - 1
    assert report.num_bytes == report.total_bytes > 0
    service.drop_cache(session.id)
    assert not service.prefetch(session.id)
    reply = send(service, session.id, "Two")
    assert reply.stats.miss_reason is MissReason.NO_CACHE
    assert reply.stats.num_cached_tokens == 0
    assert len(service.messages(session.id)) == 4


def test_while_dropping_a_cache_waits_for_a_turn_the_chat_can_be_rolled_back(
    service: ChatService, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = service.create_session()
    may_begin, waits, stops = (threading.Event() for _ in range(3))
    result, stop = Turn.result, Turn.stop
    monkeypatch.setattr(Turn, "result", lambda self, *timeout_s: (waits.set(), result(self, *timeout_s))[1])
    monkeypatch.setattr(Turn, "stop", lambda self: (stops.set(), stop(self))[1])
    with ThreadPoolExecutor(3) as pool:
        pool.submit(runtime_of(service).scheduler.call, lambda: may_begin.wait(TIMEOUT_S))
        turn = service.send(session.id, "One", LONG)
        try:
            dropped = pool.submit(service.drop_cache, session.id)
            assert waits.wait(TIMEOUT_S)
            rolled_back = pool.submit(service.rollback, session.id)
            assert stops.wait(TIMEOUT_S)
        finally:
            may_begin.set()
        assert turn.result(TIMEOUT_S).stats.finish_reason is FinishReason.CANCELLED
        assert rolled_back.result(TIMEOUT_S).undone.id == turn.reply_id
        dropped.result(TIMEOUT_S)
    assert not service.cache_report(session.id).is_live


@pytest.mark.parametrize("end", [b"\xf0\x9f", b"\xff", b"\xe2\xf0", b"\xe2\xf0\x9f", b"\xc3\xc3\xc3"], ids=repr)
def test_after_a_reply_that_ends_in_bytes_that_are_no_text_everything_is_reused(
    end: bytes, tiny_llama: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a random model writes them, and a good one that is stopped inside an emoji."""
    tokens = TokenText(tiny_llama.tokenizer, ())
    id_of = {tokens.token_bytes(i): i for i in range(3, len(tiny_llama.tokenizer))}
    said = [id_of[bytes([byte])] for byte in b"ok " + end]

    def say(_sampler: Sampler, ids: Sequence[int], *_: object) -> list[int]:
        return [said[(len(ids) - num_prompt_tokens) % len(said)]]

    monkeypatch.setattr(Sampler, "choose_run", say)
    length = Sampling(max_new_tokens=len(said))
    with open_service(tiny_llama, tmp_path) as service:
        session = service.create_session()
        num_prompt_tokens = len(
            runtime_of(service)
            .prompts.build([PromptMessage(Role.USER, "Hello")], system_prompt=None, template_vars={})
            .token_ids
        )
        first = send(service, session.id, "Hello", length)
        assert first.message.token_ids == tuple(said[: len(first.message.token_ids or ())])
        again = service.regenerate(session.id, sampling=length).result(TIMEOUT_S)
        assert again.stats.num_computed_tokens == 1
        assert (again.message.text, again.message.token_ids) == (first.message.text, first.message.token_ids)
    with open_service(tiny_llama, tmp_path) as service:
        stats = send(service, session.id, "Go on").stats
        num_fed = min(len(first.message.token_ids or ()), len(said) - 1)
        assert (stats.num_cached_tokens, stats.miss_reason) == (num_prompt_tokens + num_fed, None)


def test_a_restart_keeps_every_word_and_every_alternative(tiny_llama: LoadedModel, tmp_path: Path) -> None:
    with open_service(tiny_llama, tmp_path) as service:
        session = service.create_session(system_prompt="Be brief.")
        send(service, session.id, "One")
        service.regenerate(session.id, sampling=GREEDY).result(TIMEOUT_S)
        send(service, session.id, "Two")
        before = every_message(service, session.id)
        tip = service.get_session(session.id).tip_id
    with open_service(tiny_llama, tmp_path) as service:
        assert every_message(service, session.id) == before
        assert service.get_session(session.id).tip_id == tip
        assert send(service, session.id, "Three").stats.miss_reason is None


def test_closing_stores_running_replies_as_interrupted_and_continue_goes_on(
    tiny_llama: LoadedModel, tmp_path: Path
) -> None:
    with open_service(tiny_llama, tmp_path) as service:
        session = service.create_session()
        turn = service.send(session.id, "Hello", LONG)
        wait_for_text(turn)
    reply = turn.result(timeout_s=0)
    assert reply.stats.finish_reason is FinishReason.INTERRUPTED
    with open_service(tiny_llama, tmp_path) as service:
        more = service.continue_reply(session.id, GREEDY).result(TIMEOUT_S)
    said = reply.message.token_ids or ()
    assert (more.message.token_ids or ())[: len(said)] == said
    assert len(more.message.token_ids or ()) > len(said) > 0


def test_a_failure_inside_the_model_ends_the_turn_and_nothing_else(
    service: ChatService, tiny_llama: LoadedModel
) -> None:
    session = service.create_session()
    one = send(service, session.id, "One")

    def explode(*_args: object) -> None:
        raise RuntimeError("injected")

    handle = tiny_llama.model.get_input_embeddings().register_forward_hook(explode)
    failed = service.send(session.id, "Two", GREEDY).result(TIMEOUT_S)
    handle.remove()
    assert failed.stats.finish_reason is FinishReason.ERROR
    assert texts(service, session.id)[:3] == ["One", one.message.text, "Two"]
    again = service.regenerate(session.id, sampling=GREEDY).result(TIMEOUT_S)
    assert again.stats.finish_reason is not FinishReason.ERROR
    other = service.create_session()
    reference = [send(service, other.id, "One"), send(service, other.id, "Two")]
    assert again.message.token_ids == reference[1].message.token_ids


def test_every_turn_ends_with_one_done_event_and_true_sums(service: ChatService) -> None:
    session = service.create_session()
    for text in ("One", "Two", "Three"):
        events = list(service.send(session.id, text, GREEDY).events())
        assert isinstance(events[-1], DoneEvent)
        assert sum(isinstance(event, DoneEvent) for event in events) == 1
        stats = events[-1].reply.stats
        assert stats.num_prompt_tokens == stats.num_cached_tokens + stats.num_computed_tokens


def test_a_reply_that_could_not_be_stored_is_stored_before_the_chat_goes_on(
    service: ChatService, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_args: object, **_kwargs: object) -> None:
        raise DatabaseError("The disk is full.")

    session = service.create_session()
    with monkeypatch.context() as patch:
        patch.setattr(ChatStore, "finish_turn", full)
        reply = send(service, session.id, "One")
    assert "The disk is full" in reply.stats.fallbacks[0]
    assert service.messages(session.id)[-1].status is MessageStatus.GENERATING
    send(service, session.id, "Two")
    messages = service.messages(session.id)
    assert messages[1].text == reply.message.text
    assert [message.status for message in messages] == [MessageStatus.COMPLETE] * 4
    assert service.turn_stats([messages[1].id])[messages[1].id].finish_reason is reply.stats.finish_reason


def test_a_turn_stopped_in_the_queue_ends_at_once_and_its_message_is_kept(
    tiny_llama: LoadedModel, tmp_path: Path
) -> None:
    with open_service(tiny_llama, tmp_path, max_concurrent_turns=1) as service:
        one, two = service.create_session(), service.create_session()
        running = service.send(one.id, "Hello", LONG)
        waiting = service.send(two.id, "Hello", LONG)
        waiting.stop()
        reply = waiting.result(TIMEOUT_S)
        assert not running.done
        assert reply.stats.finish_reason is FinishReason.CANCELLED
        assert texts(service, two.id) == ["Hello", ""]
        running.stop()
