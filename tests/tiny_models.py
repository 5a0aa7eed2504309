"""Random models of every architecture the caches must serve, small enough to build in a test."""

from __future__ import annotations

import dataclasses
from functools import cache
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from chatcache.cache.kinds import layer_types_of
from chatcache.loader import LoadedModel

VOCABULARY_SIZE = 97
WINDOW = 8

_COMMON = {
    "vocab_size": VOCABULARY_SIZE,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 4,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": False,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    # Larger than usual, so that every layer's contribution is far above rounding noise.
    "initializer_range": 0.3,
}
_MIXED = ["sliding_attention", "sliding_attention", "sliding_attention", "full_attention"]

_CONFIGS: dict[str, tuple[str, dict]] = {
    "llama-gqa": ("llama", {}),
    "llama-mqa": ("llama", {"num_key_value_heads": 1}),
    "llama-mha": ("llama", {"num_key_value_heads": 4}),
    "mistral": ("mistral", {"sliding_window": WINDOW, "head_dim": 8}),
    "gemma2": ("gemma2", {"sliding_window": WINDOW, "head_dim": 8, "query_pre_attn_scalar": 8}),
    "gemma3": ("gemma3_text", {"sliding_window": WINDOW, "head_dim": 8, "layer_types": _MIXED}),
    "gpt-oss": (
        "gpt_oss",
        {
            "sliding_window": WINDOW,
            "head_dim": 8,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "rope_scaling": None,
        },
    ),
    "lfm2": ("lfm2", {"layer_types": ["conv", "conv", "full_attention", "conv"]}),
    "qwen3-next": (
        "qwen3_next",
        {
            "head_dim": 8,
            "layer_types": ["linear_attention", "linear_attention", "linear_attention", "full_attention"],
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 4,
            "linear_key_head_dim": 8,
            "linear_value_head_dim": 8,
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 16,
            "shared_expert_intermediate_size": 16,
        },
    ),
    "mamba2": ("mamba2", {"state_size": 16, "num_heads": 8, "head_dim": 8, "n_groups": 2, "chunk_size": 16}),
    "falcon-h1": (
        "falcon_h1",
        {
            "head_dim": 8,
            "mamba_d_ssm": 64,
            "mamba_n_heads": 8,
            "mamba_d_head": 8,
            "mamba_d_state": 16,
            "mamba_chunk_size": 16,
        },
    ),
}

FULL_ATTENTION = ("llama-gqa", "llama-mqa")
SLIDING = ("mistral", "gemma2", "gemma3", "gpt-oss")
RECURRENT = ("lfm2", "qwen3-next", "mamba2", "falcon-h1")


@cache
def tiny_model(name: str, vocabulary_size: int = VOCABULARY_SIZE) -> PreTrainedModel:
    """The model, always with the same weights, in fp32 and eval mode. Shared between tests: do not change it."""
    model_type, settings = _CONFIGS[name]
    config = CONFIG_MAPPING[model_type](**{**_COMMON, **settings, "vocab_size": vocabulary_size})
    with torch.random.fork_rng():
        torch.manual_seed(11)
        return AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()


def with_model(loaded: LoadedModel, model: PreTrainedModel, **changes: Any) -> LoadedModel:
    """`loaded` with another model behind its tokenizer."""
    return dataclasses.replace(
        loaded,
        model=model,
        layer_types=layer_types_of(model.config),
        num_token_ids=model.config.get_text_config(decoder=True).vocab_size,
        device=model.device,
        dtype=model.dtype,
        **changes,
    )


def save(loaded: LoadedModel, folder: Path) -> Path:
    """Write model and tokenizer as the library does. The folder, which is made."""
    loaded.model.save_pretrained(folder)
    loaded.tokenizer.save_pretrained(folder)
    return folder


def random_ids(num_tokens: int, seed: int = 0) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(3, VOCABULARY_SIZE, (num_tokens,), generator=generator).tolist()
