"""Token ids → the text of a reply, as they are sampled: whole characters, without stop strings and reasoning tags.

Knows bytes, characters, stop strings and reasoning tags. Does not know the model, templates or the cache. What a pushed
id costs does not depend on how long the reply already is.

    ids → DecodedIds (code points) → _StopMatcher → _Splitter (reasoning | answer, whole characters) → pieces
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass

import regex  # type: ignore[import-untyped, unused-ignore]

from chatcache.decoded_ids import DecodedIds
from chatcache.reasoning import ReasoningTags
from chatcache.token_text import TokenText

_MAX_HELD_CHARACTER = 64
"""Code points after which a character is let go unfinished: stacked marks must not stop the stream."""


@dataclass(frozen=True, slots=True)
class TextPiece:
    """New text of a reply, in whole characters. `is_reasoning`: it stands inside the reasoning tags."""

    text: str
    is_reasoning: bool = False


@dataclass(frozen=True, slots=True)
class StreamedReply:
    """A reply as it stands if nothing more is sampled.

    `pieces` are those that `push` still holds back; `text` and `reasoning` (None: no reasoning tag was met) are whole.
    `token_ids` are the ids of what is visible, tags included: cut at a stop string and before incomplete UTF-8. Where
    such a cut falls inside a token, the visible part of that token is encoded anew; bytes that are no text are kept.
    """

    pieces: tuple[TextPiece, ...]
    text: str
    reasoning: str | None
    token_ids: tuple[int, ...]


class ReplyStream:
    """One reply on its way from ids to text. Not thread-safe: it belongs to its turn.

    `stopped` turns True when a stop string or one of `end_token_ids` is met; what is pushed after that is ignored.
    """

    def __init__(
        self,
        tokens: TokenText,
        *,
        tags: ReasoningTags,
        end_token_ids: frozenset[int] = frozenset(),
        stop: Sequence[str] = (),
        prior_ids: Sequence[int] = (),
        starts_in_reasoning: bool = False,
        num_leading_spaces: int = 0,
    ) -> None:
        """`prior_ids` open the reply and were shown before; `num_leading_spaces` are the template's, not the text's."""
        self.stopped = False
        self._end_token_ids = end_token_ids
        self._decoded = DecodedIds(tokens, num_leading_spaces)
        self._stop = _StopMatcher(stop)
        self._splitter = _Splitter(tags, starts_in_reasoning)
        self._transcript = _Transcript()
        for token_id in prior_ids:
            self._take(self._stop.feed(self._decoded.push(token_id), search=False))
        prior = self.finish()
        self._transcript.num_shown = {False: len(prior.text), True: len(prior.reasoning or "")}

    def push(self, token_id: int) -> list[TextPiece]:
        """Take the next sampled id; returns the text that is certain by now, often none."""
        if self.stopped:
            return []
        if token_id in self._end_token_ids:
            self.stopped = True
            return []
        visible = self._stop.feed(self._decoded.push(token_id))
        self.stopped = self._stop.start is not None
        return self._take(visible)

    def finish(self) -> StreamedReply:
        """The reply if it ended here. Changes nothing, so it may be asked at any time."""
        splitter, transcript = copy.copy(self._splitter), self._transcript.copy()
        pieces = transcript.add(splitter.feed(self._stop.held)) + transcript.add(splitter.flush())
        return StreamedReply(
            pieces=tuple(pieces),
            text="".join(transcript.parts[False]),
            reasoning="".join(transcript.parts[True]) if splitter.met_reasoning else None,
            token_ids=tuple(self._decoded.ids_before(self._stop.start)),
        )

    def _take(self, visible: str) -> list[TextPiece]:
        was_text = not self._splitter.met_reasoning
        pieces = self._splitter.feed(visible)
        if was_text and self._splitter.met_reasoning:
            self._transcript.num_shown[False] = 0  # what was shown as text was half an opening tag
        return self._transcript.add(pieces)


class _StopMatcher:
    """Lets text through up to a stop string; holds back an end that may turn out to begin one."""

    def __init__(self, stop: Sequence[str]) -> None:
        self.start: int | None = None
        """Where in the text the stop string began, once one was met."""
        self.held = ""
        self._stop = tuple(stop)
        self._num_tail = max(map(len, self._stop), default=1) - 1
        self._tail = ""
        self._num_fed = 0

    def feed(self, text: str, *, search: bool = True) -> str:
        """The text that is certain to be visible. `search=False`: `text` was shown before, only remember its end."""
        window, text = self._tail + text, self.held + text
        begin = self._num_fed - len(self._tail)
        self._num_fed = begin + len(window)
        if search and (found := self._find(window, len(self._tail))) is not None:
            self.start, self.held = begin + found, ""
            return text[: max(0, self.start - (self._num_fed - len(text)))]
        self._tail = window[max(0, len(window) - self._num_tail) :]
        num_held = max((_num_overlapping(text, stop) for stop in self._stop), default=0)
        self.held = text[len(text) - num_held :]
        return text[: len(text) - num_held]

    def _find(self, window: str, num_old: int) -> int | None:
        """The earliest stop string in `window` that ends after its first `num_old` code points."""
        found = (window.find(stop, max(0, num_old - len(stop) + 1)) for stop in self._stop)
        return min((index for index in found if index >= 0), default=None)


class _Splitter:
    """Tells reasoning from answer and releases whole characters.

    Reasoning is what stands between the tags at the start of a reply; a tag further on is text. Whitespace next to the
    tags belongs to the tags.
    """

    def __init__(self, tags: ReasoningTags, starts_in_reasoning: bool) -> None:
        self._tags = tags
        self._mode = "reasoning" if starts_in_reasoning else "start"
        self._held = ""
        self._has_begun = False
        self.met_reasoning = starts_in_reasoning

    def feed(self, text: str) -> list[TextPiece]:
        self._held += text
        pieces: list[TextPiece] = []
        if self._mode == "start":
            self._look_for_opening()
        if self._mode == "reasoning":
            pieces += self._reasoning()
        if self._mode == "after":
            self._held = self._held.lstrip()
            self._mode = "answer" if self._held else "after"
        if self._mode == "answer":
            pieces += self._release(len(self._held), is_reasoning=False)
        return pieces

    def flush(self) -> list[TextPiece]:
        """What is held back, when nothing more comes."""
        is_reasoning = self._mode == "reasoning"
        text = self._held.rstrip() if is_reasoning else self._held
        self._held = ""
        return [TextPiece(text, is_reasoning)] if text else []

    def _look_for_opening(self) -> None:
        text, opening = self._held.lstrip(), self._tags.opening
        if text.startswith(opening):
            self._mode, self.met_reasoning, self._held = "reasoning", True, text[len(opening) :]
        elif not opening.startswith(text):
            self._mode = "answer"

    def _reasoning(self) -> list[TextPiece]:
        if not self._has_begun:
            self._held = self._held.lstrip()
            self._has_begun = bool(self._held)
        text, tag, rest = self._held.partition(self._tags.closing)
        if tag:
            self._mode, self._held = "after", rest
            text = text.rstrip()
            return [TextPiece(text, True)] if text else []
        body = text[: len(text) - _num_overlapping(text, self._tags.closing)].rstrip()
        return self._release(len(body), is_reasoning=True)

    def _release(self, num_ready: int, *, is_reasoning: bool) -> list[TextPiece]:
        num_whole = _num_in_whole_characters(self._held[:num_ready])
        text, self._held = self._held[:num_whole], self._held[num_whole:]
        return [TextPiece(text, is_reasoning)] if text else []


class _Transcript:
    """All text so far, by `is_reasoning`, and how much of it was shown before this stream began."""

    def __init__(self) -> None:
        self.parts: dict[bool, list[str]] = {False: [], True: []}
        self.num_shown = {False: 0, True: 0}
        self._lengths = {False: 0, True: 0}

    def copy(self) -> _Transcript:
        twin = _Transcript()
        twin.parts = {kind: list(parts) for kind, parts in self.parts.items()}
        twin.num_shown, twin._lengths = dict(self.num_shown), dict(self._lengths)
        return twin

    def add(self, pieces: list[TextPiece]) -> list[TextPiece]:
        """Append; returns what of it is new to the reader."""
        new = []
        for piece in pieces:
            kind = piece.is_reasoning
            unseen = piece.text[max(0, self.num_shown[kind] - self._lengths[kind]) :]
            self.parts[kind].append(piece.text)
            self._lengths[kind] += len(piece.text)
            if unseen:
                new.append(TextPiece(unseen, kind))
        return new


def _num_overlapping(text: str, tag: str) -> int:
    """Length of the longest end of `text` that is a beginning of `tag`, but not all of it."""
    for n in range(min(len(tag) - 1, len(text)), 0, -1):
        if tag.startswith(text[-n:]):
            return n
    return 0


def _num_in_whole_characters(text: str) -> int:
    """How many code points of `text` form finished characters: a mark, a joiner may still follow the last one."""
    if not text or (text[-1].isascii() and not text[-1].isalnum() and text[-1] not in "#*"):
        return len(text)
    start = 0
    for cluster in regex.finditer(r"\X", text):
        start = int(cluster.start())
    return start if len(text) - start < _MAX_HELD_CHARACTER else len(text)
