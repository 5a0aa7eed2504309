"""How many threads a step takes: measured while it works, and measured again."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch

from chatcache.step_threads import MOST_LOST, NUM_RECENT, TRIAL_COST, StepThreads


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
    machine = Machine(lambda num: 0.010 if num == best else 0.012)
    assert sorted(machine.steps(2)) == [1, 2]
    assert set(machine.steps(8)) == {best}


@pytest.mark.parametrize("slow_s", [0.011, 0.015, 0.020])
def test_the_other_way_is_tried_again_at_a_small_share_of_the_time(slow_s: float) -> None:
    machine = Machine(lambda num: slow_s if num == 2 else 0.010)
    tries = machine.steps(2000).count(2)
    assert tries >= 10
    assert tries * (slow_s - 0.010) <= 1.1 * TRIAL_COST * machine.now_s


def test_a_way_that_is_hopeless_is_tried_seldom() -> None:
    machine = Machine(lambda num: 0.1 if num == 2 else 0.01)
    taken = machine.steps(1000)
    assert taken[:50].count(2) == 1
    assert taken.count(2) == pytest.approx(machine.now_s / (MOST_LOST * 0.01 / TRIAL_COST), abs=1)


def test_the_other_way_is_taken_once_it_is_quicker() -> None:
    machine = Machine(lambda num: 0.02 if num == 2 else 0.01)
    machine.steps(300)
    machine.seconds = lambda num: 0.005 if num == 2 else 0.01
    machine.steps(110)
    assert set(machine.steps(20)) == {2}


def test_after_a_pause_the_other_way_is_tried_first() -> None:
    machine = Machine(lambda num: 0.01 * num)
    machine.steps(50)
    machine.seconds = lambda num: 0.01 / num
    machine.now_s += MOST_LOST * 0.01 / TRIAL_COST
    taken = machine.steps(20)
    assert taken[:3] == [2, 2, 2]
    assert taken.count(1) <= 1


def test_what_becomes_slow_is_left_after_a_few_steps_and_a_step_or_two_that_were_disturbed_change_nothing() -> None:
    machine = Machine(lambda num: 0.010 if num == 2 else 0.012)
    machine.steps(15)
    machine.seconds = lambda num: 0.050 if num == 2 else 0.012  # another program takes the second core
    machine.steps(2)
    machine.seconds = lambda num: 0.010 if num == 2 else 0.012
    assert machine.steps(15).count(1) <= 2
    machine.seconds = lambda num: 0.050 if num == 2 else 0.012
    assert set(machine.steps(20)[NUM_RECENT:]) == {1}


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
