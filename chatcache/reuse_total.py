"""`ReuseTotal`: what the cache saved in a chat, all of its turns together, on whatever branch: saved is saved.

Pure: it adds up what the turns reported. Turns that reported nothing (interrupted, made elsewhere) count as nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from chatcache.stats import TurnStats

FEWEST_TO_TELL_A_SPEED = 256
"""Fewer tokens read at once tell little: what a turn takes besides is most of their time."""


@dataclass(frozen=True, slots=True)
class ReuseTotal:
    """The prompts of `num_turns` turns had `num_prompt_tokens`, `num_reused_tokens` of which were not read again.

    `saved_s`: what reading them would have taken at the highest speed with which this chat was read, less the time that
    fetching from disk took; None where the chat was never read in a piece large enough to tell, and where nothing was
    saved.
    """

    num_turns: int = 0
    num_prompt_tokens: int = 0
    num_reused_tokens: int = 0
    saved_s: float | None = None

    @classmethod
    def of(cls, turns: Iterable[TurnStats]) -> ReuseTotal:
        counted = [stats for stats in turns if stats.num_prompt_tokens]
        num_reused = sum(stats.num_cached_tokens for stats in counted)
        return cls(
            num_turns=len(counted),
            num_prompt_tokens=sum(stats.num_prompt_tokens for stats in counted),
            num_reused_tokens=num_reused,
            saved_s=_saved_s(num_reused, counted),
        )


def _saved_s(num_reused: int, turns: Iterable[TurnStats]) -> float | None:
    restored_s, seconds_per_token = 0.0, None
    for stats in turns:
        restored_s += stats.restore_s or 0.0
        if stats.prefill_s and stats.num_computed_tokens >= FEWEST_TO_TELL_A_SPEED:
            now = stats.prefill_s / stats.num_computed_tokens
            seconds_per_token = now if seconds_per_token is None else min(seconds_per_token, now)
    if seconds_per_token is None:
        return None
    saved_s = num_reused * seconds_per_token - restored_s
    return saved_s if saved_s > 0 else None
