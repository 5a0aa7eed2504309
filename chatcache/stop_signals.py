"""The signals that ask the process to stop.

It imports next to nothing, so that they can be answered before all that takes long to import.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable
from types import FrameType

Handler = Callable[[int, FrameType | None], None]


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
