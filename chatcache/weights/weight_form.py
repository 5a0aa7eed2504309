"""Give a loaded model's matrices a form, and join projections that have one input where that is known to be right."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import nn
from transformers import PreTrainedModel

from chatcache.weights.llama_shape import is_llama_shaped
from chatcache.weights.packed_linear import PackedHead, PackedLinear


@dataclass(frozen=True, slots=True)
class JoinedProjections:
    """The projections of a Llama-shaped layer, those with one input joined. They share the weights of its modules."""

    query_key_value: PackedLinear
    output: PackedLinear
    gate_up: PackedLinear
    down: PackedLinear

    @classmethod
    def of(cls, attention: Any, mlp: Any, form: str) -> JoinedProjections:
        return cls(
            query_key_value=PackedLinear([attention.q_proj, attention.k_proj, attention.v_proj], form),
            output=PackedLinear([attention.o_proj], form),
            gate_up=PackedLinear([mlp.gate_proj, mlp.up_proj], form),
            down=PackedLinear([mlp.down_proj], form),
        )


def apply_form(model: PreTrainedModel, form: str) -> None:
    """Once for a model, on its device: all linear layers multiply by weights in `form` from now on, prefill and decode.

    On a CPU, the layers of a Llama-shaped decoder keep their modules, which get the values of the form, and have
    `JoinedProjections` besides.
    """
    head = model.get_output_embeddings()
    if model.device.type == "cpu" and is_llama_shaped(model):
        decoder: Any = model.model
        for layer in decoder.layers:
            layer.joined_projections = JoinedProjections.of(layer.self_attn, layer.mlp, form)
    elif form != "full":
        for parent in list(model.modules()):
            for name, child in list(parent.named_children()):
                if type(child) is nn.Linear and child is not head:
                    setattr(parent, name, PackedLinear([child], form))
    if form != "full" and type(head) is nn.Linear:
        model.set_output_embeddings(PackedHead(head))


def joined_projections(model: PreTrainedModel) -> list[JoinedProjections]:
    """Those of each layer; empty where `apply_form` made none."""
    layers: Any = model.model.layers if is_llama_shaped(model) else ()
    return [layer.joined_projections for layer in layers if hasattr(layer, "joined_projections")]


def held_bytes(model: PreTrainedModel) -> int:
    """What the weights take in memory: their values, and beside these what few rows are multiplied by."""
    packed = [each for each in model.modules() if isinstance(each, PackedLinear | PackedHead)]
    for joined in joined_projections(model):
        packed += [joined.query_key_value, joined.output, joined.gate_up, joined.down]
    values = (*model.parameters(), *model.buffers())
    return sum(each.nbytes for each in values) + sum(each.packed_bytes for each in packed)
