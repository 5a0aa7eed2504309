"""What is told of caches, memory, models and imports. In brackets: the facts that come with it."""

from __future__ import annotations

from enum import StrEnum

from chatcache.library_calls import first_sentence
from storage.sentence import Sentence


class Told(StrEnum):
    """Which sentence a `Sentence` is."""

    CONVERTED = "converted"
    """[kind]"""
    KIND_REFUSED = "kind-refused"
    """[kind, default]"""
    CANNOT_GUESS = "cannot-guess"
    RESUMED = "resumed"
    """[num_tokens, seconds, num_left]"""
    LEFT_OUT = "left-out"
    """[num_messages, num_left]"""
    MISSED_TEMPLATE = "missed-template"
    """[index, num_left], as all that were missed"""
    MISSED_HISTORY = "missed-history"
    MISSED_SMALLER_FORM = "missed-smaller-form"
    MISSED_KIND = "missed-kind"
    MISSED_NOT_CROPPABLE = "missed-not-croppable"

    REPAIRED = "repaired"
    """[failure, num_tokens]"""
    FAILED_TWICE = "failed-twice"
    """[failure]"""
    ENDED_EARLY = "ended-early"
    """[failure]"""
    NOT_FINITE = "not-finite"
    REPLY_NOT_SAVED = "reply-not-saved"
    """[failure]"""

    MEMORY_SHORT = "memory-short"
    """[index, step]"""
    SPILLED = "spilled"
    """[num_chats]"""
    SPILLED_UNSAVED = "spilled-unsaved"
    """[num_chats]"""
    SPILLED_PARTLY = "spilled-partly"
    """[num_chats, num_unsaved]"""
    SHORTENED = "shortened"
    WAITS = "waits"
    RETRIED = "retried"
    RESTORE_RETRIED = "restore-retried"
    SMALLER_CHUNKS = "smaller-chunks"
    """[num_tokens]"""
    SMALLER_KIND = "smaller-kind"
    """[kind]"""
    STOPPED = "stopped"
    """[num_tokens]"""

    RESTORE_DAMAGED = "restore-damaged"
    """[index, failure]"""
    RESTORE_FAILED = "restore-failed"
    """[index, failure]"""
    LOOKUP_FAILED = "lookup-failed"
    """[failure]"""
    CANNOT_BE_STORED = "cannot-be-stored"
    SAVED_LATER = "saved-later"
    NO_ROOM_TO_SAVE = "no-room-to-save"
    HALF_CONVERTED = "half-converted"
    FORGOTTEN = "forgotten"
    CHAIN_GONE = "chain-gone"
    NOT_SAVED = "not-saved"
    """[failure]"""

    NO_TEMPLATE = "no-template"
    IDS_LEFT_OUT = "ids-left-out"
    WITHOUT_EFFECT = "without-effect"
    """[refusal]"""

    NO_STATIC = "no-static"
    NO_ATTENTION = "no-attention"
    NO_PACKAGE = "no-package"
    """[package]"""
    UNKNOWN_LAYERS = "unknown-layers"
    """[layers]"""
    OFFLOADED_ALREADY = "offloaded-already"
    NO_DEVICE_MEMORY = "no-device-memory"
    """[device]"""
    ALL_FULL_ATTENTION = "all-full-attention"
    OTHER_LAYERS = "other-layers"
    """[layers]"""
    SLIDING_LAYERS = "sliding-layers"
    SMALLER_WEIGHTS = "smaller-weights"
    """[form, saved_bytes, total_bytes]"""
    SHORTER_CONTEXT = "shorter-context"
    """[num_tokens]"""
    SMALLER_CACHE = "smaller-cache"
    """[kind, session_bytes, total_bytes]"""
    BOTH_SMALLER = "both-smaller"
    """[kind, total_bytes]"""
    BOTH_SMALLER_AND_SHORTER = "both-smaller-and-shorter"
    """[kind, total_bytes, num_tokens]"""
    GROUPED_QUERIES = "grouped-queries"
    CHECKPOINT_SMALLER = "checkpoint-smaller"


def ended_early(error: BaseException) -> Sentence:
    """What a reply says that an error ended."""
    failure = first_sentence(error)
    return Sentence(f"The reply ended early: {failure} The text so far was kept.", Told.ENDED_EARLY, failure=failure)
