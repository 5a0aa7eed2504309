"""`DecodeStep`: the next token of one or several sequences through a Llama-shaped decoder, with few calls a layer.

It computes what the library's modules compute, with their weights, rotary embedding and input embedding, but joins
projections that have one input, makes no mask, and lets all sequences share every multiplication; only attention is
each sequence's own. Every architecture of another shape goes through the library's modules.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import rms_norm
from transformers import PreTrainedModel

from chatcache.cache.attention import attend_one_token
from chatcache.cache.session_cache import SessionCache
from chatcache.weights.weight_form import JoinedProjections, joined_projections

Linear = Callable[[Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class _Layer:
    input_norm: Tensor
    query_norm: Tensor | None
    key_norm: Tensor | None
    mlp_norm: Tensor
    activation: Callable[[Tensor], Tensor]
    query_key_value: Linear
    output: Linear
    gate_up: Linear
    down: Linear


class DecodeStep:
    """Made by `of`. Runs under `inference_mode`, on the model thread."""

    def __init__(self, model: PreTrainedModel, projections: Sequence[JoinedProjections]) -> None:
        self._model: Any = model
        decoder = self._model.model
        self._embed = decoder.embed_tokens
        self._rotary = decoder.rotary_emb
        self._norm = decoder.norm.weight
        self._eps: float = decoder.norm.variance_epsilon
        attention = decoder.layers[0].self_attn
        self._head_dim: int = attention.head_dim
        self._scaling: float = attention.scaling
        self._num_key_heads: int = model.config.num_key_value_heads
        self._layers = [_layer(*each) for each in zip(decoder.layers, projections, strict=True)]
        half = torch.ones(self._head_dim // 2, dtype=model.dtype, device=model.device)
        self._signs = torch.cat([-half, half])

    @classmethod
    def of(cls, model: PreTrainedModel) -> DecodeStep | None:
        """The step for a model whose projections `apply_form` joined; None for any other."""
        projections = joined_projections(model)
        return cls(model, projections) if projections else None

    def __call__(self, token_ids: Sequence[int], caches: Sequence[SessionCache]) -> Tensor:
        """Feed one token to each cache, none of kind "none"; the logits that follow, `[sequences, vocabulary]`.

        `advance` is left to the caller. After an exception a cache may hold the token in some layers only, as after
        one in the library's modules.
        """
        device = self._signs.device
        positions = torch.tensor([[each.num_tokens for each in caches]], device=device)
        x = self._embed(torch.tensor([token_ids], device=device))
        cos, sin = self._rotary(x, positions)
        x, cos, sin = x[0], cos[0, :, None], sin[0, :, None] * self._signs
        for index, layer in enumerate(self._layers):
            attended = self._attend(layer, index, x, cos, sin, caches)
            x = x + layer.output(attended)
            gate, up = layer.gate_up(self._normed(x, layer.mlp_norm)).chunk(2, dim=-1)
            x = x + layer.down(layer.activation(gate) * up)
        logits: Tensor = self._model.lm_head(self._normed(x, self._norm))
        return logits

    def _attend(
        self, layer: _Layer, index: int, x: Tensor, cos: Tensor, sin: Tensor, caches: Sequence[SessionCache]
    ) -> Tensor:
        """`[sequences, width]` → what each sequence's token sees in its own cache, `[sequences, heads * head_dim]`."""
        num_keys = self._num_key_heads
        states = layer.query_key_value(self._normed(x, layer.input_norm))
        states = states.view(len(caches), -1, self._head_dim)  # [sequences, heads + key heads + value heads, head_dim]
        rotated = states[:, :-num_keys]
        if layer.query_norm is not None and layer.key_norm is not None:
            queries, keys = rotated[:, :-num_keys], rotated[:, -num_keys:]
            rotated = torch.cat([self._normed(queries, layer.query_norm), self._normed(keys, layer.key_norm)], dim=1)
        rotated = torch.addcmul(rotated * cos, rotated.roll(self._head_dim // 2, -1), sin)
        queries = rotated[:, :-num_keys].view(len(caches), num_keys, -1, self._head_dim)
        keys, values = rotated[:, -num_keys:, None], states[:, -num_keys:, None]
        outputs = []
        for i, held in enumerate(caches):
            assert held.cache is not None
            seen_keys, seen_values = held.cache.update(keys[i : i + 1], values[i : i + 1], index)
            outputs.append(attend_one_token(queries[i : i + 1], seen_keys, seen_values, self._scaling))
        joined = outputs[0] if len(outputs) == 1 else torch.cat(outputs)
        return joined.reshape(len(caches), -1)

    def _normed(self, x: Tensor, weight: Tensor) -> Tensor:
        return rms_norm(x, weight.shape, weight, self._eps)


def _layer(decoder_layer: Any, projections: JoinedProjections) -> _Layer:
    attention = decoder_layer.self_attn
    return _Layer(
        input_norm=decoder_layer.input_layernorm.weight,
        query_norm=attention.q_norm.weight if hasattr(attention, "q_norm") else None,
        key_norm=attention.k_norm.weight if hasattr(attention, "k_norm") else None,
        mlp_norm=decoder_layer.post_attention_layernorm.weight,
        activation=decoder_layer.mlp.act_fn,
        query_key_value=projections.query_key_value.multiply,
        output=projections.output.multiply,
        gate_up=projections.gate_up.multiply,
        down=projections.down.multiply,
    )
