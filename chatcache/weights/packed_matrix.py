"""Weight matrices in 8 and 4 bits, in the layouts of torch's CPU kernels, and the values they stand for.

They pay for a few rows at a time, where reading the weights is what costs. With many rows the arithmetic costs: then
an ordinary multiplication by the same values, in the model's dtype, is quicker.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

Coded = tuple[Tensor, Tensor, Tensor]
"""Codes, scales, and the values these stand for."""

INT4_GROUP = 32
_MOST_STEPS, _FEWEST_STEPS = 15, 8
_BLOCK_WEIGHTS = 2**19
"""So many are worked on at once: enough for every thread that is woken, few enough for the copies to stay small."""
_ON_GRID_WITHIN = 0.1
"""Of a step. Values of a 4-bit grid that were rounded to bfloat16 lie within 0.05 of it."""


class PackedMatrix(Protocol):
    """A matrix `[out, in]` in fewer bits than the activations have."""

    max_rows: int
    """Up to so many rows, `multiply` is quicker than an ordinary multiplication."""

    @property
    def num_bytes(self) -> int:
        """What it takes in memory."""

    def multiply(self, x: Tensor) -> Tensor:
        """`[rows, in]` → `[rows, out]`, in the dtype that the matrix was made from."""


class Int8Matrix:
    """A code in [-127, 127] for each weight and a scale for each output."""

    max_rows = 9

    def __init__(self, codes: Tensor, scales: Tensor) -> None:
        self._codes = codes
        self._scales = scales

    @property
    def num_bytes(self) -> int:
        return self._codes.nbytes + self._scales.nbytes

    def multiply(self, x: Tensor) -> Tensor:
        return torch._weight_int8pack_mm(x, self._codes, self._scales)


class Int4Matrix:
    """A code in [0, 15] for each weight; a step and a middle for each 32 weights of an output."""

    max_rows = 12

    def __init__(self, packed_codes: Tensor, scales: Tensor) -> None:
        self._codes = packed_codes
        self._scales = scales

    @property
    def num_bytes(self) -> int:
        return self._codes.nbytes + self._scales.nbytes

    def multiply(self, x: Tensor) -> Tensor:
        output: Tensor = torch.ops.aten._weight_int4pack_mm_for_cpu(x, self._codes, INT4_GROUP, self._scales)
        return output


def pack_int8(weight: Tensor) -> tuple[Int8Matrix, Tensor]:
    """The matrix for `weight`, `[out, in]`, and the values it stands for, in the dtype of `weight`."""
    codes, scales, values = _in_blocks(_coded_in_8_bits, weight)
    return Int8Matrix(codes, scales.squeeze(1)), values


def takes_int4(weight: Tensor) -> bool:
    """Whether the kernel can multiply by a matrix of this shape."""
    num_out, num_in = weight.shape
    return num_out % 16 == 0 and num_in % INT4_GROUP == 0


def pack_int4(weight: Tensor) -> tuple[Int4Matrix, Tensor]:
    """Like `pack_int8`, for a shape that `takes_int4`.

    Weights that lie on a 4-bit grid, as those of a converted 4-bit GGUF do, keep exactly their codes.
    """
    codes, scales, values = _in_blocks(_coded_in_4_bits, weight)
    packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(codes.to(torch.int32), 1)
    return Int4Matrix(packed, scales.transpose(0, 1).contiguous()), values


def _in_blocks(code: Callable[[Tensor], Coded], weight: Tensor) -> Coded:
    """What `code` gives for all rows."""
    blocks = [code(rows) for rows in weight.split(max(_BLOCK_WEIGHTS // weight.shape[1], 1))]
    codes, scales, values = zip(*blocks, strict=True)
    return _joined(codes), _joined(scales), _joined(values)


def _joined(parts: tuple[Tensor, ...]) -> Tensor:
    return torch.cat(parts) if len(parts) > 1 else parts[0]


def _coded_in_8_bits(weight: Tensor) -> Coded:
    """The scales are `[out, 1]`."""
    wide = weight.float()
    scales = wide.abs().amax(dim=1, keepdim=True).div_(127).clamp_min_(torch.finfo(torch.float32).tiny)
    codes = (wide / scales).round_().to(torch.int8)
    scales = scales.to(weight.dtype)
    return codes, scales, codes * scales


def _coded_in_4_bits(weight: Tensor) -> Coded:
    """The scales are `[out, groups, 2]`: steps and middles."""
    groups = weight.float().unflatten(1, (-1, INT4_GROUP))
    codes, steps, least = _on_grid(groups)
    steps, middles = steps.to(weight.dtype), (least + 8 * steps).to(weight.dtype)
    values = ((codes - 8) * steps.float() + middles.float()).to(weight.dtype).flatten(1)
    return codes.to(torch.uint8).flatten(1), torch.cat([steps, middles], dim=2), values


def _on_grid(groups: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """`[out, groups, 32]` → codes of that shape, and the step and the least value of each group, `[out, groups, 1]`.

    From the least to the greatest value there are 15 steps. Where that leaves values off the grid, which happens when
    the grid the weights came from was not used to both its ends, the number of steps with the smallest error is taken.
    """
    least, greatest = groups.amin(dim=2, keepdim=True), groups.amax(dim=2, keepdim=True)
    span = (greatest - least).clamp_min_(torch.finfo(torch.float32).tiny)
    steps = span / _MOST_STEPS
    codes = ((groups - least) / steps).round_()
    off_grid = _error(groups, codes, steps, least) > _ON_GRID_WITHIN * steps.squeeze(2)
    if off_grid.any():
        codes[off_grid], steps[off_grid] = _best_grid(groups[off_grid], least[off_grid], span[off_grid])
    return codes, steps, least


def _best_grid(groups: Tensor, least: Tensor, span: Tensor) -> tuple[Tensor, Tensor]:
    """Codes and steps of `[n, 32]` values, for the number of steps whose greatest error is the smallest."""
    codes, steps = torch.zeros_like(groups), span
    error = torch.full(groups.shape[:1], torch.inf)
    for num_steps in range(_MOST_STEPS, _FEWEST_STEPS - 1, -1):
        new_steps = span / num_steps
        new_codes = ((groups - least) / new_steps).round_()
        new_error = _error(groups, new_codes, new_steps, least)
        is_better = (new_error < error)[:, None]
        codes, steps = torch.where(is_better, new_codes, codes), torch.where(is_better, new_steps, steps)
        error = torch.minimum(new_error, error)
    return codes, steps


def _error(groups: Tensor, codes: Tensor, steps: Tensor, least: Tensor) -> Tensor:
    return (codes * steps + least - groups).abs_().amax(dim=-1)
