"""How many examples a property is tried on: a quarter where slow tests are left out."""

from __future__ import annotations

from hypothesis import settings

MOST = 100


def examples(num: int) -> int:
    """`num` of them, where all are wanted. `conftest` has said by then whether they are."""
    return max(1, num * settings().max_examples // MOST)
