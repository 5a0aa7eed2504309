"""Sizes in bytes, as people write and read them: decimal units, or binary ones where the unit says so."""

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


def format_size(num_bytes: int) -> str:
    """Three significant digits in decimal units: "23.0 KB", "4.29 GB"."""
    value, unit = float(num_bytes), "B"
    for larger in ("KB", "MB", "GB", "TB"):
        if abs(value) < 999.5:
            break
        value, unit = value / 1000, larger
    if unit == "B":
        return f"{num_bytes} B"
    decimals = 2 if abs(value) < 9.995 else 1 if abs(value) < 99.95 else 0
    return f"{value:.{decimals}f} {unit}"
