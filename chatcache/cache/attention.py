"""Attention over a long cache on a CPU, where the library's path is several times slower.

With grouped heads the library either asks for `enable_gqa`, whose CPU kernel reads each key once per query head, or
copies all keys and values for every query head. Here the query heads of a group become query rows of their one key
head: the same kernel, mask and precision, on views of the cache as it lies. In bfloat16, several tokens do without the
kernel: its loop takes 2 to 4 times as long as ordinary multiplications of the same matrices.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from chatcache.cache.scores import block_tokens

GROUPED_SDPA = "chatcache_grouped_sdpa"

_MAX_QUERY_TOKENS = 16
"""Above this, the library's way is as fast: the copies are paid for by many rows."""


_JOINED_FROM_TOKENS = 512
_JOINED_UP_TO_HEADS = 4
"""Where one multiplication over all key heads, by one thread, beats the kernel: it computes each head's part for every
head. Several threads mostly wait for each other in it; see `StepThreads`."""

States = tuple[Tensor, Tensor]
"""Keys and values, `[1, key_heads, tokens, head_dim]` each."""


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

    Whatever is neither multiplied as matrices nor a few queries with grouped heads goes to the library's own function.
    """
    batch, num_heads, num_queries, head_dim = query.shape
    num_groups = num_heads // key.shape[1]
    scaling = head_dim**-0.5 if scaling is None else scaling
    has_one_mask = num_queries == 1 if attention_mask is None else attention_mask.shape[1] == 1
    has_bias = kwargs.get("position_bias") is not None or kwargs.get("softcap") is not None
    visible = None
    if batch == 1 and not has_bias and not module.training and suits_matrices(query):
        visible = _visible(module, attention_mask, num_queries, key.shape[2])
    if visible is not None:
        rows = query.view(key.shape[1], num_groups, num_queries, head_dim)
        output = attend_by_matrices(rows, (key, value), visible, scaling)
        return output.view(1, num_heads, num_queries, -1).transpose(1, 2).contiguous(), None
    if num_groups == 1 or num_queries > _MAX_QUERY_TOKENS or not has_one_mask or has_bias or module.training:
        output, _ = sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **kwargs
        )
        return output, None
    if attention_mask is None and batch == 1:
        queries = query.view(1, key.shape[1], num_groups, head_dim)
        output = attend_single_tokens(queries, [(key, value)], scaling)
        return output.reshape(1, 1, num_heads, -1), None
    if attention_mask is not None:
        attention_mask = attention_mask.repeat(1, 1, num_groups, 1)
    rows = query.reshape(batch, key.shape[1], num_groups * num_queries, head_dim)
    output = scaled_dot_product_attention(rows, key, value, attn_mask=attention_mask, scale=scaling)
    output = output.reshape(batch, num_heads, num_queries, value.shape[-1])
    return output.transpose(1, 2).contiguous(), None


def suits_matrices(queries: Tensor) -> bool:
    """Whether several tokens are better multiplied as matrices. No gradient comes back from there."""
    return queries.dtype == torch.bfloat16 and not queries.requires_grad


def attend_by_matrices(queries: Tensor, states: States, visible: Tensor, scaling: float) -> Tensor:
    """What several tokens of one sequence see: queries `[key_heads, group, tokens, head_dim]`, its keys and values, and
    which of them each token sees, `[tokens, tokens held]` → `[key_heads, group, tokens, value_dim]`.

    A few tokens at a time: for these nothing is computed of the tokens that come after them.
    """
    keys, values = (each[0].contiguous() for each in states)
    num_tokens = block_tokens(queries.shape[0] * queries.shape[1], keys.shape[1])
    blocks = zip((queries * scaling).split(num_tokens, dim=2), visible.split(num_tokens), strict=True)
    outputs, num_later = [], visible.shape[0]
    for rows, seen in blocks:
        num_later -= seen.shape[0]
        num_seen = keys.shape[1] - num_later
        if num_later and seen[:, num_seen:].any():
            num_seen = keys.shape[1]
        outputs.append(_attend_block(rows, keys[:, :num_seen], values[:, :num_seen], seen[:, :num_seen]))
    return torch.cat(outputs, dim=2) if len(outputs) > 1 else outputs[0]


def _attend_block(queries: Tensor, keys: Tensor, values: Tensor, visible: Tensor) -> Tensor:
    num_key_heads, num_groups, num_tokens, head_dim = queries.shape
    scores = _room.of((num_key_heads, num_groups * num_tokens, keys.shape[1]), keys.device)
    torch.bmm(queries.reshape(num_key_heads, -1, head_dim), keys.transpose(1, 2), out=scores)
    num_before = max(0, keys.shape[1] - num_tokens)
    if not visible[:, :num_before].all():
        num_before = 0
    by_token = scores.view(num_key_heads, num_groups, num_tokens, -1)[..., num_before:]
    by_token.masked_fill_(visible[:, num_before:].logical_not(), -torch.inf)
    torch.softmax(scores, dim=-1, out=scores)
    return torch.bmm(scores, values).view(num_key_heads, num_groups, num_tokens, -1)


class _Room(threading.local):
    """Where a thread's scores lie, block after block: new pages for each would take as long as all that is computed."""

    def __init__(self) -> None:
        self._scores = torch.empty(0, dtype=torch.bfloat16)

    def of(self, shape: tuple[int, ...], device: torch.device) -> Tensor:
        """A tensor of this shape in bfloat16, with anything in it, until the next one is asked for."""
        num_scores = math.prod(shape)
        if self._scores.numel() < num_scores or self._scores.device != device:
            num_kept = 1 << (num_scores - 1).bit_length()
            with torch.inference_mode(False):  # one that was made in there could not be written outside
                self._scores = torch.empty(num_kept, dtype=torch.bfloat16, device=device)
        return self._scores[:num_scores].view(shape)


