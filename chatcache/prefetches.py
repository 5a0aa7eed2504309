"""`Prefetches`: restores that no turn has asked for yet, and what they have brought until the next turn says so.

It knows the live caches that they fill, and who wants it. It does not know where tokens come from. Used on the model
thread only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from chatcache.session_key import SessionKey

if TYPE_CHECKING:
    from chatcache.live_caches import LiveCaches
    from chatcache.restore import Restore

IsWanted = Callable[[], bool]
"""Whether somebody still waits for what is read ahead. Asked on the model thread, again and again; does not raise."""


@dataclass(frozen=True, slots=True)
class Prefetched:
    """Tokens `[start, end)` of a live cache came from disk before any turn asked for them."""

    start: int
    end: int
    seconds: float

    @property
    def num_tokens(self) -> int:
        return self.end - self.start


class Prefetches:
    """At most one for each session, which goes on while anybody wants it. One whose cache has to leave memory ends by
    that; see `LiveCaches.filling`."""

    def __init__(self, live: LiveCaches) -> None:
        self._live = live
        self._wanted: dict[SessionKey, list[IsWanted]] = {}
        self._prefetched: dict[SessionKey, Prefetched] = {}

    def begin(self, key: SessionKey, restore: Restore, is_wanted: IsWanted) -> None:
        """`restore` fills the session's live cache from now on."""
        self._live.filling[key] = restore
        self._wanted[key] = [is_wanted]

    def join(self, key: SessionKey, is_wanted: IsWanted) -> bool:
        """Want the one that is under way; whether there is one."""
        is_under_way = key in self._live.filling
        if is_under_way:
            self._wanted[key].append(is_wanted)
        return is_under_way

    def step(self, key: SessionKey) -> bool:
        """Take in a little more; whether there is more. The disk is not waited for while turns compute."""
        restore = self._live.filling.get(key)
        is_wanted = any(is_wanted() for is_wanted in self._wanted.get(key, ()))
        if restore is not None and is_wanted and not restore.step(may_wait=not self._live.turns.active):
            return True
        self.end(key)
        return False

    def end(self, key: SessionKey) -> None:
        """The tokens that have come stay, and the next turn is told of them; an empty cache does not. Also where none
        is under way."""
        self._wanted.pop(key, None)
        restore = self._live.filling.pop(key, None)
        if restore is None:
            return
        restore.end()
        if not restore.cache.num_tokens:
            self._live.remove(key)
            return
        self._live.settle(key)
        if restore.num_tokens:
            end = restore.cache.num_tokens
            start, seconds = end - restore.num_tokens, restore.seconds
            before = self._prefetched.get(key)
            if before is not None and before.end == start:
                start, seconds = before.start, before.seconds + seconds
            self._prefetched[key] = Prefetched(start, end, seconds)

    def brought(self, key: SessionKey) -> Prefetched | None:
        """What was brought since the last turn."""
        return self._prefetched.get(key)

    def take(self, key: SessionKey) -> Prefetched | None:
        """What was brought since the last turn; told once."""
        return self._prefetched.pop(key, None)
