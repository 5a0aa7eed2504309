"""The writer rests while turns run, and only then."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from chatcache import writer_pace
from chatcache.writer_pace import WriterPace

PIECE_S = 0.002


def pieces(count: int) -> Iterator[int]:
    yield from range(count)


def write(pace: WriterPace, count: int = 3) -> float:
    """How long writing takes if each piece takes two thousandths of a second of the processor."""
    began_s = time.monotonic()
    for _ in pace.slowed(pieces(count)):
        until_s = time.thread_time() + PIECE_S
        while time.thread_time() < until_s:
            pass
    return time.monotonic() - began_s


def test_while_a_turn_runs_writing_takes_a_small_share_of_the_time() -> None:
    assert write(WriterPace(lambda: True)) >= 2 * PIECE_S / writer_pace.SHARE


@pytest.fixture
def _long_rests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_pace, "SHARE", 1e-5)


@pytest.mark.usefixtures("_long_rests")
def test_nobody_rests_where_no_turn_runs() -> None:
    assert write(WriterPace(lambda: False)) < 30


@pytest.mark.usefixtures("_long_rests")
def test_a_rest_ends_with_the_turns() -> None:
    answers = iter([True, True])
    assert write(WriterPace(lambda: next(answers, False))) < 30


@pytest.mark.usefixtures("_long_rests")
def test_a_rest_ends_when_somebody_waits_and_comes_back_after_that() -> None:
    pace = WriterPace(lambda: True)
    writer = threading.Thread(target=write, args=(pace, 2))
    writer.start()
    writer.join(0.3)
    assert writer.is_alive()
    with pace.hurried(), pace.hurried():
        writer.join(30)
        assert not writer.is_alive()
        assert write(pace) < 30
    assert pace._num_hurrying == 0
