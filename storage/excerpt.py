"""The piece of a text in which something was found, and where in it: as a value, for any page to show."""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from storage.folding import fold

NUM_BEFORE, NUM_CHARACTERS = 40, 160


@dataclass(frozen=True, slots=True)
class Piece:
    """Some words; `is_hit`: what was looked for, as it was written."""

    text: str
    is_hit: bool = False


Excerpt = tuple[Piece, ...]
"""The pieces in order. Their texts joined are the excerpt."""


def excerpt_of(text: str, terms: Sequence[str]) -> Excerpt:
    """Some characters around the first place where the longest of the folded `terms` stands, every hit in them apart.

    White space counts as one space. Where no term stands in the text, its beginning.
    """
    text = unicodedata.normalize("NFC", " ".join(text.split()))
    folded = fold(text)
    found = next((at for term in sorted(terms, key=len, reverse=True) if (at := folded.find(term)) >= 0), 0)
    # How many characters fold to no more than those before the hit.
    hit = bisect_right(range(len(text)), found, key=lambda length: len(fold(text[:length]))) - 1
    start, end = _cut(text, hit)
    before, after = (Piece("…") if is_cut else None for is_cut in (start > 0, end < len(text)))
    return tuple(piece for piece in (before, *marked(text[start:end], terms), after) if piece)


def marked(text: str, terms: Sequence[str]) -> Excerpt:
    """The whole text, with every place where one of the folded `terms` stands apart."""
    folded = [(letter, place) for place, character in enumerate(text) for letter in fold(character)]
    wanted = "|".join(map(re.escape, sorted(terms, key=len, reverse=True)))
    pieces: list[Piece] = []
    done = 0
    for hit in re.finditer(wanted, "".join(letter for letter, _ in folded)) if wanted else ():
        start = max(done, folded[hit.start()][1])
        end = folded[hit.end() - 1][1] + 1
        end += next((n for n, mark in enumerate(text[end:]) if fold(mark)), len(text) - end)
        if end <= start:
            continue
        pieces += [Piece(text[done:start]), Piece(text[start:end], is_hit=True)]
        done = end
    return tuple(piece for piece in (*pieces, Piece(text[done:])) if piece.text)


def _cut(text: str, hit: int) -> tuple[int, int]:
    """Where the excerpt begins and ends: between words, where one ends near enough."""
    start = max(0, hit - NUM_BEFORE)
    if start:
        start = text.find(" ", start, hit) + 1 or start
    end = min(len(text), start + NUM_CHARACTERS)
    if end < len(text):
        end = max(text.rfind(" ", hit + NUM_CHARACTERS // 2, end), 0) or end
    return start, end
