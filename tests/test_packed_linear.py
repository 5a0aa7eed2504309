"""Linear layers on packed weights: few rows and many see the same values, joined layers answer like single ones."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from chatcache.weights.packed_linear import FORMS, PackedHead, PackedLinear

PACKED = [form for form in FORMS if form != "full"]


def linear(num_out: int = 32, *, bias: bool = False, dtype: torch.dtype = torch.float32, seed: int = 0) -> nn.Linear:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Linear(64, num_out, bias=bias).to(dtype).eval()


@pytest.fixture(autouse=True)
def _inference():
    with torch.inference_mode():
        yield


@pytest.mark.parametrize("bias", [False, True])
def test_full_weights_stay_bit_for_bit_what_they_were(bias: bool) -> None:
    layer = linear(bias=bias)
    expected = copy.deepcopy(layer)
    x = torch.randn(2, 5, 64)
    packed = PackedLinear([layer], "full")
    assert torch.equal(packed(x), expected(x))
    assert torch.equal(layer.weight, expected.weight)


@pytest.mark.parametrize("form", PACKED)
def test_few_rows_and_many_see_the_same_weights(form: str) -> None:
    packed = PackedLinear([linear(bias=True, dtype=torch.bfloat16)], form)
    x = torch.randn(40, 64).bfloat16()
    few = torch.cat([packed(row) for row in x.split(1)])
    exact = x.double() @ packed.weight.double().T + packed.bias.double()
    rounding = 2**-7 * exact.abs().amax()
    assert (few - exact).abs().max() <= rounding
    assert (packed(x) - exact).abs().max() <= rounding


@pytest.mark.parametrize("form", PACKED)
def test_in_float32_the_packed_values_go_through_the_ordinary_multiplication(form: str) -> None:
    packed = PackedLinear([linear()], form)
    x = torch.randn(1, 64)
    assert torch.equal(packed(x), nn.functional.linear(x, packed.weight))


@pytest.mark.parametrize("form", FORMS)
def test_joined_layers_answer_side_by_side_and_can_still_be_used_alone(form: str) -> None:
    layers = [linear(32), linear(16, bias=True, seed=1), linear(48, seed=2)]
    alone = [PackedLinear([copy.deepcopy(each)], form) for each in layers]
    packed = PackedLinear(layers, form)
    x = torch.randn(1, 3, 64)
    torch.testing.assert_close(packed(x), torch.cat([each(x) for each in alone], dim=-1))
    torch.testing.assert_close(torch.cat([each(x) for each in layers], dim=-1), packed(x))
    assert {each.weight.untyped_storage().data_ptr() for each in layers} == {
        packed.weight.untyped_storage().data_ptr()
    }, "the single layers hold no weights of their own"


def test_a_shape_that_4_bits_do_not_fit_is_held_in_8() -> None:
    layer = linear(17)
    weight = layer.weight.clone()
    packed = PackedLinear([layer], "int4")
    assert (packed.weight - weight).abs().max() < weight.abs().max() / 127


def test_the_head_answers_any_number_of_rows_within_8_bits_of_the_full_one() -> None:
    head = linear(100, bias=True)
    packed = PackedHead(head)
    x = torch.randn(2, 20, 64)
    torch.testing.assert_close(packed(x), head(x), rtol=0.05, atol=0.05)
