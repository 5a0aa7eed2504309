"""The turn handle: a log anybody can read again, a stop that does not wait, an end that cannot be missed."""

import threading
from datetime import UTC, datetime

import pytest

from chatcache.events import DoneEvent, Phase, Reply, StatusEvent, TextEvent
from chatcache.stats import FinishReason, TurnStats
from chatcache.turn import Turn
from storage.records import Message, MessageStatus, Role


def make_reply(text: str = "Hello.", reasoning: str | None = None) -> Reply:
    message = Message(
        id="reply",
        session_id="session",
        parent_id="user",
        role=Role.ASSISTANT,
        text=text,
        reasoning=reasoning,
        status=MessageStatus.COMPLETE,
        position=1,
        created_at=datetime.now(UTC),
    )
    return Reply(message, TurnStats(finish_reason=FinishReason.STOP))


def make_turn() -> Turn:
    return Turn(turn_id="turn", session_id="session", reply_id="reply")


def test_events_are_numbered_and_can_be_read_again_from_any_index() -> None:
    turn = make_turn()
    turn.emit(StatusEvent(Phase.PREFILL, 1, 2))
    turn.emit(TextEvent("Hel"))
    turn.emit(TextEvent("lo."))
    turn.emit(DoneEvent(make_reply()))
    everything = list(turn.events())
    assert [event.index for event in everything] == [0, 1, 2, 3]
    assert list(turn.events(2)) == everything[2:]
    assert list(turn.events()) == everything
    assert turn.events_since(3) == everything[3:]
    assert list(turn.events(4)) == []


def test_several_readers_that_start_before_the_first_event_all_see_every_event() -> None:
    turn = make_turn()
    seen: list[list[str]] = [[] for _ in range(5)]

    def read(texts: list[str]) -> None:
        texts.extend(event.text for event in turn.events() if isinstance(event, TextEvent))

    readers = [threading.Thread(target=read, args=(texts,)) for texts in seen]
    for reader in readers:
        reader.start()
    for n in range(200):
        turn.emit(TextEvent(str(n)))
    turn.emit(DoneEvent(make_reply()))
    for reader in readers:
        reader.join(timeout=30)
    assert seen == [[str(n) for n in range(200)]] * 5


def test_result_waits_for_the_end_and_raises_on_timeout_only() -> None:
    turn = make_turn()
    with pytest.raises(TimeoutError):
        turn.result(timeout_s=0.01)
    assert not turn.done
    reply = make_reply()
    threading.Timer(0.05, lambda: turn.emit(DoneEvent(reply))).start()
    assert turn.result(timeout_s=30) is reply
    assert turn.done


def test_stop_is_a_request_that_does_not_wait() -> None:
    turn = make_turn()
    turn.stop()  # returns although nobody ends the turn
    assert turn.stop_requested
    assert not turn.done


def test_the_log_takes_nothing_after_the_end() -> None:
    turn = make_turn()
    turn.emit(DoneEvent(make_reply()))
    with pytest.raises(RuntimeError, match="has ended"):
        turn.emit(TextEvent("late"))


def test_a_turn_that_ended_earlier_replays_its_reasoning_its_text_and_its_end() -> None:
    reply = make_reply("Four.", reasoning="2 + 2")
    turn = Turn.finished(reply, turn_id="turn")
    texts = [(event.text, event.is_reasoning) for event in turn.events() if isinstance(event, TextEvent)]
    assert texts == [("2 + 2", True), ("Four.", False)]
    assert turn.result(timeout_s=0) is reply
