"""Rendered HTML as a browser would read it, and what is rendered in tests."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import UTC, datetime
from html.parser import HTMLParser

from storage.records import ChatSession, Message, MessageStatus, Role

NOW = datetime(2026, 1, 1, tzinfo=UTC)
HOSTILE = [
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "</div></article><iframe src='//elsewhere.example'>",
    "![picture](http://elsewhere.example/p.png)",
    "[link](javascript:alert(1)) [data](data:text/html;base64,PHNjcmlwdD4=)",
    "[a](http://x.example 'title\" onmouseover=\"alert(1)')",
    "<!-- <svg onload=alert(1)> -->",
    "```html\n</code></pre><script>alert(1)</script>\n```",
    '```"><script>alert(1)</script>\ncode\n```',
    "&lt;script&gt; &#60;img src=x&#62;",
    "`<b onclick=alert(1)>`",
    "<https://x.example/'onclick=alert(1)>",
    r"$\href{javascript:alert(1)}{x} \style{background:url(//elsewhere.example)}{x} \text{<script>alert(1)</script>}$",
    "$$\n</math><img src=x onerror=alert(1)>\n$$",
    r"\(\color{red;background:url(//elsewhere.example)}{x} \class{onclick=alert(1)}{\unicode{60}}\)",
    "```python\n'''<img src=x onerror=alert(1)>\n</span><script>\n```",
]
OUR_TAGS = frozenset(
    re.findall(
        r"\w+",
        "p br strong em s a code pre div span ul ol li blockquote h1 h2 h3 h4 h5 h6 hr table thead tbody tr th td "
        "button article footer details summary mark small "
        "math mrow mi mn mo mtext mspace mfrac msqrt mroot msub msup msubsup munder mover munderover mtable mtr mtd "
        "mstyle mpadded mphantom menclose",
    )
)


class Elements(HTMLParser):
    """Every element and attribute that a browser would see, and the text outside them."""

    def __init__(self, markup: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: list[tuple[str, str]] = []
        self.text = ""
        self.comments: list[str] = []
        self.feed(markup)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes += [(name, value or "") for name, value in attrs]

    def handle_data(self, data: str) -> None:
        self.text += data

    def handle_comment(self, data: str) -> None:
        self.comments.append(data)


def plain(said: str) -> str:
    """As it reads: whether a line may end at a space is not seen."""
    return said.replace("\N{NO-BREAK SPACE}", " ")


def assert_harmless(markup: str) -> Elements:
    found = Elements(markup)
    assert found.tags <= OUR_TAGS, found.tags - OUR_TAGS
    assert not [name for name, _ in found.attributes if name.startswith("on")]
    for name, value in found.attributes:
        if name in ("href", "src"):
            assert not re.match(r"\s*(javascript|data|vbscript|file):", value, re.IGNORECASE), value
    assert not found.comments
    return found


def user(text: str, **fields: object) -> Message:
    return replace(
        Message("u1", "s1", None, Role.USER, text, MessageStatus.COMPLETE, 0, NOW),
        **fields,  # type: ignore[arg-type]
    )


def reply(text: str, **fields: object) -> Message:
    return replace(
        Message("r1", "s1", "u1", Role.ASSISTANT, text, MessageStatus.COMPLETE, 1, NOW),
        **fields,  # type: ignore[arg-type]
    )


def session(title: str, session_id: str = "s1", **fields: object) -> ChatSession:
    plain = ChatSession(session_id, "local", title, None, None, False, {}, {}, {}, NOW, NOW, None, None, 1)
    return replace(plain, **fields)  # type: ignore[arg-type]


def actions_of(markup: str) -> list[str]:
    return [value for name, value in Elements(markup).attributes if name == "data-action"]
