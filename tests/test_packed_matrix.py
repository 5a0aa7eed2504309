"""Packed weights: kernels multiply by the values that they are said to stand for, and 4-bit grids keep their codes."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from chatcache.weights import packed_matrix
from chatcache.weights.packed_matrix import INT4_GROUP, pack_int4, pack_int8, takes_int4

SHAPE = (48, 96)


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def grid(num_codes: int, first: int) -> tuple[Tensor, Tensor]:
    """Weights on a 4-bit grid of which `num_codes` codes are used, rounded to bfloat16; and the steps, per group."""
    generator = torch.Generator().manual_seed(num_codes)
    codes = torch.randint(0, num_codes, (SHAPE[0], SHAPE[1] // INT4_GROUP, INT4_GROUP), generator=generator)
    codes[..., 0], codes[..., 1] = 0, num_codes - 1
    steps = torch.rand((*codes.shape[:2], 1), generator=generator) + 0.1
    return ((codes + first) * steps).flatten(1).bfloat16(), steps


@pytest.mark.parametrize("num_rows", [1, 3, 8])
@pytest.mark.parametrize("pack", [pack_int8, pack_int4])
def test_the_kernel_multiplies_by_the_values_it_stands_for(pack, num_rows: int) -> None:
    matrix, values = pack(random(*SHAPE))
    x = random(num_rows, SHAPE[1], seed=1)
    assert values.dtype == torch.float32
    torch.testing.assert_close(matrix.multiply(x), x @ values.T, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("pack", "step"), [(pack_int8, 1 / 127), (pack_int4, 1 / 15)])
def test_a_value_is_off_by_half_a_step_at_most(pack, step: float) -> None:
    weight = random(*SHAPE)
    _, values = pack(weight)
    span = weight.amax() - weight.amin()
    assert (values - weight).abs().max() <= 0.5 * step * span + 1e-6


@pytest.mark.parametrize("pack", [pack_int8, pack_int4])
def test_values_keep_the_dtype_and_zero_and_constant_weights_stay_finite(pack) -> None:
    weight = torch.zeros(SHAPE, dtype=torch.bfloat16)
    weight[0] = 0.5
    matrix, values = pack(weight)
    assert values.dtype == torch.bfloat16
    torch.testing.assert_close(values, weight)
    assert matrix.multiply(torch.ones((1, SHAPE[1]), dtype=torch.bfloat16)).isfinite().all()


@pytest.mark.parametrize("first", [0, -8, 3])
@pytest.mark.parametrize("num_codes", [16, 15, 13, 9])
def test_weights_from_a_4_bit_grid_come_back_as_they_were(num_codes: int, first: int) -> None:
    weight, steps = grid(num_codes, first)
    _, values = pack_int4(weight)
    distance = (values.float() - weight.float()).unflatten(1, (-1, INT4_GROUP)).abs()
    # Two roundings to bfloat16 lie between them, of the step and of the middle; a wrong code would cost a whole step.
    assert (distance <= 0.25 * steps).all()


@pytest.mark.parametrize("pack", [pack_int8, pack_int4])
def test_the_weights_that_are_packed_are_not_changed(pack) -> None:
    weight = random(*SHAPE)
    pack(weight)
    assert torch.equal(weight, random(*SHAPE))


@pytest.mark.parametrize(("shape", "takes"), [((16, 32), True), ((17, 32), False), ((16, 33), False)])
def test_the_int4_kernel_takes_whole_blocks_only(shape: tuple[int, int], takes: bool) -> None:
    assert takes_int4(torch.empty(shape)) is takes


@pytest.mark.parametrize("pack", [pack_int8, pack_int4])
def test_a_matrix_of_several_blocks_is_packed_as_one_of_a_single_block(pack, monkeypatch: pytest.MonkeyPatch) -> None:
    weight = random(*SHAPE)
    matrix, values = pack(weight)
    monkeypatch.setattr(packed_matrix, "_BLOCK_WEIGHTS", 5 * SHAPE[1])
    matrix_of_blocks, values_of_blocks = pack(weight)
    x = random(1, SHAPE[1], seed=1)
    assert torch.equal(values, values_of_blocks)
    assert torch.equal(matrix.multiply(x), matrix_of_blocks.multiply(x))
