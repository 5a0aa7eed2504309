"""Text files inside a message: which are seen as files, and that a message loses nothing of what it says."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markup import assert_harmless, user

from chatcache.attached import AttachedFile, parts_of
from chatcache.ui.texts import ENGLISH as texts
from chatcache.ui.transcript import render_transcript

PYTHON = AttachedFile("a b.PY", "py", "print(1)\n")
DIFF = AttachedFile("x.md", "md", "a\n```py\nb\n```\n")


@pytest.mark.parametrize(
    ("message", "parts"),
    [
        ("", [""]),
        ("Hello.\n", ["Hello."]),
        ("a b.PY\n```py\nprint(1)\n```\n", [PYTHON]),
        ("Look:\n\na b.PY\n```py\nprint(1)\n```\n\nIs it right?", ["Look:", PYTHON, "Is it right?"]),
        ("x.md\n````md\na\n```py\nb\n```\n````\n\na b.PY\n```py\nprint(1)\n```\n", [DIFF, PYTHON]),
        ("Makefile\n```\nall:\n```", [AttachedFile("Makefile", "", "all:\n")]),
        ("empty.txt\n```txt\n```", [AttachedFile("empty.txt", "txt", "")]),
    ],
)
def test_files_are_told_from_what_was_written(message: str, parts: list[str | AttachedFile]) -> None:
    assert list(parts_of(message)) == parts


@pytest.mark.parametrize(
    "message",
    [
        "Look at this:\n```python\nprint(1)\n```",
        "What does it do?\n```\nprint(1)\n```",
        "Code:\n```\nprint(1)\n```",
        "a.py\n```js\nprint(1)\n```",
        "a.py\n```py\nprint(1)",
        "```py\nprint(1)\n```",
    ],
)
def test_a_persons_own_fence_stays_as_it_was_written(message: str) -> None:
    assert list(parts_of(message)) == [message]


@given(st.text("ab.py\n` ", max_size=60))
def test_nothing_that_shows_is_lost(message: str) -> None:
    said = "".join(
        part if isinstance(part, str) else part.name + "```" * 2 + part.kind + part.text for part in parts_of(message)
    )
    assert sorted(said.replace("\n", "").replace("`", "")) == sorted(message.replace("\n", "").replace("`", ""))


def test_a_file_is_folded_under_its_name_and_copied_as_it_was_sent() -> None:
    message = user("Read it.\n\n<b>.html\n```html\n<script>alert(1)</script>\n```")
    markup = render_transcript(texts, [message], {})
    said = assert_harmless(markup).text
    assert "Read it." in said
    assert "<b>.html1 line" in said
    assert "<script>alert(1)</script>" in said
    assert '<details class="file' in markup
    assert "data-source=" in markup
    assert "data-source=" not in render_transcript(texts, [user("Read it.")], {})
