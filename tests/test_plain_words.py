"""What a reader sees of Markdown, for excerpts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage import plain_words as module
from storage.folding import fold
from storage.plain_words import LONG_CHARACTERS, plain_words, searched


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("**Otters** keep `smooth` stones", "Otters keep smooth stones"),
        ("# Title\n\nSome *words*\nhere", "Title Some words here"),
        ("- one\n- two\n\n1. three", "one two three"),
        ("> [a page](https://example.com/x) and ~~not~~", "a page and not"),
        ("| a | b |\n|---|---|\n| c | d |", "a b c d"),
        ("```python\nx = a**b\n```", "x = a**b\n"),
        ("2 * 3 * 4 = a_1 + b_2", "2 * 3 * 4 = a_1 + b_2"),
        ("<b>bold</b> &amp; more", "<b>bold</b> & more"),
        ("", ""),
    ],
)
def test_words_are_shown_without_their_marks(text: str, words: str) -> None:
    assert plain_words(text, []) == words


def test_what_a_reader_does_not_see_is_shown_as_it_is_written_where_it_was_looked_for() -> None:
    text = "See [a **page**](https://example.com/otters)."
    assert plain_words(text, ["page"]) == "See a page."
    assert plain_words(text, ["example.com"]) == text


@pytest.mark.parametrize("filler", ["", "Some words.\n\n" * 1000])
def test_a_word_of_which_a_part_is_bold_is_searched_and_shown_as_the_one_word_it_is(filler: str) -> None:
    text = f"{filler}The **Mar**malade`2` is *good*, and snake_case stays."
    found = searched(text)
    assert found.startswith(fold(text))
    assert found.removeprefix(fold(text)).split() == ["marmalade2"]
    assert "The Marmalade2 is good" in plain_words(text, ["marmalade2"])


def test_a_text_without_marks_inside_words_is_searched_as_it_is() -> None:
    text = "**Otters** keep `smooth` stones in a_b; 2 * 3."
    assert searched(text) == fold(text)


def test_of_a_long_text_the_part_around_what_was_looked_for_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    parse = module._MARKDOWN.parse
    monkeypatch.setattr(module._MARKDOWN, "parse", lambda text: read.append(len(text)) or parse(text))
    filler = "Some **words**.\n\n"
    text = filler * 10_000 + "An *otter*.\n\n" + filler * 10_000
    words = plain_words(text, ["otter"])
    assert words.startswith("Some words. An otter. Some words.")
    assert read[0] < LONG_CHARACTERS


@given(st.text("ab*_`[]()|-#>~\n<&", max_size=60), st.text("ab*", min_size=1, max_size=3))
def test_what_was_found_in_the_text_is_found_in_what_is_shown(text: str, term: str) -> None:
    if term in fold(text):
        assert term in fold(plain_words(text, [term]))
