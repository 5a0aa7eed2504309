"""A cache layer whose tokens lie in the computer's memory and visit the model's device for its attention only.

While a layer's attention is computed, the next layer's tokens are on their way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from chatcache.cache.layers import AppendLayer, as_rows, as_states
from chatcache.cache.token_buffer import TokenBuffer

HOME = torch.device("cpu")


@dataclass(frozen=True, slots=True)
class _Visit:
    """Rows on the model's device: `num_past` of the layer's tokens, and room for the new ones behind them."""

    keys: Tensor
    values: Tensor
    num_past: int


class OffloadedLayer(AppendLayer):
    """Like `AppendLayer`, in `HOME`; what `update` and `states` return is on the device and belongs to the caller.

    `device` is the model's, until an update says where it really computes.
    """

    def __init__(self, device: torch.device, sliding_window: int | None = None, **_: Any) -> None:
        super().__init__(sliding_window)
        self.next_layer: OffloadedLayer | None = None
        self._compute_device = device
        self._visit: _Visit | None = None

    @property
    def form(self) -> str:
        return "offloaded"

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        first, num_new = self._first_visible(self._num_tokens), key_states.shape[2]
        self._compute_device = key_states.device
        visit = self._visit
        if visit is None or visit.keys.shape[0] != self._num_tokens + num_new:
            visit = self._begin_visit(as_rows(key_states), as_rows(value_states))
        if self.device_stream is not None:
            torch.cuda.current_stream(self._compute_device).wait_stream(self.device_stream)
        visit.keys[visit.num_past :] = as_rows(key_states)
        visit.values[visit.num_past :] = as_rows(value_states)
        self.append(key_states, value_states)
        if self.next_layer is not None:
            self.next_layer.fetch_ahead(num_new)
        return as_states(visit.keys)[:, :, first:], as_states(visit.values)[:, :, first:]

    def fetch_ahead(self, num_new: int) -> None:
        """Start to bring the tokens over for an update with `num_new` more. Returns before they are there."""
        if self._num_tokens:
            buffers = self.buffers()
            self._visit = self._begin_visit(
                *(buffers[name].rows(0, 1).expand(num_new, -1, -1, -1) for name in ("keys", "values"))
            )

    def states(self, start: int, stop: int) -> tuple[Tensor, Tensor]:
        keys, values = super().states(start, stop)
        return keys.to(self._compute_device), values.to(self._compute_device)

    def import_(self, rows: Mapping[str, Tensor]) -> None:
        super().import_({name: tensor.to(HOME) for name, tensor in rows.items()})

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        super().lazy_initialization(key_states.to(HOME), value_states.to(HOME))

    @property
    def device_stream(self) -> torch.cuda.Stream | None:
        """What tokens travel on, beside the computation; None where there is no such thing."""
        return _stream_of(self._compute_device) if self._compute_device.type == "cuda" else None

    def _begin_visit(self, new_keys: Tensor, new_values: Tensor) -> _Visit:
        """Rows on the device for the tokens held, on their way, and for as many new ones as are shown."""
        num_past, num_new = self._num_tokens, new_keys.shape[0]
        visiting = [
            torch.empty((num_past + num_new, *new.shape[1:]), dtype=new.dtype, device=self._compute_device)
            for new in (new_keys, new_values)
        ]
        stream = self.device_stream
        if stream is not None:
            # The memory may still be in use by what was computed before.
            stream.wait_stream(torch.cuda.current_stream(self._compute_device))
        with torch.cuda.stream(stream):
            for name, rows in zip(("keys", "values"), visiting, strict=True):
                if num_past:
                    rows[:num_past].copy_(self.buffers()[name].rows(0, num_past), non_blocking=True)
                if stream is not None:
                    rows.record_stream(stream)
        keys, values = visiting
        return _Visit(keys, values, num_past)

    def _start(self, rows: Mapping[str, Tensor]) -> None:
        super()._start(rows)
        is_pinned = self._compute_device.type == "cuda"
        self._buffers = {
            name: TokenBuffer(tuple(t.shape[1:]), t.dtype, HOME, is_pinned=is_pinned) for name, t in rows.items()
        }

    def _refresh(self) -> None:
        super()._refresh()
        self._visit = None


def chain(layers: Sequence[Any]) -> None:
    """Let each offloaded layer bring over the tokens of the next one."""
    offloaded = [layer for layer in layers if isinstance(layer, OffloadedLayer)]
    for layer, following in pairwise(offloaded):
        layer.next_layer = following


_STREAMS: dict[torch.device, torch.cuda.Stream] = {}


def _stream_of(device: torch.device) -> torch.cuda.Stream:
    if device not in _STREAMS:
        _STREAMS[device] = torch.cuda.Stream(device)
    return _STREAMS[device]
