"""What is said of one turn, in English: what it does, how it ended, and what it reused. Part of `texts.Texts`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from chatcache.events import Phase, StatusEvent
from chatcache.stats import FinishReason, MissReason
from chatcache.ui.figures import Figures


class TurnTexts(Figures):
    """English."""

    def status(self, event: StatusEvent) -> str:
        """What a running turn is doing; empty once it writes, for then the text speaks."""
        progress = f" {self.number(event.done)} of {self.tokens(event.total)}" if event.total else ""
        match event.phase:
            case Phase.LOADING:
                return "Waiting for the model…"
            case Phase.QUEUED:
                return "Waiting for its turn…"
            case Phase.RESTORING:
                return f"Fetching the cache{progress}…"
            case Phase.PREFILL:
                return f"Reading{progress}…"
            case Phase.DECODE:
                return ""

    FINISHED: ClassVar[Mapping[FinishReason, str]] = {
        FinishReason.LENGTH: "Ended at the longest reply allowed.",
        FinishReason.CANCELLED: "Stopped.",
        FinishReason.CONTEXT_FULL: "The context is full; everything is kept.",
        FinishReason.INTERRUPTED: "Interrupted. What was written is kept.",
        FinishReason.ERROR: "The reply broke off by an error. What was written is kept.",
    }
    WHAT_NEXT: ClassVar[Mapping[FinishReason, str]] = {
        FinishReason.LENGTH: "Continue goes on.",
        FinishReason.CANCELLED: "Continue goes on from here.",
        FinishReason.CONTEXT_FULL: "Roll back, start a new chat, or let this chat leave out its oldest turns "
        "(Settings).",
        FinishReason.INTERRUPTED: "Continue goes on from here.",
        FinishReason.ERROR: "Regenerate tries again.",
    }
    """What can be done about it, said where the buttons are that do it."""

    SOURCES: ClassVar[Mapping[str, str]] = {
        "live": "from memory",
        "disk": "from disk",
        "prefix": "from a shared beginning",
    }

    def miss(self, reason: MissReason, index: int | None, *, num_reused: int) -> str:
        """Why not all cached tokens were there or could be used, for people."""
        start = f" from token {self.number(index)} on" if index else ""
        match reason:
            case MissReason.TEMPLATE:
                return f"The model’s template rewrote earlier text, so it was computed again{start}."
            case MissReason.NO_CACHE if num_reused:
                return f"Neither memory nor disk had more of the present text, so the rest was computed{start}."
            case MissReason.NO_CACHE:
                return "This chat had no cache in memory, so everything was read once more."
            case MissReason.HISTORY:
                return f"The conversation differs from what was cached{start}; the rest was computed."
            case MissReason.SMALLER_FORM:
                return f"There is memory again, so the cache was made anew in full precision{start}."
            case MissReason.CONTEXT:
                return (
                    "The chat outgrew the model’s memory, so its oldest turns were left out; "
                    f"the rest was computed{start}."
                )
            case MissReason.CACHE_KIND:
                return f"This chat’s cache is kept in another form now, so it was made anew{start}."
            case MissReason.NOT_CROPPABLE:
                return f"This model’s state cannot be cut back, so it was computed again{start}."

    def resumed(self, num_tokens: int, restore_s: float, num_computed: int, *, num_reused: int) -> str:
        """`num_tokens` of `num_reused` were read from disk."""
        resumed = f"Resumed {self.tokens(num_tokens)}"
        if num_tokens < num_reused:
            resumed = f"Reused {self.tokens(num_reused)}, {self.number(num_tokens)} of them resumed"
        return f"{resumed} from disk in {self.seconds(restore_s)}; computed {self.number(num_computed)}."

    def reused(self, num_reused: int, num_total: int, num_computed: int, sources: Sequence[tuple[str, int]]) -> str:
        """`sources`: where the reused tokens were, and how many of them."""
        return (
            f"{self.share(self.percent(num_reused, num_total) / 100)} of what the model needed was already there: "
            f"{self.number(num_reused)} of {self.tokens(num_total)} reused{self._origin(sources)}, "
            f"{self.number(num_computed)} computed."
        )

    def _origin(self, sources: Sequence[tuple[str, int]]) -> str:
        names = [(self.SOURCES.get(source, source), num_tokens) for source, num_tokens in sources]
        parts = ", ".join(f"{self.number(num_tokens)} {name}" for name, num_tokens in names)
        return f" {names[0][0]}" if len(names) == 1 else f" ({parts})" if names else ""

    def counted_sources(self, num_tokens: int, sources: Sequence[tuple[str, int]]) -> str:
        """`1,024 from memory`; where there are several sources, how many tokens came from each."""
        return f"{self.number(num_tokens)}{self._origin(sources)}"

    def accepted(self, num_accepted: int, num_drafted: int) -> str:
        return f"{self.number(num_accepted)} of {self.tokens(num_drafted)} accepted"

    def first_turn(self, num_tokens: int) -> str:
        return f"The first turn of a chat: all {self.tokens(num_tokens)} were computed, once."

    def all_computed(self, num_tokens: int) -> str:
        return f"All {self.tokens(num_tokens)} were computed."

    def recomputed(self, num_tokens: int) -> str:
        return f"{self.tokens(num_tokens)} had to be computed again after a repair."
