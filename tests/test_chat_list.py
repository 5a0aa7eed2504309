"""The list of chats and the bin: which heading a chat stands under, what can be done there, what a browser may send."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markup import Elements, actions_of, assert_harmless, session

from chatcache.ui.chat_days import ChatGroup, Month, Span, grouped_by_day, zone_named
from chatcache.ui.chat_list import Listed, render_bin, render_chat_list, render_found, render_title
from chatcache.ui.shelf import EVERYTHING, NUM_CHATS_LISTED, Shelf
from chatcache.ui.texts import ENGLISH as texts
from storage.chat_search import FoundSession
from storage.excerpt import Piece
from storage.records import ChatSession

ISTANBUL = ZoneInfo("Europe/Istanbul")
NOON = datetime(2026, 3, 10, 12, 0, tzinfo=UTC)


def changed(moment: datetime, session_id: str = "s1", *, pinned: bool = False) -> ChatSession:
    return session("A chat", session_id, updated_at=moment, pinned=pinned)


# Which day


@pytest.mark.parametrize(
    ("age", "span"),
    [
        (timedelta(), Span.TODAY),
        (timedelta(hours=-1), Span.TODAY),
        (timedelta(hours=12), Span.TODAY),
        (timedelta(hours=13), Span.YESTERDAY),
        (timedelta(days=1, hours=12), Span.YESTERDAY),
        (timedelta(days=2), Span.WEEK),
        (timedelta(days=7), Span.WEEK),
        (timedelta(days=8), Month(3, None)),
        (timedelta(days=30), Month(2, None)),
        (timedelta(days=100), Month(11, 2025)),
    ],
)
def test_a_chat_stands_under_the_day_it_was_last_changed(age: timedelta, span: Span | Month) -> None:
    (group,) = grouped_by_day([changed(NOON - age)], NOON, UTC)
    assert group.span == span


def test_a_day_begins_at_midnight_where_the_person_is() -> None:
    late = changed(datetime(2026, 3, 9, 22, 30, tzinfo=UTC))
    assert grouped_by_day([late], NOON, UTC)[0].span is Span.YESTERDAY
    assert grouped_by_day([late], NOON, ISTANBUL)[0].span is Span.TODAY


def test_pinned_chats_come_first_whenever_they_were_changed_and_no_chat_is_lost() -> None:
    old = NOON - timedelta(days=90)
    sessions = [changed(old, "a", pinned=True), changed(NOON, "b"), changed(NOON, "c"), changed(old, "d")]
    groups = grouped_by_day(sessions, NOON, UTC)
    assert [group.span for group in groups] == [Span.PINNED, Span.TODAY, Month(12, 2025)]
    assert [chat for group in groups for chat in group.sessions] == sessions


@pytest.mark.parametrize(
    "name", [None, "", "Nowhere/Land", "../../etc/passwd", "/etc/passwd", "x" * 10_000, "\0", "\ud800"]
)
def test_a_time_zone_that_is_none_is_this_machines(name: str | None) -> None:
    assert zone_named(name) is None
    assert grouped_by_day([changed(NOON)], NOON, zone_named(name))[0].span is Span.TODAY


# What the list shows


def test_untitled_chats_have_a_name() -> None:
    group = ChatGroup(Span.TODAY, (session("One"), session("", "s2")))
    assert texts.UNTITLED in render_chat_list(texts, [group], Listed())


def test_each_group_has_its_heading() -> None:
    groups = [
        ChatGroup(span, (session("x", f"s{number}"),))
        for number, span in enumerate((*Span, Month(2, None), Month(12, 2025)))
    ]
    said = Elements(render_chat_list(texts, groups, Listed())).text
    assert [word for word in said.split("x") if word] == [
        "Pinned", "Today", "Yesterday", "Previous 7 days", "February", "December 2025",
    ]  # fmt: skip


def test_a_chat_that_is_being_answered_shows_it() -> None:
    group = ChatGroup(Span.TODAY, (session("One"), session("Two", "s2")))
    markup = render_chat_list(texts, [group], Listed(busy_ids={"s2"}))
    assert markup.count(f'aria-label="{texts.IS_ANSWERED}"') == 1
    assert markup.index('data-session="s2"') < markup.index(texts.IS_ANSWERED)


def test_the_list_says_why_it_is_empty_and_that_there_is_more() -> None:
    assert texts.NO_CHATS in render_chat_list(texts, [], Listed())
    assert "leeks" in render_found(texts, [], Listed(query="leeks"))
    group = ChatGroup(Span.TODAY, (session("x"),))
    assert actions_of(render_chat_list(texts, [group], Listed(has_more=True))) == ["more"]
    assert actions_of(render_found(texts, [session("x")], Listed(query="x", has_more=True))) == ["more"]
    assert actions_of(render_chat_list(texts, [group], Listed())) == []


def test_a_chat_in_the_bin_comes_back_or_is_asked_about_before_it_goes() -> None:
    chats = [session("One"), session("Two", "s2")]
    assert texts.BIN_EMPTY in render_bin(texts, [], Listed(), doubted=None)
    assert actions_of(render_bin(texts, chats, Listed(), doubted=None)) == ["doubt"] + ["restore", "doubt"] * 2
    asked = render_bin(texts, chats, Listed(), doubted="s2")
    assert actions_of(asked) == ["doubt", "restore", "doubt", "purge", "keep"]
    assert "Remove “Two” for good?" in Elements(asked).text
    assert actions_of(render_bin(texts, chats, Listed(), doubted=EVERYTHING))[:2] == ["purge", "keep"]


def test_a_found_chat_shows_what_was_found_and_where_and_nothing_of_it_is_markup() -> None:
    hostile = "<img src=x onerror=alert(1)>"
    chats = [session(hostile), session("", "s2")]
    found = {
        "s1": FoundSession(
            chats[0], (Piece("<img", is_hit=True), Piece(hostile[4:])), (Piece("a <b>"), Piece("<i>", True)), "m1"
        ),
        "s2": FoundSession(chats[1], (), ()),
    }
    for markup in (
        render_found(texts, chats, Listed(query="i", found=found)),
        render_bin(texts, chats, Listed(query="i", found=found), doubted=None),
    ):
        said = assert_harmless(markup).text
        assert f"{hostile}a <b><i>" in said
        assert texts.UNTITLED in said
        assert markup.count("<mark>") == 2
        assert "<mark>&lt;i&gt;</mark>" in markup
        leads_to = [value for name, value in Elements(markup).attributes if name == "href"]
        assert leads_to == ["?session=s1&message=m1&word=%3Ci%3E", "?session=s2"]


# What a browser sends

JSON_VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.lists(st.integers(), max_size=2)
)
SHELVES = st.dictionaries(st.sampled_from(["bin", "shown", "doubted", "zone", "turn", "other"]), JSON_VALUES)


@given(sent=st.one_of(JSON_VALUES, SHELVES.map(json.dumps)))
def test_whatever_a_browser_sends_as_its_shelf_can_be_read(sent: object) -> None:
    shelf = Shelf.from_json(sent)
    assert Shelf.from_json(shelf.to_json()) == shelf
    assert 1 <= shelf.num_shown <= 100_000
    assert "<" not in shelf.to_json()


def test_every_change_of_the_shelf_is_a_new_turn() -> None:
    shelf = Shelf(zone="Europe/Istanbul")
    assert shelf.showing_more().num_shown == 2 * NUM_CHATS_LISTED
    assert shelf.showing_more().turned() == Shelf(is_bin=True, zone="Europe/Istanbul", turn=2)
    assert shelf.turned().asking("s1").turned() == Shelf(zone="Europe/Istanbul", turn=3)
    assert shelf.again().turn == 1


@pytest.mark.parametrize(
    ("title", "name"),
    [
        ("A <title> (3)", "<span>A &lt;title&gt;</span> <span>(3)</span>"),
        ("A <title>", "A &lt;title&gt;"),
        ("The budget (2026)", "The budget (2026)"),
    ],
)
def test_the_number_of_a_copy_stands_apart_from_its_title(title: str, name: str) -> None:
    shown = render_bin(texts, [session(title, "s1")], Listed(), doubted=None)
    assert f'<span class="name">{name}</span>' in shown
    assert_harmless(shown)
    assert f">{name}</h1>" in render_title(texts, title)
