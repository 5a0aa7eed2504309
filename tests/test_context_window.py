"""Where a prompt begins: all of the chat while it fits, then much less at once, never less than the last message."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chatcache.context_window import ContextWindow

STARTS = (0, 2, 4, 6, 8)


def from_start(start: int) -> int:
    """Each turn takes 20 tokens, the system prompt 5, the last message 5."""
    return 5 + 10 * (8 - start) + 5


@pytest.mark.parametrize(
    ("max_tokens", "max_new_tokens", "room"),
    [(100, 10, 10), (100, 25, 25), (100, 26, 25), (100, None, 25), (100, 5000, 25), (3, None, 1)],
)
def test_a_reply_has_room_for_all_it_may_write_or_a_quarter_of_the_window(
    max_tokens: int, max_new_tokens: int | None, room: int
) -> None:
    assert ContextWindow.of(max_tokens, max_new_tokens) == ContextWindow(max_tokens, room)


@pytest.mark.parametrize(
    ("max_tokens", "room", "expected"),
    [
        (100, 10, 0),  # 90 + 10 fit
        (99, 10, 4),  # at most 74 - 10: 50 tokens from message 4
        (99, 14, 4),
        (99, 24, 4),
        (99, 25, 6),
        (60, 10, 6),
        (30, 10, 8),
        (8, 2, 8),  # not even the last message fits
    ],
)
def test_whole_turns_leave_at_once_down_to_three_quarters(max_tokens: int, room: int, expected: int) -> None:
    assert ContextWindow(max_tokens, room).choose_start(STARTS, from_start) == expected


def test_what_was_left_out_before_stays_left_out() -> None:
    assert ContextWindow(1000, 10).choose_start(STARTS[2:], from_start) == 4


@given(
    lengths=st.lists(st.integers(1, 50), min_size=1, max_size=40),
    max_tokens=st.integers(4, 400),
    max_new_tokens=st.integers(1, 400),
)
def test_the_fewest_turns_are_left_out_that_bring_it_down(
    lengths: list[int], max_tokens: int, max_new_tokens: int
) -> None:
    window = ContextWindow.of(max_tokens, max_new_tokens)
    totals = {index: sum(lengths[index:]) for index in range(len(lengths))}
    start = window.choose_start(list(totals), totals.__getitem__)
    if totals[0] + window.room_tokens <= max_tokens:
        assert start == 0
    else:
        small = [i for i, total in totals.items() if total + window.room_tokens <= int(max_tokens * 0.75)]
        assert start == (small[0] if small else len(lengths) - 1)
