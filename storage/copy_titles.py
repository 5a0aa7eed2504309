"""Titles of copies: the original's with a number behind it, as copies of files have it, which every language reads."""

from __future__ import annotations

import re
from collections.abc import Iterable

_NUMBERED = re.compile(r"(.*\S) \(([2-9]|[1-9]\d{1,2})\)", re.DOTALL)
"""Up to three digits: four are a year."""


def split_number(title: str) -> tuple[str, int]:
    """`Notes (3)` is the third of `Notes`, and `Notes` the first."""
    numbered = _NUMBERED.fullmatch(title)
    return (title, 1) if numbered is None else (numbered[1], int(numbered[2]))


def next_title(title: str, taken: Iterable[str]) -> str:
    """The title of one more copy, where the titles `taken` are there already; none of what has none."""
    if not title:
        return title
    name, number = split_number(title)
    numbers = [other for its_name, other in map(split_number, taken) if its_name == name]
    return f"{name} ({max([number, *numbers]) + 1})"
