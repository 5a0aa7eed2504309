"""Where a prompt begins when not all of a chat fits into the model's context.

Whole oldest turns are left out, many at once, so that the turns that follow only add to the prompt again. Pure: it
knows lengths and positions, no messages.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

DROP_OLDEST, STOP = "drop-oldest", "stop"
CONTEXT_FULL_CHOICES = (DROP_OLDEST, STOP)
"""What a chat does when its context is full; the first one is the default."""
ROOM_SHARE = 1 / 4
"""A reply has room for all it may write, but at most for this share of the window."""
SHARE_AFTER_DROPPING = 3 / 4


@dataclass(frozen=True, slots=True)
class ContextWindow:
    """`max_tokens` for prompt and reply together; `room_tokens` of them are the reply's."""

    max_tokens: int
    room_tokens: int

    @classmethod
    def of(cls, max_context_tokens: int, max_new_tokens: int | None) -> ContextWindow:
        """The window for a reply of up to `max_new_tokens` tokens; None: as many as there is room for."""
        room = max(1, int(max_context_tokens * ROOM_SHARE))
        return cls(max_context_tokens, room if max_new_tokens is None else min(room, max_new_tokens))

    def choose_start(self, starts: Sequence[int], num_tokens_from: Callable[[int], int]) -> int:
        """Which of `starts`, ascending, the prompt begins at; `num_tokens_from` counts the prompt that begins there.

        The first one, as long as prompt and reply fit; else the first with which they take `SHARE_AFTER_DROPPING` of
        the window at most. Where none is, the last one, which may be too long.
        """
        if num_tokens_from(starts[0]) + self.room_tokens <= self.max_tokens:
            return starts[0]
        limit = int(self.max_tokens * SHARE_AFTER_DROPPING) - self.room_tokens
        low, high = 0, len(starts) - 1
        while low < high:
            middle = (low + high) // 2
            if num_tokens_from(starts[middle]) <= limit:
                high = middle
            else:
                low = middle + 1
        return starts[low]
