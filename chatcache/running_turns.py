"""`RunningTurns`: the turns that have a cache, in the order in which they began, and which of them wait for memory.

Where two do not fit into memory together, the one that began last gives way and goes on later. Plain bookkeeping: it
knows keys, no cache and no budget. Used on the model thread only.
"""

from __future__ import annotations

from collections.abc import Iterator

from chatcache.session_key import SessionKey


class RunningTurns:
    """At most one turn for each key. A turn that waits uses its cache no more; it may leave memory meanwhile."""

    def __init__(self) -> None:
        self._is_waiting: dict[SessionKey, bool] = {}
        self._asked: set[SessionKey] = set()
        self._may_try: set[SessionKey] = set()

    def __contains__(self, key: object) -> bool:
        return key in self._is_waiting

    def __iter__(self) -> Iterator[SessionKey]:
        return iter(self._is_waiting)

    @property
    def active(self) -> tuple[SessionKey, ...]:
        """Those that do not wait, the one that began first before the others."""
        return tuple(key for key, is_waiting in self._is_waiting.items() if not is_waiting)

    def begin(self, key: SessionKey) -> None:
        self._is_waiting[key] = False

    def end(self, key: SessionKey) -> None:
        """Also where there is none. Those that wait may try to go on."""
        self._is_waiting.pop(key, None)
        self._asked.discard(key)
        self._may_try = {other for other, is_waiting in self._is_waiting.items() if is_waiting}

    def is_waiting(self, key: SessionKey) -> bool:
        return self._is_waiting.get(key, False)

    def may_try(self, key: SessionKey) -> bool:
        """Whether another one has ended since it waits, so that there may be room."""
        return key in self._may_try

    def is_first(self, key: SessionKey) -> bool:
        """Whether none began before it."""
        return next(iter(self._is_waiting), None) == key

    def make_way(self, key: SessionKey) -> None:
        """`key` does not fit beside the other active turns: the one that began last waits from now on, where it is
        `key`, else from its own next step on; see `is_asked`."""
        last = self.active[-1]
        if last == key:
            self.wait(key)
        else:
            self._asked.add(last)

    def is_asked(self, key: SessionKey) -> bool:
        """Whether it is to give way."""
        return key in self._asked

    def wait(self, key: SessionKey) -> None:
        self._asked.discard(key)
        self._may_try.discard(key)
        self._is_waiting[key] = True

    def go_on(self, key: SessionKey) -> None:
        self._is_waiting[key] = False
