"""What goes wrong inside a cache. It never reaches a person: the engine repairs the cache and goes on."""

from __future__ import annotations

from chatcache.errors import ChatCacheError


class CacheStateError(ChatCacheError):
    """A cache's layers and its token ids do not agree, or it was asked for tokens it cannot give, keep or take."""
