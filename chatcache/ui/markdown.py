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

    A block is closed once the next one has begun, so `closed` only grows and `open` is the last block. Its trailing
    end tags are left off (browsers close them): so while text grows, `open` mostly grows at its end too, and a
    difference against the value before is as short as the new text.
    """

    def __init__(self, texts: Texts) -> None:
        self._env = _env(texts)
        self.closed: list[str] = []
        self.open = ""
        self._tail = ""

    def push(self, text: str) -> None:
        self._tail += text.replace("\r\n", "\n").replace("\r", "\n")
        tokens = _MARKDOWN.parse(self._tail)
        starts = [t for t in tokens if t.level == 0 and t.nesting >= 0 and t.map is not None]
        if len(starts) > 1 and (last := starts[-1]).map is not None:
            line = last.map[0]
            cut = tokens.index(last)
            self.closed.append(str(_MARKDOWN.renderer.render(tokens[:cut], _MARKDOWN.options, self._env)))
            self._tail = "\n".join(self._tail.split("\n")[line:])
            tokens = tokens[cut:]
        self.open = _CLOSING_TAGS.sub("", str(_MARKDOWN.renderer.render(tokens, _MARKDOWN.options, self._env)))


def _render_code(_renderer: object, tokens: Sequence[Token], idx: int, _options: object, env: EnvType) -> str:
    language = html.escape((tokens[idx].info.split() or [""])[0])
    return (
        f'<div class="code-block"><div class="code-head"><span>{language}</span>'
        f'<button type="button" class="control copy-code" data-action="copy-code">{env["copy_code"]}</button></div>'
        f'<pre tabindex="0"><code>{html.escape(tokens[idx].content)}</code></pre></div>'
    )


def _render_link_open(renderer: RendererHTML, tokens: Sequence[Token], idx: int, options: Any, env: Any) -> str:
    tokens[idx].attrSet("target", "_blank")
    tokens[idx].attrSet("rel", "noopener noreferrer nofollow")
    return str(renderer.renderToken(tokens, idx, options, env))


def _env(texts: Texts) -> EnvType:
    return {"copy_code": texts.COPY_CODE}


def _make_markdown() -> MarkdownIt:
    markdown = MarkdownIt("commonmark", {"html": False, "breaks": True})
    markdown.enable(["table", "strikethrough"]).disable(["image", "html_block", "html_inline"])
    for block in ("fence", "code_block"):
        markdown.add_render_rule(block, _render_code)
    markdown.add_render_rule("link_open", _render_link_open)
    markdown.add_render_rule("table_open", lambda *_: '<div class="table-scroll" tabindex="0"><table>')
    markdown.add_render_rule("table_close", lambda *_: "</table></div>")
    return markdown


_MARKDOWN = _make_markdown()
