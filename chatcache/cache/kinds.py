"""The cache kinds: which fit a model on its device, and how a cache of each kind is made.

Layers are chosen by the layer types in the model's config, as the library does it, so hybrid, sliding and shared layers
of any architecture find theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from transformers import PreTrainedConfig, PreTrainedModel
from transformers.cache_utils import DYNAMIC_LAYER_TYPE_MAPPING, get_layer_types_and_kwargs

from chatcache.cache.layers import AppendLayer
from chatcache.cache.session_cache import SessionCache
from chatcache.errors import UnsupportedOptionError

LATER_KINDS = ("offloaded", "quantized-int8", "quantized-int4", "quantized-fp8", "static")
KINDS = ("dynamic", *LATER_KINDS, "none")

_TOKEN_LAYER_TYPES = ("full_attention", "sliding_attention", "chunked_attention")


def resolve_kind(model: PreTrainedModel, requested: str) -> str:  # noqa: ARG001
    """The kind that `requested` means for this model; "auto" chooses. Raises UnsupportedOptionError with the reason."""
    if requested == "auto":
        return "dynamic"
    if requested not in KINDS:
        raise UnsupportedOptionError(f"There is no cache kind {requested!r}. Choose one of: auto, {', '.join(KINDS)}.")
    if requested in LATER_KINDS:
        raise UnsupportedOptionError(
            f"The cache kind {requested!r} is not available in this version. Choose auto, dynamic or none."
        )
    return requested


def make_session_cache(model: PreTrainedModel, kind: str) -> SessionCache:
    """An empty cache of a resolved kind. Raises UnsupportedOptionError with the reason."""
    kind = resolve_kind(model, kind)
    return SessionCache(kind, None if kind == "none" else partial(_make_layers, model.config, AppendLayer))


def _make_layers(config: PreTrainedConfig, token_layer: Callable[..., Any]) -> list[Any]:
    """One layer for each of the model's: `token_layer` for attention, the library's own for all else."""
    types, all_kwargs = get_layer_types_and_kwargs(config.get_text_config(decoder=True))
    return [_make_layer(layer_type, kwargs, token_layer) for layer_type, kwargs in zip(types, all_kwargs, strict=True)]


def _make_layer(layer_type: str, kwargs: Mapping[str, Any], token_layer: Callable[..., Any]) -> Any:
    if layer_type in _TOKEN_LAYER_TYPES:
        return token_layer(**kwargs)
    return DYNAMIC_LAYER_TYPE_MAPPING[layer_type](**kwargs)
