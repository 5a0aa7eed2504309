"""`ChangeBoard`: which version each session has reached, for windows that wait to hear of it."""

from __future__ import annotations

import threading

from chatcache.session_key import SessionKey


class ChangeBoard:
    """Session → newest version known to this process (which holds the data directory alone). Thread-safe."""

    def __init__(self) -> None:
        self._versions: dict[SessionKey, int] = {}
        self._changed = threading.Condition()
        self._closed = False

    def publish(self, key: SessionKey, version: int) -> None:
        """Tell everybody who waits that the session has reached `version`."""
        with self._changed:
            self._versions[key] = max(version, self._versions.get(key, 0))
            self._changed.notify_all()

    def wait(self, key: SessionKey, *, since: int, timeout_s: float | None) -> int:
        """Wait until the version is above `since`, the time is over, or the board closes; return the newest."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._versions.get(key, 0) > since, timeout_s)
            return max(since, self._versions.get(key, 0))

    def newest(self, key: SessionKey) -> int:
        """The newest version anybody was told of; 0 when nobody was told of any."""
        with self._changed:
            return self._versions.get(key, 0)

    @property
    def is_closed(self) -> bool:
        return self._closed

    def close(self) -> None:
        """Let every waiter go."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
