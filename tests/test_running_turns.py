"""Where running turns do not fit together, the one that began last gives way."""

from __future__ import annotations

import torch

from chatcache.live_caches import LiveCaches
from chatcache.memory.room import Room
from chatcache.relief import Relief
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


def test_who_was_asked_need_not_wait_once_the_one_that_asked_has_ended() -> None:
    turns = turns_of(FIRST, SECOND, THIRD)
    turns.make_way(SECOND)
    turns.end(SECOND)
    assert (turns.is_asked(THIRD), turns.active) == (False, (FIRST, THIRD))
    turns.make_way(FIRST)
    assert turns.is_asked(THIRD), "another one may ask as well"


def test_a_turn_that_restores_waits_for_the_disk_where_nothing_else_is_to_be_done() -> None:
    turns = turns_of(FIRST)
    turns.restore(FIRST)
    assert turns.may_wait_for_disk(FIRST)
    turns.begin(SECOND)
    assert not turns.may_wait_for_disk(FIRST), "the other one computes"
    turns.restore(SECOND)
    assert turns.may_wait_for_disk(FIRST)
    turns.go_on(SECOND)
    turns.wait(SECOND)
    assert turns.may_wait_for_disk(FIRST)
    turns.go_on(SECOND)
    turns.restore(SECOND)
    turns.go_on(FIRST)
    turns.make_way(FIRST)
    assert turns.may_wait_for_disk(SECOND), "the other one lacks its room"


def test_one_that_is_to_give_way_waits_for_the_disk_where_it_holds_up_nobody_but_those_that_asked() -> None:
    turns = turns_of(FIRST, SECOND, THIRD)
    turns.restore(THIRD)
    turns.make_way(FIRST)
    assert turns.is_asked(THIRD)
    assert not turns.may_wait_for_disk(THIRD), "the second one has room, and computes"
    turns.make_way(SECOND)
    assert turns.may_wait_for_disk(THIRD), "none of them has room"


def test_whoever_computes_again_lacks_no_room_any_more() -> None:
    live = LiveCaches(None, Room())
    for key in (FIRST, SECOND):
        live.turns.begin(key)
    live.turns.restore(SECOND)
    live.turns.make_way(FIRST)
    assert live.turns.may_wait_for_disk(SECOND)
    Relief(live, FIRST, torch.device("cpu"), lambda _event: None).note_success()
    assert not live.turns.may_wait_for_disk(SECOND)


def test_an_ended_turn_is_forgotten() -> None:
    turns = turns_of(FIRST, SECOND)
    turns.make_way(FIRST)
    turns.end(SECOND)
    turns.end(SECOND)
    assert (SECOND in turns, turns.is_asked(SECOND), turns.is_waiting(SECOND)) == (False, False, False)
    turns.begin(SECOND)
    assert not turns.is_asked(SECOND)
