"""Durations as people read them, on the page and in sentences: in seconds, always, so that two can be compared."""

from __future__ import annotations


def format_seconds(value: float, second: str = "s", minute: str = "min") -> str:
    """`0.018 s`, `0.35 s`, `1.4 s`, `2 min 5 s`. `second`, `minute`: what they are called."""
    if value < 1:
        return f"{round(value, 3):.2g} {second}"
    if value < 60:
        return f"{value:.1f} {second}"
    return f"{int(value) // 60} {minute} {int(value) % 60} {second}"
