"""How many threads a step takes: measured while it works, and measured again."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import pytest
import torch

from chatcache.step_threads import MOST_TRIED_EVERY, NUM_RECENT, TRIED_EVERY, StepThreads


class Machine:
    """Steps take what `seconds` says for the threads that torch has."""

    def __init__(self, seconds: Callable[[int], float]) -> None:
        self.seconds = seconds
        self.now_s = 0.0
        self.threads = StepThreads(2, lambda: self.now_s)

    def steps(self, count: int, num_tokens: int = 1, num_held_tokens: int = 512) -> list[int]:
        """Run so many; how many threads each had."""
        taken = []
        for _ in range(count):
            with self.threads.chosen(num_tokens, num_held_tokens):
                taken.append(torch.get_num_threads())
                self.now_s += self.seconds(taken[-1])
            assert torch.get_num_threads() == 2
        return taken


@pytest.fixture(autouse=True)
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("best", [1, 2])
def test_both_ways_are_measured_and_the_quicker_is_taken(best: int) -> None:
    machine = Machine(lambda num: 1.0 if num == best else 1.2)
    assert sorted(machine.steps(2 * NUM_RECENT)) == [1] * NUM_RECENT + [2] * NUM_RECENT
    assert set(machine.steps(50)) == {best}


def test_a_way_that_is_hopeless_is_tried_once() -> None:
    machine = Machine(lambda num: 10.0 if num == 2 else 1.0)
    assert machine.steps(2 * NUM_RECENT).count(2) == 1
    assert machine.steps(2 * TRIED_EVERY).count(2) <= 2


def test_the_other_way_is_tried_again_and_taken_once_it_is_quicker() -> None:
    machine = Machine(lambda num: float(num))
    machine.steps(TRIED_EVERY)
    machine.seconds = lambda num: 0.5 if num == 2 else 1.0
    taken = machine.steps(TRIED_EVERY)
    assert 2 in taken[: TRIED_EVERY // 2]
    assert set(taken[-20:]) == {2}


def test_what_loses_again_and_again_is_tried_more_and_more_rarely() -> None:
    machine = Machine(lambda num: float(num))
    taken = machine.steps(4 * MOST_TRIED_EVERY)
    tries = [step for step, (before, num) in enumerate(itertools.pairwise(taken)) if (before, num) == (1, 2)][1:]
    gaps = [after - before for before, after in itertools.pairwise(tries)]
    assert gaps[0] == pytest.approx(TRIED_EVERY, abs=NUM_RECENT)
    assert gaps == sorted(gaps)
    assert gaps[-1] == pytest.approx(MOST_TRIED_EVERY, abs=NUM_RECENT)
    machine.seconds = lambda num: 1.0 / num
    assert machine.steps(MOST_TRIED_EVERY + TRIED_EVERY)[-TRIED_EVERY:].count(1) <= NUM_RECENT


def test_what_becomes_slow_is_left_at_once() -> None:
    machine = Machine(lambda num: 1.0 if num == 2 else 1.2)
    machine.steps(20)
    machine.seconds = lambda num: 9.0 if num == 2 else 1.2  # another program takes the second core
    assert set(machine.steps(20)[NUM_RECENT:]) == {1}


def test_a_single_slow_step_changes_nothing() -> None:
    machine = Machine(lambda num: float(num))
    machine.steps(20)
    machine.seconds = lambda _: 100.0
    machine.steps(1)
    machine.seconds = lambda num: float(num)
    assert set(machine.steps(20)) == {1}


def test_steps_of_other_sizes_are_measured_by_themselves() -> None:
    machine = Machine(lambda num: float(num))
    machine.steps(20)
    machine.seconds = lambda num: 1.0 / num
    assert set(machine.steps(20, num_tokens=8)[2 * NUM_RECENT :]) == {2}
    assert set(machine.steps(20, num_held_tokens=4096)[2 * NUM_RECENT :]) == {2}


def test_a_step_that_fails_is_not_measured_and_all_threads_are_back() -> None:
    machine = Machine(lambda num: float(num))
    machine.steps(20)
    with pytest.raises(MemoryError), machine.threads.chosen(1, 512):
        raise MemoryError
    assert torch.get_num_threads() == 2
    assert set(machine.steps(20)) == {1}


def test_one_thread_is_left_alone() -> None:
    torch.set_num_threads(1)
    with StepThreads().chosen(1, 512):
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == 1
    torch.set_num_threads(2)
