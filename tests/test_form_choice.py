"""The fastest form whose words stay those of the full weights is chosen, and is remembered."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from tiny_models import random_ids, tiny_model
from transformers import PreTrainedModel

from chatcache.weights import form_choice
from chatcache.weights.form_choice import (
    MAX_DIVERGENCE,
    FormChoice,
    FormChoices,
    choose_form,
    faster_forms,
    mean_divergence,
)
from chatcache.weights.packed_linear import FORMS, PackedLinear
from chatcache.weights.weight_form import apply_form

CLOSE, FAR = MAX_DIVERGENCE / 2, MAX_DIVERGENCE * 2


@pytest.mark.parametrize(
    ("row_s", "divergence", "expected", "tried"),
    [
        ({"full": 3, "int8": 2, "int4": 1}, {"int8": CLOSE, "int4": CLOSE}, "int4", ["int4"]),
        ({"full": 3, "int8": 2, "int4": 1}, {"int8": CLOSE, "int4": FAR}, "int8", ["int4", "int8"]),
        ({"full": 3, "int8": 2, "int4": 1}, {"int8": FAR, "int4": FAR}, "full", ["int4", "int8"]),
        ({"full": 2, "int8": 1, "int4": 3}, {"int8": FAR, "int4": CLOSE}, "full", ["int8"]),
        ({"full": 1, "int8": 2, "int4": 3}, {"int8": CLOSE, "int4": CLOSE}, "full", []),
    ],
)
def test_forms_are_tried_from_the_fastest_on_until_one_is_close_enough(
    row_s: dict, divergence: dict, expected: str, tried: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded: list[str] = []
    monkeypatch.setattr(form_choice, "_row_s", lambda _model: row_s)
    monkeypatch.setattr(form_choice, "_logits", lambda model, _ids: model)
    monkeypatch.setattr(form_choice, "mean_divergence", lambda _reference, logits: divergence[logits])
    choice = choose_form(lambda form: (loaded.append(form), form)[1], [1, 2, 3])
    assert (choice.form, loaded) == (expected, ["full", *tried])
    assert choice.divergence == {form: divergence[form] for form in tried}


@pytest.mark.parametrize(
    ("row_s", "expected"),
    [
        ({"full": 4.0, "int8": 2.0, "int4": 1.0}, ["int4", "int8"]),
        ({"full": 4.0, "int8": 1.0, "int4": 2.0}, ["int8", "int4"]),
        ({"full": 4.0, "int8": 1.05, "int4": 1.0}, ["int8", "int4"]),
        ({"full": 4.0, "int8": 1.0, "int4": 1.05}, ["int8", "int4"]),
        ({"full": 1.05, "int8": 1.0, "int4": 1.0}, []),
        ({"full": 1.15, "int8": 1.05, "int4": 1.0}, ["int8", "int4"]),
        ({"full": 1.15, "int8": 1.1, "int4": 1.0}, ["int8", "int4"]),
        ({"full": 1.05, "int8": 2.0, "int4": 0.9}, ["int4"]),
        ({"full": 0.0, "int8": 0.0, "int4": 0.0}, []),
    ],
)
def test_of_forms_that_are_about_as_fast_the_most_exact_one_comes_first(
    row_s: dict[str, float], expected: list[str]
) -> None:
    assert faster_forms(row_s) == expected


def test_a_form_that_was_disturbed_in_some_rounds_is_no_slower_for_that(monkeypatch: pytest.MonkeyPatch) -> None:
    timed: list[str] = []

    def pass_s(layers: Sequence[PackedLinear], _row: torch.Tensor) -> float:
        form = FORMS[len(timed) % len(FORMS)]
        timed.append(form)
        is_disturbed = form == "int4" and len(timed) < 20
        return len(layers) * (9.0 if is_disturbed else 3.0 - FORMS.index(form))

    monkeypatch.setattr(form_choice, "_pass_s", pass_s)
    assert form_choice._row_s(tiny_model("llama-gqa")) == {"full": 3.0, "int8": 2.0, "int4": 1.0}


@pytest.mark.parametrize("name", ["llama-gqa", "mamba2"])
def test_a_real_model_is_measured(name: str) -> None:
    def load(form: str) -> PreTrainedModel:
        model = copy.deepcopy(tiny_model(name)).bfloat16()
        apply_form(model, form)
        return model

    choice = choose_form(load, random_ids(200))
    assert choice.form in ("full", "int8", "int4")
    assert all(seconds > 0 for seconds in choice.row_s.values())
    assert all(value >= 0 for value in choice.divergence.values())


def test_the_divergence_is_that_of_kullback_and_leibler() -> None:
    p, q = torch.tensor([[0.5, 0.25, 0.25]] * 100), torch.tensor([[0.25, 0.5, 0.25]] * 100)
    assert mean_divergence(p.log(), q.log()) == pytest.approx(0.5 * 0.6931 - 0.25 * 0.6931, abs=1e-4)
    assert mean_divergence(p.log(), p.log() + 7) == pytest.approx(0.0, abs=1e-6)


def test_choices_are_kept_by_model_and_a_damaged_file_costs_time_only(tmp_path: Path) -> None:
    file = tmp_path / "models" / "weight-forms.json"
    choice = FormChoice("int4", {"int4": 1e-5}, {"int4": 0.003})
    assert FormChoices(file).get("a") is None
    FormChoices(file).put("a", choice)
    FormChoices(file).put("b", FormChoice("full", {}, {}))
    assert FormChoices(file).get("a") == choice
    for damaged in ("{", "[]", '{"a": {"form": "int4"}}', '{"a": {"form": "int1", "row_s": {}, "divergence": {}}}'):
        file.write_text(damaged)
        assert FormChoices(file).get("a") is None
    FormChoices(file).put("a", choice)
    assert FormChoices(file).get("a") == choice