_room = _Room()


def _visible(module: Module, mask: Tensor | None, num_queries: int, num_keys: int) -> Tensor | None:
    """Which keys each of several queries sees, `[queries, keys]`; None where there is one query or another mask."""
    if num_queries == 1:
        return None
    if mask is not None:
        return mask[0, 0] if mask.dtype == torch.bool and mask.shape[:2] == (1, 1) else None
    is_causal = num_queries == num_keys and getattr(module, "is_causal", False)
    return torch.ones((num_queries, num_keys), dtype=torch.bool).tril_() if is_causal else None


def attend_single_tokens(queries: Tensor, states: Iterable[States], scaling: float) -> Tensor:
    """What one token of each of several sequences sees: queries `[sequences, key_heads, group, head_dim]`, and all keys
    and values of each sequence → `[sequences, key_heads, group, value_dim]`.

    Those of a sequence are asked for when the one before it is done with: a cache may unpack them where another has
    unpacked its own. Few key heads that lie side by side in memory, token after token, are read as one matrix: each
    query then stands at its own head's place, with zeros at the others', and of each output only its own head's place
    is taken.
    """
    num_key_heads = queries.shape[1]
    spread: Tensor | None = None
    seen = []
    for index, (keys, values) in enumerate(states):
        if not _is_joined(keys, values):
            seen.append(scaled_dot_product_attention(queries[index : index + 1], keys, values, scale=scaling))
            continue
        if spread is None:
            spread = (queries * scaling).unsqueeze(3) * _own_place(num_key_heads, queries.dtype)
            spread = spread.flatten(1, 2).flatten(2)
        weights = torch.mm(spread[index], _as_matrix(keys).T).softmax(dim=-1)
        output = torch.mm(weights, _as_matrix(values)).view(num_key_heads, -1, num_key_heads, values.shape[3])
        seen.append(output.diagonal(dim1=0, dim2=2).permute(2, 0, 1)[None])
    return torch.cat(seen)


@cache
def _own_place(num_key_heads: int, dtype: torch.dtype) -> Tensor:
    """One where a head meets itself, `[key_heads, 1, key_heads, 1]`."""
    return torch.eye(num_key_heads, dtype=dtype)[:, None, :, None]


def _is_joined(keys: Tensor, values: Tensor) -> bool:
    _, num_key_heads, num_tokens, _ = keys.shape
    if num_tokens < _JOINED_FROM_TOKENS or num_key_heads > _JOINED_UP_TO_HEADS:
        return False
    return _lies_token_by_token(keys) and _lies_token_by_token(values)


def _lies_token_by_token(states: Tensor) -> bool:
    _, num_heads, _, width = states.shape
    return states.stride()[1:] == (width, num_heads * width, 1)


def _as_matrix(states: Tensor) -> Tensor:
    """`[1, heads, tokens, width]` that lies token by token → `[tokens, heads * width]`, a view."""
    _, num_heads, num_tokens, width = states.shape
    return states.as_strided((num_tokens, num_heads * width), (num_heads * width, 1))
