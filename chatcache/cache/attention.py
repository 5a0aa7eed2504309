"""Attention for a few query tokens over a long cache, where the library's CPU path is several times slower.

With grouped heads the library either asks for `enable_gqa`, whose CPU kernel reads each key once per query head, or
copies all keys and values for every query head. Here the query heads of a group become query rows of their one key
head: the same kernel, mask and precision, on views of the cache as it lies.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.nn import Module
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

GROUPED_SDPA = "chatcache_grouped_sdpa"

_MAX_QUERY_TOKENS = 16
"""Above this, the library's way is as fast: the copies are paid for by many rows."""


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
    if attention_mask is not None:
        attention_mask = attention_mask.repeat(1, 1, num_groups, 1)
    rows = query.reshape(batch, key.shape[1], num_groups * num_queries, head_dim)
    output = scaled_dot_product_attention(rows, key, value, attn_mask=attention_mask, scale=scaling)
    output = output.reshape(batch, num_heads, num_queries, value.shape[-1])
    return output.transpose(1, 2).contiguous(), None
