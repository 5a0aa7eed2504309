"""A GGUF file of a tiny Llama, written as llama.cpp's converter writes it."""

from __future__ import annotations

import json
from pathlib import Path

import gguf
import numpy as np
import torch
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

_BLOCK_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_TOP_NAMES = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}


def write_gguf(
    path: Path,
    model: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    matrix_type: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.F32,
) -> None:
    """Write `model`, its matrices as `matrix_type`, and `tokenizer` (byte-level BPE) with its chat template."""
    config = model.config
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("Tiny")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    vocabulary = json.loads(tokenizer.backend_tokenizer.to_str())
    writer.add_token_list([tokenizer.convert_ids_to_tokens(i) for i in range(len(tokenizer))])
    control = set(tokenizer.all_special_ids)
    writer.add_token_types(
        [gguf.TokenType.CONTROL if i in control else gguf.TokenType.NORMAL for i in range(len(tokenizer))]
    )
    writer.add_token_merges([" ".join(pair) for pair in vocabulary["model"]["merges"]])
    writer.add_bos_token_id(tokenizer.bos_token_id)
    writer.add_eos_token_id(tokenizer.eos_token_id)
    writer.add_unk_token_id(tokenizer.unk_token_id)
    writer.add_pad_token_id(tokenizer.pad_token_id)
    writer.add_chat_template(tokenizer.chat_template)
    for name, tensor in model.state_dict().items():
        heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}.get(name.split(".")[-2])
        rows = _as_written(tensor, heads)
        if rows.ndim == 2 and matrix_type is not gguf.GGMLQuantizationType.F32:
            writer.add_tensor(_gguf_name(name), gguf.quantize(rows, matrix_type), raw_dtype=matrix_type)
        else:
            writer.add_tensor(_gguf_name(name), rows)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _gguf_name(name: str) -> str:
    if name in _TOP_NAMES:
        return _TOP_NAMES[name]
    _, _, block, inner = name.split(".", 3)
    return f"blk.{block}.{_BLOCK_NAMES[inner.removesuffix('.weight')]}.weight"


def _as_written(tensor: torch.Tensor, num_heads: int | None) -> np.ndarray:
    """llama.cpp rotates neighbouring pairs, transformers halves: query and key rows stand in another order."""
    array = tensor.float().numpy()
    if num_heads is None:
        return array
    rows, columns = array.shape
    halves = array.reshape(num_heads, 2, rows // num_heads // 2, columns)
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(rows, columns))
