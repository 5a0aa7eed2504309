"""A disk that reads, or writes, only when a test lets it."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable

import pytest

from storage.segment_files import SegmentFolder


class SlowDisk:
    """Segments are read, or written, only when the test lets them be."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *what: str) -> None:
        self._changed = threading.Condition()
        self._num_asked = self._num_allowed = 0
        for name in what or ("read", "read_into"):
            monkeypatch.setattr(SegmentFolder, name, self._slow(getattr(SegmentFolder, name)))

    def _slow(self, quick: Callable[..., object]) -> Callable[..., object]:
        def slow(*arguments: object) -> object:
            with self._changed:
                number = self._num_asked
                self._num_asked += 1
                self._changed.notify_all()
                assert self._changed.wait_for(lambda: number < self._num_allowed, timeout=30)
            return quick(*arguments)

        return slow

    def allow_first(self, num_reads: int) -> None:
        """Let that many go on, once all of them wait: two readers work side by side, and the second may come first."""
        with self._changed:
            assert self._changed.wait_for(lambda: self._num_asked >= num_reads, timeout=30)
            self._num_allowed = num_reads
            self._changed.notify_all()

    def wait_until_asked(self) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: self._num_asked > 0, timeout=30)

    def allow_all(self) -> None:
        with self._changed:
            self._num_allowed = sys.maxsize
            self._changed.notify_all()
