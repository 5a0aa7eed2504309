"""What a copy of a chat is called."""

from __future__ import annotations

import pytest

from storage.copy_titles import next_title, split_number


@pytest.mark.parametrize(
    ("title", "taken", "expected"),
    [
        ("Notes", [], "Notes (2)"),
        ("Notes", ["Notes"], "Notes (2)"),
        ("Notes", ["Notes", "Notes (2)", "Notes (7)"], "Notes (8)"),
        ("Notes (2)", ["Notes", "Notes (2)"], "Notes (3)"),
        ("Notes (99)", [], "Notes (100)"),
        ("Notes", ["Notes on ships (5)", "notes (3)"], "Notes (2)"),
        ("Budget (2026)", ["Budget (2026)"], "Budget (2026) (2)"),
        ("Part (1)", [], "Part (1) (2)"),
        ("(2)", [], "(2) (2)"),
        ("", ["", " (2)"], ""),
    ],
)
def test_a_copy_is_called_like_its_original_with_the_next_number(title: str, taken: list[str], expected: str) -> None:
    assert next_title(title, taken) == expected


@pytest.mark.parametrize("title", ["Notes", "Notes (2)", "A (3) (4)", "line\nline (12)"])
def test_name_and_number_are_all_of_a_title(title: str) -> None:
    name, number = split_number(title)
    assert title in (name, f"{name} ({number})")
