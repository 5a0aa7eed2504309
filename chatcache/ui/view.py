"""What a tab shows of a session at one moment, read from the service in one go."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from chatcache.errors import InvalidInputError
from chatcache.reports import CacheReport, ContextUse, TurnDetails
from chatcache.reuse_total import ReuseTotal
from chatcache.stats import TurnStats
from chatcache.turn import Turn
from chatcache.ui.place import Place
from storage.records import ChatSession, Message, MessageStatus, Role

if TYPE_CHECKING:
    from chatcache.chat import ChatService


@dataclass(frozen=True, slots=True)
class View:
    """A session as of `session.version`: the messages to show, without the reply that is being written by `turn`.

    `undone_id`: the reply that going forward leads to, where turns were rolled back.
    """

    session: ChatSession
    messages: tuple[Message, ...]
    num_hidden: int
    stats: Mapping[str, TurnStats]
    turn: Turn | None
    details: Mapping[str, TurnDetails] = field(default_factory=dict)
    is_temporary: bool = False
    undone_id: str | None = None

    @property
    def busy_id(self) -> str | None:
        """The reply that is being written: by `turn`, or by one that has just begun or ended; None where none is."""
        if self.turn is not None:
            return self.turn.reply_id
        is_written = bool(self.messages) and self.messages[-1].status is MessageStatus.GENERATING
        return self.messages[-1].id if is_written else None

    @property
    def is_busy(self) -> bool:
        return self.busy_id is not None

    @property
    def last_reply(self) -> Message | None:
        """The last one shown that is not being written."""
        replies = (m for m in reversed(self.messages) if m.role is Role.ASSISTANT)
        return next((reply for reply in replies if reply.status is not MessageStatus.GENERATING), None)


@dataclass(frozen=True, slots=True)
class CacheLook:
    """What the service says of a chat's cache: in memory, on disk (told where it is not in memory); of what the chat
    takes of the context (None: the model's template refuses it); and of what the cache saved in all of its turns."""

    report: CacheReport
    num_disk_bytes: int = 0
    use: ContextUse | None = None
    total: ReuseTotal = field(default_factory=ReuseTotal)

    @property
    def lacks_tokens(self) -> bool:
        """Whether some that the chat was fed are not in memory. The last one that it said was never fed."""
        return self.use is not None and self.report.num_tokens < self.use.num_fed_tokens - 1


def load_view(service: ChatService, place: Place) -> View | None:
    """What `place` shows now; None for a chat not yet begun. Costs what is shown, however long the chat is.

    Raises NotFoundError. The session is read first: whatever changes after that has a higher version, so a reader that
    waits for a change since this view's version misses nothing.
    """
    if place.session_id is None:
        return None
    session = service.get_session(place.session_id)
    messages = service.messages(session.id, limit=place.num_shown + 1)  # one more: the reply of a running turn
    turn = service.active_turn(session.id)
    if turn is not None and messages and messages[-1].id == turn.reply_id:
        messages = messages[:-1]
    else:
        turn = None
    shown = messages[-place.num_shown :]
    num_hidden = shown[0].position if shown else 0
    details = service.turn_details([m.id for m in shown])
    stats = {reply_id: made.stats for reply_id, made in details.items() if made.finished_at is not None}
    undone = service.undone(session.id)
    return View(
        session,
        shown,
        num_hidden,
        stats,
        turn,
        details,
        is_temporary=service.is_temporary(session.id),
        undone_id=undone.id if undone is not None and turn is None else None,
    )


def look_at_cache(service: ChatService, session_id: str) -> CacheLook:
    """Waits for the model thread; reads all of the chat where it has changed. Raises NotFoundError."""
    report = service.cache_report(session_id)
    stored = {} if report.is_live else service.storage_report().cache.session_bytes
    try:
        use = service.context_use(session_id)
    except InvalidInputError:
        use = None
    return CacheLook(report, stored.get(session_id, 0), use, service.reuse_total(session_id))
