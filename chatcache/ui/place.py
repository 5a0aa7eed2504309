"""What a browser tab holds and sends back: ids and counts only.

`Place` is where the tab is; only what a person does moves it. `Destination` is where the person wants to go; only the
browser writes that. `Seen` is what the tab shows; only the follower writes that. So none can undo another.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from chatcache.ui.sent import count, from_json, text, to_json
from storage.records import ChatSession

NUM_MESSAGES_SHOWN = 40
NUM_MESSAGES_ABOVE = 6
"""How many are shown, at least, above one that is to be seen."""

MOST_MESSAGES_SHOWN = 100_000


@dataclass(frozen=True, slots=True)
class Place:
    """The session a tab shows (None: a chat not yet begun), and how many of its messages.

    `visit` grows with every move; the page follows a session anew when it changes. `asked`: how often the person has
    asked to go elsewhere, which the browser counts; by both it knows a move that was overtaken. `is_temporary`: this
    chat, or the one that begins here, is not stored. `message_id`: the message that the tab is led to; None: to the
    chat's end.
    """

    session_id: str | None = None
    num_shown: int = NUM_MESSAGES_SHOWN
    visit: int = 0
    is_temporary: bool = False
    message_id: str | None = None
    asked: int = field(default=0, compare=False)

    @property
    def has_arrived(self) -> bool:
        """The tab has been led somewhere, be it to a new chat; before that it shows nothing yet."""
        return self.visit > 0

    def at(self, session_id: str | None, *, is_temporary: bool = False) -> Place:
        """Another session, or the beginning of a new one."""
        return Place(session_id=session_id, visit=self.visit + 1, is_temporary=is_temporary, asked=self.asked)

    def showing_more(self) -> Place:
        num_shown = self.num_shown + NUM_MESSAGES_SHOWN
        return replace(self, num_shown=num_shown, visit=self.visit + 1, message_id=None)

    def showing(self, message_id: str, num_below: int) -> Place:
        """The same move, to a message with so many below it."""
        num_shown = max(self.num_shown, num_below + 1 + NUM_MESSAGES_ABOVE)
        return replace(self, num_shown=num_shown, message_id=message_id)

    def to_json(self) -> str:
        return to_json(
            {
                "session": self.session_id,
                "shown": self.num_shown,
                "visit": self.visit,
                "temporary": self.is_temporary,
                "message": self.message_id,
                "asked": self.asked,
            }
        )

    @classmethod
    def from_json(cls, sent: object) -> Place:
        """From what a browser sent; whatever is not understood takes its default."""
        data = from_json(sent)
        return cls(
            session_id=text(data.get("session")),
            num_shown=count(data.get("shown"), default=NUM_MESSAGES_SHOWN, least=1, most=MOST_MESSAGES_SHOWN),
            visit=count(data.get("visit"), default=0),
            is_temporary=data.get("temporary") is True,
            message_id=text(data.get("message")),
            asked=count(data.get("asked"), default=0),
        )


@dataclass(frozen=True, slots=True)
class Destination:
    """Where a person wants to go: to a session, and there perhaps to a message, or (None) to the beginning of a new
    one, which is temporary or not. `draft`: what that session's message box holds, where a message is gone to."""

    session_id: str | None = None
    is_temporary: bool = False
    message_id: str | None = None
    draft: str = ""

    def to_json(self) -> str:
        return to_json(
            {
                "session": self.session_id,
                "temporary": self.is_temporary,
                "message": self.message_id,
                "draft": self.draft,
            }
        )

    @classmethod
    def from_json(cls, sent: object) -> Destination:
        """From what a browser sent; whatever is not understood takes its default."""
        data = from_json(sent)
        return cls(
            session_id=text(data.get("session")),
            is_temporary=data.get("temporary") is True,
            message_id=text(data.get("message")),
            draft=text(data.get("draft")) or "",
        )


@dataclass(frozen=True, slots=True)
class Seen:
    """The state of a session that a tab shows: its tip and its version."""

    session_id: str | None = None
    tip_id: str | None = None
    version: int = 0

    @classmethod
    def of(cls, session: ChatSession) -> Seen:
        return cls(session.id, session.tip_id, session.version)

    def to_json(self) -> str:
        return to_json({"session": self.session_id, "tip": self.tip_id, "version": self.version})

    @classmethod
    def from_json(cls, sent: object) -> Seen:
        """From what a browser sent; whatever is not understood takes its default."""
        data = from_json(sent)
        return cls(text(data.get("session")), text(data.get("tip")), count(data.get("version"), default=0))


@dataclass(frozen=True, slots=True)
class Used:
    """How many tokens of the model's context the shown chat takes (None: not known). The message box counts with it."""

    num_tokens: int | None = None

    def to_json(self) -> str:
        return to_json({"used": self.num_tokens})

    @classmethod
    def from_json(cls, sent: object) -> Used:
        """From what a browser sent; whatever is not understood is not known."""
        num_tokens = count(from_json(sent).get("used"), default=-1)
        return cls(None if num_tokens < 0 else num_tokens)
