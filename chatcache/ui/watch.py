"""`Tab`, which is followed from one place to the next, `Watch`, its look at one of them, and `tail`, what it sees of a
reply that grows."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Iterator, Sequence
from time import monotonic
from typing import Any

from chatcache.events import CacheEvent, DoneEvent, Event, StatusEvent, TextEvent
from chatcache.turn import Turn
from chatcache.ui.place import Place
from chatcache.ui.texts import Texts
from chatcache.ui.transcript import LiveReply

UPDATE_INTERVAL_S = 0.15
END_INTERVAL_S = 0.03
"""How soon the end of a reply is seen, which does not wait for the next update."""
SILENCE_S = 60.0
"""A page that is looked at asks every fifteen seconds whether it is followed. One that is silent so long has gone:
reloaded, closed, or away from the network. Its follower ends, for each takes one of the threads that all of them share.
"""


class Watch:
    """A tab's look at one `place`. `form`: the settings' fields as they were when it was asked for. `settled`: the
    tab's follower has begun to look there, or need not. `left` tells it to end, and so does silence. `reading`: of the
    chat's cache, ahead of a message; None before it begins."""

    def __init__(self, place: Place, form: Sequence[Any] = ()) -> None:
        self.place = place
        self.form = form
        self.left = asyncio.Event()
        self.settled = asyncio.Event()
        self.reading: asyncio.Future[None] | None = None
        self.hear()

    def hear(self) -> None:
        """The page is there."""
        self._heard_s = monotonic()

    def leave(self) -> None:
        self.left.set()
        self.settled.set()

    @property
    def is_over(self) -> bool:
        return self.left.is_set() or monotonic() - self._heard_s > SILENCE_S

    async def pause(self, duration_s: float) -> None:
        """Wait, but not longer than the tab stays."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.left.wait(), duration_s)


class Tab:
    """A browser tab that has a follower. `watch`: where it is, by the last that the follower was told."""

    def __init__(self, watch: Watch) -> None:
        self.watch = watch

    async def go(self, watch: Watch, most_s: float) -> bool:
        """Have the follower look there next; False where it has not begun to in time. Where the tab was further on
        already, this was asked for earlier and overtaken, and nothing is to be done."""
        if not self.watch.is_over and watch.place.visit < self.watch.place.visit:
            return True
        before, self.watch = self.watch, watch
        before.leave()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(watch.settled.wait(), most_s)
        if not watch.settled.is_set():
            self.watch = before
        return watch.settled.is_set()

    async def watches(self) -> AsyncIterator[Watch]:
        """One after the other, for the follower; ends when the last one is over and the tab has gone nowhere else."""
        watch = None
        while watch is not self.watch:
            watch = self.watch
            watch.settled.set()
            yield watch


async def tail(
    turn: Turn, watch: Watch, texts: Texts, interval_s: float = UPDATE_INTERVAL_S
) -> AsyncIterator[LiveReply]:
    """The reply as it grows, at most once per interval, until the turn has ended or the tab is left.

    Reads the turn's log from its beginning, so whoever comes late sees what there is so far at once.
    """
    reply, start = LiveReply(texts), 0
    while not watch.is_over:
        events = turn.events_since(start)
        start += len(events)
        for is_reasoning, text in _texts_of(events):
            reply.add_text(text, is_reasoning=is_reasoning)
        for event in events:
            match event:
                case StatusEvent():
                    reply.set_status(texts.status(event))
                case CacheEvent(message=message):
                    reply.set_status(texts.said(message))
                case DoneEvent():
                    return
        if events:
            yield reply
        next_s = monotonic() + interval_s
        while not turn.done and (left_s := next_s - monotonic()) > 0 and not watch.is_over:
            await watch.pause(min(left_s, END_INTERVAL_S))


def _texts_of(events: Sequence[Event]) -> Iterator[tuple[bool, str]]:
    """What the events add to the reasoning (True) or the answer, run by run: text is rendered once per update."""
    pieces = (event for event in events if isinstance(event, TextEvent))
    for is_reasoning, run in itertools.groupby(pieces, key=lambda piece: piece.is_reasoning):
        yield is_reasoning, "".join(piece.text for piece in run)
