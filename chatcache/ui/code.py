"""Code blocks in syntax colours, whole and while they grow. Colours are classes; the style sheet names them."""

from __future__ import annotations

import html
import re
from functools import lru_cache

from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import get_lexer_by_name
from pygments.util import ClassNotFound

from chatcache.ui.texts import Texts

MAX_COLOURED_LENGTH = 50_000
CONTEXT_LENGTH = 800
"""How much of the code above a new line decides on its colours, while the block grows."""

CODE_END = "</code></pre></div>"

_FORMATTER: HtmlFormatter[str] = HtmlFormatter(nowrap=True, classprefix="hl-")


def render_code(texts: Texts, source: str, language: str) -> str:
    """The block with its head: the language as it was named, and a button that copies."""
    return code_begin(texts, language) + coloured(source, language) + CODE_END


def code_begin(texts: Texts, language: str) -> str:
    return (
        f'<div class="code-block"><div class="code-head"><span>{html.escape(language)}</span>'
        f'<button type="button" class="control copy-code" data-action="copy-code">{texts.COPY_CODE}</button></div>'
        f'<pre tabindex="0" dir="ltr"><code>'
    )


@lru_cache(512)
def coloured(source: str, language: str) -> str:
    """The source as HTML; without colours where the language is unknown or the source very long."""
    if not language or len(source) > MAX_COLOURED_LENGTH:
        return html.escape(source)
    try:
        lexer = get_lexer_by_name(language.lower(), stripnl=False, ensurenl=False)
    except ClassNotFound:
        return html.escape(source)
    return str(highlight(source, lexer, _FORMATTER))


class GrowingCode:
    """A fenced block that is being written: lines are coloured once they are whole, and never change after that."""

    def __init__(self, opening_line: str, markup: str, language: str) -> None:
        self._language = language
        self._num_indented = len(opening_line) - len(opening_line.lstrip(" "))
        self._marker = markup[0]
        self._closing = re.compile(rf" {{0,3}}{re.escape(markup[0])}{{{len(markup)},}}[ \t]*")
        self._above = ""
        self.is_closed = False

    def push(self, text: str) -> tuple[list[str], str]:
        """Take whole lines from the beginning of `text`: their HTML, and what is left of the text."""
        pieces: list[str] = []
        while not self.is_closed and "\n" in text:
            line, text = text.split("\n", 1)
            if self._closing.fullmatch(line):
                self.is_closed = True
                pieces.append(CODE_END)
            else:
                pieces.append(self._render_line(line) + "\n")
        return pieces, text

    def render_partial(self, line: str) -> str:
        """A line that has not ended; nothing where it may yet become the end of the block."""
        return "" if set(line.strip()) == {self._marker} else html.escape(self._unindented(line))

    def _render_line(self, line: str) -> str:
        source = f"{self._above}{self._unindented(line)}\n"
        self._above = source[-CONTEXT_LENGTH:].split("\n", 1)[-1] if len(source) > CONTEXT_LENGTH else source
        return coloured.__wrapped__(source, self._language).removesuffix("\n").rpartition("\n")[2]

    def _unindented(self, line: str) -> str:
        num_spaces = len(line) - len(line.lstrip(" "))
        return line[min(num_spaces, self._num_indented) :]
