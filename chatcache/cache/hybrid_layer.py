"""Layers that hold both, keys and values for each token and a recurrent state beside them (Falcon-H1)."""

# The library leaves its layers' methods without types.
# mypy: allow-untyped-calls
from __future__ import annotations

from typing import cast

import torch
from torch import Tensor
from transformers.cache_utils import LinearAttentionLayer

from chatcache.cache.codecs import Codec
from chatcache.cache.layers import AppendLayer, TokenLayer
from chatcache.cache.quantized_layer import QuantizedLayer
from chatcache.cache.workspace import Workspace


class _RecurrentHalf(LinearAttentionLayer):
    """The recurrent state of a layer that is a `TokenLayer` as well."""

    is_compileable = False

    def reset(self) -> None:
        super().reset()
        TokenLayer.reset(cast(TokenLayer, self))

    def reorder_cache(self, beam_idx: Tensor) -> None:
        super().reorder_cache(beam_idx)  # type: ignore[arg-type]
        TokenLayer.reorder_cache(cast(TokenLayer, self), beam_idx)


class HybridAppendLayer(_RecurrentHalf, AppendLayer):  # type: ignore[misc, override]
    """`AppendLayer` with a recurrent state."""

    def __init__(self, sliding_window: int | None = None, number_of_states: int = 1) -> None:
        AppendLayer.__init__(self, sliding_window)
        LinearAttentionLayer.__init__(self, number_of_states)


class HybridQuantizedLayer(_RecurrentHalf, QuantizedLayer):  # type: ignore[misc, override]
    """`QuantizedLayer` with a recurrent state, which stays in full precision."""

    def __init__(
        self,
        codec: Codec,
        dtype: torch.dtype,
        workspace: Workspace | None,
        sliding_window: int | None = None,
        number_of_states: int = 1,
    ) -> None:
        QuantizedLayer.__init__(self, codec, dtype, workspace, sliding_window)
        LinearAttentionLayer.__init__(self, number_of_states)
