"""`Acquired`: a cache as a turn gets it, with where its tokens came from. A value."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field

from chatcache.cache.alignment import Alignment
from chatcache.cache.session_cache import SessionCache
from chatcache.live_caches import Spilled
from chatcache.restore import Restore
from chatcache.stats import Reuse


@dataclass(frozen=True, slots=True)
class Acquired:
    """A session's cache, aligned to the ids a turn wants, and where its tokens came from.

    `restore`: more is perhaps on disk; when it has ended, `restored` says what came of it. `restore_s`: how long
    reading from disk took; None where nothing came from there. `problem`: what was wrong with it, as a sentence.
    `spilled`: what had to leave. `is_converted`: what it holds was taken over from another kind. `is_shortened`: there
    would have been no room for all of it, so layers with a window keep less from now on.
    """

    cache: SessionCache
    alignment: Alignment
    reuse: tuple[Reuse, ...]
    restore_s: float | None = None
    spilled: Spilled = field(default_factory=Spilled)
    restore: Restore | None = None
    problem: str | None = None
    is_converted: bool = False
    is_shortened: bool = False

    def restored(self) -> Acquired:
        """With what its restore, which has ended, has added."""
        restore = self.restore
        if restore is None:
            return self
        if not restore.num_tokens:
            return dataclasses.replace(self, restore=None, problem=restore.problem)
        return dataclasses.replace(
            self,
            alignment=dataclasses.replace(self.alignment, num_cached_tokens=self.cache.num_tokens),
            reuse=joined_reuse((*self.reuse, Reuse("disk", restore.num_tokens))),
            restore_s=(self.restore_s or 0.0) + restore.seconds,
            restore=None,
            problem=restore.problem,
        )


def joined_reuse(reuse: Sequence[Reuse]) -> tuple[Reuse, ...]:
    """One entry for each source, without those that gave nothing."""
    sources = dict.fromkeys(one.source for one in reuse)
    totals = (Reuse(source, sum(one.num_tokens for one in reuse if one.source == source)) for source in sources)
    return tuple(total for total in totals if total.num_tokens)
