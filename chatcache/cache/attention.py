"""Attention for a few query tokens over a long cache, where the library's CPU path is several times slower.

With grouped heads the library either asks for `enable_gqa`, whose CPU kernel reads each key once per query head, or
copies all keys and values for every query head. Here the query heads of a group become query rows of their one key
head: the same kernel, mask and precision, on views of the cache as it lies.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

GROUPED_SDPA = "chatcache_grouped_sdpa"

_MAX_QUERY_TOKENS = 16
"""Above this, the library's way is as fast: the copies are paid for by many rows."""


_JOINED_FROM_TOKENS = 1024
_JOINED_UP_TO_HEADS = 4
"""Where one multiplication over all key heads beats the kernel: it computes each head's part for every head."""


def use_grouped_attention(model: PreTrainedModel) -> None:
    """Make a model that uses the library's "sdpa" on a CPU use `grouped_attention`; any other model is left alone."""
    if model.device.type == "cpu" and model.config._attn_implementation == "sdpa":
        AttentionInterface.register(GROUPED_SDPA, grouped_attention)
        AttentionMaskInterface.register(GROUPED_SDPA, sdpa_mask)
        model.set_attn_implementation(GROUPED_SDPA)


def grouped_attention(
    module: Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """An attention function as the library's interface wants it: query `[batch, heads, queries, head_dim]`, keys and
    values `[batch, key_heads, tokens, head_dim]` → `[batch, queries, heads, head_dim]`.

    Whatever is not a few queries with grouped heads goes to the library's own function.
    """
    batch, num_heads, num_queries, head_dim = query.shape
    num_groups = num_heads // key.shape[1]
    has_one_mask = num_queries == 1 if attention_mask is None else attention_mask.shape[1] == 1
    has_bias = kwargs.get("position_bias") is not None or kwargs.get("softcap") is not None
    if num_groups == 1 or num_queries > _MAX_QUERY_TOKENS or not has_one_mask or has_bias or module.training:
        output, _ = sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **kwargs
        )
        return output, None
    if attention_mask is None and batch == 1:
        queries = query.view(1, key.shape[1], num_groups, head_dim)
        return attend_one_token(queries, key, value, scaling or head_dim**-0.5).reshape(1, 1, num_heads, -1), None
    if attention_mask is not None:
        attention_mask = attention_mask.repeat(1, 1, num_groups, 1)
    rows = query.reshape(batch, key.shape[1], num_groups * num_queries, head_dim)
    output = scaled_dot_product_attention(rows, key, value, attn_mask=attention_mask, scale=scaling)
    output = output.reshape(batch, num_heads, num_queries, value.shape[-1])
    return output.transpose(1, 2).contiguous(), None


def attend_one_token(queries: Tensor, keys: Tensor, values: Tensor, scaling: float) -> Tensor:
    """What one token sees: its queries `[1, key_heads, group, head_dim]`, all of `keys` and `values`
    `[1, key_heads, tokens, head_dim]` → `[1, key_heads, group, head_dim]`.

    Few key heads that lie side by side in memory, token after token, are read as one matrix: each query then stands at
    its own head's place, with zeros at the others', and of each output only its own head's place is taken.
    """
    _, num_key_heads, num_tokens, head_dim = keys.shape
    is_joined = num_tokens >= _JOINED_FROM_TOKENS and num_key_heads <= _JOINED_UP_TO_HEADS
    if not (is_joined and _lies_token_by_token(keys) and _lies_token_by_token(values)):
        return scaled_dot_product_attention(queries, keys, values, scale=scaling)
    key_rows, value_rows = keys[0].transpose(0, 1).flatten(1), values[0].transpose(0, 1).flatten(1)
    spread = ((queries[0] * scaling).unsqueeze(2) * _own_place(num_key_heads, queries.dtype)).view(
        -1, num_key_heads * head_dim
    )
    weights = torch.mm(spread.view(-1, num_key_heads * head_dim), key_rows.T).softmax(dim=-1)
    outputs = torch.mm(weights, value_rows).view(num_key_heads, -1, num_key_heads, values.shape[3])
    return outputs.diagonal(dim1=0, dim2=2).permute(2, 0, 1)[None]


@cache
def _own_place(num_key_heads: int, dtype: torch.dtype) -> Tensor:
    """One where a head meets itself, `[key_heads, 1, key_heads, 1]`."""
    return torch.eye(num_key_heads, dtype=dtype)[:, None, :, None]


def _lies_token_by_token(states: Tensor) -> bool:
    _, num_heads, _, width = states.shape
    return states.stride()[1:] == (width, num_heads * width, 1)
