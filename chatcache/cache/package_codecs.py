"""Codecs whose arithmetic comes from the optional packages hqq and optimum-quanto, made to keep each token by itself.

Groups lie along head_dim: axis 1 as hqq counts, axis 0 as quanto does, the recommended ones. The other axis of either
would spread one scale over many tokens, so that none could be cropped or stored without the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, ClassVar

import torch
from torch import Tensor

from chatcache.cache.codecs import Codec, as_scales, divisor, grouped
from chatcache.errors import UnsupportedOptionError

_HQQ_ITERATIONS = 20
_HQQ_BETA = 10.0
_HQQ_KAPPA = 1.01
_HQQ_NORM = 0.7
"""The solver's own defaults."""


class _PackedCodec(Codec):
    """Levels 0 … 2^bits - 1 with a scale and a minimum per group, packed by the package along head_dim."""

    bits: ClassVar[tuple[int, ...]]
    num_scales = 2

    def __init__(self, code_bits: int) -> None:
        self.code_bits = code_bits

    def encode(self, rows: Tensor) -> dict[str, Tensor]:
        groups = grouped(rows).float()
        levels, scales, minima = self._levels(groups.flatten(0, -2), rows.dtype)
        columns = levels.view(-1, rows.shape[-1]).T
        codes = self._pack(columns.to(torch.uint8)).T.reshape(*rows.shape[:-1], -1).contiguous()
        if self.head_dim(codes) != rows.shape[-1]:
            raise UnsupportedOptionError(
                f"The cache kind quantized-{self.name} cannot pack a head_dim of {rows.shape[-1]}. Choose another kind."
            )
        shape = groups.shape[:-1]
        return {"codes": codes, "scales": scales.view(shape), "minima": minima.view(shape)}

    def decode(self, parts: Mapping[str, Tensor], out: Tensor) -> None:
        codes = parts["codes"]
        columns = self._unpack(codes.view(-1, codes.shape[-1]).T)[: out.shape[-1]]
        out.copy_(columns.T.reshape(out.shape))
        grouped(out).mul_(parts["scales"].unsqueeze(-1)).add_(parts["minima"].unsqueeze(-1))

    def head_dim(self, codes: Tensor) -> int:
        return int(codes.shape[-1]) * 8 // self.code_bits

    def _levels(self, groups: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
        """`[groups, size]` → levels of that shape, scales and minima `[groups]` of two bytes."""
        raise NotImplementedError

    def _pack(self, columns: Tensor) -> Tensor:
        """`[head_dim, rows]` → `[packed, rows]`."""
        raise NotImplementedError

    def _unpack(self, columns: Tensor) -> Tensor:
        """`[packed, rows]` → `[at least head_dim, rows]`."""
        raise NotImplementedError


class HqqCodec(_PackedCodec):
    """Half-quadratic quantization (Badri and Shaji, 2023) with hqq's solver step and packing.

    The solver always makes all its steps: stopping early, as the package does, looks at the error of all tokens.
    """

    bits = (1, 2, 3, 4, 8)

    @property
    def name(self) -> str:  # type: ignore[override]
        return f"hqq{self.code_bits}"

    def num_row_bytes(self, head_dim: int) -> int:
        if self.code_bits != 3:
            return super().num_row_bytes(head_dim)
        # Ten to a 32-bit word.
        return super().num_row_bytes(head_dim) - head_dim * 3 // 8 + 4 * -(-head_dim // 10)

    def head_dim(self, codes: Tensor) -> int:
        if self.code_bits != 3:
            return super().head_dim(codes)
        return int(codes.shape[-1]) * 10 // 8 * 8

    def _levels(self, groups: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
        solve: Callable[..., Any] = import_module("hqq.core.optimize").optimize_weights_proximal_legacy_step
        limits = [0, 2**self.code_bits - 1]
        low, high = groups.amin(-1, keepdim=True), groups.amax(-1, keepdim=True)
        steps_per_unit = limits[1] / torch.where(high - low <= 1e-4, limits[1], high - low)
        zero, beta = -low * steps_per_unit, _HQQ_BETA
        for _ in range(_HQQ_ITERATIONS):
            _, _, zero, _ = solve(groups, steps_per_unit, zero, limits, beta, _HQQ_NORM, -1)
            beta *= _HQQ_KAPPA
        return _rounded(
            (1 / steps_per_unit).squeeze(-1), (-zero / steps_per_unit).squeeze(-1), groups, limits[1], dtype
        )

    def _pack(self, columns: Tensor) -> Tensor:
        packed: Tensor = getattr(_bit_pack(), f"pack_{self._packing}")(columns)
        return packed

    def _unpack(self, columns: Tensor) -> Tensor:
        unpacked: Tensor = getattr(_bit_pack(), f"unpack_{self._packing}")(columns)
        return unpacked

    @property
    def _packing(self) -> str:
        return "3bit_32" if self.code_bits == 3 else f"{self.code_bits}bit_u8"


class QuantoCodec(_PackedCodec):
    """quanto's affine quantization with its MaxOptimizer and packing."""

    bits = (2, 4)

    @property
    def name(self) -> str:  # type: ignore[override]
        return f"quanto{self.code_bits}"

    def _levels(self, groups: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
        quanto = import_module("optimum.quanto")
        qtype = getattr(quanto, f"qint{self.code_bits}")
        scales, shifts = quanto.MaxOptimizer()(groups, qtype, 0, groups.shape[-1])
        return _rounded(scales.view(-1), -shifts.view(-1), groups, 2**self.code_bits - 1, dtype)

    def _pack(self, columns: Tensor) -> Tensor:
        packed: Tensor = import_module("optimum.quanto.tensor.packed").pack_weights(columns, self.code_bits)
        return packed

    def _unpack(self, columns: Tensor) -> Tensor:
        import_module("optimum.quanto")
        unpacked: Tensor = torch.ops.quanto.unpack(columns.contiguous(), self.code_bits)
        return unpacked


def _rounded(
    scales: Tensor, minima: Tensor, groups: Tensor, max_level: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    """Scales and minima in two bytes, and the levels nearest to `groups` with just these."""
    scales, minima = as_scales(scales, dtype), as_scales(minima, dtype)
    levels = ((groups - minima.unsqueeze(-1).float()) / divisor(scales)).round_().clamp_(0, max_level)
    return levels, scales, minima


def _bit_pack() -> Any:
    return import_module("hqq.core.bitpack").BitPack
