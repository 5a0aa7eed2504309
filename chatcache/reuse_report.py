"""What a turn reused and what it could not, in words: pure, from what was asked and what was acquired."""

from __future__ import annotations

from collections.abc import Iterator

from chatcache.cache.session_cache import Alignment
from chatcache.events import CacheEvent
from chatcache.session_pool import Acquired
from chatcache.stats import MissReason
from chatcache.turn_request import TurnRequest

NOT_RESTORED = "not-restored"
FALLBACKS = frozenset({NOT_RESTORED, MissReason.CONTEXT.value})
"""Kinds of events that tell of something gone wrong or left out: they belong to the turn's figures, too."""

_MISS_SENTENCES = {
    MissReason.TEMPLATE: "The model's template rewrote the chat from token {index:,} on; {num:,} tokens are computed.",
    MissReason.HISTORY: "The chat is another one from token {index:,} on; {num:,} tokens are computed.",
    MissReason.SMALLER_FORM: (
        "There is memory again: this chat's cache is in full precision again; from token {index:,} on, {num:,} tokens "
        "are computed."
    ),
    MissReason.CACHE_KIND: (
        "This chat's cache is kept in another kind now; from token {index:,} on, {num:,} tokens are computed."
    ),
    MissReason.NOT_CROPPABLE: (
        "This model's cache cannot be cut back; from token {index:,} on, {num:,} tokens are computed."
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
            seconds = acquired.restore_s or 0.0
            sentence = f"Resumed {reuse.num_tokens:,} tokens from disk in {seconds:.2f} s; {num_left:,} to compute."
            yield CacheEvent("restored", index, sentence)
    if acquired.problem is not None:
        yield CacheEvent(NOT_RESTORED, index, acquired.problem)
    reason = miss_reason(request, acquired.alignment)
    if reason is MissReason.CONTEXT:
        sentence = (
            f"The context is full: from here on the {request.num_left_out} oldest messages that were still in it are "
            f"left out. {num_left:,} tokens are computed."
        )
        yield CacheEvent(reason.value, index, sentence)
    elif reason in _MISS_SENTENCES:
        yield CacheEvent(reason.value, index, _MISS_SENTENCES[reason].format(index=index, num=num_left))
