"""`CacheSizes`: what a cache of the loaded model takes at any length and kind, known before it is allocated."""

from __future__ import annotations

import logging
from dataclasses import dataclass

import torch
from transformers import PreTrainedModel

from chatcache.cache.kinds import codec_of, make_session_cache
from chatcache.errors import UnsupportedOptionError
from chatcache.memory.budget import Need
from chatcache.memory.model_shape import LayerShape
from chatcache.memory.planner import reserved_layer_bytes
from chatcache.memory.rehearsal import layer_shapes

OFFLOADED_KINDS = frozenset({"offloaded", "offloaded-non-sliding"})

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
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

    def need(self, kind: str, num_tokens: int, num_new_tokens: int = 0) -> Need:
        """What a cache of `kind` takes on the model's device when it holds `num_tokens` tokens, the last
        `num_new_tokens` of them just fed: until their forward is over, these are not quantized."""
        if kind == "none" or num_tokens == 0:
            return Need()
        num_exact = num_new_tokens if codec_of(kind) is not None else 0
        each = [
            reserved_layer_bytes(layer, kind, num_tokens) + num_exact * layer.bytes_per_token for layer in self.layers
        ]
        if kind not in OFFLOADED_KINDS:
            return Need(sum(each), max(each, default=0))
        # What slides stays on the device; of the others, the one at work and the one fetched next are there.
        staying = [size for size, layer in zip(each, self.layers, strict=True) if layer.sliding_window is not None]
        travelling = [size for size, layer in zip(each, self.layers, strict=True) if layer.sliding_window is None]
        return Need(sum(staying) + 2 * max(travelling, default=0), max(each, default=0))
