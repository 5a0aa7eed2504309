"""What a running turn says: small frozen events, in order, that any number of readers can read again."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from chatcache.stats import TurnStats
from storage.records import Message


class Phase(StrEnum):
    """What a turn is doing, in this order; not every turn waits for the model to be loaded, or restores."""

    LOADING = "loading"
    QUEUED = "queued"
    RESTORING = "restoring"
    PREFILL = "prefill"
    DECODE = "decode"


@dataclass(frozen=True, slots=True)
class StatusEvent:
    """The turn entered a phase, or got further in it: `done` of `total` tokens (0 of 0 where nothing is counted).

    `num_reused`: while the prompt is read, how many more of its tokens need no reading, for they were there already.
    """

    phase: Phase
    done: int = 0
    total: int = 0
    num_reused: int = 0
    index: int = -1


@dataclass(frozen=True, slots=True)
class TextEvent:
    """New text of the reply, in whole characters. `is_reasoning`: it stands inside the reasoning tags."""

    text: str
    is_reasoning: bool = False
    index: int = -1


@dataclass(frozen=True, slots=True)
class CacheEvent:
    """Something happened to the cache at `token_index`: `kind` for programs, `message` for people."""

    kind: str
    token_index: int
    message: str
    index: int = -1


@dataclass(frozen=True, slots=True)
class Reply:
    """What a turn ended with: the stored reply and what it cost."""

    message: Message
    stats: TurnStats


@dataclass(frozen=True, slots=True)
class DoneEvent:
    """The turn ended; the reply is stored. Always the last event."""

    reply: Reply
    index: int = -1


Event = StatusEvent | TextEvent | CacheEvent | DoneEvent
