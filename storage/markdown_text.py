"""Texts that somebody wrote, as parts of a longer Markdown document: each stays within its own part.

What a text would do is tried: it is rendered with a heading behind it, and read as a browser reads it. It is left as it
is wherever that is sound; only a text that would reach into what follows it, or act as a page, is changed.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from html.parser import HTMLParser

from markdown_it import MarkdownIt

MOST_CHARACTERS = 200_000
"""Longer texts are not tried but shown literally: that takes no time, whatever is in them."""

_COMMONMARK = MarkdownIt("commonmark")
_HAS_BLOCKS_WITH_ENDS = re.compile(r"`{3}|~{3}|<")
_ACTS = re.compile(
    "base|button|embed|form|frame|frameset|iframe|input|link|math|meta|object|plaintext|script|style|svg"
)
_REACHES_TO_ITS_END = re.compile(
    "a|article|aside|audio|b|big|blockquote|body|center|code|del|details|dialog|div|em|font|footer|head|header|html|i|ins"
    "|main|mark|marquee|nav|noembed|noframes|noscript|ol|pre|q|s|section|select|small|span|strike|strong|sub|summary|sup"
    "|table|template|textarea|title|tt|u|ul|video|xmp"
)
_FORMATTING = re.compile("[\u200e\u200f\u061c\u202a-\u202e\u2066-\u2069]")
_ACTIVE_IN_A_LINE = re.compile(r"[\\`*_\[\]<$~|]|&(?=#?\w+;)")


def contained(text: str) -> str:
    """The text, followed by whatever ends a block of code it leaves open; literally, between fences of its own, where
    it holds raw HTML that would act or is not closed."""
    if _HAS_BLOCKS_WITH_ENDS.search(text) is None:
        return text
    if len(text) <= MOST_CHARACTERS:
        for end in _ends(text):
            if _is_contained(text + end):
                return text + end
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}text\n{text}\n{fence}"


def one_line(text: str) -> str:
    """A line in which nothing is Markdown, and nothing turns the direction of what follows."""
    return _ACTIVE_IN_A_LINE.sub(r"\\\g<0>", " ".join(_FORMATTING.sub("", text).split()))


def _ends(text: str) -> Iterator[str]:
    """What may have to follow the text: nothing, or the end of its last block of code, as far in as that began."""
    yield ""
    fences = [token for token in _COMMONMARK.parse(text) if token.type == "fence"]
    if fences:
        for indent in ("", " ", "  ", "   "):
            yield f"\n{indent}{fences[-1].markup}"


def _is_contained(text: str) -> bool:
    heading = "end"
    while heading in text:
        heading += "d"
    page = _COMMONMARK.render(f"{text}\n\n# {heading}\n")
    if not page.endswith(f"<h1>{heading}</h1>\n"):
        return False
    reader = _Reader(heading)
    reader.feed(page)
    return reader.is_heading_alone and not reader.acts


class _Reader(HTMLParser):
    """Reads a page up to a heading: what acts in it, and what is still open there."""

    def __init__(self, heading: str) -> None:
        super().__init__()
        self.acts = False
        self.is_heading_alone = False
        self._heading = heading
        self._num_open: Counter[str] = Counter()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.acts |= _ACTS.fullmatch(tag) is not None or any(map(_is_active, attrs))
        if _REACHES_TO_ITS_END.fullmatch(tag):
            self._num_open[tag] += 1

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)  # browsers do not read the slash

    def handle_endtag(self, tag: str) -> None:
        self._num_open[tag] = max(0, self._num_open[tag] - 1)

    def handle_data(self, data: str) -> None:
        if data == self._heading:
            self.is_heading_alone = self.lasttag == "h1" and not self._num_open.total()


def _is_active(attribute: tuple[str, str | None]) -> bool:
    name, value = attribute
    return name.startswith("on") or "javascript:" in re.sub(r"\s", "", value or "").lower()
