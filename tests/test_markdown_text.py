"""A text as a part of a Markdown document: nothing in it reaches into the next part, and sound text stays as it is."""

from __future__ import annotations

from html.parser import HTMLParser

import pytest
from examples import examples, few_quick
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from storage.markdown_text import MOST_CHARACTERS, contained, one_line

COMMONMARK = MarkdownIt("commonmark")
SOUND = [
    "",
    "Plain text, **bold**, `code`, [a link](https://example.org), a < b > c & d.",
    "```python\nprint('<script>')\n```",
    "~~~\n<!-- not a comment here\n~~~",
    "Inline `<script>` and `<!--` are code.",
    "    <script> indented\n    ```",
    "$a<b$ and $$\\int_0^1 x < 1$$ and \\[ x<y \\]",
    "Vec<String>, Map<K, V>, a<T>b, i<n; <https://example.org>",
    "- a\n  ```\n  code\n  ```\n- b",
    "> ```\n> a quoted block that is not closed",
    "<details><summary>more</summary>\n\nhidden\n\n</details>",
    "<b>bold</b> <br> <img src='a.png'> &lt;script&gt;",
    "<!-- a comment -->\n\ntext",
    "<svg/onload=alert(1)> is no HTML to CommonMark",
    "1. one\n2. two\n\n| a | b |\n|---|---|\n| 1 | 2 |",
]


@pytest.mark.parametrize("text", SOUND)
def test_a_sound_text_stays_as_it_is(text: str) -> None:
    assert contained(text) == text


@pytest.mark.parametrize(
    ("text", "end"),
    [
        ("```python\nprint(1)", "\n```"),
        ("~~~~\n```\n~~~", "\n~~~~"),
        ("- a\n  ```\n  code", "\n```"),
        ("> ```\n> closed\n> ```\n```", "\n```"),
        ("<!--\n```\n-->\n~~~\ncode", "\n~~~"),
    ],
)
def test_a_block_of_code_that_was_left_open_is_closed(text: str, end: str) -> None:
    if not text.startswith("- "):
        assert contained(text) == text + end
    assert follows(contained(text))


LITERAL = [
    "<!-- a comment",
    "text\n<!-- a comment\n```\ncode",
    "<script>alert(1)",
    "<script>alert(1)</script>",
    "<SCRIPT SRC=x></SCRIPT>",
    "<style>* {display: none}",
    "<pre>\n```",
    "<textarea>",
    "an inline <textarea> in a line",
    "<div style='display: none'>",
    "<details>",
    "<img src=x onerror=alert(1)>",
    "<a href='javascript:alert(1)'>x</a>",
    "<?php",
    "<!DOCTYPE",
    "<![CDATA[",
    "<plaintext>",
    "<iframe src='//example.org'></iframe>",
    "<svg onload=alert(1)>",
    "<xmp>",
    "<title>",
    "x" * MOST_CHARACTERS + "<",
]


@pytest.mark.parametrize("text", LITERAL, ids=lambda text: text[:30])
def test_what_would_act_or_reach_further_is_shown_literally(text: str) -> None:
    shown = contained(text)
    assert shown != text
    assert text in shown
    (fence,) = COMMONMARK.parse(shown)
    assert (fence.type, fence.content) == ("fence", text + "\n")
    assert follows(shown)


def test_the_fence_around_a_literal_text_is_longer_than_any_in_it() -> None:
    shown = contained("<script>\n`````\n</script>")
    assert shown.splitlines()[0] == "``````text"
    assert shown.splitlines()[-1] == "``````"


class Elements(HTMLParser):
    """Which elements are open at the heading that follows, as a browser would see it."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.open_at_heading: list[str] | None = None

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert not any(name.startswith("on") for name, _ in attrs)
        if tag == "h1":
            self.open_at_heading = list(self.open)
        if tag not in ("br", "img", "hr"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag in self.open:
            while self.open.pop() != tag:
                pass


def follows(text: str) -> bool:
    """Whether a heading after the text is a heading, with no element of the text's around it."""
    page = COMMONMARK.render(f"{text}\n\n# The very end\n")
    elements = Elements()
    elements.feed(page)
    return page.endswith("<h1>The very end</h1>\n") and elements.open_at_heading == []


PIECES = st.sampled_from(
    ["```", "````", "~~~", "\n", "\n\n", " ", "  ", "    ", "- ", "1. ", "> ", "<!--", "-->", "<script>", "</script>",
     "<pre>", "</pre>", "<div>", "</div>", "<details>", "<b>", "</b>", "<", ">", "`", "``", "a", "text ", "# ", "---",
     "<textarea>", "<?", "<!A", "]]>", "<![CDATA[", "\t", "|", "*", "_", "onload=", "<img ", "\\", "$", "[a]: /b", "=",
     '"', "'", "/"]
)  # fmt: skip


@settings(max_examples=examples(300))
@given(st.lists(PIECES, max_size=25).map("".join))
def test_whatever_a_text_is_made_of_what_follows_it_stands_alone(text: str) -> None:
    shown = contained(text)
    assert text in shown
    assert follows(shown)


@pytest.mark.timeout(60)  # the square of the length would take many minutes
@pytest.mark.parametrize(
    "piece",
    few_quick(["[", "<", "> ", "`", "*a_", "- ", "<a ", "<!--", "[a](<", "```\n", "![", "&#", "<b>"], 3),
)
def test_a_text_of_one_piece_over_and_over_is_contained_all_the_same(piece: str) -> None:
    for text in (piece * (50_000 // len(piece)) + "<", piece * 10**5):
        assert text in contained(text)


@pytest.mark.parametrize(
    ("title", "line"),
    [
        ("A plain title: 1 + 1 = 2?", "A plain title: 1 + 1 = 2?"),
        ("Äpfel & π", "Äpfel & π"),
        ("one\ntwo\r\n\n# three", "one two # three"),
        ("<script>alert(1)</script>", "\\<script>alert(1)\\</script>"),
        ("[x](javascript:alert(1))", "\\[x\\](javascript:alert(1))"),
        ("`code` *b* _i_ ~s~ $x$ \\", "\\`code\\` \\*b\\* \\_i\\_ \\~s\\~ \\$x\\$ \\\\"),
        ("&lt; &#60; &amp", "\\&lt; \\&#60; &amp"),
        ("gpj.\u202eexe", "gpj.exe"),
        ("\u2066a\u2069\u200f \u061c", "a"),
        ("שלום", "שלום"),
    ],
)
def test_a_title_is_one_line_without_markdown_or_marks_of_direction(title: str, line: str) -> None:
    assert one_line(title) == line


@given(st.text(max_size=40))
def test_any_title_is_shown_as_it_is_typed(title: str) -> None:
    tokens = COMMONMARK.parse(f"# x {one_line(title)} x\n")
    assert [token.type for token in tokens] == ["heading_open", "inline", "heading_close"]
    assert {child.type for child in tokens[1].children or []} <= {"text", "text_special"}
