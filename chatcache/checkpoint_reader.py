"""`CheckpointFacts` the long way: from the library's config object, checked, and the tokenizer that it chooses."""

from __future__ import annotations

import transformers
from transformers import AutoConfig, AutoTokenizer, PretrainedConfig
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING, MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
from transformers.tokenization_utils_base import PreTrainedTokenizerBase

from chatcache.cache.kinds import layer_types_of
from chatcache.checkpoint.checkpoint_facts import CheckpointFacts
from chatcache.checkpoint.model_files import ModelFiles
from chatcache.checkpoint.tokenizer_files import digest_of_tokenizer, eos_token_ids_of, read_tokenizer
from chatcache.errors import ModelLoadError
from chatcache.first_sentence import first_sentence

_CONTEXT_NAMES = ("max_position_embeddings", "max_seq_len", "seq_length")


def read_checkpoint(files: ModelFiles) -> tuple[CheckpointFacts, PreTrainedTokenizerBase]:
    """What the files say of a model that can chat, and its tokenizer. Raises ModelLoadError."""
    config = _load_config(files)
    _check_is_causal(config, files)
    tokenizer = read_tokenizer(files, AutoTokenizer)
    return _facts_of(config, tokenizer), tokenizer


def _facts_of(config: PretrainedConfig, tokenizer: PreTrainedTokenizerBase) -> CheckpointFacts:
    text_config = config.get_text_config(decoder=True)
    limits = (getattr(text_config, name, None) for name in _CONTEXT_NAMES)
    dtype = getattr(config, "dtype", None)
    return CheckpointFacts(
        layer_types=layer_types_of(config),
        num_token_ids=int(text_config.vocab_size),
        eos_token_ids=eos_token_ids_of(text_config),
        max_context_tokens=next((limit for limit in limits if isinstance(limit, int)), None),
        dtype=None if dtype is None else str(dtype).removeprefix("torch."),
        tokenizer_class=type(tokenizer).__name__,
        tokenizer_digest=digest_of_tokenizer(tokenizer),
    )


def _load_config(files: ModelFiles) -> PretrainedConfig:
    try:
        config: PretrainedConfig = AutoConfig.from_pretrained(
            files.folder, trust_remote_code=False, local_files_only=True
        )
    except Exception as error:  # broken JSON, an unknown architecture, code to execute: each has its own exception
        raise ModelLoadError(
            f"The config.json of {files.name} cannot be used: {first_sentence(error)} Choose a model that transformers "
            f"{transformers.__version__} supports without code of its own."
        ) from error
    return config


def _check_is_causal(config: PretrainedConfig, files: ModelFiles) -> None:
    kind = config.model_type
    refusal = f"{files.name} ({', '.join(config.architectures or [kind])}) is not a chat model: "
    remedy = " Choose an instruction-tuned causal language model."
    if config.is_encoder_decoder:
        raise ModelLoadError(f"{refusal}it is an encoder-decoder.{remedy}")
    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        raise ModelLoadError(f"{refusal}transformers has no causal language model of the type {kind}.{remedy}")
    # By their names: to have the classes themselves, half the library would be imported.
    names = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[kind]
    known = {names} if isinstance(names, str) else set(names)
    if config.architectures and not known & set(config.architectures):
        raise ModelLoadError(f"{refusal}its weights are not those of a causal language model.{remedy}")
