"""The errors people and programs see. Each message says what happened, what was kept and what to do. A page that has
sentences of its own, in another language, makes them from `reason` and `facts`.

ChatCacheError
├── InvalidInputError         text or a setting that cannot be used
├── NotFoundError             no such session or message for this owner
├── SessionBusyError          a turn is running in this session
├── StaleTipError             the session moved on since the caller looked
├── ContextFullError          the prompt does not fit; nothing was committed
├── ModelLoadError            the model cannot be loaded
├── UnsupportedOptionError    an option this model, device or version does not offer
├── DataDirLockedError        another chatcache has the data directory open
├── ServiceClosedError        the service was closed, or is being closed
└── StorageError              the disk or the database failed
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import ClassVar

from storage.sentence import Fact, Sentence


class Reason(StrEnum):
    """Why something was refused, or failed. In brackets: the facts that come with it."""

    INVALID = "invalid"
    EMPTY_MESSAGE = "empty-message"
    TOO_FEW_TURNS = "too-few-turns"
    """[num_turns]"""
    NO_REPLY_YET = "no-reply-yet"
    NOT_A_REPLY = "not-a-reply"
    OUT_OF_RANGE = "out-of-range"
    """[low, high]"""
    NOT_A_COUNT = "not-a-count"
    """[low]"""
    SEED_TOO_LARGE = "seed-too-large"
    TEMPLATE_REFUSES = "template-refuses"
    NOT_IN_BIN = "not-in-bin"
    NOT_JSON = "not-json"
    FOREIGN_FILE = "foreign-file"
    NEWER_FILE = "newer-file"
    DAMAGED_FILE = "damaged-file"
    """[detail]"""
    NOT_FOUND = "not-found"
    IN_BIN = "in-bin"
    OTHER_CHAT = "other-chat"
    BUSY = "busy"
    BUSY_TO_FORK = "busy-to-fork"
    MOVED_ON = "moved-on"
    CONTEXT_FULL = "context-full"
    """[num_prompt_tokens, max_context_tokens]"""
    MODEL_UNUSABLE = "model-unusable"
    UNSUPPORTED = "unsupported"
    NO_THINKING_SWITCH = "no-thinking-switch"
    KIND_UNAVAILABLE = "kind-unavailable"
    """[kind, kinds]"""
    DATA_DIR_LOCKED = "data-dir-locked"
    STORAGE_FAILED = "storage-failed"
    DISK_FULL = "disk-full"
    CLOSED = "closed"


class ChatCacheError(Exception):
    """Base of every error that chatcache raises on purpose."""

    REASON: ClassVar[Reason] = Reason.INVALID
    """The reason of an error that names none."""

    def __init__(self, message: str = "", reason: Reason | None = None, **facts: Fact) -> None:
        super().__init__(message)
        self.reason = reason or self.REASON
        self.facts: Mapping[str, Fact] = facts

    @property
    def sentence(self) -> Sentence:
        """What it says, with what it means."""
        return Sentence(str(self), self.reason, **self.facts)


class InvalidInputError(ChatCacheError):
    """Text or a setting that cannot be used as it is."""


class NotFoundError(ChatCacheError):
    """No such session or message for this owner."""

    REASON = Reason.NOT_FOUND


class SessionBusyError(ChatCacheError):
    """A turn is running in this session; wait for it or stop it."""

    REASON = Reason.BUSY


class StaleTipError(ChatCacheError):
    """The session moved on since the caller looked at it; look again."""

    REASON = Reason.MOVED_ON


class ContextFullError(ChatCacheError):
    """The prompt does not fit into the context. Raised before anything is committed.

    `num_prompt_tokens` is what was needed, `max_context_tokens` what there is.
    """

    REASON = Reason.CONTEXT_FULL

    def __init__(self, message: str, *, num_prompt_tokens: int, max_context_tokens: int) -> None:
        super().__init__(message, num_prompt_tokens=num_prompt_tokens, max_context_tokens=max_context_tokens)
        self.num_prompt_tokens = num_prompt_tokens
        self.max_context_tokens = max_context_tokens


class ModelLoadError(ChatCacheError):
    """The model cannot be found, read or used for chat."""

    REASON = Reason.MODEL_UNUSABLE


class UnsupportedOptionError(ChatCacheError):
    """An option that this model, device or version does not offer."""

    REASON = Reason.UNSUPPORTED


class DataDirLockedError(ChatCacheError):
    """Another chatcache has the data directory open."""

    REASON = Reason.DATA_DIR_LOCKED


class ServiceClosedError(ChatCacheError):
    """The service was closed, or is being closed; nothing was changed. Open it again to go on."""

    REASON = Reason.CLOSED

    def __init__(self) -> None:
        super().__init__("chatcache has been closed. Start it again to go on; nothing was changed.")


class StorageError(ChatCacheError):
    """The disk or the database failed."""

    REASON = Reason.STORAGE_FAILED
