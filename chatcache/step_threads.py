"""`StepThreads`: how many threads a step of few tokens takes: one, or all, whichever was quicker lately.

A second thread shares the arithmetic, and makes every small operation wait until it is awake. Which of the two counts
depends on the model, the number of tokens, the length of the context, the processor (two of its threads may share one
core), and on what else runs there. None of these is known beforehand, so both ways are measured while they work.
Torch's kernels divide outputs among threads, not sums, so the tokens do not depend on it.
"""

from __future__ import annotations

import statistics
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch

NUM_RECENT = 5
"""A step's time is taken as the median of so many: two that something disturbed do not count."""
TRIAL_COST = 0.02
"""The way not taken is tried so often that it costs this share of the time: rarely where it is much slower, often where
it hardly is. Beside one busy program, a step of two threads was measured to take 4 times as long as one of one."""
MOST_LOST = 3
"""A trial counts as having lost so many steps at most: what made it slow may have passed."""


class StepThreads:
    """For one thread of the process, the only one that computes."""

    def __init__(self, num_threads: int | None = None, clock: Callable[[], float] = time.perf_counter) -> None:
        """`num_threads`: all there are (default: torch's number)."""
        self._num_threads = num_threads or torch.get_num_threads()
        self._clock = clock
        self._ways: dict[tuple[int, int], _Ways] = {}

    @contextmanager
    def chosen(self, num_tokens: int, num_held_tokens: int) -> Iterator[None]:
        """A step that forwards `num_tokens` tokens to caches of `num_held_tokens` in all runs inside this."""
        if self._num_threads == 1:
            yield
            return
        alike = ((num_tokens - 1).bit_length(), num_held_tokens.bit_length())
        ways = self._ways.setdefault(alike, _Ways(self._num_threads))
        began_s = self._clock()
        num_threads = ways.next(began_s)
        torch.set_num_threads(num_threads)
        try:
            yield
            ways.note(num_threads, began_s, self._clock() - began_s)
        finally:
            torch.set_num_threads(self._num_threads)


@dataclass(slots=True)
class _Ways:
    """The two ways of steps that are alike: what each took lately, and when it was last taken."""

    num_threads: int
    seconds: dict[int, deque[float]] = field(init=False)
    taken_at_s: dict[int, float] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.seconds = {num: deque(maxlen=NUM_RECENT) for num in (self.num_threads, 1)}

    def next(self, now_s: float) -> int:
        unknown = next((num for num, known in self.seconds.items() if not known), None)
        if unknown is not None:
            return unknown
        quicker, other = sorted(self.seconds, key=lambda num: statistics.median(self.seconds[num]))
        least_s = statistics.median(self.seconds[quicker])
        lost_s = min(self.seconds[other][-1] - least_s, MOST_LOST * least_s)
        return other if now_s - self.taken_at_s[other] >= lost_s / TRIAL_COST else quicker

    def note(self, num_threads: int, began_s: float, seconds: float) -> None:
        self.seconds[num_threads].append(seconds)
        self.taken_at_s[num_threads] = began_s
