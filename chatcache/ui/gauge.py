"""`Gauge`: what a reply's cache does meanwhile: tokens per second over the last minute of writing, what it holds, and
what happens to it.

It looks once a second, however often the page is painted, and what it draws never holds more than a minute: so its
bytes stay the same however long a reply becomes.
"""

from __future__ import annotations

import html
import time
from asyncio import Future
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from chatcache.events import CacheEvent, Phase, StatusEvent
from chatcache.reports import CacheReport
from chatcache.turn import Turn
from chatcache.ui.chart import Line, render_chart
from chatcache.ui.chat_figures import ChatFigures
from chatcache.ui.texts import Texts

INTERVAL_S = 1.0
SPAN_S = 60.0
CHART_HEIGHT = 48.0


@dataclass(frozen=True, slots=True)
class Sample:
    """The cache at one moment."""

    at_s: float
    num_tokens: int
    num_bytes: int


class Gauge:
    """Of one turn, for one tab. `ask` begins to find out how the cache is: it may take as long as a step does."""

    def __init__(
        self,
        texts: Texts,
        turn: Turn,
        ask: Callable[[], Future[CacheReport]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._texts = texts
        self._turn = turn
        self._ask = ask
        self._clock = clock
        self._asked: Future[CacheReport] | None = None
        self._due_s = clock()
        self._newest: Sample | None = None
        self._samples: deque[Sample] = deque(maxlen=int(SPAN_S / INTERVAL_S) + 1)  # since it writes
        self._is_writing = False
        self._num_read = 0
        self._told: list[str] = []
        self._markup = ""

    def look(self) -> str:
        """The markup as of now. Waits for nothing."""
        now = self._clock()
        if self._asked is not None and self._asked.done():
            asked, self._asked = self._asked, None
            self._take_events()
            if asked.exception() is None:
                self._take(Sample(now, asked.result().num_tokens, asked.result().num_bytes))
            self._markup = self._render_growing()
        if self._asked is None and now >= self._due_s and not self._turn.done:
            self._due_s = now + INTERVAL_S
            self._asked = self._ask()
        return self._markup

    def rest(self, figures: ChatFigures) -> str:
        """The markup that stays once the turn has ended: its line, beside the figures that the cache panel has. Nothing
        where another reply is shown, or where there is no line."""
        stats, report, speeds = figures.stats, figures.report, self.speeds()
        is_shown = figures.reply is not None and figures.reply.id == self._turn.reply_id
        if not is_shown or stats is None or stats.decode_tokens_per_s is None or not _has_line(speeds):
            return ""
        held = (report.num_tokens, report.num_bytes) if report is not None and report.is_live else None
        return self._render(self._texts.LAST_REPLY, stats.decode_tokens_per_s, held, speeds)

    def speeds(self) -> list[tuple[float, float]]:
        """Tokens per second from one sample to the next, each with the age of its end."""
        pairs = list(zip(self._samples, list(self._samples)[1:], strict=False))
        last_s = self._samples[-1].at_s if self._samples else 0.0
        return [
            (last_s - new.at_s, max(0, new.num_tokens - old.num_tokens) / (new.at_s - old.at_s))
            for old, new in pairs
            if new.at_s > old.at_s
        ]

    def _render_growing(self) -> str:
        items = "".join(f"<li>{html.escape(sentence)}</li>" for sentence in self._told)
        notices = f'<ul class="model-notices">{items}</ul>' if items else ""
        if self._newest is None:
            return notices
        speeds, held = self.speeds(), (self._newest.num_tokens, self._newest.num_bytes)
        speed = speeds[-1][1] if speeds else None
        return self._render(self._texts.LIVE_NOW, speed, held, speeds) + notices

    def _render(
        self, title: str, speed: float | None, held: tuple[int, int] | None, speeds: list[tuple[float, float]]
    ) -> str:
        """`speed` in tokens per second, and what the cache holds, in tokens and bytes."""
        texts, said, chart = self._texts, [], ""
        if speed is not None:
            said.append(texts.speed(speed))
        if _has_line(speeds):
            top = max(speed for _, speed in speeds)
            points = [(1 - age / SPAN_S, speed / top) for age, speed in speeds if age <= SPAN_S]
            chart = render_chart([Line(points, "mine")], f"{texts.LAST_MINUTE}: {said[0]}", height=CHART_HEIGHT)
        if held is not None:
            said.append(f"{texts.tokens(held[0])}, {texts.size(held[1])}")
        figure = " · ".join(said)
        return f'<div class="account-bar gauge"><h3>{title}</h3><p class="quiet">{figure}</p>{chart}</div>'

    def _take(self, sample: Sample) -> None:
        self._newest = sample
        if self._is_writing:
            self._samples.append(sample)

    def _take_events(self) -> None:
        events = self._turn.events_since(self._num_read)
        self._num_read += len(events)
        self._told += [self._texts.said(event.message) for event in events if isinstance(event, CacheEvent)]
        self._is_writing |= any(isinstance(event, StatusEvent) and event.phase is Phase.DECODE for event in events)


def _has_line(speeds: list[tuple[float, float]]) -> bool:
    return len(speeds) > 1 and any(speed > 0 for _, speed in speeds)
