"""The errors people and programs see. Each message says what happened, what was kept and what to do.

ChatCacheError
├── InvalidInputError         text or a setting that cannot be used
├── NotFoundError             no such session or message for this owner
├── SessionBusyError          a turn is running in this session
├── StaleTipError             the session moved on since the caller looked
├── ContextFullError          the prompt does not fit; nothing was committed
├── ModelLoadError            the model cannot be loaded
├── UnsupportedOptionError    an option this model, device or version does not offer
├── DataDirLockedError        another chatcache has the data directory open
└── StorageError              the disk or the database failed
"""

from __future__ import annotations


class ChatCacheError(Exception):
    """Base of every error that chatcache raises on purpose."""


class InvalidInputError(ChatCacheError):
    """Text or a setting that cannot be used as it is."""


class NotFoundError(ChatCacheError):
    """No such session or message for this owner."""


class SessionBusyError(ChatCacheError):
    """A turn is running in this session; wait for it or stop it."""


class StaleTipError(ChatCacheError):
    """The session moved on since the caller looked at it; look again."""


class ContextFullError(ChatCacheError):
    """The prompt does not fit into the context. Raised before anything is committed.

    `num_prompt_tokens` is what was needed, `max_context_tokens` what there is.
    """

    def __init__(self, message: str, *, num_prompt_tokens: int, max_context_tokens: int) -> None:
        super().__init__(message)
        self.num_prompt_tokens = num_prompt_tokens
        self.max_context_tokens = max_context_tokens


class ModelLoadError(ChatCacheError):
    """The model cannot be found, read or used for chat."""


class UnsupportedOptionError(ChatCacheError):
    """An option that this model, device or version does not offer."""


class DataDirLockedError(ChatCacheError):
    """Another chatcache has the data directory open."""


class StorageError(ChatCacheError):
    """The disk or the database failed."""
