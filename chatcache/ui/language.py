"""Which of the page's languages a browser gets."""

from __future__ import annotations

from collections.abc import Sequence


def preferred_language(accept_language: str, available: Sequence[str]) -> str:
    """The language of `available` that an `Accept-Language` header (RFC 9110) ranks highest; the first one if none.

    Only a language's main part counts: `tr-TR` asks for `tr`. What cannot be read is passed over.
    """
    best, best_quality = available[0], 0.0
    for entry in accept_language.split(","):
        tag, _, parameter = entry.strip().partition(";")
        language = tag.strip().partition("-")[0].lower()
        quality = _quality(parameter)
        if language in available and quality > best_quality:
            best, best_quality = language, quality
    return best


def _quality(parameter: str) -> float:
    name, _, value = parameter.strip().partition("=")
    if name.strip() != "q":
        return 1.0
    try:
        return float(value)
    except ValueError:
        return 0.0
