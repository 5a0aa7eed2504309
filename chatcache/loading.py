"""`Loading`: what takes a while to make, in a thread of its own, and everybody who waits for it."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from concurrent.futures import CancelledError, Future, InvalidStateError
from typing import Generic, TypeVar

from chatcache.errors import ServiceClosedError

T = TypeVar("T")


class Loading(Generic[T]):
    """Thread-safe."""

    def __init__(self, make: Callable[[Callable[[str], None]], T]) -> None:
        """`make` is called when it begins, with a function to call with a sentence for people whenever something takes
        long. It cannot be stopped: given up, it goes on, and what it makes is dropped."""
        self._make = make
        self._began_s: float | None = None
        self._made: Future[T] = Future()
        self.step: str | None = None
        """What takes long just now, as a sentence."""

    def begin(self) -> None:
        """Once, at most."""
        self._began_s = time.monotonic()
        threading.Thread(target=self._run, name="chatcache-loader", daemon=True).start()

    @property
    def is_over(self) -> bool:
        """It is made, has failed or was given up."""
        return self._made.done()

    @property
    def seconds(self) -> float:
        """How long ago it began; 0 before."""
        return 0.0 if self._began_s is None else time.monotonic() - self._began_s

    @property
    def made(self) -> T | None:
        """What was made; None as long as there is nothing. Does not wait."""
        is_made = self._made.done() and not self._made.cancelled() and self._made.exception() is None
        return self._made.result() if is_made else None

    def result(self) -> T:
        """Wait for what is made. Raises what making it raised, ServiceClosedError where it was given up."""
        try:
            return self._made.result()
        except CancelledError as error:
            raise ServiceClosedError from error

    def when_over(self, tell: Callable[[BaseException | None], object]) -> None:
        """Have `tell` called, once and on any thread, with what went wrong, or None. Not where it is given up."""

        def on_done(made: Future[T]) -> None:
            if not made.cancelled():
                tell(made.exception())

        self._made.add_done_callback(on_done)

    def give_up(self) -> None:
        """Nobody needs it any more: who waits hears so. Does nothing once it is over."""
        self._made.cancel()

    def _run(self) -> None:
        with contextlib.suppress(InvalidStateError):  # it was given up
            try:
                made = self._make(self._note)
            except BaseException as error:
                self._made.set_exception(error)
            else:
                self._made.set_result(made)

    def _note(self, sentence: str) -> None:
        self.step = sentence
