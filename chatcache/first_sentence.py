"""What an exception of a library says, as one sentence for people."""

from __future__ import annotations

import re

MOST_CHARACTERS = 300
"""Some errors list every architecture or every tensor there is."""

_ENDED = re.compile(r"[.!?…][\"'`”’)\]]*$")
_GOES_ON_AFTER = re.compile(r"([:,;]|\b(?:and|or|of))$")
_GOES_ON_WITH = re.compile(r"[a-z(]")
_WHOLE_SENTENCES = re.compile(rf".{{1,{MOST_CHARACTERS}}}[.!?](?= [A-Z])")


def first_sentence(error: BaseException) -> str:
    """Its first line that is not empty, and with it the next ones as long as they are the same sentence."""
    text = f"KeyError: {error}" if isinstance(error, KeyError) else str(error)  # else no more than the key
    lines = [line.strip() for line in text.splitlines() if line.strip()] or [type(error).__name__]
    sentence = lines[0]
    for line in lines[1:]:
        if _ENDED.search(sentence) or not (_GOES_ON_AFTER.search(sentence) or _GOES_ON_WITH.match(line)):
            break
        sentence = f"{sentence} {line}"
    sentence = _shortened(sentence).rstrip(":,; ")
    return sentence if _ENDED.search(sentence) else f"{sentence}."


def _shortened(text: str) -> str:
    if len(text) <= MOST_CHARACTERS:
        return text
    whole = _WHOLE_SENTENCES.match(text)
    return whole[0] if whole else f"{text[:MOST_CHARACTERS].rstrip()}…"
