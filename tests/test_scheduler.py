"""One thread steps all jobs in turn, sleeps when there are none, and survives whatever a job does."""

from __future__ import annotations

import logging
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError
from contextlib import contextmanager

import pytest
import torch

from chatcache.scheduler import Scheduler

TIMEOUT_S = 20.0


class Countdown:
    """Ends at step `num_steps`; writes what happens to it into a log that several jobs share."""

    def __init__(
        self, name: str, log: list[str], num_steps: int = 1, on_step: Callable[[], None] = lambda: None
    ) -> None:
        self.name = name
        self.log = log
        self.steps_left = num_steps
        self.on_step = on_step
        self.error: BaseException | None = None
        self.ended = threading.Event()

    def start(self) -> None:
        self.log.append(f"{self.name} starts")

    def step(self) -> bool:
        self.log.append(self.name)
        self.on_step()
        self.steps_left -= 1
        if self.steps_left == 0:
            self.ended.set()
        return self.steps_left == 0

    def fail(self, error: BaseException) -> None:
        self.error = error
        self.ended.set()


@pytest.fixture
def scheduler() -> Iterator[Scheduler]:
    scheduler = Scheduler(max_concurrent=2)
    yield scheduler
    scheduler.close()


@contextmanager
def held(scheduler: Scheduler) -> Iterator[None]:
    """The model thread does nothing meanwhile, so that what is submitted arrives at once."""
    arrived, release = threading.Event(), threading.Event()

    def wait() -> None:
        arrived.set()
        assert release.wait(TIMEOUT_S)

    caller = threading.Thread(target=scheduler.call, args=(wait,))
    caller.start()
    assert arrived.wait(TIMEOUT_S)
    try:
        yield
    finally:
        release.set()
        caller.join(TIMEOUT_S)


def test_it_is_busy_while_jobs_wait_or_step_and_not_before_or_after(scheduler: Scheduler) -> None:
    seen: list[bool] = []
    job = Countdown("one", [], num_steps=3, on_step=lambda: seen.append(scheduler.is_busy))
    assert not scheduler.is_busy
    with held(scheduler):
        scheduler.submit(job)
        assert scheduler.is_busy
    assert job.ended.wait(TIMEOUT_S)
    scheduler.call(lambda: None)
    assert (seen, scheduler.is_busy) == ([True] * 3, False)


def run(scheduler: Scheduler, *jobs: Countdown) -> None:
    with held(scheduler):
        for job in jobs:
            scheduler.submit(job)
    for job in jobs:
        assert job.ended.wait(TIMEOUT_S)


def test_running_jobs_are_stepped_in_turn_and_others_wait_in_order(scheduler: Scheduler) -> None:
    log: list[str] = []
    run(scheduler, *(Countdown(name, log, n) for name, n in (("a", 3), ("b", 1), ("c", 2), ("d", 1))))
    assert log == ["a starts", "b starts", "a", "b", "c starts", "a", "c", "a", "d starts", "c", "d"]


@pytest.mark.parametrize("broken_in", ["start", "step", "fail"])
def test_an_exception_in_one_job_touches_neither_the_others_nor_the_thread(
    scheduler: Scheduler, broken_in: str, caplog: pytest.LogCaptureFixture
) -> None:
    log: list[str] = []

    class Broken(Countdown):
        def start(self) -> None:
            if broken_in == "start":
                raise MemoryError("start")

        def step(self) -> bool:
            raise SystemExit("step")

        def fail(self, error: BaseException) -> None:
            super().fail(error)
            if broken_in == "fail":
                raise OSError("fail")

    broken, other = Broken("broken", log), Countdown("a", log, 3)
    with caplog.at_level(logging.CRITICAL if broken_in != "fail" else logging.ERROR):
        run(scheduler, broken, other)
        assert scheduler.call(lambda: "alive") == "alive"
    assert repr(broken.error) == ("MemoryError('start')" if broken_in == "start" else "SystemExit('step')")
    assert log == ["a starts", "a", "a", "a"]
    assert ("could not be told" in caplog.text) == (broken_in == "fail")


