"""`DecodeStep`: the next tokens of one or several sequences through a Llama-shaped decoder, with few calls a layer; in
bfloat16 also a chunk of a prompt.

It computes what the library's modules compute, with their weights, rotary embedding and input embedding, but joins
projections that have one input, makes no mask, and lets all sequences share every multiplication; only attention is
each sequence's own. Every architecture of another shape goes through the library's modules.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import rms_norm, scaled_dot_product_attention
from transformers import PreTrainedModel

from chatcache.cache.attention import States, attend_by_matrices, attend_single_tokens, suits_matrices
from chatcache.cache.session_cache import MAX_CANDIDATE_TOKENS, SessionCache
from chatcache.step_threads import StepThreads
from chatcache.weights.weight_form import JoinedProjections, joined_projections

Linear = Callable[[Tensor], Tensor]

MOST_FEW_TOKENS = 1 + MAX_CANDIDATE_TOKENS
"""More are a chunk of a prompt."""
_SMALL_MASK = 2**11
"""Up to so many pairs of tokens the kernel's one call is quicker than the several of a multiplication of matrices."""


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


@dataclass(frozen=True, slots=True)
class _Feed:
    """The tokens of one sequence. `updates`: for each layer what takes new keys and values and gives all that it holds;
    `mask`: what each of several tokens sees, `[tokens, tokens held]`."""

    start: int
    num_tokens: int
    updates: Sequence[Callable[[Tensor, Tensor], States]]
    mask: Tensor | None

    @classmethod
    def of(cls, held: SessionCache, num_tokens: int) -> _Feed:
        cache: Any = held.cache
        start, mask = held.num_tokens, None
        if num_tokens > 1:
            mask = torch.ones((num_tokens, start + num_tokens), dtype=torch.bool).tril_(start)
        return cls(start, num_tokens, [layer.update for layer in cache.layers], mask)

    def attend(self, queries: Tensor, states: States, scaling: float) -> Tensor:
        """Queries `[tokens, key_heads, group, head_dim]` and all keys and values → the shape of the queries."""
        if self.mask is None:
            return attend_single_tokens(queries, [states], scaling)
        num_tokens, num_key_heads, num_groups, head_dim = queries.shape
        rows = queries.permute(1, 2, 0, 3).contiguous()
        is_small = num_tokens <= MOST_FEW_TOKENS and self.mask.numel() <= _SMALL_MASK
        if suits_matrices(rows) and not is_small:
            return attend_by_matrices(rows, states, self.mask, scaling).permute(2, 0, 1, 3)
        rows = rows.view(1, num_key_heads, num_groups * num_tokens, head_dim)
        output = scaled_dot_product_attention(rows, *states, self.mask.repeat(num_groups, 1), scale=scaling)
        return output.view(num_key_heads, num_groups, num_tokens, head_dim).permute(2, 0, 1, 3)


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
        self._threads = StepThreads(1 if model.device.type != "cpu" else None)
        half = torch.ones(self._head_dim // 2, dtype=model.dtype, device=model.device)
        self._signs = torch.cat([-half, half])

    @classmethod
    def of(cls, model: PreTrainedModel) -> DecodeStep | None:
        """The step for a model whose projections `apply_form` joined; None for any other."""
        projections = joined_projections(model)
        return cls(model, projections) if projections else None

    def fits(self, cache: SessionCache, num_tokens: int) -> bool:
        """Whether `num_tokens` may be fed to `cache` at once: several only where each sees all that is before it, many
        only where they are multiplied as matrices."""
        if cache.cache is None:
            return False
        if num_tokens == 1:
            return True
        if any(getattr(layer, "is_sliding", False) for layer in cache.cache.layers):
            return False
        return num_tokens <= MOST_FEW_TOKENS or self._signs.dtype == torch.bfloat16

    def __call__(
        self, token_ids: Sequence[Sequence[int]], caches: Sequence[SessionCache], num_logits: int | None = None
    ) -> Tensor:
        """Feed to each cache its tokens, which must fit; the logits that follow each token, or the last `num_logits` of
        these, `[tokens, vocabulary]`.

        `advance` is left to the caller. After an exception a cache may hold the tokens in some layers only, as after
        one in the library's modules.
        """
        num_tokens, num_held = sum(map(len, token_ids)), sum(held.num_tokens for held in caches)
        # Many tokens are work enough for all threads.
        with self._threads.chosen(num_tokens, num_held) if num_tokens <= MOST_FEW_TOKENS else nullcontext():
            return self._logits(token_ids, caches, num_logits)

    def _logits(
        self, token_ids: Sequence[Sequence[int]], caches: Sequence[SessionCache], num_logits: int | None
    ) -> Tensor:
        device = self._signs.device
        feeds = [_Feed.of(held, len(ids)) for held, ids in zip(caches, token_ids, strict=True)]
        positions = [feed.start + i for feed in feeds for i in range(feed.num_tokens)]
        x = self._embed(torch.tensor([[each for ids in token_ids for each in ids]], device=device))
        cos, sin = self._rotary(x, torch.tensor([positions], device=device))
        x, cos, sin = x[0], cos[0, :, None], sin[0, :, None] * self._signs
        for index, layer in enumerate(self._layers):
            attended = self._attend(layer, index, x, cos, sin, feeds)
            x = x + layer.output(attended)
            gate, up = layer.gate_up(self._normed(x, layer.mlp_norm)).chunk(2, dim=-1)
            x = x + layer.down(layer.activation(gate) * up)
        wanted = x if num_logits is None else x[-num_logits:]
        logits: Tensor = self._model.lm_head(self._normed(wanted, self._norm))
        return logits

    def _attend(self, layer: _Layer, index: int, x: Tensor, cos: Tensor, sin: Tensor, feeds: Sequence[_Feed]) -> Tensor:
        """`[tokens, width]` → what each token sees in its sequence's own cache, `[tokens, heads * head_dim]`."""
        num_keys = self._num_key_heads
        states = layer.query_key_value(self._normed(x, layer.input_norm))
        states = states.view(len(x), -1, self._head_dim)  # [tokens, heads + key heads + value heads, head_dim]
        rotated = states[:, :-num_keys]
        if layer.query_norm is not None and layer.key_norm is not None:
            queries, keys = rotated[:, :-num_keys], rotated[:, -num_keys:]
            rotated = torch.cat([self._normed(queries, layer.query_norm), self._normed(keys, layer.key_norm)], dim=1)
        rotated = torch.addcmul(rotated * cos, rotated.roll(self._head_dim // 2, -1), sin)
        queries = rotated[:, :-num_keys].view(len(x), num_keys, -1, self._head_dim)
        sizes = [feed.num_tokens for feed in feeds]
        keys, values = (_as_states(rows[:, -num_keys:]).split(sizes, dim=2) for rows in (rotated, states))
        # One after the other: a cache may unpack what it holds where another does.
        seen = (feed.updates[index](*new) for feed, *new in zip(feeds, keys, values, strict=True))
        if len(feeds) == len(x):
            output = attend_single_tokens(queries, seen, self._scaling)
        else:
            parts = zip(feeds, queries.split(sizes), seen, strict=True)
            output = torch.cat([feed.attend(rows, held, self._scaling) for feed, rows, held in parts])
        return output.reshape(len(x), -1)

    def _normed(self, x: Tensor, weight: Tensor) -> Tensor:
        return rms_norm(x, weight.shape, weight, self._eps)


def _as_states(rows: Tensor) -> Tensor:
    """`[tokens, heads, head_dim]` → `[1, heads, tokens, head_dim]`, a view."""
    return rows.transpose(0, 1)[None]


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
