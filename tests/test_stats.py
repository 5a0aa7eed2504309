"""Sampling and stats: bad values are refused with a sentence, stored values come back, unknown ones do no harm."""

import dataclasses
from typing import Any

import pytest

from chatcache.errors import InvalidInputError
from chatcache.stats import FinishReason, MissReason, Reuse, Sampling, TurnStats


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", -0.1),
        ("temperature", float("nan")),
        ("temperature", True),
        ("top_p", 1.5),
        ("top_p", "0.9"),
        ("min_p", -1),
        ("top_k", -1),
        ("top_k", 1.5),
        ("repetition_penalty", 0),
        ("max_new_tokens", 0),
        ("seed", -1),
        ("seed", 2**63),
        ("stop", "word"),
        ("stop", ("",)),
    ],
)
def test_a_value_out_of_range_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(InvalidInputError, match=name):
        Sampling(**{name: value})


def test_what_is_not_set_comes_from_the_fallback() -> None:
    merged = Sampling(temperature=0.0, stop=()).merged(Sampling(temperature=0.7, top_p=0.9, stop=("\n",)))
    assert merged == Sampling(temperature=0.0, top_p=0.9, stop=())


def test_sampling_survives_the_store_and_ignores_unknown_keys() -> None:
    sampling = Sampling(temperature=0.5, stop=("a", "b"), seed=3)
    assert Sampling.from_json({**sampling.to_json(), "stop": ["a", "b"], "from_the_future": 1}) == sampling


def test_stats_survive_the_store_and_ignore_unknown_keys() -> None:
    stats = TurnStats(
        num_prompt_tokens=10,
        num_cached_tokens=9,
        num_computed_tokens=1,
        reuse=(Reuse("live", 9),),
        miss_reason=MissReason.TEMPLATE,
        finish_reason=FinishReason.CONTEXT_FULL,
        fallbacks=("int8",),
    )
    assert TurnStats.from_json({**stats.to_json(), "from_the_future": 1}) == stats


DAMAGE = [None, [], {}, 5, -1, 10**400, True, 1.5, float("nan"), "text", [5], [{"a": 1}], [None]]


@pytest.mark.parametrize("value", DAMAGE, ids=lambda value: repr(value)[:12])
@pytest.mark.parametrize("name", [field.name for field in dataclasses.fields(TurnStats)])
def test_one_damaged_number_does_not_hide_the_others(name: str, value: Any) -> None:
    whole = TurnStats(num_prompt_tokens=10, finish_reason=FinishReason.STOP, reuse=(Reuse("live", 9),), ttft_s=1.0)
    read = TurnStats.from_json({**whole.to_json(), name: value})
    assert isinstance(read.num_prompt_tokens, int)
    assert all(isinstance(reuse, Reuse) for reuse in read.reuse)
    assert all(isinstance(sentence, str) for sentence in read.fallbacks)
    assert read.ttft_s is None or isinstance(read.ttft_s, float)
    others = {f.name: getattr(whole, f.name) for f in dataclasses.fields(TurnStats) if f.name != name}
    assert {key: getattr(read, key) for key in others} == others


@pytest.mark.parametrize("value", DAMAGE, ids=lambda value: repr(value)[:12])
@pytest.mark.parametrize("name", [field.name for field in dataclasses.fields(Sampling)])
def test_one_damaged_setting_does_not_stop_a_chat(name: str, value: Any) -> None:
    whole = Sampling(temperature=0.5, stop=("a",), seed=3)
    read = Sampling.from_json({**whole.to_json(), name: value})
    others = {f.name: getattr(whole, f.name) for f in dataclasses.fields(Sampling) if f.name != name}
    assert {key: getattr(read, key) for key in others} == others
