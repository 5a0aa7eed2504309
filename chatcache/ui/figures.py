"""Numbers as people read them, in one language's notation."""

from __future__ import annotations

import re

from storage.byte_sizes import format_size
from storage.durations import format_seconds

_BEFORE_UNIT = re.compile(r"(?<=\d) (?=(?:%|B|[KMGT]iB|s|sn|min|dk|tokens?(?:/sn?)?)(?!\w))")


def unbroken(sentence: str) -> str:
    """With no space between a number and its unit at which a line may end."""
    return _BEFORE_UNIT.sub("\N{NO-BREAK SPACE}", sentence)


class Figures:
    """English notation. A language that writes numbers otherwise overrides the class attributes, and `tokens`."""

    THOUSANDS = ","
    POINT = "."
    TOKENS_PER_S = "tokens/s"
    SECONDS = "s"
    MINUTES = "min"

    def number(self, value: float, digits: int = 0) -> str:
        """`1,024`, with `digits` behind the point."""
        return self._in_notation(f"{value:,.{digits}f}")

    def tokens(self, num_tokens: int) -> str:
        """`1 token`, `1,024 tokens`."""
        return unbroken(f"{self.number(num_tokens)} {'token' if num_tokens == 1 else 'tokens'}")

    def size(self, num_bytes: int) -> str:
        """As `format_size` writes it: `812 B`, `45.0 KiB`, `1.2 GiB`."""
        return self._in_notation(format_size(num_bytes))

    def _in_notation(self, written: str) -> str:
        return unbroken(written.translate({ord(","): self.THOUSANDS, ord("."): self.POINT}))

    def seconds(self, value: float) -> str:
        """As `format_seconds` writes it: `0.018 s`, `1.4 s`, `2 min 5 s`."""
        return self._in_notation(format_seconds(value, self.SECONDS, self.MINUTES))

    def whole_seconds(self, value: float) -> str:
        """`0 s`, `12 s`: of something that still goes on."""
        return unbroken(f"{self.number(int(value))} {self.SECONDS}")

    def speed(self, tokens_per_s: float) -> str:
        """`12.7 tokens/s`."""
        return unbroken(f"{self.number(tokens_per_s, 1 if tokens_per_s < 100 else 0)} {self.TOKENS_PER_S}")

    def share(self, value: float) -> str:
        """`85 %` of 0.85."""
        return unbroken(f"{self.number(100 * value)} %")

    @staticmethod
    def percent(part: int, whole: int) -> int:
        """Whole per cent; 100 only when it is all of it, 0 only when it is none of it."""
        if part in (0, whole) or whole == 0:
            return 100 if part and part == whole else 0
        return min(99, max(1, round(100 * part / whole)))
