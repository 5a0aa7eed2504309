"""What a reader sees of a Markdown text: its words without its marks, to be searched, and for a line in a list."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from markdown_it import MarkdownIt
from markdown_it.token import Token

from storage.folding import fold

LONG_CHARACTERS = 4000
"""Of longer texts only the part around what was looked for is read, so that a list of many stays quick."""
NUM_AROUND = 1000

_MARKS = "[*`~]+"
_MARKS_INSIDE = re.compile(rf"(?<=\w){_MARKS}(?=\w)")
_BREAKS = ("softbreak", "hardbreak")
_MARKDOWN = MarkdownIt("commonmark").enable(["table", "strikethrough"])


def searched(text: str) -> str:
    """A folded Markdown text to be searched: as it is written, then its words that have marks inside, without them."""
    folded = fold(text)
    if _MARKS_INSIDE.search(folded) is None:
        return folded
    marked = (word for word in folded.split() if _MARKS_INSIDE.search(word))
    return "\n".join([folded, *(re.sub(_MARKS, "", word) for word in marked)])


def plain_words(text: str, terms: Sequence[str]) -> str:
    """The words of a Markdown text in which the folded `terms` were found.

    Where one of them stands in what a reader does not see (the target of a link), the text as it is written.
    """
    part = _around(text, terms) if len(text) > LONG_CHARACTERS else text
    words = " ".join(_pieces(_MARKDOWN.parse(part)))
    folded, seen = fold(part), fold(words)
    return words if all(term in seen for term in terms if term in folded) else part


def _pieces(tokens: Sequence[Token]) -> Iterator[str]:
    for token in tokens:
        if token.type == "inline":
            yield "".join(" " if child.type in _BREAKS else child.content for child in token.children or ())
        elif token.content:  # a block of code, or of what would be HTML elsewhere
            yield token.content


def _around(text: str, terms: Sequence[str]) -> str:
    """Whole paragraphs, from the one before the first that has the longest of the terms, as far as an excerpt needs."""
    parts = text.split("\n\n")
    places = (at for term in sorted(terms, key=len, reverse=True) for at, p in enumerate(parts) if term in searched(p))
    found = next(places, 0)
    chosen = parts[max(0, found - 1) : found + 1]
    for part in parts[found + 1 :]:
        if sum(map(len, chosen)) > NUM_AROUND:
            break
        chosen.append(part)
    return "\n\n".join(chosen)
