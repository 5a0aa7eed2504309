"""Where running turns do not fit together, the one that began last gives way."""

from __future__ import annotations

from chatcache.running_turns import RunningTurns
from chatcache.session_key import SessionKey

FIRST, SECOND, THIRD = (SessionKey("me", name) for name in ("first", "second", "third"))


def turns_of(*keys: SessionKey) -> RunningTurns:
    turns = RunningTurns()
    for key in keys:
        turns.begin(key)
    return turns


def test_the_last_one_waits_at_once_where_it_is_short_itself() -> None:
    turns = turns_of(FIRST, SECOND)
    turns.make_way(SECOND)
    assert turns.active == (FIRST,)
    assert turns.is_waiting(SECOND)
    assert SECOND in turns
    turns.go_on(SECOND)
    assert turns.active == (FIRST, SECOND)


def test_another_one_is_asked_and_waits_from_its_own_step_on() -> None:
    turns = turns_of(FIRST, SECOND, THIRD)
    turns.make_way(FIRST)
    assert (turns.is_asked(THIRD), turns.is_asked(SECOND), turns.active) == (True, False, (FIRST, SECOND, THIRD))
    turns.wait(THIRD)
    assert (turns.is_asked(THIRD), turns.active) == (False, (FIRST, SECOND))
    turns.make_way(FIRST)
    assert turns.is_asked(SECOND)


def test_the_order_is_that_of_the_beginnings_whoever_waited() -> None:
    turns = turns_of(FIRST, SECOND)
    turns.make_way(SECOND)
    turns.begin(THIRD)
    assert (turns.is_first(FIRST), turns.is_first(SECOND)) == (True, False)
    assert not turns.may_try(SECOND)
    turns.end(FIRST)
    assert turns.is_first(SECOND)
    assert turns.may_try(SECOND)
    turns.wait(SECOND)
    assert not turns.may_try(SECOND)
    turns.go_on(SECOND)
    turns.make_way(SECOND)
    assert turns.is_asked(THIRD)


def test_an_ended_turn_is_forgotten() -> None:
    turns = turns_of(FIRST, SECOND)
    turns.make_way(FIRST)
    turns.end(SECOND)
    turns.end(SECOND)
    assert (SECOND in turns, turns.is_asked(SECOND), turns.is_waiting(SECOND)) == (False, False, False)
    turns.begin(SECOND)
    assert not turns.is_asked(SECOND)
