"""Numbers as people read them."""

from __future__ import annotations


def count(number: int, noun: str) -> str:
    """`1 token`, `1,024 tokens`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def size(num_bytes: int) -> str:
    """Binary units with the digits that matter: `812 B`, `45.0 KiB`, `1.2 GiB`."""
    if num_bytes < 1024:
        return f"{num_bytes} B"
    power = min(4, (num_bytes.bit_length() - 1) // 10)
    return f"{num_bytes / 1024**power:.1f} {('KiB', 'MiB', 'GiB', 'TiB')[power - 1]}"


def seconds(value: float) -> str:
    """`85 ms`, `1.4 s`, `2 min 5 s`."""
    if value < 1:
        return f"{value * 1000:.0f} ms"
    if value < 60:
        return f"{value:.1f} s"
    return f"{int(value) // 60} min {int(value) % 60} s"


def speed(tokens_per_s: float) -> str:
    digits = 1 if tokens_per_s < 100 else 0
    return f"{tokens_per_s:.{digits}f} tokens/s"


def percent(part: int, whole: int) -> int:
    """Whole per cent; 100 only when it is all of it, 0 only when it is none of it."""
    if part in (0, whole) or whole == 0:
        return 100 if part and part == whole else 0
    return min(99, max(1, round(100 * part / whole)))
