"""Sizes in bytes as people write them: in decimal units, or in binary ones where the unit says so."""

from __future__ import annotations

import re

from chatcache.errors import InvalidInputError

_UNITS = {"": 1, "B": 1} | {
    name: base**power
    for power, letter in enumerate("KMGT", start=1)
    for name, base in ((letter, 1000), (f"{letter}B", 1000), (f"{letter}IB", 1024))
}


def parse_size(text: str) -> int:
    """Bytes in a text such as "16GB", "15.5 GiB" or "4000000000". Raises InvalidInputError."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]*)\s*", text)
    if match is None or match[2].upper() not in _UNITS:
        raise InvalidInputError(f"{text!r} is no size. Write it like 16GB, 15.5GiB or 800MB.")
    return int(float(match[1]) * _UNITS[match[2].upper()])
