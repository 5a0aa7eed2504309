"""What the list of chats of one tab shows, as its browser holds it and sends it back."""

from __future__ import annotations

from dataclasses import dataclass, replace

from chatcache.ui.sent import count, from_json, text, to_json

NUM_CHATS_LISTED = 50
MOST_CHATS_LISTED = 100_000
EVERYTHING = "everything"


@dataclass(frozen=True, slots=True)
class Shelf:
    """The chats or the bin, and how many of them.

    `doubted` is what the person is asked about before it is removed for good: the id of a chat, or `EVERYTHING`.
    `zone` is the name of the browser's time zone. `turn` grows with every change: the list is read anew then.
    """

    is_bin: bool = False
    num_shown: int = NUM_CHATS_LISTED
    doubted: str | None = None
    zone: str | None = None
    turn: int = 0

    def showing_more(self) -> Shelf:
        return replace(self, num_shown=self.num_shown + NUM_CHATS_LISTED, turn=self.turn + 1)

    def turned(self) -> Shelf:
        """The bin after the chats, and the other way round."""
        return Shelf(is_bin=not self.is_bin, zone=self.zone, turn=self.turn + 1)

    def asking(self, doubted: str | None) -> Shelf:
        """With a question before something is removed for good, or, with None, without one."""
        return replace(self, doubted=doubted, turn=self.turn + 1)

    def again(self) -> Shelf:
        """The same, read anew."""
        return replace(self, turn=self.turn + 1)

    def to_json(self) -> str:
        return to_json(
            {"bin": self.is_bin, "shown": self.num_shown, "doubted": self.doubted, "zone": self.zone, "turn": self.turn}
        )

    @classmethod
    def from_json(cls, sent: object) -> Shelf:
        """From what a browser sent; whatever is not understood takes its default."""
        data = from_json(sent)
        return cls(
            is_bin=data.get("bin") is True,
            num_shown=count(data.get("shown"), default=NUM_CHATS_LISTED, least=1, most=MOST_CHATS_LISTED),
            doubted=text(data.get("doubted")),
            zone=text(data.get("zone")),
            turn=count(data.get("turn"), default=0),
        )
