"""`Alignment`: how far a cache held what was wanted of it, and why no further. A value."""

from __future__ import annotations

from dataclasses import dataclass

from chatcache.stats import MissReason


@dataclass(frozen=True, slots=True)
class Alignment:
    """What `SessionCache.align` found. Tokens `[num_cached_tokens, len(wanted))` are left to forward, at least one.

    `mismatch_index` is the index of the first wanted token that could have been cached and was not, `reason` says why;
    both are None where nothing was missed.
    """

    num_cached_tokens: int
    mismatch_index: int | None = None
    reason: MissReason | None = None
