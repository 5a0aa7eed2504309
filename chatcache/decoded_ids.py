"""`DecodedIds`: token ids with the text they stand for, so that ids can be cut where text is cut.

Knows bytes and code points. Does not know stop strings or tags, nor what a cut is for.
"""

from __future__ import annotations

import bisect
import codecs

from chatcache.token_text import TokenText

_MAX_PENDING_IDS = 8
"""Ids that may make up one character where only the tokenizer's own decoder knows their text."""


class DecodedIds:
    """Ids with the code points each one completed. Positions are code points of the whole text.

    `num_leading_spaces` is how many spaces that open the text are the template's and do not count as text; those that
    the tokenizer's own decoder takes off never do.
    """

    def __init__(self, tokens: TokenText, num_leading_spaces: int = 0) -> None:
        self._tokens = tokens
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._num_to_strip = max(tokens.num_stripped_spaces, num_leading_spaces)
        self._stripped = ""
        self._context: list[int] = []
        self._pending: list[int] = []
        self._ids: list[int] = []
        self._texts: list[str] = []
        self._ends: list[int] = []
        """For each id, the length of the text up to and including it."""
        self._is_whole: list[bool] = []
        """For each id, whether the text up to and including it ends in a whole code point."""

    def push(self, token_id: int) -> str:
        """The code points that `token_id` completes."""
        if self._tokens.knows_bytes:
            text = self._utf8.decode(self._tokens.token_bytes(token_id))
            is_whole = not self._utf8.getstate()[0]
        else:
            text = self._decode_behind_context(token_id)
            is_whole = not self._pending
        if self._num_to_strip and text:
            text = self._strip(text)
        self._ids.append(token_id)
        self._texts.append(text)
        self._ends.append((self._ends[-1] if self._ends else 0) + len(text))
        self._is_whole.append(is_whole)
        return text

    def ids_before(self, end: int | None) -> list[int]:
        """The ids of the first `end` code points; None: of all whole ones. Bytes that are no text are kept as they
        came, whatever their last id begins besides: U+FFFD, which stands for them, encodes to other ids."""
        end = (self._ends[-1] if self._ends else 0) if end is None else end
        num_kept = bisect.bisect_right(self._ends, end)
        while num_kept and not self._is_whole[num_kept - 1]:
            num_kept -= 1
        start = self._ends[num_kept - 1] if num_kept else 0
        last = bisect.bisect_left(self._ends, end)
        if start < end == self._ends[last] and "\ufffd" in "".join(self._texts[num_kept : last + 1]):
            return self._ids[: last + 1]
        return self._ids[:num_kept] + self._encode(num_kept, start, end)

    def ids_from(self, start: int) -> list[int]:
        """The ids of the text from code point `start` on."""
        first = bisect.bisect_left(self._ends, start) if start else -1
        while 0 <= first < len(self._ids) - 1 and not self._is_whole[first]:
            first += 1
        if first < 0:
            return list(self._ids)
        if first >= len(self._ids):
            return []
        return self._encode(first, start, self._ends[first]) + self._ids[first + 1 :]

    def _encode(self, index: int, start: int, end: int) -> list[int]:
        """New ids for the code points from `start` to `end`, the first of which `index` (or a later id) completed."""
        if start >= end:
            return []
        begin = self._ends[index - 1] if index else 0
        while begin > start:
            index -= 1
            begin = self._ends[index - 1] if index else 0
        last = bisect.bisect_left(self._ends, end)
        text = "".join(self._texts[index : last + 1])[start - begin : end - begin]
        text = text if start else self._stripped + text
        return self._tokens.encode(self._tokens.mark(text), at_start=False)

    def _strip(self, text: str) -> str:
        spaces = min(len(text) - len(text.lstrip(" ")), self._num_to_strip)
        self._stripped += text[:spaces]
        self._num_to_strip = self._num_to_strip - spaces if spaces == len(text) else 0
        return text[spaces:]

    def _decode_behind_context(self, token_id: int) -> str:
        """For tokenizers whose bytes are unknown: what the ids since the last whole character add to those before."""
        self._pending.append(token_id)
        before, after = self._tokens.decode(self._context), self._tokens.decode(self._context + self._pending)
        if after.endswith("\ufffd") and len(self._pending) < _MAX_PENDING_IDS:
            return ""
        self._context, self._pending = self._pending, []
        return after[len(before) :]
