"""The page: lays out, binds and calls `ChatService`. No tensor and no SQL in here.

`PageServer` serves it. The browser holds ids only; what is shown comes from the service.
"""

from chatcache.ui.app import PageServer

__all__ = ["PageServer"]
