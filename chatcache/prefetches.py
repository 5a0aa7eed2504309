"""`Prefetches`: restores that no turn has asked for yet, and what they have brought until the next turn says so.

It knows the live caches that they fill. It does not know where tokens come from. Used on the model thread only.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING

from chatcache.session_key import SessionKey

if TYPE_CHECKING:
    from chatcache.live_caches import LiveCaches
    from chatcache.restore import Restore


class Prefetch(Enum):
    """How far a prefetch is."""

    ENDED = auto()
    UNDER_WAY = auto()
    """`prefetch_more` goes on."""
    LACKS_ROOM = auto()
    """There may be some once all that is on its way to disk is written."""


@dataclass(frozen=True, slots=True)
class Prefetched:
    """Tokens `[start, end)` of a live cache came from disk before any turn asked for them."""

    start: int
    end: int
    seconds: float


class Prefetches:
    """At most one for each session. One whose cache has to leave memory ends by that; see `LiveCaches.filling`."""

    def __init__(self, live: LiveCaches) -> None:
        self._live = live
        self._prefetched: dict[SessionKey, Prefetched] = {}

    def begin(self, key: SessionKey, restore: Restore) -> None:
        """`restore` fills the session's live cache from now on."""
        self._live.filling[key] = restore

    def step(self, key: SessionKey) -> bool:
        """Take in a little more; whether there is more. The disk is not waited for while turns compute."""
        restore = self._live.filling.get(key)
        if restore is None or not restore.step(may_wait=not self._live.turns.active):
            return restore is not None
        self.end(key)
        return False

    def end(self, key: SessionKey) -> None:
        """The tokens that have come stay, and the next turn is told of them. Also where none is under way."""
        restore = self._live.filling.pop(key, None)
        if restore is not None:
            restore.end()
            self._live.settle(key)
            end = restore.cache.num_tokens
            if restore.num_tokens:
                self._prefetched[key] = Prefetched(end - restore.num_tokens, end, restore.seconds)

    def take(self, key: SessionKey) -> Prefetched | None:
        """What was brought since the last turn; told once."""
        return self._prefetched.pop(key, None)
