"""`Gauge`: how far a running turn is, and how quick: what the panel shows of it until its figures are complete.

It looks once a second and at every new phase, however often the page is painted, and holds no more than the last minute
of writing: so what is drawn of it stays the same however long a reply becomes.
"""

from __future__ import annotations

import itertools
import time
from asyncio import Future
from collections import deque
from collections.abc import Callable

from chatcache.events import CacheEvent, Phase, StatusEvent
from chatcache.reports import CacheReport
from chatcache.stats import TurnStats
from chatcache.turn import Turn
from chatcache.ui.chat_figures import Progress

INTERVAL_S, SPAN_S = 1.0, 60.0


class Gauge:
    """Of one turn, for one tab. `ask` begins to find out how the cache is: it may take as long as a step does."""

    def __init__(
        self, turn: Turn, ask: Callable[[], Future[CacheReport]], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._turn = turn
        self._ask = ask
        self._clock = clock
        self._asked: Future[CacheReport] | None = None
        self._due_s = clock()
        self._report: CacheReport | None = None
        self._samples: deque[tuple[float, int]] = deque(maxlen=int(SPAN_S / INTERVAL_S) + 1)
        """When it was, and how many tokens the cache held then; since the turn writes."""
        self._num_seen = self._num_prompt = self._num_cached = self._num_computed = self._num_written = 0
        self._told: list[str] = []
        self._progress = Progress(turn.reply_id)

    def look(self) -> Progress:
        """How far it is as of now; the same value until that is looked at again. Waits for nothing."""
        now, phase = self._clock(), self._progress.status.phase
        status = self._take_events()
        report = self._answer()
        if report is not None:
            self._take(now, status, report)
        if report is not None or status.phase is not phase:
            self._progress = self._summed_up(status)
        if self._asked is None and now >= self._due_s and not self._turn.done:
            self._due_s = now + INTERVAL_S
            self._asked = self._ask()
        return self._progress

    def _take_events(self) -> StatusEvent:
        """What the turn is doing."""
        status = self._progress.status
        events = self._turn.events_since(self._num_seen)
        self._num_seen += len(events)
        for event in events:
            if isinstance(event, CacheEvent):
                self._told.append(event.message)
            elif isinstance(event, StatusEvent):
                status = event
                self._count(event)
        return status

    def _count(self, event: StatusEvent) -> None:
        if event.phase is Phase.RESTORING:
            self._num_cached = event.done
        elif event.phase is Phase.DECODE:
            self._num_computed = self._num_prompt - self._num_cached
        elif event.total:
            self._num_cached, self._num_computed = event.num_reused, event.done
            self._num_prompt = event.num_reused + event.total

    def _answer(self) -> CacheReport | None:
        if self._asked is None or not self._asked.done():
            return None
        asked, self._asked = self._asked, None
        return None if asked.exception() is not None else asked.result()

    def _take(self, now: float, status: StatusEvent, report: CacheReport) -> None:
        self._report = report
        if status.phase is Phase.DECODE:
            self._samples.append((now, report.num_tokens))
            # the last token written is fed with the next one only
            self._num_written = max(self._num_written, report.num_tokens - self._num_prompt + 1)

    def _summed_up(self, status: StatusEvent) -> Progress:
        speeds = self._speeds()
        stats = TurnStats(
            num_prompt_tokens=self._num_cached + self._num_computed,
            num_cached_tokens=self._num_cached,
            num_computed_tokens=self._num_computed,
            num_completion_tokens=self._num_written,
            decode_tokens_per_s=speeds[-1][1] if speeds else None,
            fallbacks=tuple(self._told),
        )
        return Progress(self._turn.reply_id, status, stats, speeds, self._report)

    def _speeds(self) -> tuple[tuple[float, float], ...]:
        samples = list(self._samples)
        last_s = samples[-1][0] if samples else 0.0
        return tuple(
            (last_s - now, max(0, num_now - num_before) / (now - before))
            for (before, num_before), (now, num_now) in itertools.pairwise(samples)
            if now > before
        )
