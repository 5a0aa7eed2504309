"""One tensor that grows at its end, a block of tokens at a time.

Tokens are the outermost dimension in memory. So how token t lies there depends on nothing but t: not on how much spare
room there is, nor on how the buffer came to its length. Two ways to one length therefore round alike in every kernel,
removing tokens from the end moves nothing, and any range of tokens is one contiguous piece.
"""

from __future__ import annotations

import torch
from torch import Tensor

BLOCK_TOKENS = 256

_SMALL = 32768
"""Of so few elements torch makes no parallel work."""


def capacity_for(num_tokens: int) -> int:
    """Tokens that a buffer of `num_tokens` tokens has room for: whole blocks."""
    return -(-num_tokens // BLOCK_TOKENS) * BLOCK_TOKENS


class TokenBuffer:
    """Rows `[num_tokens, *row_shape]` with spare room behind them.

    The buffer does not know how many of its rows are in use; its owner does, because several buffers advance together.
    """

    def __init__(
        self, row_shape: tuple[int, ...], dtype: torch.dtype, device: torch.device, *, is_pinned: bool = False
    ) -> None:
        """`is_pinned`: memory of the computer from which an accelerator can copy by itself."""
        self._is_pinned = is_pinned
        self._data = torch.empty((0, *row_shape), dtype=dtype, device=device)

    @property
    def dtype(self) -> torch.dtype:
        return self._data.dtype

    @property
    def device(self) -> torch.device:
        return self._data.device

    @property
    def num_bytes(self) -> int:
        """Allocated bytes, spare room included."""
        return self._data.nbytes

    def rows(self, start: int, stop: int) -> Tensor:
        """A view of rows `[start, stop)`; later writes behind `stop` do not change it."""
        return self._data[start:stop]

    def write(self, start: int, rows: Tensor) -> None:
        """Put `rows` at `[start, start + len(rows))`. Rows before `start` are kept, rows behind are not.

        Rows that were put there before, through the view that `rows` gives, are not copied again.
        """
        stop = start + rows.shape[0]
        self.reserve(start, stop)
        target = self._data[start:stop]
        if not target.is_set_to(rows):
            _copy(target, rows)

    def reserve(self, num_kept: int, num_tokens: int) -> None:
        """Make room for `num_tokens` rows, so that writing up to there moves nothing; the first `num_kept` are kept."""
        if num_tokens > self._data.shape[0]:
            grown = self._room_for(capacity_for(num_tokens))
            num_kept = min(num_kept, self._data.shape[0])
            grown[:num_kept] = self._data[:num_kept]
            self._data = grown

    def trim(self, num_tokens: int) -> None:
        """Give back the blocks that `num_tokens` rows do not need. For a moment both copies exist."""
        capacity = capacity_for(num_tokens)
        if capacity < self._data.shape[0]:
            self._data = self._room_for(capacity).copy_(self._data[:capacity])

    def copy_from(self, num_rows: int) -> Tensor:
        """A copy of what lies behind the first rows, whole blocks of them, for `replace`."""
        return self._room_for(self._data.shape[0] - num_rows).copy_(self._data[num_rows:])

    def replace(self, data: Tensor) -> None:
        """Hold `data`, which `copy_from` gave out, instead."""
        self._data = data

    def release(self) -> None:
        """Give the memory back; no row is left."""
        self._data = self._data.new_empty((0, *self._data.shape[1:]))

    def _room_for(self, capacity: int) -> Tensor:
        return self._data.new_empty((capacity, *self._data.shape[1:]), pin_memory=self._is_pinned)

    def select_batch(self, indices: Tensor) -> None:
        """Reorder, repeat or drop the sequences of a batch; the batch is the first dimension of a row."""
        self._data = self._data.index_select(1, indices.to(self._data.device))


def _copy(target: Tensor, source: Tensor) -> None:
    """Bytes that lie alike are copied by one thread: of what is large torch takes several, which mostly wait for each
    other."""
    is_plain = source.device.type == target.device.type == "cpu" and source.dtype == target.dtype
    if source.numel() > _SMALL and is_plain and source.is_contiguous():
        target.reshape(-1).view(torch.uint8).numpy()[:] = source.reshape(-1).view(torch.uint8).numpy()
    else:
        target.copy_(source)
