"""How many attention scores are held at once: what attention keeps to, and a plan counts with."""

from __future__ import annotations

MAX_SCORES = 2**24
"""More would take too much memory."""
_BLOCK_TOKENS = 128
"""So many queries are multiplied at once: few enough to leave out most of what none of them sees."""


def block_tokens(num_heads: int, num_keys: int) -> int:
    """How many tokens' queries, of so many heads each, are multiplied with so many keys at once: one at least."""
    return max(1, min(_BLOCK_TOKENS, MAX_SCORES // max(1, num_heads * num_keys)))
