"""`WriterPace`: how much of a processor's time writing may take while turns run.

Decoding feels every interruption, and nobody waits for the disk: so after each piece the writer rests, as long as it
takes for the piece to have been a small share of the time. It knows pieces and clocks, not what is written.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import TypeVar

T = TypeVar("T")

SHARE = 0.01
"""What a piece takes of a processor, it takes of decoding, and some again: who computes on all cores waits for the
one that was interrupted."""
LOOK_S = 0.05
"""How soon it is seen that no turn runs any more."""
NICENESS = 10
"""A tenth of a core is left where all are busy."""


def yield_to_others() -> None:
    """For the thread that calls it. What it does can wait, decoding cannot: on Linux a thread has its own priority."""
    if sys.platform == "linux":
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)


class WriterPace:
    """Thread-safe. `is_busy` is asked while the writer rests: as soon as it says no, writing goes on at full speed."""

    def __init__(self, is_busy: Callable[[], bool]) -> None:
        self._is_busy = is_busy
        self._changed = threading.Condition()
        self._num_hurrying = 0

    def slowed(self, pieces: Iterable[T]) -> Iterator[T]:
        """The pieces, one by one, with a rest after each but the last."""
        began_s = None
        for piece in pieces:
            if began_s is not None:
                self._rest((time.thread_time() - began_s) * (1 / SHARE - 1))
            began_s = time.thread_time()
            yield piece

    @contextmanager
    def hurried(self) -> Iterator[None]:
        """Somebody waits for what is written: no rests inside the block, whichever thread enters it."""
        with self._changed:
            self._num_hurrying += 1
            self._changed.notify_all()
        try:
            yield
        finally:
            with self._changed:
                self._num_hurrying -= 1

    def _rest(self, seconds: float) -> None:
        until_s = time.monotonic() + seconds
        with self._changed:
            while not self._num_hurrying and self._is_busy() and (left_s := until_s - time.monotonic()) > 0:
                self._changed.wait(min(left_s, LOOK_S))
