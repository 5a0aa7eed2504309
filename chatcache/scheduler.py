"""`Scheduler`: the one thread that owns the model. It steps the running jobs in turn; the others wait in order.

It knows jobs, functions and torch's inference mode (which is per thread); no model, no cache, no chat. Whatever touches
the model or a live cache runs here: as a job's step, or by `call` between two steps. The thread sleeps when there is
nothing to do.
"""

from __future__ import annotations

import logging
import threading
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future
from typing import Any, Protocol, TypeVar

import torch

logger = logging.getLogger(__name__)

T = TypeVar("T")


class Job(Protocol):
    """Work in small steps. Every method is called on the model thread, one at a time."""

    def start(self) -> None:
        """Called once, when the job leaves the queue."""

    def step(self) -> bool:
        """Do a little, half a second at most; True when the job has ended. Not called again after that."""

    def fail(self, error: BaseException) -> None:
        """`start` or `step` raised `error`, or the job was cancelled (CancelledError). The last call."""


class Scheduler:
    """Runs jobs on a thread of its own, at most `max_concurrent` at once, one step each in turn. Thread-safe.

    `before_round` is given the running jobs each time before they step, where they are several: what they have in
    common can be done for all of them at once. One that `is_held` answers calls, and starts no job until `release`.
    """

    def __init__(
        self,
        max_concurrent: int,
        before_round: Callable[[Sequence[Job]], None] = lambda _jobs: None,
        *,
        is_held: bool = False,
    ) -> None:
        if max_concurrent < 1:
            raise ValueError(f"max_concurrent must be at least 1, not {max_concurrent}.")
        self._max_concurrent = max_concurrent
        self._before_round = before_round
        self._is_held = is_held
        self._num_left_in_round = 0
        self._changed = threading.Condition()
        self._calls: deque[tuple[Callable[[], Any], Future[Any]]] = deque()
        self._withdrawn: deque[Job] = deque()
        self._waiting: deque[Job] = deque()
        self._running: deque[Job] = deque()  # touched by the model thread only
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="chatcache-model", daemon=True)
        self._thread.start()

    @property
    def is_closed(self) -> bool:
        return self._closed

    @property
    def is_busy(self) -> bool:
        """Whether jobs run or wait to run."""
        return bool(self._running or self._waiting)

    def submit(self, job: Job) -> None:
        """Queue a job. Raises RuntimeError after `close`."""
        with self._changed:
            self._check_open()
            self._waiting.append(job)
            self._changed.notify()

    def release(self) -> None:
        """Start the jobs that wait, and those to come."""
        with self._changed:
            self._is_held = False
            self._changed.notify()

    def withdraw(self, job: Job) -> bool:
        """Cancel a job that still waits in the queue: it fails with CancelledError before the next step.

        False where it does not wait there (it runs or has ended): then nothing happens.
        """
        with self._changed:
            waiting = [j for j in self._waiting if j is not job]
            if len(waiting) == len(self._waiting):
                return False
            self._waiting = deque(waiting)
            self._withdrawn.append(job)
            self._changed.notify()
            return True

    def call(self, fn: Callable[[], T]) -> T:
        """Run `fn` on the model thread between two steps; its result is returned, its exception raised, here.

        From the model thread itself it runs at once. Raises RuntimeError after `close`.
        """
        if threading.current_thread() is self._thread:
            return fn()
        future: Future[T] = Future()
        with self._changed:
            self._check_open()
            self._calls.append((fn, future))
            self._changed.notify()
        return future.result()

    def close(self) -> None:
        """End the thread after the step it is in. Calls made before are answered, jobs fail with CancelledError.

        Waits for the end, except on the model thread itself. May be called again.
        """
        with self._changed:
            self._closed = True
            self._changed.notify()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _check_open(self) -> None:
        if self._closed:
            raise RuntimeError("The scheduler is closed; it takes no more work.")

    def _run(self) -> None:
        with torch.inference_mode():
            while self._wait_for_work():
                self._answer_calls()
                self._fail_withdrawn()
                self._start_waiting()
                self._step_next()
            self._answer_calls()
            self._cancel_all()

    def _wait_for_work(self) -> bool:
        with self._changed:
            self._changed.wait_for(
                lambda: self._closed or self._running or self._calls or self._withdrawn or self._can_start
            )
            return not self._closed

    @property
    def _can_start(self) -> bool:
        return bool(self._waiting) and not self._is_held

    def _answer_calls(self) -> None:
        """Those that were made so far: whoever calls again at once waits for a step first, or jobs would never get one
        where several do."""
        with self._changed:
            calls, self._calls = self._calls, deque()
        while calls:
            fn, future = calls.popleft()
            try:
                future.set_result(fn())
            except BaseException as error:
                future.set_exception(error)
            # The thread may sleep next: what the call held must not live until it wakes.
            del fn, future

    def _fail_withdrawn(self) -> None:
        while True:
            with self._changed:
                if not self._withdrawn:
                    return
                job = self._withdrawn.popleft()
            _fail(job, CancelledError("The job was withdrawn before it began."))

    def _start_waiting(self) -> None:
        while len(self._running) < self._max_concurrent:
            with self._changed:
                if not self._can_start:
                    return
                job = self._waiting.popleft()
            error = _error_of(job.start)
            if error is None:
                self._running.append(job)
            else:
                _fail(job, error)

    def _step_next(self) -> None:
        if not self._running:
            return
        if self._num_left_in_round == 0:
            self._begin_round()
        self._num_left_in_round -= 1
        job = self._running[0]
        ended = False

        def step() -> None:
            nonlocal ended
            ended = job.step()

        error = _error_of(step)
        if error is None and not ended:
            self._running.rotate(-1)
            return
        self._running.popleft()
        if error is not None:
            _fail(job, error)

    def _begin_round(self) -> None:
        jobs = tuple(self._running)
        self._num_left_in_round = len(jobs)
        error = _error_of(lambda: self._before_round(jobs)) if len(jobs) > 1 else None
        if error is not None:
            logger.error("Before a round of steps something failed; each job does its own", exc_info=error)

    def _cancel_all(self) -> None:
        with self._changed:
            jobs = [*self._running, *self._withdrawn, *self._waiting]
            self._withdrawn.clear()
            self._waiting.clear()
        self._running.clear()
        for job in jobs:
            _fail(job, CancelledError("The scheduler was closed."))


def _error_of(fn: Callable[[], None]) -> BaseException | None:
    try:
        fn()
    except BaseException as error:
        # What the failed frames hold (after an out-of-memory error: a lot) must not live as long as the error does.
        traceback.clear_frames(error.__traceback__)
        return error
    return None


def _fail(job: Job, error: BaseException) -> None:
    failure = _error_of(lambda: job.fail(error))
    if failure is not None:
        logger.error("A job could not be told that it failed with %r", error, exc_info=failure)
