"""What is told of a session's cache when several saves of it went wrong."""

from __future__ import annotations

import pytest

from chatcache.cache_problems import CHAIN_GONE, CacheProblems, not_saved
from chatcache.session_key import SessionKey

KEY = SessionKey("ann", "s")
REFUSED = not_saved(OSError("The quota is reached."))


@pytest.mark.parametrize(
    ("saves", "told"),
    [
        ((REFUSED, CHAIN_GONE), REFUSED),
        ((CHAIN_GONE,), CHAIN_GONE),
        ((CHAIN_GONE, REFUSED), REFUSED),
        ((REFUSED, None, CHAIN_GONE), CHAIN_GONE),
        ((REFUSED, None), None),
    ],
)
def test_why_a_save_was_refused_is_not_replaced_by_what_follows_from_it(
    saves: tuple[str | None, ...], told: str | None
) -> None:
    problems = CacheProblems()
    for sentence in saves:
        problems.note_save(KEY, sentence)
    assert problems.of(KEY) == told
