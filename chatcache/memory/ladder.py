"""What a turn does when memory is short: one step at a time, the ones that cost least first.

Pure: it decides from what is known of the shortage, and says each step in a sentence. The steps are taken in `relief`.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum

SMALLEST_CHUNK_TOKENS = 16
LADDER_KINDS = ("dynamic", "offloaded", "offloaded-non-sliding", "quantized-int8", "quantized-int4")


class Step(StrEnum):
    """Ordered from the one that costs least."""

    RETRY = "retry"
    """Free what lies unused and do the same again: what failed may have been a moment's peak."""
    SPILL = "spill"
    """Idle chats' caches leave memory; they come back from disk."""
    SHORTEN = "shorten"
    """Layers that see a window only forget what lies far behind it."""
    WAIT = "wait"
    """Of the turns that run, the one that began last goes on later."""
    SMALLER_CHUNKS = "smaller-chunks"
    CONVERT = "convert"
    """The chat's own cache takes the next smaller form."""
    STOP = "stop"
    """The reply ends with what exists."""


@dataclass(frozen=True, slots=True)
class Shortage:
    """`was_allocating`: an allocation failed; else a reservation did, before anything was allocated.

    `has_retried`: the same forward failed twice. `can_spill`: there are idle caches whose room would do, or might.
    `can_shorten`: layers with a window hold what they need not. `can_wait`: the room of other turns that run would do.
    `can_shrink_chunk`: the forward was to take many tokens, and fewer at a time may do. `smaller_kinds`: those the
    chat's cache may still take, with enough room, the one that costs least first.
    """

    was_allocating: bool
    has_retried: bool
    can_spill: bool
    can_shrink_chunk: bool
    smaller_kinds: tuple[str, ...]
    can_shorten: bool = False
    can_wait: bool = False


def next_step(shortage: Shortage) -> Step:
    """The step that costs least of those that can help."""
    if shortage.was_allocating and not shortage.has_retried:
        return Step.RETRY
    if shortage.can_spill:
        return Step.SPILL
    if shortage.can_shorten:
        return Step.SHORTEN
    if shortage.can_wait:
        return Step.WAIT
    if shortage.can_shrink_chunk:
        return Step.SMALLER_CHUNKS
    if shortage.smaller_kinds:
        return Step.CONVERT
    return Step.STOP


def smaller_kinds(kind: str, possible_kinds: Collection[str]) -> tuple[str, ...]:
    """The kinds that a cache of `kind` may be converted to, one after the other, of those that the model can have."""
    if kind not in LADDER_KINDS:
        return ()
    below = LADDER_KINDS[LADDER_KINDS.index(kind) + 1 :]
    return tuple(lower for lower in below if lower in possible_kinds)


def smaller_chunks(chunk_tokens: int) -> list[int]:
    """The powers of two below `chunk_tokens`, the largest first, down to `SMALLEST_CHUNK_TOKENS`."""
    chunks = []
    chunk = 1 << (max(chunk_tokens, 1) - 1).bit_length()
    while chunk > SMALLEST_CHUNK_TOKENS:
        chunk //= 2
        chunks.append(chunk)
    return chunks
