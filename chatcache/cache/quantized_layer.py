"""A cache layer that keeps settled tokens in fewer bits and the last ones of a running turn in full precision.

A token is quantized once and by itself, and never while it may still be taken back as a rejected candidate. `settle`
quantizes all; the owner calls it where turns can part (when one begins, and where its prompt ends). What a settled
layer holds at n tokens follows from those n tokens alone: cropping to n and going on equals never having had more.
"""

# The library leaves `__init__` and `__init_subclass__` of its layers without types.
# mypy: allow-untyped-calls
from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from chatcache.cache.codecs import Codec
from chatcache.cache.layers import KEPT_TAIL_TOKENS, TokenLayer, as_rows, as_states
from chatcache.cache.token_buffer import BLOCK_TOKENS, TokenBuffer
from chatcache.cache.workspace import Workspace

MAX_TAIL_TOKENS = 192


class QuantizedLayer(TokenLayer):
    """Settled tokens as the codec's parts, the tail behind them as it came.

    `dtype` is the model's. What `update` returns lies in `workspace`, and is overwritten by the next layer that unpacks
    into it; without one, every call gets memory of its own.
    """

    def __init__(
        self, codec: Codec, dtype: torch.dtype, workspace: Workspace | None, sliding_window: int | None = None, **_: Any
    ) -> None:
        super().__init__(sliding_window)
        self._codec = codec
        self._dtype = dtype
        self._workspace = workspace
        self._parts: dict[str, TokenBuffer] = {}
        self._tail: dict[str, Tensor] = {}
        self._num_settled = 0

    @property
    def form(self) -> str:
        return self._codec.name

    @property
    def is_exact(self) -> bool:
        return False

    @property
    def num_settled_tokens(self) -> int:
        return self._num_settled

    @property
    def max_undisturbed_tokens(self) -> int | None:
        return MAX_TAIL_TOKENS - self._num_tail + self._num_due

    @property
    def num_bytes(self) -> int:
        return super().num_bytes + sum(tensor.untyped_storage().nbytes() for tensor in self._tail.values())

    def buffers(self) -> Mapping[str, TokenBuffer]:
        return self._parts

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        self._start({"keys": as_rows(key_states), "values": as_rows(value_states)})

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        # Now, not after the last step: by now it is known which tokens of that step were accepted.
        if self._num_due:
            self._settle(self._num_due)
        return super().update(key_states, value_states)

    def append(self, key_states: Tensor, value_states: Tensor) -> None:
        new = {"keys": as_rows(key_states), "values": as_rows(value_states)}
        if not self.is_initialized:
            self._start(new)
        length = self._num_tail + key_states.shape[2]
        tail = {name: rows.new_empty((length, *rows.shape[1:])) for name, rows in self._tail.items()}
        for name, rows in new.items():
            tail[name][: self._num_tail] = self._tail[name]
            tail[name][self._num_tail :] = rows
        self._tail = tail
        self._num_tokens += key_states.shape[2]

    def states(self, start: int, stop: int) -> tuple[Tensor, Tensor]:
        return as_states(self._unpacked("keys", start, stop)), as_states(self._unpacked("values", start, stop))

    def import_(self, rows: Mapping[str, Tensor]) -> None:
        self.settle()
        if not self.is_initialized:
            codes = {name: rows[f"{name[:-1]}_codes"] for name in ("keys", "values")}
            shaped = {name: (*t.shape[:-1], self._codec.head_dim(t)) for name, t in codes.items()}
            self._start({name: t.new_empty(shaped[name]) for name, t in codes.items()})
        self._forget_past()
        self._write(rows, self._num_settled)
        num_new = len(rows["key_codes"])
        self._num_settled += num_new
        self._num_tokens += num_new

    def begin_like(self, origin: TokenLayer) -> None:
        super().begin_like(origin)
        self._num_settled = self._num_forgotten

    def copy_prefix(self, origin: TokenLayer, num_tokens: int) -> None:
        num_settled = min(num_tokens, origin.num_settled_tokens)
        if num_settled:
            self.import_(origin.rows(0, num_settled))
        if num_settled < num_tokens:
            self.append(*origin.states(num_settled, num_tokens))
            self.settle()

    def settle(self, num_unsettled: int = 0) -> None:
        self._settle(max(self._num_tail - num_unsettled, 0))

    def crop_to(self, num_tokens: int) -> None:
        super().crop_to(num_tokens)
        self._num_settled = min(self._num_settled, num_tokens)
        # Cloned, so that the room is given back; the tail is short.
        self._tail = {name: rows[: self._num_tail].clone() for name, rows in self._tail.items()}

    def batch_select_indices(self, indices: Tensor) -> None:
        super().batch_select_indices(indices)
        self._tail = {name: rows.index_select(1, indices.to(rows.device)) for name, rows in self._tail.items()}

    @property
    def _num_tail(self) -> int:
        return self._num_tokens - self._num_settled

    @property
    def _num_due(self) -> int:
        """How many of the oldest tokens of the tail the next update settles first."""
        return (self._num_tail - KEPT_TAIL_TOKENS) // 64 * 64 if self._num_tail >= MAX_TAIL_TOKENS else 0

    def _settle(self, num_oldest: int) -> None:
        """Quantize the oldest tokens of the tail."""
        for start in range(0, num_oldest, BLOCK_TOKENS):
            block = {name: rows[start : min(start + BLOCK_TOKENS, num_oldest)] for name, rows in self._tail.items()}
            self._write(self._encoded(block), self._num_settled + start)
        self._tail = {name: rows[num_oldest:].clone() for name, rows in self._tail.items()}
        self._num_settled += num_oldest

    def _encoded(self, rows: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {
            f"{name[:-1]}_{part}": tensor
            for name, states in rows.items()
            for part, tensor in self._codec.encode(states).items()
        }

    def _write(self, parts: Mapping[str, Tensor], start: int) -> None:
        for name, rows in parts.items():
            if name not in self._parts:
                self._parts[name] = TokenBuffer(tuple(rows.shape[1:]), rows.dtype, rows.device)
            self._parts[name].write(start - self._num_forgotten, rows)

    def _unpacked(self, name: str, start: int, stop: int) -> Tensor:
        """Rows `[start, stop)` of the keys or values in full precision, in the workspace."""
        tail = self._tail[name]
        workspace = Workspace() if self._workspace is None else self._workspace
        rows = workspace.rows(name, stop - start, tuple(tail.shape[1:]), tail.dtype, tail.device)
        first, num_packed = self._num_forgotten, max(min(stop, self._num_settled) - start, 0)
        if num_packed:
            prefix = f"{name[:-1]}_"
            parts = {
                key.removeprefix(prefix): buffer.rows(start - first, start - first + num_packed)
                for key, buffer in self._parts.items()
                if key.startswith(prefix)
            }
            self._codec.decode(parts, rows[:num_packed])
        rows[num_packed:] = tail[start + num_packed - self._num_settled : stop - self._num_settled]
        return rows

    def _start(self, rows: Mapping[str, Tensor]) -> None:
        self.device = rows["keys"].device
        self._tail = {name: t.new_empty((0, *t.shape[1:]), dtype=self._dtype) for name, t in rows.items()}
        self.is_initialized = True
