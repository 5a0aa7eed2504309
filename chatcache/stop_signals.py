"""The signals that ask the process to stop.

It imports next to nothing, so that they can be answered before all that takes long to import.
"""

from __future__ import annotations

import contextlib
import os
import queue
import signal
from collections.abc import Callable
from types import FrameType

Handler = Callable[[int, FrameType | None], None]

NOTICE_S = 0.2
"""A signal that comes just before the main thread begins to wait does not wake it: it looks that often by itself."""


class StopRequest:
    """The wish that the process ends, which any thread may have, and a signal's handler at any moment.

    A `threading.Event` does not serve: a handler that sets it can come while the thread that it interrupts holds the
    event's lock, and waits for that thread then.
    """

    def __init__(self) -> None:
        self._failures: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()  # its `put` is reentrant

    def make(self, failure: BaseException | None = None) -> None:
        """Ask for the end, because of `failure` if there was one."""
        self._failures.put(failure)

    def wait(self) -> BaseException | None:
        """Wait until the end is asked for; why."""
        while True:
            with contextlib.suppress(queue.Empty):
                return self._failures.get(timeout=NOTICE_S)


def on_stop_signals(handler: Handler | signal.Handlers) -> None:
    """SIGHUP is what a closed terminal sends; nohup's wish to outlive it is kept."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, handler)
    hang_up: signal.Signals | None = getattr(signal, "SIGHUP", None)
    if hang_up is not None and signal.getsignal(hang_up) is not signal.SIG_IGN:
        signal.signal(hang_up, handler)


def end_at_once(_number: int, _frame: FrameType | None) -> None:
    """For a process that has nothing to store yet: what lies on the disk may be cut off at any time.

    Raised as an exception, the wish to stop would come out of a library in mid-import as any other one, or not at all.
    """
    with contextlib.suppress(OSError):  # who closed the terminal reads nothing
        os.write(1, b"Stopped while chatcache was starting; nothing is lost.\n")
    os._exit(0)
