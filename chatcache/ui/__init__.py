"""The page: lays out, binds and calls `ChatService`. No tensor and no SQL in here.

`build_app` makes the page, `launch` serves it. The browser holds ids only; what is shown comes from the service.
"""

from chatcache.ui.app import build_app, launch

__all__ = ["build_app", "launch"]
