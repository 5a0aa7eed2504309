"""What a person typed or pasted, made safe for tokenizers and databases without losing anything meant."""

from __future__ import annotations

import re

from chatcache.errors import InvalidInputError

_LINE_ENDS = re.compile(r"\r\n?")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_SURROGATE = re.compile(r"[\ud800-\udfff]")
_TITLE_CHARACTERS = 60


def clean_text(text: str) -> str:
    """Line ends become newlines, lone surrogates U+FFFD; control characters other than tab and newline go."""
    return _SURROGATE.sub("\ufffd", _CONTROL.sub("", _LINE_ENDS.sub("\n", text)))


def clean_message(text: str) -> str:
    """A message to send, cleaned. Raises InvalidInputError when nothing visible is left."""
    cleaned = clean_text(text)
    if not cleaned.strip():
        raise InvalidInputError("The message is empty. Type something to send.")
    return cleaned


def clean_title(title: str) -> str:
    """One line, no longer than a list can show."""
    return " ".join(clean_text(title).split())[:200]


def title_from(text: str) -> str:
    """A title made from the first message: its first line with words in it, cut between words."""
    line = next((" ".join(line.split()) for line in text.splitlines() if line.strip()), "")
    if len(line) <= _TITLE_CHARACTERS:
        return line
    cut = line[:_TITLE_CHARACTERS]
    head, _, _ = cut.rpartition(" ")
    return (head or cut) + "…"
