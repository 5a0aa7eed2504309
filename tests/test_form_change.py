"""Which way a live cache is brought into the form its chat is to have."""

from __future__ import annotations

import pytest

from chatcache.cache.session_cache import SessionCache
from chatcache.cache_form import CacheForm
from chatcache.form_change import FormChange, change_of_form
from chatcache.stats import MissReason

CHOSEN = CacheForm("quantized-int8")
AUTO = CacheForm("dynamic", smaller_kinds=("quantized-int8", "quantized-int4"))


@pytest.mark.parametrize(
    ("held", "is_mixed", "form", "was_asked_for", "can_grow", "can_convert", "change"),
    [
        ("dynamic", False, AUTO, "dynamic", True, True, None),
        ("quantized-int8", False, AUTO, "dynamic", False, False, None),
        ("quantized-int8", False, AUTO, "dynamic", True, False, FormChange.GROW),
        ("quantized-int8", False, AUTO, "quantized-int8", True, False, FormChange.REPLACE),
        ("dynamic", True, AUTO, "dynamic", True, True, FormChange.GROW),
        ("dynamic", True, AUTO, "dynamic", False, True, None),
        ("dynamic", False, CHOSEN, "dynamic", False, True, FormChange.CONVERT),
        ("dynamic", False, CHOSEN, "dynamic", True, False, FormChange.REPLACE),
        ("dynamic", True, CHOSEN, "dynamic", True, True, FormChange.REPLACE),
    ],
)
def test_a_cache_is_converted_made_anew_or_left(
    held: str,
    is_mixed: bool,
    form: CacheForm,
    was_asked_for: str,
    can_grow: bool,
    can_convert: bool,
    change: FormChange | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(SessionCache, "is_mixed", is_mixed)
    cache = SessionCache(held, None)
    chosen = change_of_form(
        cache, form, was_asked_for=was_asked_for, can_grow=lambda: can_grow, can_convert=lambda: can_convert
    )
    assert chosen is change


def test_what_is_lost_by_it_has_a_reason() -> None:
    assert FormChange.GROW.reason is MissReason.SMALLER_FORM
    assert FormChange.REPLACE.reason is FormChange.CONVERT.reason is MissReason.CACHE_KIND
