"""Which language a browser gets, and that no text of the page is missing in any."""

from __future__ import annotations

import pytest

from chatcache.ui.language import preferred_language


@pytest.mark.parametrize(
    ("accepted", "language"),
    [
        ("", "en"),
        ("tr", "tr"),
        ("tr-TR,tr;q=0.9,en-US;q=0.8,en;q=0.7", "tr"),
        ("en-US,en;q=0.9,tr;q=0.8", "en"),
        ("de-DE,de;q=0.9", "en"),
        ("de, tr;q=0.5", "tr"),
        ("TR-tr ; q=0.4, en;q=0.3", "tr"),
        ("tr;q=0, en", "en"),
        ("tr;q=much, ,;;=", "en"),
        ("*", "en"),
    ],
)
def test_a_browser_gets_the_language_it_ranks_highest(accepted: str, language: str) -> None:
    assert preferred_language(accepted, ("en", "tr")) == language
