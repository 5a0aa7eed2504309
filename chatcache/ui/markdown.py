"""Model text → HTML that can only ever be text, and the same while the text is still growing.

Markdown is rendered by markdown-it with raw HTML switched off (tags show as they were written), with its check of link
targets on (no `javascript:`), and without images: nothing a model writes can make the page fetch something.
"""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from typing import Any

from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.token import Token
from markdown_it.utils import EnvType

from chatcache.ui.code import GrowingCode, code_begin, render_code
from chatcache.ui.formulas import GROWING, add_math
from chatcache.ui.texts import Texts

_CLOSING_TAGS = re.compile(r"(?:</[a-z0-9]+>\s*)+\Z")


def render_markdown(text: str, texts: Texts) -> str:
    """The text as HTML. Any input is valid; none of it survives as a tag of its own."""
    return str(_MARKDOWN.render(text, _env(texts)))


def render_plain(text: str) -> str:
    """The text exactly as written, for an element that keeps white space."""
    return html.escape(text)


class GrowingMarkdown:
    """Markdown that arrives in pieces: each `push` costs what the last block costs, not what the whole text does.

    A block is closed once the next one has begun, and a line of code once it is whole, so `closed` only grows and
    `open` is what is left. Its trailing end tags are left off (browsers close them): so while text grows, `open`
    mostly grows at its end too, and a difference against the value before is as short as the new text.
    """

    def __init__(self, texts: Texts) -> None:
        self._texts = texts
        self._env: EnvType = {**_env(texts), GROWING: True}
        self.closed: list[str] = []
        self.open = ""
        self._tail = ""
        self._code: GrowingCode | None = None

    def push(self, text: str) -> None:
        self._tail += text.replace("\r\n", "\n").replace("\r", "\n")
        while True:
            if self._code is None:
                self._code = self._push_blocks()
            if self._code is None:
                return
            pieces, self._tail = self._code.push(self._tail)
            self.closed += pieces
            if not self._code.is_closed:
                self.open = self._code.render_partial(self._tail)
                return
            self._code = None

    def _push_blocks(self) -> GrowingCode | None:
        """Close all blocks but the last, which stays open; a fence that has begun goes on as code."""
        tokens = _MARKDOWN.parse(self._tail, self._env)
        starts = [t for t in tokens if t.level == 0 and t.nesting >= 0 and t.map is not None]
        if len(starts) > 1 and (last := starts[-1]).map is not None:
            cut = tokens.index(last)
            self.closed.append(self._render(tokens[:cut]))
            self._tail = "\n".join(self._tail.split("\n")[last.map[0] :])
            tokens = tokens[cut:]
        if starts and (fence := starts[-1]).type == "fence" and "\n" in (text := self._tail.lstrip("\n")):
            opening_line, self._tail = text.split("\n", 1)
            self.closed.append(code_begin(self._texts, _language(fence)))
            return GrowingCode(opening_line, fence.markup, _language(fence))
        self.open = _CLOSING_TAGS.sub("", self._render(tokens))
        return None

    def _render(self, tokens: list[Token]) -> str:
        return str(_MARKDOWN.renderer.render(tokens, _MARKDOWN.options, self._env))


def _language(token: Token) -> str:
    return (token.info.split() or [""])[0]


def _render_code(_renderer: object, tokens: Sequence[Token], idx: int, _options: object, env: EnvType) -> str:
    return render_code(env["texts"], tokens[idx].content, _language(tokens[idx]))


def _render_link_open(renderer: RendererHTML, tokens: Sequence[Token], idx: int, options: Any, env: Any) -> str:
    tokens[idx].attrSet("target", "_blank")
    tokens[idx].attrSet("rel", "noopener noreferrer nofollow")
    return str(renderer.renderToken(tokens, idx, options, env))


def _env(texts: Texts) -> EnvType:
    return {"texts": texts}


def _make_markdown() -> MarkdownIt:
    markdown = MarkdownIt("commonmark", {"html": False, "breaks": True})
    markdown.enable(["table", "strikethrough"]).disable(["image", "html_block", "html_inline"])
    for block in ("fence", "code_block"):
        markdown.add_render_rule(block, _render_code)
    add_math(markdown)
    markdown.add_render_rule("link_open", _render_link_open)
    markdown.add_render_rule("table_open", lambda *_: '<div class="table-scroll" tabindex="0"><table>')
    markdown.add_render_rule("table_close", lambda *_: "</table></div>")
    return markdown


_MARKDOWN = _make_markdown()
