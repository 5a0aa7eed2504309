"""Every architecture runs on weights in every form; a Llama-shaped one has its projections joined."""

from __future__ import annotations

import copy

import pytest
import torch
from tiny_models import FULL_ATTENTION, RECURRENT, SLIDING, random_ids, tiny_model
from torch import nn

from chatcache.weights.packed_linear import PackedHead
from chatcache.weights.weight_form import apply_form, joined_projections


@pytest.fixture(autouse=True)
def _inference():
    with torch.inference_mode():
        yield


@pytest.mark.parametrize("name", FULL_ATTENTION + SLIDING + RECURRENT)
def test_every_architecture_runs_on_weights_in_8_bits(name: str) -> None:
    ids = torch.tensor([random_ids(20)])
    model = copy.deepcopy(tiny_model(name))
    apply_form(model, "int8")
    if not joined_projections(model):
        assert not any(type(each) is nn.Linear for each in model.modules())
    assert isinstance(model.get_output_embeddings(), PackedHead)
    logits, full = model(ids).logits, tiny_model(name)(ids).logits
    assert not torch.equal(logits, full)
    assert torch.linalg.vector_norm(logits - full) < 0.2 * torch.linalg.vector_norm(full)


@pytest.mark.parametrize("name", FULL_ATTENTION + SLIDING + RECURRENT)
def test_full_weights_change_no_output(name: str) -> None:
    ids = torch.tensor([random_ids(20)])
    model = copy.deepcopy(tiny_model(name))
    apply_form(model, "full")
    assert torch.equal(model(ids).logits, tiny_model(name)(ids).logits)
    assert bool(joined_projections(model)) is name.startswith(("llama", "mistral"))


def test_joined_projections_share_the_weights_of_the_modules_and_are_not_saved_with_them() -> None:
    model = copy.deepcopy(tiny_model("llama-gqa"))
    names, before = set(model.state_dict()), sum(each.nbytes for each in model.parameters())
    apply_form(model, "full")
    assert set(model.state_dict()) == names
    storages = {each.untyped_storage().data_ptr(): each.untyped_storage().nbytes() for each in model.parameters()}
    assert sum(storages.values()) == before
    for each in joined_projections(model):
        for linear in (each.query_key_value, each.output, each.gate_up, each.down):
            assert linear.weight.untyped_storage().data_ptr() in storages


def test_a_head_that_shares_its_weights_with_the_embedding_leaves_that_as_it_is() -> None:
    model = copy.deepcopy(tiny_model("llama-gqa"))
    model.lm_head = nn.Linear(32, 97, bias=False)
    model.lm_head.weight = model.model.embed_tokens.weight
    before = model.model.embed_tokens.weight.clone()
    apply_form(model, "int8")
    assert torch.equal(model.model.embed_tokens.weight, before)
