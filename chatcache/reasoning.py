"""Reasoning in a reply: the tags that stand around it, and which of the reply's ids are reasoning, which the answer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from chatcache.decoded_ids import DecodedIds
from chatcache.token_text import TokenText


@dataclass(frozen=True, slots=True)
class ReasoningTags:
    """What stands around the reasoning in a reply."""

    opening: str = "<think>"
    closing: str = "</think>"


_KNOWN_TAGS = (
    ReasoningTags(),
    ReasoningTags("<thinking>", "</thinking>"),
    ReasoningTags("<reasoning>", "</reasoning>"),
    ReasoningTags("<seed:think>", "</seed:think>"),
    ReasoningTags("[THINK]", "[/THINK]"),
    ReasoningTags("<|START_THINKING|>", "<|END_THINKING|>"),
)


def find_reasoning_tags(template: str, added_tokens: Iterable[str]) -> ReasoningTags:
    """The tags that this template or this tokenizer names; `<think>` where neither names any."""
    added = set(added_tokens)
    for tags in _KNOWN_TAGS:
        if {tags.opening, tags.closing} <= added or (tags.opening in template and tags.closing in template):
            return tags
    return ReasoningTags()


@dataclass(frozen=True, slots=True)
class ReasoningSplit:
    """The ids of a reply from its reasoning's first character on, and from its answer's first character on."""

    from_reasoning: tuple[int, ...]
    after_reasoning: tuple[int, ...]


def split_reasoning_ids(
    tokens: TokenText, tags: ReasoningTags, token_ids: Sequence[int], *, starts_in_reasoning: bool
) -> ReasoningSplit:
    """Where a template rewrites reasoning, the ids that remain to be spliced in.

    A reply without reasoning is all answer; one that was stopped inside its reasoning has no answer.
    """
    decoded = DecodedIds(tokens)
    text = "".join([decoded.push(token_id) for token_id in token_ids])
    begin = 0
    if not starts_in_reasoning:
        begin = len(text) - len(text.lstrip())
        if not text.startswith(tags.opening, begin):
            return ReasoningSplit(tuple(token_ids), tuple(token_ids))
        begin += len(tags.opening)
    end = text.find(tags.closing, begin)
    from_reasoning = tuple(decoded.ids_from(_skip_space(text, begin)))
    if end < 0:
        return ReasoningSplit(from_reasoning, ())
    return ReasoningSplit(from_reasoning, tuple(decoded.ids_from(_skip_space(text, end + len(tags.closing)))))


def _skip_space(text: str, start: int) -> int:
    return start + len(text[start:]) - len(text[start:].lstrip())
