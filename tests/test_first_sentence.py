"""What libraries say becomes one whole sentence, whatever its form."""

from __future__ import annotations

import pytest

from chatcache.first_sentence import MOST_CHARACTERS, first_sentence

LONG_LIST = ", ".join(f"architecture_{number}" for number in range(300))


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ValueError("It failed"), "It failed."),
        (ValueError("\n\n  It failed!  \nAt line 3."), "It failed!"),
        (ValueError(), "ValueError."),
        (OSError(28, "No space left on device"), "[Errno 28] No space left on device."),
        (KeyError("hidden_size"), "KeyError: 'hidden_size'."),
        (ValueError('It said "no."'), 'It said "no."'),
        (
            ValueError(
                "Couldn't make a tokenizer from one of: \n(1) a file, \n(2) a slow tokenizer or \n(3) an equivalent "
                "class to convert. \nYou need to have sentencepiece installed."
            ),
            "Couldn't make a tokenizer from one of: (1) a file, (2) a slow tokenizer or (3) an equivalent class to "
            "convert.",
        ),
        (
            OSError("tiny is not a local folder and is not listed on 'https://hub'\nIf this is private, log in"),
            "tiny is not a local folder and is not listed on 'https://hub'.",
        ),
        (
            ValueError("Unrecognized configuration class <class 'A'> for AutoModel.\nModel type should be one of B."),
            "Unrecognized configuration class <class 'A'> for AutoModel.",
        ),
        (
            OSError("There was a specific connection error when trying to load tiny:\n404 Client Error.\nMore"),
            "There was a specific connection error when trying to load tiny: 404 Client Error.",
        ),
        (
            RuntimeError("(sqlite3.OperationalError) database is locked\n[SQL: SELECT 1]\n(Background on this error)"),
            "(sqlite3.OperationalError) database is locked.",
        ),
        (ValueError("One of:\n"), "One of."),
        (ValueError(f"Unrecognized model in x. Should be one of: {LONG_LIST}"), "Unrecognized model in x."),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_an_error_is_one_whole_sentence(error: Exception, said: str) -> None:
    assert first_sentence(error) == said


def test_a_sentence_without_an_end_is_cut_and_says_so() -> None:
    said = first_sentence(ValueError(LONG_LIST))
    assert said.endswith("…")
    assert len(said) <= MOST_CHARACTERS + 1
