"""What the message box holds while turns are rolled back: the message that was rolled back last, then what the person
has typed. `DraftChange` tells the page what an action makes of it."""

from __future__ import annotations

import uuid
from dataclasses import dataclass

from chatcache.ui.place import Place
from chatcache.ui.sent import to_json


@dataclass(frozen=True, slots=True)
class DraftChange:
    """In the draft of the chat at `place`, `after` stands where `before` stood. The page may show another chat by then,
    and the person may have typed on: both are left alone. `begun_id`: the chat that begins with what was in the box."""

    place: Place
    before: str
    after: str = ""
    begun_id: str | None = None

    def to_json(self) -> str:
        """Never the same text twice: the page hears of a change only."""
        return to_json(
            {
                "session": self.place.session_id,
                "begun": self.begun_id,
                "temporary": self.place.is_temporary,
                "before": self.before,
                "after": self.after,
                "mark": uuid.uuid4().hex,
            }
        )


def with_message(message: str, typed: str) -> str:
    """The message before whatever was being typed."""
    return f"{message}\n\n{typed}" if typed.strip() else message


def without_message(message: str, box: str) -> str | None:
    """What was typed after the message; None where the box does not begin with it, for then all is the person's own."""
    if not f"{box}\n\n".startswith(f"{message}\n\n"):
        return None
    return box.removeprefix(message).removeprefix("\n\n")
