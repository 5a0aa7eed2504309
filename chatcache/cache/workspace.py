"""Scratch memory in which one layer's tokens are unpacked for one attention call."""

from __future__ import annotations

import torch
from torch import Tensor

from chatcache.cache.token_buffer import capacity_for


class Workspace:
    """Named rows that are used again and again, so that a step allocates nothing.

    What `rows` gives is valid until the next call with the same name: layers that share a workspace must run one after
    the other, and nobody may keep what an earlier layer was given.
    """

    def __init__(self) -> None:
        self._scratch: dict[str, Tensor] = {}

    def rows(
        self, name: str, num_rows: int, row_shape: tuple[int, ...], dtype: torch.dtype, device: torch.device
    ) -> Tensor:
        """`[num_rows, *row_shape]`, contents undefined."""
        scratch = self._scratch.get(name)
        fits = scratch is not None and (scratch.dtype, scratch.device, scratch.shape[1:]) == (dtype, device, row_shape)
        if scratch is None or not fits or scratch.shape[0] < num_rows:
            scratch = torch.empty((capacity_for(num_rows), *row_shape), dtype=dtype, device=device)
            self._scratch[name] = scratch
        return scratch[:num_rows]
