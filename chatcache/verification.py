"""`Verification`: every stored cache file is read and checked in the background, by a thread that yields to all others.

It knows a function that checks and tells how far it is; what a file is, is storage's. Any number of readers may look.
"""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass

from chatcache.writer_pace import WriterPace, yield_to_others
from storage.segment_check import VerifyReport

logger = logging.getLogger(__name__)

Check = Callable[[Callable[[int, int], None]], VerifyReport]


@dataclass(frozen=True, slots=True)
class VerifyProgress:
    """`num_checked` of `num_files` files are checked; 0 of 0 before they are counted."""

    num_checked: int = 0
    num_files: int = 0


class VerificationStoppedError(Exception):
    """The service was closed before all was checked."""


class Verification:
    """One run of a check. Thread-safe."""

    def __init__(self, check: Check, pace: WriterPace) -> None:
        """Begins at once. `pace` says how long to rest after each file."""
        self._check = check
        self._files = pace.slowed(itertools.count())
        self._progress = VerifyProgress()
        self._stop = threading.Event()
        self._report: Future[VerifyReport] = Future()
        self._thread = threading.Thread(target=self._run, name="chatcache-verify", daemon=True)
        self._thread.start()

    @property
    def progress(self) -> VerifyProgress:
        return self._progress

    @property
    def done(self) -> bool:
        return self._report.done()

    def result(self, timeout_s: float | None = None) -> VerifyReport:
        """Wait for what was found. Raises what kept it from being found out, TimeoutError when it still runs."""
        return self._report.result(timeout_s)

    def stop(self) -> None:
        """End it after the file it is at, and wait for that."""
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        yield_to_others()
        try:
            self._report.set_result(self._check(self._note))
        except BaseException as error:
            if not isinstance(error, VerificationStoppedError):
                logger.exception("The stored caches could not be checked")
            self._report.set_exception(error)

    def _note(self, num_checked: int, num_files: int) -> None:
        if self._stop.is_set():
            raise VerificationStoppedError("The service was closed before all files were checked.")
        self._progress = VerifyProgress(num_checked, num_files)
        next(self._files)  # rests
