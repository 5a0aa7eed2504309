"""`Turn`: the handle of one running or finished model call, a log of events that any number of readers can replay.

It knows nothing of models, caches or the store. The model thread appends; everybody else reads, waits or asks to stop.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Iterator

from chatcache.events import DoneEvent, Event, Reply, TextEvent
from storage.records import Message


class Turn:
    """One model call. Thread-safe.

    `id` is the stored turn's, `reply_id` the message it writes, `request_id` the caller's own mark, if it gave one.
    `on_stop` is called by `stop`, for whoever runs the turn.
    """

    def __init__(
        self,
        *,
        turn_id: str,
        session_id: str,
        reply_id: str,
        request_id: str | None = None,
        on_stop: Callable[[], object] = lambda: None,
    ) -> None:
        self.id = turn_id
        self.session_id = session_id
        self.reply_id = reply_id
        self.request_id = request_id
        self._events: list[Event] = []
        self._changed = threading.Condition()
        self._stop = threading.Event()
        self._on_stop = on_stop

    @classmethod
    def finished(cls, reply: Reply, *, turn_id: str, request_id: str | None = None) -> Turn:
        """The handle of a turn that ended earlier, or of a reply that needed no model: its text and its end."""
        message = reply.message
        turn = cls(turn_id=turn_id, session_id=message.session_id, reply_id=message.id, request_id=request_id)
        turn.emit_written(message)
        turn.emit(DoneEvent(reply))
        return turn

    @property
    def done(self) -> bool:
        """Whether the reply is complete and stored."""
        with self._changed:
            return self._ended()

    @property
    def stop_requested(self) -> bool:
        return self._stop.is_set()

    def stop(self) -> None:
        """Ask the turn to end within one token or one prefill chunk; what exists by then is kept. Does not wait."""
        self._stop.set()
        self._on_stop()

    def emit(self, event: Event) -> None:
        """Append an event; its index is set here. The log takes nothing after a `DoneEvent`."""
        with self._changed:
            if self._ended():
                raise RuntimeError(f"Turn {self.id} has ended; it takes no {type(event).__name__}.")
            self._events.append(dataclasses.replace(event, index=len(self._events)))
            self._changed.notify_all()

    def emit_written(self, message: Message) -> None:
        """Say what a reply holds already, so that the log alone tells all of its text, a continued one's too."""
        if message.reasoning:
            self.emit(TextEvent(message.reasoning, is_reasoning=True))
        if message.text:
            self.emit(TextEvent(message.text))

    def events_since(self, start: int) -> list[Event]:
        """What has been said from index `start` on, without waiting."""
        with self._changed:
            return self._events[start:]

    def events(self, start: int = 0) -> Iterator[Event]:
        """Every event from index `start` on, waiting for the next one until the turn has ended."""
        while True:
            with self._changed:
                while len(self._events) <= start and not self._ended():
                    self._changed.wait()
                batch = self._events[start:]
            yield from batch
            start += len(batch)
            if not batch or isinstance(batch[-1], DoneEvent):
                return

    def result(self, timeout_s: float | None = None) -> Reply:
        """Wait for the end. An error in the turn is told by `stats.finish_reason`, not raised.

        Raises TimeoutError when the turn is still running after `timeout_s` seconds.
        """
        with self._changed:
            if not self._changed.wait_for(self._ended, timeout_s):
                raise TimeoutError(f"The turn is still running after {timeout_s} s.")
            last = self._events[-1]
        assert isinstance(last, DoneEvent)
        return last.reply

    def _ended(self) -> bool:
        return bool(self._events) and isinstance(self._events[-1], DoneEvent)
