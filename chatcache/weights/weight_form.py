"""Give a loaded model's matrices a form, and join projections that have one input where that is known to be right."""

from __future__ import annotations

from typing import Any

from torch import nn
from transformers import PreTrainedModel

from chatcache.weights.llama_shape import is_llama_shaped
from chatcache.weights.packed_linear import PackedHead, PackedLinear


def apply_form(model: PreTrainedModel, form: str) -> None:
    """Once for a model, on its device: all linear layers multiply by weights in `form` from now on, prefill and decode.

    On a CPU, the layers of a Llama-shaped decoder get `self_attn.query_key_value` and `mlp.gate_up` beside the single
    projections, whose weights they share; see `has_joined_projections`.
    """
    head = model.get_output_embeddings()
    if model.device.type == "cpu" and is_llama_shaped(model):
        decoder: Any = model.model
        for layer in decoder.layers:
            _join(layer.self_attn, "query_key_value", ("q_proj", "k_proj", "v_proj"), form)
            _join(layer.mlp, "gate_up", ("gate_proj", "up_proj"), form)
            layer.self_attn.o_proj = PackedLinear([layer.self_attn.o_proj], form)
            layer.mlp.down_proj = PackedLinear([layer.mlp.down_proj], form)
    elif form != "full":
        for parent in list(model.modules()):
            for name, child in list(parent.named_children()):
                if type(child) is nn.Linear and child is not head:
                    setattr(parent, name, PackedLinear([child], form))
    if form != "full" and type(head) is nn.Linear:
        model.set_output_embeddings(PackedHead(head))


def has_joined_projections(model: PreTrainedModel) -> bool:
    """Whether the model is a Llama-shaped decoder whose projections `apply_form` joined."""
    return is_llama_shaped(model) and all(hasattr(layer.mlp, "gate_up") for layer in model.model.layers)


def _join(parent: nn.Module, name: str, parts: tuple[str, ...], form: str) -> None:
    setattr(parent, name, PackedLinear([getattr(parent, part) for part in parts], form))
