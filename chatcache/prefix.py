"""A prefix: a leading run of token ids, of text or of messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def common_length(one: Sequence[Any], other: Sequence[Any]) -> int:
    """How many leading elements two sequences have in common."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((index for index, (a, b) in pairs if a != b), min(len(one), len(other)))
