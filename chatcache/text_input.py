"""What a person typed or pasted, made safe for tokenizers and databases without losing anything meant."""

from __future__ import annotations

import re
from collections.abc import Iterator

import regex  # type: ignore[import-untyped, unused-ignore]

from chatcache.attached import parts_of
from chatcache.errors import InvalidInputError, Reason

_LINE_ENDS = re.compile(r"\r\n?")
_PLANE_ENDS = range(0xFFFE, 0x110000, 0x10000)
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_SURROGATE = re.compile(r"[\ud800-\udfff]")
_NONCHARACTER = re.compile("[\ufdd0-\ufdef" + "".join(f"{chr(end)}{chr(end + 1)}" for end in _PLANE_ENDS) + "]")
_DIRECTION = re.compile("[\u202a-\u202e\u2066-\u2069]")
"""Marks that turn the direction of what stands beside them: in a list, of other titles and of dates."""
_INVISIBLE = regex.compile(r"[\s\p{Default_Ignorable_Code_Point}]*")
_TITLE_CHARACTERS = 60
_QUERY_CHARACTERS = 1000


def clean_text(text: str) -> str:
    """Line ends become newlines, lone surrogates U+FFFD; control characters other than tab and newline go, and so do
    Unicode's noncharacters. Raises InvalidInputError for what is no text."""
    if not isinstance(text, str):
        raise InvalidInputError(f"Text is expected here, not {type(text).__name__}.")
    return _SURROGATE.sub("\ufffd", _NONCHARACTER.sub("", _CONTROL.sub("", _LINE_ENDS.sub("\n", text))))


def clean_message(text: str) -> str:
    """A message to send, cleaned. Raises InvalidInputError when nothing visible is left."""
    cleaned = clean_text(text)
    if not _is_visible(cleaned):
        raise InvalidInputError("The message is empty. Type something to send.", Reason.EMPTY_MESSAGE)
    return cleaned


def clean_title(title: str) -> str:
    """One line, no longer than a list can show, that changes nothing beside it."""
    return " ".join(_DIRECTION.sub("", clean_text(title)).split())[:200]


def clean_query(query: str | None) -> str | None:
    """What is searched for, no longer than a database compares; None where nothing is."""
    return clean_text(query or "").strip()[:_QUERY_CHARACTERS] or None


def title_from(text: str) -> str:
    """A title made from the first message: its first line with words in it, cut between words. Files in it do not count
    where the person wrote anything besides."""
    written = "\n".join(part for part in parts_of(text) if isinstance(part, str))
    lines = (written if _is_visible(written) else text).splitlines()
    line = next((clean_title(line) for line in lines if _is_visible(line)), "")
    if len(line) <= _TITLE_CHARACTERS:
        return line
    cut = line[:_TITLE_CHARACTERS]
    head, _, _ = cut.rpartition(" ")
    return (head or cut) + "…"


def _is_visible(text: str) -> bool:
    """Whether anything shows: not only space, zero-width characters, fillers, marks of direction."""
    return _INVISIBLE.fullmatch(text) is None


def pieces(text: str, length: int = 16_384) -> Iterator[str]:
    """The text in pieces of about `length` characters, parted where a line ends if one does."""
    start = 0
    while len(text) - start > length:
        end = text.rfind("\n", start, start + length) + 1 or start + length
        yield text[start:end]
        start = end
    yield text[start:]
