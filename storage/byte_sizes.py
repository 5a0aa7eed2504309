"""Sizes in bytes as people read them, on the page and in a terminal: in binary units, always."""

from __future__ import annotations


def format_size(num_bytes: int) -> str:
    """`812 B`, `45.0 KiB`, `1,012.4 MiB`, `1.2 GiB`."""
    if abs(num_bytes) < 1024:
        return f"{num_bytes} B"
    power = min(4, (abs(num_bytes).bit_length() - 1) // 10)
    return f"{num_bytes / 1024**power:,.1f} {('KiB', 'MiB', 'GiB', 'TiB')[power - 1]}"
