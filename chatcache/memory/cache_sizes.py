"""`CacheSizes`: what a cache of the loaded model takes at any length and kind, known before it is allocated."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import lru_cache

import torch
from transformers import PreTrainedModel

from chatcache.cache.kinds import codec_of, make_session_cache
from chatcache.cache.layers import most_held_tokens
from chatcache.cache.token_buffer import capacity_for
from chatcache.errors import UnsupportedOptionError
from chatcache.memory.budget import Need
from chatcache.memory.model_shape import LayerShape
from chatcache.memory.planner import place, reserved_layer_bytes
from chatcache.memory.rehearsal import layer_shapes

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class CacheSizes:
    """The layers of one session's cache."""

    layers: tuple[LayerShape, ...]

    @classmethod
    @torch.inference_mode()
    def of(cls, model: PreTrainedModel) -> CacheSizes:
        """Learnt from a forward of a single token: on the model thread."""
        cache = make_session_cache(model, "dynamic")
        model(input_ids=torch.zeros((1, 1), dtype=torch.long, device=model.device), cache=cache.cache, use_cache=True)
        assert cache.cache is not None
        try:
            return cls(layer_shapes(cache.cache.layers, type(model).__name__))
        except UnsupportedOptionError as error:
            logger.warning("%s Its cache is taken to grow by as much with every token.", error)
            return cls((LayerShape(num_heads=1, key_dim=cache.num_bytes, itemsize=1),))

    def need(self, kind: str, num_tokens: int, num_new_tokens: int = 0, *, is_shortened: bool = False) -> Need:
        """What a cache of `kind` takes when it holds `num_tokens` tokens, the last `num_new_tokens` of them just fed:
        until their forward is over, these are not quantized. Beside it, one layer has to have room to change in, and of
        a quantized one to be unpacked in. `is_shortened`: sliding layers keep no more than a chat's last turns need."""
        if kind == "none" or num_tokens == 0:
            return Need()
        is_quantized = codec_of(kind) is not None
        num_exact = num_new_tokens if is_quantized else 0
        return self._need(
            kind, capacity_for(num_tokens), num_exact, is_quantized, num_new_tokens if is_shortened else None
        )

    @lru_cache(maxsize=256)  # noqa: B019 - asked before every token, of the one there is for a loaded model
    def _need(self, kind: str, capacity: int, num_exact: int, is_quantized: bool, num_beside: int | None) -> Need:
        """`num_beside`: how many tokens come at once where layers are shortened; None where none is."""
        held = [
            capacity
            if layer.sliding_window is None or num_beside is None
            else min(capacity, capacity_for(most_held_tokens(layer.sliding_window, num_beside)))
            for layer in self.layers
        ]
        each = [
            reserved_layer_bytes(layer, kind, num_held) + num_exact * layer.bytes_per_token
            for layer, num_held in zip(self.layers, held, strict=True)
        ]
        unpacked = [
            layer.bytes_per_token * num_held if is_quantized else 0
            for layer, num_held in zip(self.layers, held, strict=True)
        ]
        placed = place(self.layers, kind, each)
        beside = max(each, default=0) + max(unpacked, default=0)
        return Need(placed.device_bytes, beside, placed.host_bytes)
