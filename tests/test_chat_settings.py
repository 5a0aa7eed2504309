"""Which settings a chat may have, and which values."""

import dataclasses
from typing import Any

import pytest

from chatcache.cache_form import CacheForm, CacheForms
from chatcache.chat_settings import (
    MOST_PROBLEMS,
    checked_settings,
    drops_oldest,
    is_thinking,
    looks_up_prompt,
    problems_of,
)
from chatcache.errors import InvalidInputError, UnsupportedOptionError
from chatcache.reports import ModelInfo
from chatcache.stats import Sampling

MODEL = ModelInfo(
    name="tiny",
    digest="00",
    device="cpu",
    dtype="float32",
    weights="full",
    cache_kind="dynamic",
    max_context_tokens=2048,
    default_sampling=Sampling(),
    supports_thinking_switch=True,
    notices=(),
    cache_kinds=("dynamic", "quantized-int8", "none"),
)


@pytest.mark.parametrize(
    "settings",
    [
        {"thinking": False, "context_full": "stop", "prompt_lookup": True, "cache": "quantized-int8"},
        {"cache": "dynamic"},
        {},
    ],
)
def test_settings_that_a_chat_can_have_are_taken_as_they_are(settings: dict[str, Any]) -> None:
    assert checked_settings(settings, MODEL) == settings


def test_what_is_none_counts_as_never_set() -> None:
    assert checked_settings(None, MODEL) == {}
    assert checked_settings(dict.fromkeys(("thinking", "context_full", "prompt_lookup", "cache")), MODEL) == {}


@pytest.mark.parametrize("kind", ["offloaded", "auto", "", 8, True, [], {}, "quantized-int8\x00", "DYNAMIC"])
def test_a_cache_kind_that_cannot_be_had_is_refused_with_those_that_can(kind: Any) -> None:
    with pytest.raises(UnsupportedOptionError, match="dynamic, quantized-int8, none"):
        checked_settings({"cache": kind}, MODEL)


@pytest.mark.parametrize(
    ("settings", "error", "named"),
    [
        ({"colour": 1, "taste": 2}, UnsupportedOptionError, "colour, taste"),
        ({7: 1}, UnsupportedOptionError, "7"),
        ({"thinking": "yes"}, InvalidInputError, "thinking must be true or false"),
        ({"prompt_lookup": 1}, InvalidInputError, "prompt_lookup must be true or false"),
        ({"context_full": []}, InvalidInputError, "drop-oldest, stop"),
        ("cache", InvalidInputError, "must be a mapping"),
        ([("cache", "none")], InvalidInputError, "must be a mapping"),
    ],
)
def test_everything_else_is_refused_by_name(settings: Any, error: type[Exception], named: str) -> None:
    with pytest.raises(error, match=named):
        checked_settings(settings, MODEL)


def test_a_model_without_a_switch_for_thinking_has_no_such_setting() -> None:
    plain = dataclasses.replace(MODEL, supports_thinking_switch=False)
    with pytest.raises(UnsupportedOptionError, match="no switch for thinking"):
        checked_settings({"thinking": True}, plain)
    assert checked_settings({"thinking": None}, plain) == {}


def test_what_settings_from_elsewhere_do_not_do_here_is_said_and_no_more_than_can_be_read() -> None:
    assert problems_of({"cache": "none", "context_full": "stop"}, MODEL) == ()
    (cache, colour) = problems_of({"cache": "offloaded", "prompt_lookup": True, "colour": "red"}, MODEL)
    assert "'offloaded' cannot be had with this model" in cache
    assert "no chat setting named colour" in colour
    assert len(problems_of({f"x{n}" * 100: n for n in range(1000)}, MODEL)) == MOST_PROBLEMS


@pytest.mark.parametrize("value", [None, "yes", "no", 1, 0, [], {}])
def test_stored_values_that_mean_nothing_do_nothing(value: Any) -> None:
    settings = dict.fromkeys(("thinking", "context_full", "prompt_lookup"), value)
    effects = [(is_thinking(each), drops_oldest(each), looks_up_prompt(each)) for each in (settings, {})]
    assert effects == [(None, True, False)] * 2


def test_stored_settings_do_what_they_say() -> None:
    assert [is_thinking({"thinking": value}) for value in (True, False)] == [True, False]
    assert [drops_oldest({"context_full": value}) for value in ("drop-oldest", "stop")] == [True, False]
    assert [looks_up_prompt({"prompt_lookup": value}) for value in (True, False)] == [True, False]


FORMS = CacheForms(CacheForm("dynamic", ("quantized-int8",)), ("dynamic", "quantized-int8"))


@pytest.mark.parametrize(
    ("settings", "form"),
    [
        ({}, FORMS.default),
        ({"cache": None}, FORMS.default),
        ({"cache": "dynamic"}, CacheForm("dynamic")),
        ({"cache": "quantized-int8"}, CacheForm("quantized-int8")),
    ],
)
def test_a_kind_that_a_person_chose_never_gets_smaller(settings: dict[str, Any], form: CacheForm) -> None:
    assert FORMS.of(settings) == form


@pytest.mark.parametrize("kind", ["quantized-hqq4", 5, ["dynamic"], {"a": 1}])
def test_a_stored_kind_that_is_not_there_any_more_gives_the_default_and_says_so(kind: Any) -> None:
    form = FORMS.of({"cache": kind})
    assert (form.kind, form.smaller_kinds) == ("dynamic", ("quantized-int8",))
    assert form.problem is not None
    assert "cannot be had here; dynamic is used" in form.problem
