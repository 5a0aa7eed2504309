"""Text on its way in: nothing a person means is lost, nothing that breaks a tokenizer or a database gets through."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chatcache.errors import InvalidInputError
from chatcache.text_input import clean_message, clean_query, clean_text, clean_title, pieces, title_from


@pytest.mark.parametrize(
    ("given_text", "kept"),
    [
        ("tab\tand\nnewline", "tab\tand\nnewline"),
        ("dos\r\nand old mac\rlines", "dos\nand old mac\nlines"),
        ("nul\x00 bell\x07 escape\x1b[0m delete\x7f c1\x85", "nul bell escape[0m delete c1"),
        ("non\ufdd0char\ufdefacters\uffff\U0010fffe \ue000", "noncharacters \ue000"),
        ("lone \ud83d surrogate", "lone \ufffd surrogate"),
        ("emoji 👩‍👩‍👧 and é and 漢字", "emoji 👩‍👩‍👧 and é and 漢字"),
    ],
)
def test_only_what_cannot_be_stored_is_replaced(given_text: str, kept: str) -> None:
    assert clean_text(given_text) == kept


@given(st.text(alphabet=st.characters(exclude_categories=())))
def test_cleaned_text_is_utf8_and_cleaning_twice_changes_nothing(text: str) -> None:
    cleaned = clean_text(text)
    cleaned.encode("utf-8")
    assert "\x00" not in cleaned
    assert clean_text(cleaned) == cleaned


@pytest.mark.parametrize(
    "text", ["", "   ", "\n\t\n", "\x00\x01", "\u2003", "\u200b", "\ufeff\u00ad", "\u3164", "\u202e"]
)
def test_a_message_without_anything_visible_is_refused(text: str) -> None:
    with pytest.raises(InvalidInputError, match="empty"):
        clean_message(text)


def test_a_title_is_the_first_line_with_words_cut_between_words() -> None:
    assert title_from("\n\n  How do I   sort a list?\nIn Python.") == "How do I sort a list?"
    long = title_from("word " * 40)
    assert len(long) <= 61
    assert long.endswith("word…")
    assert title_from("x" * 100) == "x" * 60 + "…"


def test_a_message_with_a_file_is_titled_by_what_was_written_and_else_by_the_files_name() -> None:
    file = "notes.md\n```md\n# Ferries\n```"
    assert title_from(f"{file}\n\nWhat do my notes say?") == "What do my notes say?"
    assert title_from(f"\n{file}\n") == "notes.md"


def test_a_given_title_is_one_line_of_bounded_length() -> None:
    assert clean_title(" two\nlines\x00 ") == "two lines"
    assert len(clean_title("t" * 5000)) == 200


def test_a_title_turns_the_direction_of_nothing_beside_it() -> None:
    assert clean_title("gpj.\u202eexe") == title_from("gpj.\u202eexe") == "gpj.exe"
    assert clean_title("\u2067שלום\u2069 abc") == "שלום abc"
    assert title_from("\u202e\u2066\nHello") == "Hello"


@pytest.mark.parametrize("text", [None, 5, b"bytes", ["a"], {}])
def test_what_is_no_text_is_refused(text: Any) -> None:
    with pytest.raises(InvalidInputError, match="Text is expected"):
        clean_text(text)


def test_a_title_skips_lines_in_which_nothing_shows() -> None:
    assert title_from("\u200b\nHello") == "Hello"


def test_a_search_is_cleaned_and_bounded_and_nothing_is_no_search() -> None:
    assert clean_query(" caf\x00é ") == "café"
    assert clean_query("  ") is clean_query("") is clean_query(None) is None
    assert len(clean_query("x" * 10**6) or "") == 1000


@given(text=st.text(alphabet="ab \n", max_size=200), length=st.integers(1, 20))
def test_pieces_are_the_whole_text_and_none_is_too_long(text: str, length: int) -> None:
    parted = list(pieces(text, length))
    assert "".join(parted) == text
    assert all(len(piece) <= length for piece in parted)
    assert all("\n" not in piece or piece.endswith("\n") for piece in parted[:-1])
