"""The sizes of a model, from its configuration alone: the model is built and run on PyTorch's meta device.

Tensors there have a shape and no memory, so an 8B model takes about a second and next to nothing. What the layers
leave behind after a few tokens is what they will keep, whatever the architecture: nothing here knows a model by name.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

from chatcache.cache.kinds import facts_of
from chatcache.errors import ModelLoadError, UnsupportedOptionError
from chatcache.first_sentence import first_sentence
from chatcache.library_calls import quiet_transformers
from chatcache.memory.model_shape import LayerShape, ModelShape
from chatcache.prefill_chunks import ChunkSchedule
from chatcache.told import Told
from storage.sentence import Sentence

DEVICE_TYPES = ("cpu", "cuda", "mps")
_REHEARSED_TOKENS = 4
_DELTA_RULE_CHUNK_TOKENS = 64
"""What the library's own code uses for recurrent layers whose configuration names no chunk."""


def rehearse(config: PreTrainedConfig, dtype: torch.dtype, name: str) -> ModelShape:
    """The sizes of the model that `config` describes, with weights in `dtype`.

    Raises ModelLoadError if no such causal model can be built, UnsupportedOptionError if it keeps a cache of a form
    that cannot be measured. The library sets PyTorch's default dtype for a moment: not while another thread computes.
    """
    model = _build(config, dtype, name)
    return _shape(model, _run(model, name), dtype, name)


def _build(config: PreTrainedConfig, dtype: torch.dtype, name: str) -> PreTrainedModel:
    try:
        with quiet_transformers(), torch.device("meta"):
            model: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=dtype, trust_remote_code=False)
        model.eval()
        return model
    except Exception as error:  # no causal model of that type, values that do not go together: each has its own
        raise ModelLoadError(
            f"No causal language model can be built from the config.json of {name}: {first_sentence(error)}"
        ) from error


@torch.inference_mode()
def _run(model: PreTrainedModel, name: str) -> list[Any]:
    """The layers of the library's own cache after a few tokens."""
    ids = torch.zeros((1, _REHEARSED_TOKENS), dtype=torch.long, device="meta")
    try:
        with quiet_transformers():
            # The other ways to run experts look at values, or refuse some dtypes.
            model.set_experts_implementation("batched_mm")
            cache = model(ids, use_cache=True)["cache"]
        return list(cache.layers)
    except Exception as error:  # a model that keeps no cache of the common form, or looks at values
        raise UnsupportedOptionError(
            f"The cache of {name} ({model.config.model_type}) cannot be planned: it has no form that is known here."
        ) from error


def _shape(model: PreTrainedModel, cache_layers: list[Any], dtype: torch.dtype, name: str) -> ModelShape:
    config = model.config.get_text_config(decoder=True)
    parameters = list(model.parameters())
    embedding = model.get_input_embeddings().weight
    scan_chunk_tokens, scan_width = _scan(config, cache_layers)
    return ModelShape(
        name=name,
        architecture=model.config.model_type,
        dtype=str(dtype).removeprefix("torch."),
        itemsize=dtype.itemsize,
        num_parameters=sum(p.numel() for p in parameters),
        num_quantizable_parameters=sum(p.numel() for p in parameters if p.dim() >= 2 and p is not embedding),
        weight_bytes=sum(t.nbytes for t in (*parameters, *model.buffers())),
        layers=layer_shapes(cache_layers, name),
        vocab_size=_size(config, "vocab_size"),
        hidden_size=_size(config, "hidden_size"),
        num_attention_heads=_size(config, "num_attention_heads"),
        widest_projection=_widest_projection(model, config),
        has_eager_attention=config._attn_implementation == "eager",
        scan_chunk_tokens=scan_chunk_tokens,
        scan_width=scan_width,
        max_context_tokens=_size(config, "max_position_embeddings") or None,
        chunk_tokens={each: ChunkSchedule.of(model, each).most_tokens for each in DEVICE_TYPES},
        layer_types=facts_of(model.config, "cpu").layer_types,
        notes=_notes(config),
    )


def layer_shapes(cache_layers: Iterable[Any], name: str) -> tuple[LayerShape, ...]:
    """What each layer of a cache keeps, told by what it holds after a few tokens.

    Raises UnsupportedOptionError if a layer holds something of a form that cannot be measured.
    """
    return tuple(_layer_shape(layer, name) for layer in cache_layers)


def _layer_shape(layer: Any, name: str) -> LayerShape:
    states = [*_states(layer, "conv_states"), *_states(layer, "recurrent_states")]
    keys, values = getattr(layer, "keys", None), getattr(layer, "values", None)
    tokens = [t for t in (keys, values) if t is not None]
    if not states and not tokens and not _is_empty(layer):
        raise UnsupportedOptionError(f"The cache of {name} cannot be planned: a {layer} holds what is not known here.")
    if keys is None or values is None:
        return LayerShape(state_bytes=sum(t.nbytes for t in states))
    return LayerShape(
        num_heads=keys.shape[1],
        key_dim=keys.shape[3],
        value_dim=values.shape[3],
        itemsize=keys.itemsize,
        sliding_window=getattr(layer, "sliding_window", None),
        state_bytes=sum(t.nbytes for t in states),
    )


def _is_empty(layer: Any) -> bool:
    """Whether the layer holds no tensor worth counting; lengths are kept as tensors of one element."""
    return not any(isinstance(value, Tensor) and value.numel() > 1 for value in vars(layer).values())


def _states(layer: Any, name: str) -> list[Tensor]:
    return [t for t in getattr(layer, name, {}).values() if t is not None]


def _widest_projection(model: PreTrainedModel, config: Any) -> int:
    head = model.get_output_embeddings()
    widest: int = max(_out_features(m for m in model.modules() if m is not head), default=4 * config.hidden_size)
    expert_width = _size(config, "moe_intermediate_size", "intermediate_size")
    return max(widest, _size(config, "num_experts_per_tok") * (expert_width + _size(config, "hidden_size")))


def _size(config: Any, *names: str) -> int:
    """The first of these values that the configuration has, else 0."""
    values = (getattr(config, name, None) for name in names)
    return next((value for value in values if isinstance(value, int)), 0)


def _out_features(modules: Iterable[nn.Module]) -> list[int]:
    return [m.out_features for m in modules if isinstance(m, nn.Linear)]


def _scan(config: Any, cache_layers: list[Any]) -> tuple[int, int]:
    """Tokens of a scan chunk, and what each takes: for every head its weights for the chunk, its inputs and outputs."""
    states = [t for layer in cache_layers for t in _states(layer, "recurrent_states") if t.dim() == 4]
    if not states:
        return 0, 0
    chunk_tokens = _size(config, "chunk_size", "mamba_chunk_size") or _DELTA_RULE_CHUNK_TOKENS
    return chunk_tokens, max(t.shape[1] * (chunk_tokens + t.shape[2] + t.shape[3]) for t in states)


def _notes(config: Any) -> tuple[str, ...]:
    if getattr(config, "quantization_config", None) is None:
        return ()
    note = "The checkpoint is quantized: its own weights are smaller than planned here, which is in full precision."
    return (Sentence(note, Told.CHECKPOINT_SMALLER),)
