"""`Place`: where one browser tab is. Ids and counts only, for this is what the browser holds and sends back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from storage.records import ChatSession

NUM_MESSAGES_SHOWN = 40


@dataclass(frozen=True, slots=True)
class Place:
    """The session a tab shows (None: a chat not yet begun), the tip it showed last, and how much of the chat.

    `visit` grows with every deliberate move; the page follows a session anew when it changes.
    """

    session_id: str | None = None
    tip_id: str | None = None
    version: int = 0
    num_shown: int = NUM_MESSAGES_SHOWN
    visit: int = 0

    def at(self, session_id: str | None) -> Place:
        """Another session, or the beginning of a new one."""
        return Place(session_id=session_id, visit=self.visit + 1)

    def showing_more(self) -> Place:
        return replace(self, num_shown=self.num_shown + NUM_MESSAGES_SHOWN, visit=self.visit + 1)

    def showing(self, session: ChatSession) -> Place:
        """The same place, now that the tab shows this state of it."""
        return replace(self, tip_id=session.tip_id, version=session.version)

    def to_json(self) -> dict[str, Any]:
        return {
            "session": self.session_id,
            "tip": self.tip_id,
            "version": self.version,
            "shown": self.num_shown,
            "visit": self.visit,
        }

    @classmethod
    def from_json(cls, data: object) -> Place:
        """From what a browser sent; whatever is not understood takes its default."""
        if not isinstance(data, Mapping):
            return cls()
        return cls(
            session_id=_text(data.get("session")),
            tip_id=_text(data.get("tip")),
            version=_count(data.get("version"), 0),
            num_shown=max(_count(data.get("shown"), NUM_MESSAGES_SHOWN), 1),
            visit=_count(data.get("visit"), 0),
        )


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def _count(value: object, default: int) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else default
