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

NUM_RECENT = 3
"""A step's time is taken as the median of so many."""
TRIED_EVERY = 128
"""After so many steps the way not taken is measured again, and after twice as many each time it has lost again."""
MOST_TRIED_EVERY = 1024
HOPELESS = 3
"""A way that takes so many times as long as the other is tried only once. Beside one busy program, a step of two
threads was measured to take 4 times as long as one of one."""


class StepThreads:
    """For one thread of the process, the only one that computes."""

    def __init__(self, num_threads: int | None = None, clock: Callable[[], float] = time.perf_counter) -> None:
        """`num_threads`: all there are (default: torch's number)."""
        self._num_threads = num_threads or torch.get_num_threads()
        self._clock = clock
        self._trials: dict[tuple[int, int], _Trial] = {}

    @contextmanager
    def chosen(self, num_tokens: int, num_held_tokens: int) -> Iterator[None]:
        """A step that forwards `num_tokens` tokens to caches of `num_held_tokens` in all runs inside this."""
        if self._num_threads == 1:
            yield
            return
        alike = ((num_tokens - 1).bit_length(), num_held_tokens.bit_length())
        trial = self._trials.setdefault(alike, _Trial(self._num_threads))
        num_threads = trial.next()
        torch.set_num_threads(num_threads)
        began_s = self._clock()
        try:
            yield
            trial.note(num_threads, self._clock() - began_s)
        finally:
            torch.set_num_threads(self._num_threads)


@dataclass(slots=True)
class _Trial:
    """The two ways of steps that are alike. `left` are the measurements still to be made, the first of them next."""

    num_threads: int
    left: deque[int] = field(init=False)
    num_steps: int = 0
    won: int = 0
    tried_every: int = TRIED_EVERY
    seconds: dict[int, deque[float]] = field(init=False)

    def __post_init__(self) -> None:
        self.seconds = {num: deque(maxlen=NUM_RECENT) for num in (1, self.num_threads)}
        self.left = deque(num for num in self.seconds for _ in range(NUM_RECENT))

    @property
    def quicker(self) -> int:
        return min(self.seconds, key=lambda num: statistics.median(self.seconds[num]))

    def next(self) -> int:
        if not self.left and self.num_steps >= self.tried_every:
            has_won_again = self.won == self.quicker
            self.tried_every = min(2 * self.tried_every, MOST_TRIED_EVERY) if has_won_again else TRIED_EVERY
            self.won = self.quicker
            self.left.extend([next(num for num in self.seconds if num != self.won)] * NUM_RECENT)
            self.num_steps = 0
        return self.left[0] if self.left else self.quicker

    def note(self, num_threads: int, seconds: float) -> None:
        self.seconds[num_threads].append(seconds)
        self.num_steps += 1
        if self.left:
            self.left.popleft()
            others = (known for num, known in self.seconds.items() if num != num_threads and known)
            if any(seconds > HOPELESS * statistics.median(known) for known in others):
                self.left = deque(num for num in self.left if num != num_threads)
