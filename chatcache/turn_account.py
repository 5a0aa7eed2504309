"""`TurnAccount`: what one turn has read, computed again and written so far, and when: the figures of its stats.

It knows counts and clocks. It does not know caches, ids or what is said.
"""

from __future__ import annotations

import time

from chatcache.stats import TurnStats


class TurnAccount:
    """`num_fed`: ids `[0, num_fed)` were reused or went into a forward at least once, even into one that failed.
    `num_runs`: forwards that gave tokens, one of its own each; the others had been guessed. `submitted_s` (of
    `time.perf_counter`) is when the person asked."""

    def __init__(self, num_prompt_tokens: int, submitted_s: float) -> None:
        self.num_prompt_tokens = num_prompt_tokens
        self.num_fed = 0
        self.num_recomputed_tokens = 0
        self.num_sampled_tokens = 0
        self.num_runs = 0
        self._submitted_s = submitted_s
        self._began_s = self._first_token_s = self._last_token_s = 0.0

    def begin(self) -> None:
        """The turn has left the queue."""
        self._began_s = time.perf_counter()

    def feed(self, start: int, stop: int) -> None:
        """Ids `[start, stop)` go into a forward."""
        self.num_recomputed_tokens += max(0, min(stop, self.num_fed) - start)
        self.num_fed = max(self.num_fed, stop)

    def sample(self) -> None:
        """A token was chosen."""
        self._last_token_s = time.perf_counter()
        self.num_sampled_tokens += 1
        if self.num_sampled_tokens == 1:
            self._first_token_s = self._last_token_s

    def stats(self, num_cached_tokens: int) -> TurnStats:
        """The counts and times. A prompt that was not read to its end counts as far as it was read."""
        num_read = min(self.num_fed, self.num_prompt_tokens)
        decode_s = self._last_token_s - self._first_token_s
        has_token = self.num_sampled_tokens > 0
        return TurnStats(
            num_prompt_tokens=num_read,
            num_cached_tokens=num_cached_tokens,
            num_computed_tokens=num_read - num_cached_tokens,
            num_recomputed_tokens=self.num_recomputed_tokens,
            num_completion_tokens=self.num_sampled_tokens,
            num_accepted_tokens=self.num_sampled_tokens - self.num_runs,
            ttft_s=self._first_token_s - self._submitted_s if has_token else None,
            prefill_s=self._first_token_s - self._began_s if has_token else None,
            decode_tokens_per_s=(self.num_sampled_tokens - 1) / decode_s if decode_s > 0 else None,
        )
