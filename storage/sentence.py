"""Sentences for people, which a page in another language can say in its own words.

What may be told is listed where it comes from: in `storage.told` for files and saves, in `chatcache.told` for caches
and models, in `chatcache.errors` for what is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Fact = int | float | str
"""A number, a name, or a sentence."""

MOST_FACTS = 8
DEEPEST = 3


class Sentence(str):
    """A sentence in English. `reason` says which one, `facts` what stands in it; without a reason it is just told."""

    reason: str | None
    facts: Mapping[str, Fact]

    def __new__(cls, text: str, reason: str | None = None, **facts: Fact) -> Sentence:
        made = super().__new__(cls, text)
        made.reason, made.facts = reason, facts
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        return _remade, (str(self), self.reason, dict(self.facts))


def _remade(text: str, reason: str | None, facts: Mapping[str, Fact]) -> Sentence:
    return Sentence(text, reason, **facts)


def sentence_to_json(sentence: str) -> Any:
    """As plain JSON values: the bare text where there is no more to it."""
    if not isinstance(sentence, Sentence) or sentence.reason is None:
        return str(sentence)
    facts = {name: sentence_to_json(fact) if isinstance(fact, str) else fact for name, fact in sentence.facts.items()}
    return {"text": str(sentence), "reason": str(sentence.reason), "facts": facts}


def sentence_from_json(data: Any, deepest: int = DEEPEST) -> str:
    """From stored values. What is damaged of its facts is left out. Raises TypeError where there is no text."""
    if isinstance(data, str):
        return data
    if not isinstance(data, dict) or not isinstance(data.get("text"), str) or not deepest:
        raise TypeError(data)
    reason, stored = data.get("reason"), data.get("facts")
    if not isinstance(reason, str) or not isinstance(stored, dict):
        return str(data["text"])
    facts = {
        str(name): sentence_from_json(fact, deepest - 1) if isinstance(fact, dict) else fact
        for name, fact in list(stored.items())[:MOST_FACTS]
        if isinstance(fact, int | float | str | dict)
    }
    return _remade(data["text"], reason, facts)
