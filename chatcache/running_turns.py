"""`RunningTurns`: the turns that have a cache, in the order in which they began, and what each does just now.

Where two do not fit into memory together, the one that began last gives way and goes on later. Plain bookkeeping: it
knows keys, no cache and no budget. Used on the model thread only.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum, auto

from chatcache.session_key import SessionKey


class Doing(Enum):
    """What a turn does."""

    COMPUTES = auto()
    RESTORES = auto()
    """Its cache is filled from disk."""
    LACKS_ROOM = auto()
    """It asked another one to give way and computes nothing before."""
    WAITS = auto()
    """For memory: it has given way itself."""


class RunningTurns:
    """At most one turn for each key. A turn that waits uses its cache no more; it may leave memory meanwhile."""

    def __init__(self) -> None:
        self._doing: dict[SessionKey, Doing] = {}
        self._asked: set[SessionKey] = set()
        self._may_try: set[SessionKey] = set()

    def __contains__(self, key: object) -> bool:
        return key in self._doing

    def __iter__(self) -> Iterator[SessionKey]:
        return iter(self._doing)

    @property
    def active(self) -> tuple[SessionKey, ...]:
        """Those that do not wait, the one that began first before the others."""
        return tuple(key for key, doing in self._doing.items() if doing is not Doing.WAITS)

    def begin(self, key: SessionKey) -> None:
        self._doing[key] = Doing.COMPUTES

    def end(self, key: SessionKey) -> None:
        """Also where there is none. Those that wait may try to go on; those that were asked to need not wait, unless
        somebody who still lacks room asks again."""
        self._doing.pop(key, None)
        self._asked.clear()
        self._may_try = {other for other in self._doing if self.is_waiting(other)}

    def is_waiting(self, key: SessionKey) -> bool:
        return self._doing.get(key) is Doing.WAITS

    def may_try(self, key: SessionKey) -> bool:
        """Whether another one has ended since it waits, so that there may be room."""
        return key in self._may_try

    def is_first(self, key: SessionKey) -> bool:
        """Whether none began before it."""
        return next(iter(self._doing), None) == key

    def make_way(self, key: SessionKey) -> None:
        """`key` does not fit beside the other active turns: the one that began last waits from now on, where it is
        `key`, else from its own next step on; see `is_asked`. `key` lacks room until it can `go_on`."""
        last = self.active[-1]
        if last == key:
            self.wait(key)
        else:
            self._asked.add(last)
            self._doing[key] = Doing.LACKS_ROOM

    def is_asked(self, key: SessionKey) -> bool:
        """Whether it is to give way."""
        return key in self._asked

    def wait(self, key: SessionKey) -> None:
        self._asked.discard(key)
        self._may_try.discard(key)
        self._doing[key] = Doing.WAITS

    def restore(self, key: SessionKey) -> None:
        self._doing[key] = Doing.RESTORES

    def may_wait_for_disk(self, key: SessionKey) -> bool:
        """Whether nobody is kept from computing where `key`, which restores, waits for the disk."""
        return all(doing is not Doing.COMPUTES for other, doing in self._doing.items() if other != key)

    def go_on(self, key: SessionKey) -> None:
        """With computing."""
        self._doing[key] = Doing.COMPUTES
