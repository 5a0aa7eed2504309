"""Whether a model is written as the library's Llama is: the same code in every part, so the same computation.

Compared is what the functions do, not what the classes are called: an architecture that scales its queries, softens its
logits or leaves the rotation out in some layers differs in its code, also where its parts have the same names.
"""

from __future__ import annotations

import inspect
from functools import cache
from types import ModuleType
from typing import Any

from torch import nn
from transformers import PreTrainedModel
from transformers.models.llama import modeling_llama
from transformers.models.mistral import modeling_mistral
from transformers.models.qwen2 import modeling_qwen2
from transformers.models.qwen3 import modeling_qwen3

Code = tuple[Any, ...]

REFERENCES: tuple[tuple[ModuleType, str], ...] = (
    (modeling_llama, "Llama"),
    (modeling_mistral, "Mistral"),
    (modeling_qwen2, "Qwen2"),
    (modeling_qwen3, "Qwen3"),
)


def is_llama_shaped(model: PreTrainedModel) -> bool:
    """Whether `model` does what a reference does, part by part."""
    own = _code_of_parts(model)
    return own is not None and any(own == _code_of_reference(each) for each in REFERENCES)


def _code_of_parts(model: Any) -> list[Code] | None:
    """What the modules of a decoder do; None where it is put together from other parts."""
    try:
        layer = model.model.layers[0]
        parts = [model, model.model, layer, layer.self_attn, layer.mlp, layer.input_layernorm, model.model.norm]
    except (AttributeError, IndexError, TypeError):
        return None
    classes = [type(part) for part in parts]
    return [*map(_code_of_forward, classes), *_code_of_rotation(inspect.getmodule(classes[3]))]


@cache
def _code_of_reference(reference: tuple[ModuleType, str]) -> list[Code]:
    module, name = reference
    kinds = ("ForCausalLM", "Model", "DecoderLayer", "Attention", "MLP", "RMSNorm", "RMSNorm")
    classes = [getattr(module, name + kind) for kind in kinds]
    return [*map(_code_of_forward, classes), *_code_of_rotation(module)]


def _code_of_rotation(module: ModuleType | None) -> list[Code]:
    return [_code_of(getattr(module, name, None)) for name in ("apply_rotary_pos_emb", "rotate_half")]


def _code_of_forward(module_class: type[nn.Module]) -> Code:
    return _code_of(module_class.forward)


def _code_of(function: Any) -> Code:
    """What a function does: its instructions, the names it uses and its constants, without texts."""
    code = getattr(inspect.unwrap(function), "__code__", None) if function is not None else None
    if code is None:
        return ()
    return (code.co_code, code.co_names, *(each for each in code.co_consts if isinstance(each, int | float)))
