"""Many values, some at a time: no database takes any number of them in one statement."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

T = TypeVar("T")
AT_ONCE = 500


def in_batches(values: Sequence[T], at_once: int = AT_ONCE) -> Iterator[Sequence[T]]:
    """All of them in order, at most `at_once` together; nothing where there are none."""
    for first in range(0, len(values), at_once):
        yield values[first : first + at_once]
