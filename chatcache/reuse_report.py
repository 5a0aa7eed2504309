"""What a turn reused and what it could not, in words: pure, from what was asked and what was acquired."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from chatcache.acquired import Acquired
from chatcache.cache.alignment import Alignment
from chatcache.events import CacheEvent
from chatcache.stats import MissReason, TurnStats
from chatcache.told import Told
from chatcache.turn_request import TurnRequest
from storage.durations import format_seconds
from storage.sentence import Sentence

NOT_RESTORED = "not-restored"
FALLBACKS = frozenset({NOT_RESTORED, MissReason.CONTEXT.value})
"""Kinds of events that tell of something gone wrong or left out: they belong to the turn's figures, too."""

_MISSES = {
    MissReason.TEMPLATE: (Told.MISSED_TEMPLATE, "The model's template rewrote the chat from token {index:,} on;"),
    MissReason.HISTORY: (Told.MISSED_HISTORY, "The chat is another one from token {index:,} on;"),
    MissReason.SMALLER_FORM: (
        Told.MISSED_SMALLER_FORM,
        "There is memory again: this chat's cache is in full precision again; from token {index:,} on,",
    ),
    MissReason.CACHE_KIND: (
        Told.MISSED_KIND,
        "This chat's cache is kept in another kind now; from token {index:,} on,",
    ),
    MissReason.NOT_CROPPABLE: (
        Told.MISSED_NOT_CROPPABLE,
        "This model's cache cannot be cut back; from token {index:,} on,",
    ),
}


def miss_reason(request: TurnRequest, alignment: Alignment) -> MissReason | None:
    """Why reuse broke behind the last cached token, if it did. The template is the reason where it changed exactly what
    stands there."""
    index = alignment.num_cached_tokens
    if request.num_left_out:
        return MissReason.CONTEXT
    if alignment.reason is MissReason.HISTORY and index == request.rewrite_index:
        return MissReason.TEMPLATE
    return (alignment.reason or MissReason.NO_CACHE) if index < request.num_known_tokens else None


def reuse_events(request: TurnRequest, acquired: Acquired, num_prompt_tokens: int) -> Iterator[CacheEvent]:
    """Where the cached tokens came from, what went wrong with it, and what that leaves to compute."""
    index = acquired.alignment.num_cached_tokens
    num_left = num_prompt_tokens - index
    for reuse in acquired.reuse:
        if reuse.source == "disk":
            restore_s, num = acquired.restore_s or 0.0, reuse.num_tokens
            sentence = f"Resumed {num:,} tokens from disk in {format_seconds(restore_s)}; {num_left:,} to compute."
            told = Sentence(sentence, Told.RESUMED, num_tokens=num, restore_s=restore_s, num_left=num_left)
            yield CacheEvent("restored", index, told)
    if acquired.problem is not None:
        yield CacheEvent(NOT_RESTORED, index, acquired.problem)
    reason = miss_reason(request, acquired.alignment)
    if reason is MissReason.CONTEXT:
        num = request.num_left_out
        sentence = (
            f"The context is full: from here on the {num} oldest messages that were still in it are left out. "
            f"{num_left:,} tokens are computed."
        )
        yield CacheEvent(reason.value, index, Sentence(sentence, Told.LEFT_OUT, num_messages=num, num_left=num_left))
    elif reason in _MISSES:
        missed, why = _MISSES[reason]
        sentence = f"{why.format(index=index)} {num_left:,} tokens are computed."
        yield CacheEvent(reason.value, index, Sentence(sentence, missed, index=index, num_left=num_left))


def with_reuse(stats: TurnStats, request: TurnRequest, acquired: Acquired) -> TurnStats:
    """`stats` with what is known of the turn's cache when it has ended."""
    missed = miss_reason(request, acquired.alignment)
    return dataclasses.replace(
        stats,
        restore_s=acquired.restore_s,
        cache_kind=acquired.cache.kind,
        cache_bytes=acquired.cache.num_bytes,
        reuse=acquired.reuse,
        miss_reason=missed,
        miss_index=None if missed is None else acquired.alignment.num_cached_tokens,
    )
