"""`PackedLinear`: a linear layer that multiplies a few rows by packed weights and many by the same values unpacked."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from chatcache.weights.packed_matrix import PackedMatrix, pack_int4, pack_int8, takes_int4

FORMS = ("full", "int8", "int4")
"""In which form weights are multiplied by."""


class PackedLinear(nn.Module):
    """Takes the place of one linear layer, or of several that have one input, whose outputs it then joins.

    The layers it was made of have the values of its own weights from then on, as views: they can still be used.
    """

    def __init__(self, linears: Sequence[nn.Linear], form: str) -> None:
        """`form` "int4" becomes "int8" for a shape that its kernel does not take."""
        super().__init__()
        weight = linears[0].weight.detach()
        if len(linears) > 1:
            weight = torch.cat([each.weight.detach() for each in linears])
        self._matrix, weight = _packed(weight, form)
        self.weight = nn.Parameter(weight, requires_grad=False)
        sizes = [each.out_features for each in linears]
        for each, part in zip(linears, weight.split(sizes), strict=True):
            each.weight = nn.Parameter(part, requires_grad=False)
        self.bias = _joined_bias(linears)
        # In other dtypes the kernels exist, but lose to the ordinary multiplication at any number of rows.
        is_quick = self._matrix is not None and weight.dtype == torch.bfloat16
        self._max_packed_rows = self._matrix.max_rows if self._matrix is not None and is_quick else 0

    @property
    def packed_bytes(self) -> int:
        """What it takes in memory besides its `weight`."""
        return 0 if self._matrix is None else self._matrix.num_bytes

    def forward(self, x: Tensor) -> Tensor:
        """`[..., in]` → `[..., out]`."""
        return self.multiply(x.reshape(-1, x.shape[-1])).view(*x.shape[:-1], -1)

    def multiply(self, rows: Tensor) -> Tensor:
        """`[rows, in]` → `[rows, out]`."""
        if self._matrix is None or rows.shape[0] > self._max_packed_rows:
            return linear(rows, self.weight, self.bias)
        output = self._matrix.multiply(rows)
        return output if self.bias is None else output + self.bias


class PackedHead(nn.Module):
    """Takes the place of the output head, in int8: its values are not held unpacked, for few rows ever reach it."""

    def __init__(self, head: nn.Linear) -> None:
        super().__init__()
        self._matrix, _ = pack_int8(head.weight.detach())
        # Some models ask their head for its dtype. Whoever asks for values meets an error, not wrong ones.
        self.weight = torch.empty_like(head.weight.detach(), device="meta")
        self.bias = head.bias

    @property
    def packed_bytes(self) -> int:
        """What it takes in memory."""
        return self._matrix.num_bytes

    def forward(self, x: Tensor) -> Tensor:
        """`[..., in]` → `[..., vocabulary]`."""
        output = self._matrix.multiply(x.reshape(-1, x.shape[-1]).contiguous())
        if self.bias is not None:
            output = output + self.bias
        return output.view(*x.shape[:-1], -1)


def _packed(weight: Tensor, form: str) -> tuple[PackedMatrix | None, Tensor]:
    if form == "full":
        return None, weight
    return pack_int4(weight) if form == "int4" and takes_int4(weight) else pack_int8(weight)


def _joined_bias(linears: Sequence[nn.Linear]) -> nn.Parameter | None:
    if all(each.bias is None for each in linears):
        return None
    biases: list[torch.Tensor] = [
        each.weight.new_zeros(each.out_features) if each.bias is None else each.bias for each in linears
    ]
    return nn.Parameter(torch.cat(biases), requires_grad=False)
