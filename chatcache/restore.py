"""`Restore`: what is stored of a cache's missing tokens, read ahead by threads, taken in step by step.

It knows a cache and where to read what it lacks. It does not know who asked, what a file is, or how long others may
wait: its owner calls `step` as often as it likes, on the thread that owns the cache.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future, wait
from dataclasses import dataclass

import torch

from chatcache.cache.session_cache import SessionCache, TokenRange
from chatcache.memory.out_of_memory import is_out_of_memory
from storage.errors import SegmentDamagedError

logger = logging.getLogger(__name__)

STEP_S = 0.05
"""How long a step may take: so long do other turns wait for it."""
READ_AHEAD = 4
"""How many pieces are read while one is taken in. A piece has 8 MiB at most."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Tokens `[begin, end)`, and how they are read, by any thread. `read` verifies what it reads, or raises."""

    begin: int
    end: int
    read: Callable[[], TokenRange]


class Restore:
    """Appends `pieces`, each of which begins where the one before ended, to a cache that ends where the first begins.

    At a piece that cannot be read it ends: what was taken in is valid and stays, `problem` says in a sentence what was
    wrong. The cache never holds less than before.
    """

    def __init__(
        self,
        cache: SessionCache,
        pieces: Sequence[Piece],
        readers: Executor,
        on_end: Callable[[Restore], None],
        problem: str | None = None,
    ) -> None:
        """`on_end` is called once, when it has ended; `problem` is one that was met before it began."""
        self.cache = cache
        self.problem = problem
        self.ran_out_of_memory = False
        """Whether that is what ended it: another one may do, with more memory."""
        self.num_total_tokens = pieces[-1].end - pieces[0].begin if pieces else 0
        """How many tokens it will append, if all goes well."""
        self.seconds = 0.0
        self._num_appended = 0
        self._num_before = cache.num_tokens
        self._began_s = time.perf_counter()
        self._readers = readers
        self._on_end = on_end
        self._pieces = deque(pieces)
        self._reads: deque[Future[TokenRange]] = deque()
        self._has_ended = False
        self._read_ahead()

    @property
    def num_tokens(self) -> int:
        """How many tokens it has appended."""
        return self._num_appended if self._has_ended else self.cache.num_tokens - self._num_before

    @torch.inference_mode()
    def step(self) -> bool:
        """Take in what was read, for `STEP_S` at most or until the next piece is there. True when it has ended."""
        until_s = time.perf_counter() + STEP_S
        while not self._has_ended and self._reads:
            read = self._reads[0]
            wait([read], timeout=max(0.0, until_s - time.perf_counter()))
            if not read.done():
                return False
            self._reads.popleft()
            self._read_ahead()
            self._take_in(read)
            if time.perf_counter() >= until_s:
                break
        if not self._reads:
            self.end()
        return self._has_ended

    def end(self) -> None:
        """Read no further. May be called at any time, again and again."""
        if self._has_ended:
            return
        if self.cache.num_tokens > self._num_before and not self.cache.is_croppable:
            self.cache.repair()  # back to the last recurrent state that came
        self._num_appended = self.num_tokens
        self._has_ended = True
        self.seconds = time.perf_counter() - self._began_s
        for read in self._reads:
            read.cancel()
        self._reads.clear()
        self._pieces.clear()
        self._on_end(self)

    def _read_ahead(self) -> None:
        while self._pieces and len(self._reads) < READ_AHEAD:
            self._reads.append(self._readers.submit(self._pieces.popleft().read))

    def _take_in(self, read: Future[TokenRange]) -> None:
        try:
            self.cache.import_(read.result())
            self.cache.reserve(self._num_before + self.num_total_tokens)
        except Exception as error:
            self.cache.repair()
            self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        self.ran_out_of_memory = is_out_of_memory(error)
        logger.warning("A cache was restored up to token %d only", self.cache.num_tokens, exc_info=error)
        what = "was damaged and set aside" if isinstance(error, SegmentDamagedError) else "could not be used"
        reason = str(error) or type(error).__name__
        self.problem = (
            f"Saved cache data {what}; from token {self.cache.num_tokens:,} on it is computed again. ({reason})"
        )
        self.end()
