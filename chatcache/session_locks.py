"""`SessionLocks`: one lock for each session, under which it is changed."""

from __future__ import annotations

import threading
import weakref

from chatcache.session_key import SessionKey


class SessionLocks:
    """Thread-safe. A lock lives while somebody holds or awaits it."""

    def __init__(self) -> None:
        self._locks: weakref.WeakValueDictionary[SessionKey, SessionLock] = weakref.WeakValueDictionary()
        self._lock = threading.Lock()

    def of(self, key: SessionKey) -> SessionLock:
        """That of an owner's session, whether it exists or not. What another owner holds is another one."""
        with self._lock:
            return self._locks.setdefault(key, SessionLock())


class SessionLock:
    """A re-entrant lock that can be weakly referenced."""

    def __init__(self) -> None:
        self._lock = threading.RLock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *exc: object) -> None:
        self._lock.release()