def test_a_call_runs_between_two_steps_on_the_model_thread(scheduler: Scheduler) -> None:
    log: list[str] = []
    threads = set()
    inside = threading.Event()

    def note() -> None:
        threads.add(threading.current_thread())
        inside.set()

    job = Countdown("a", log, 10**9, on_step=note)
    scheduler.submit(job)
    assert inside.wait(TIMEOUT_S)
    before, ident = scheduler.call(lambda: (len(log), threading.current_thread()))
    assert threads == {ident}
    assert scheduler.call(lambda: scheduler.call(lambda: len(log))) >= before
    with pytest.raises(ZeroDivisionError):
        scheduler.call(lambda: 1 // 0)
    assert not job.ended.is_set()


def test_steps_go_on_however_many_threads_call_again_and_again(scheduler: Scheduler) -> None:
    job = Countdown("one", [], num_steps=3)

    def call() -> None:
        while not job.ended.is_set():
            scheduler.call(lambda: time.sleep(0.02))  # meanwhile the others have called again

    callers = [threading.Thread(target=call) for _ in range(4)]
    for caller in callers:
        caller.start()
    scheduler.submit(job)
    has_ended = job.ended.wait(TIMEOUT_S)
    job.ended.set()
    for caller in callers:
        caller.join(TIMEOUT_S)
    assert has_ended


def test_jobs_and_calls_run_in_inference_mode(scheduler: Scheduler) -> None:
    modes: list[bool] = []
    run(scheduler, Countdown("a", [], 2, on_step=lambda: modes.append(torch.is_inference_mode_enabled())))
    assert [*modes, scheduler.call(torch.is_inference_mode_enabled)] == [True, True, True]
    assert not torch.is_inference_mode_enabled()


def test_a_waiting_job_can_be_withdrawn_while_others_run_on(scheduler: Scheduler) -> None:
    log: list[str] = []
    running = [Countdown("a", log, 10**9), Countdown("b", log, 10**9)]
    waiting, last = Countdown("c", log), Countdown("d", log)
    with held(scheduler):
        for job in (*running, waiting, last):
            scheduler.submit(job)
    assert scheduler.call(lambda: scheduler.withdraw(waiting))
    assert waiting.ended.wait(TIMEOUT_S)
    assert isinstance(waiting.error, CancelledError)
    assert not scheduler.withdraw(waiting)
    assert not scheduler.call(lambda: scheduler.withdraw(running[0]))
    assert not any(job.ended.is_set() for job in (*running, last))
    assert "c starts" not in log


def test_a_held_one_answers_calls_and_starts_its_jobs_when_it_is_released() -> None:
    scheduler = Scheduler(max_concurrent=2, is_held=True)
    try:
        log: list[str] = []
        first, withdrawn, last = (Countdown(name, log) for name in ("first", "withdrawn", "last"))
        for job in (first, withdrawn):
            scheduler.submit(job)
        assert scheduler.withdraw(withdrawn)
        assert withdrawn.ended.wait(TIMEOUT_S)
        assert scheduler.call(lambda: list(log)) == []
        scheduler.release()
        scheduler.submit(last)
        assert first.ended.wait(TIMEOUT_S)
        assert last.ended.wait(TIMEOUT_S)
        assert isinstance(withdrawn.error, CancelledError)
    finally:
        scheduler.close()


def test_close_tells_running_and_waiting_jobs_and_answers_calls() -> None:
    scheduler = Scheduler(max_concurrent=1)
    stepped = threading.Event()
    jobs = [Countdown("a", [], 10**9, on_step=stepped.set), Countdown("b", [], 1)]
    for job in jobs:
        scheduler.submit(job)
    assert stepped.wait(TIMEOUT_S)
    answers: list[int] = []
    with held(scheduler):
        caller = threading.Thread(target=lambda: answers.append(scheduler.call(lambda: 42)))
        caller.start()
        while not scheduler._calls:
            time.sleep(0.001)
        closer = threading.Thread(target=scheduler.close)
        closer.start()
        while not scheduler._closed:
            time.sleep(0.001)
    closer.join(TIMEOUT_S)
    caller.join(TIMEOUT_S)
    assert answers == [42]
    assert all(isinstance(job.error, CancelledError) for job in jobs)
    scheduler.close()
    with pytest.raises(RuntimeError, match="closed"):
        scheduler.submit(Countdown("c", []))
    with pytest.raises(RuntimeError, match="closed"):
        scheduler.call(lambda: None)


def test_close_on_the_model_thread_itself_does_not_wait_for_itself() -> None:
    scheduler = Scheduler(max_concurrent=1)
    scheduler.call(scheduler.close)
    scheduler.close()
    assert not scheduler._thread.is_alive()


def test_the_thread_sleeps_until_there_is_something_to_do(
    scheduler: Scheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    timeouts_s: list[float | None] = []
    sleeps = threading.Event()
    wait = scheduler._changed.wait

    def noted_wait(timeout_s: float | None = None) -> bool:
        timeouts_s.append(timeout_s)
        sleeps.set()
        return wait(timeout_s)

    monkeypatch.setattr(scheduler._changed, "wait", noted_wait)
    scheduler.call(lambda: None)
    assert sleeps.wait(TIMEOUT_S)
    assert scheduler.call(lambda: tuple(timeouts_s)) == (None,)


def test_what_a_failed_step_held_is_free_when_the_job_is_told(scheduler: Scheduler) -> None:
    class Big:
        pass

    class Failing(Countdown):
        def step(self) -> bool:
            big = Big()
            self.big = weakref.ref(big)
            raise MemoryError("out of memory")

        def fail(self, error: BaseException) -> None:
            self.was_free = self.big() is None
            super().fail(error)

    job = Failing("a", [])
    run(scheduler, job)
    assert job.was_free


def test_an_ended_job_is_not_kept_while_the_thread_sleeps(scheduler: Scheduler) -> None:
    job = Countdown("a", [])
    run(scheduler, job)
    scheduler.call(lambda: None)
    scheduler.call(lambda: None)
    kept = weakref.ref(job)
    del job
    assert kept() is None


def test_a_scheduler_that_runs_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        Scheduler(max_concurrent=0)


@pytest.mark.parametrize("fails", [False, True])
def test_several_jobs_are_shown_together_before_each_round_and_a_failure_there_costs_none_its_step(fails: bool) -> None:
    log: list[str] = []

    def before_round(jobs: Sequence[Countdown]) -> None:
        log.append("+".join(job.name for job in jobs))
        if fails:
            raise RuntimeError("no")

    scheduler = Scheduler(max_concurrent=3, before_round=before_round)
    try:
        jobs = [Countdown("a", log, 3), Countdown("b", log, 1), Countdown("c", log, 2)]
        with held(scheduler):
            for job in jobs:
                scheduler.submit(job)
        assert all(job.ended.wait(TIMEOUT_S) for job in jobs)
    finally:
        scheduler.close()
    assert log[3:] == ["a+b+c", "a", "b", "c", "a+c", "a", "c", "a"]
    assert all(job.error is None for job in jobs)
