"""Which language a browser gets, and that no text of the page is missing in any."""

from __future__ import annotations

import pytest

from chatcache.ui.figures import Figures
from chatcache.ui.language import preferred_language
from chatcache.ui.texts import Texts
from chatcache.ui.turkish import Turkish


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


SAID_ALIKE = {"APP_NAME", "month", "not_imported", "counted_sources"}
"""What holds no word of its own."""


def test_every_text_of_the_page_is_there_in_turkish() -> None:
    english = {name for name in dir(Texts) if not name.startswith("_")} - set(dir(Figures)) - SAID_ALIKE
    turkish = {name for cls in Turkish.__mro__ if cls not in Texts.__mro__ for name in vars(cls)}
    assert english
    assert not english - turkish
    for name in english:
        ours, theirs = getattr(Texts, name), getattr(Turkish, name)
        if isinstance(ours, dict):
            assert theirs.keys() == ours.keys(), name
        elif isinstance(ours, (list, tuple)):
            assert len(theirs) == len(ours), name
