"""`Watch`, a tab that looks at a chat for as long as it is there, and `tail`, what it sees of a reply that grows."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Iterator, Sequence
from time import monotonic

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
    """One follower's life at `place`: `left` tells it to end, and so does silence; `ended` says that it has. `reading`:
    of its chat's cache, ahead of a message; None before it begins."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.left = asyncio.Event()
        self.ended = asyncio.Event()
        self.reading: asyncio.Future[None] | None = None
        self.hear()

    def hear(self) -> None:
        """The page is there."""
        self._heard_s = monotonic()

    @property
    def is_over(self) -> bool:
        return self.left.is_set() or monotonic() - self._heard_s > SILENCE_S

    async def pause(self, duration_s: float) -> None:
        """Wait, but not longer than the tab stays."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.left.wait(), duration_s)


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
