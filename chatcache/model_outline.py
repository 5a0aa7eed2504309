"""`ModelOutline`: what is known of a model before its weights are read: config, tokenizer, template, how it samples.

Enough to count tokens, to make prompts and to lay out a page. The weights are `loader`'s.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoConfig, AutoTokenizer, GenerationConfig, PretrainedConfig
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING, MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
from transformers.tokenization_utils_base import PreTrainedTokenizerBase

from chatcache.chat_template import DEFAULT_CHAT_TEMPLATE, DEFAULT_TEMPLATE_STOP
from chatcache.checkpoint.model_files import ModelFiles, locate_model
from chatcache.config import ServiceConfig
from chatcache.errors import InvalidInputError, ModelLoadError
from chatcache.library_calls import first_sentence, quiet_transformers
from chatcache.model_options import check_form, resolve_context, resolve_device, resolve_dtype
from chatcache.stats import Sampling
from chatcache.told import Told
from storage.sentence import Sentence

DEFAULT_MAX_NEW_TOKENS = 2048
NO_TEMPLATE_NOTICE = Sentence(
    "This model has no chat template of its own, so a plain one is used. "
    "Replies may be poor: it was perhaps never trained for chat.",
    Told.NO_TEMPLATE,
)


@dataclass(frozen=True)
class ModelOutline:
    """What was read from a causal chat model's small files, and where and how it is to be computed.

    `digest` covers config and weight files, `tokenizer_digest` decides whether stored token ids still mean the same;
    both are hex. Every field of `default_sampling` but the seed is set. `notices` are sentences for people.
    """

    name: str
    digest: str
    folder: Path
    config: PretrainedConfig
    device: torch.device
    dtype: torch.dtype
    tokenizer: PreTrainedTokenizerBase
    tokenizer_digest: str
    max_context_tokens: int
    default_sampling: Sampling
    eos_token_ids: frozenset[int]
    chat_template: str
    notices: tuple[str, ...]

    @property
    def num_token_ids(self) -> int:
        """How many token ids the model has; its tokenizer may have more."""
        return int(self.config.get_text_config(decoder=True).vocab_size)


def read_outline(config: ServiceConfig, progress: Callable[[str], None] = lambda _line: None) -> ModelOutline:
    """The outline of the model that `config` names, which is converted or downloaded if need be. `progress` gets a line
    for people whenever something takes a while.

    Raises ModelLoadError if it cannot be found, read or used for chat, UnsupportedOptionError for a device, dtype,
    weight form or context length that it does not offer, StorageError if `config.data_dir` cannot be written.
    """
    device = resolve_device(config.device)
    check_form(config.weights, device)
    files = locate_model(config.model, config.data_dir / "models", progress)
    with quiet_transformers():
        model_config = _load_config(files)
        _check_is_causal(model_config, files)
        max_context_tokens = resolve_context(config.max_context_tokens, model_config)
        dtype = resolve_dtype(config.dtype, getattr(model_config, "dtype", None), device)
        tokenizer = _load_tokenizer(files)
        generation_config = _load_generation_config(files)
    sampling = sampling_of(generation_config, max_context_tokens)
    template = own_chat_template(tokenizer)
    if template is None:
        sampling = dataclasses.replace(sampling, stop=DEFAULT_TEMPLATE_STOP)
    return ModelOutline(
        name=files.name,
        digest=files.digest,
        folder=files.folder,
        config=model_config,
        device=device,
        dtype=dtype,
        tokenizer=tokenizer,
        tokenizer_digest=digest_of_tokenizer(tokenizer),
        max_context_tokens=max_context_tokens,
        default_sampling=sampling,
        eos_token_ids=_eos_token_ids(generation_config, model_config, tokenizer),
        chat_template=template or DEFAULT_CHAT_TEMPLATE,
        notices=() if template else (NO_TEMPLATE_NOTICE,),
    )


def digest_of_tokenizer(tokenizer: PreTrainedTokenizerBase) -> str:
    """Hex SHA-256 over every (id, token) and the special tokens: equal digests give stored ids the same meaning."""
    vocabulary = sorted((int(token_id), token) for token, token_id in tokenizer.get_vocab().items())
    special = sorted(int(token_id) for token_id in tokenizer.all_special_ids)
    return hashlib.sha256(json.dumps([vocabulary, special], separators=(",", ":")).encode()).hexdigest()


def sampling_of(generation_config: Any, max_context_tokens: int) -> Sampling:
    """The model's own sampling. A file that says anything about sampling is taken at its word, with the library's
    meaning for what it leaves out; a model without one, or with an impossible one, gets temperature 0.7 and top_p 0.9.
    """
    names = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "max_new_tokens")
    try:
        own = Sampling(**{name: getattr(generation_config, name, None) for name in names})
    except InvalidInputError:
        own = Sampling()
    if getattr(generation_config, "do_sample", None) is False:
        own = dataclasses.replace(own, temperature=0.0)
    has_opinion = any(value is not None for value in (own.temperature, own.top_p, own.top_k, own.min_p))
    return own.merged(
        Sampling(
            temperature=1.0 if has_opinion else 0.7,
            top_p=1.0 if has_opinion else 0.9,
            top_k=0,
            min_p=0.0,
            repetition_penalty=1.0,
            max_new_tokens=min(DEFAULT_MAX_NEW_TOKENS, max_context_tokens),
            stop=(),
        )
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


def _load_tokenizer(files: ModelFiles) -> PreTrainedTokenizerBase:
    try:
        return AutoTokenizer.from_pretrained(files.folder, trust_remote_code=False, local_files_only=True)
    except Exception as error:  # missing or damaged files, a missing package: each has its own exception
        raise ModelLoadError(
            f"The tokenizer of {files.name} cannot be read: {first_sentence(error)} "
            "Copy or download the model again, tokenizer.json included."
        ) from error


def _load_generation_config(files: ModelFiles) -> GenerationConfig:
    """As the library takes it for the model: from its own file, or else from the model's config."""
    try:
        return GenerationConfig.from_pretrained(files.folder, local_files_only=True)
    except OSError:
        return GenerationConfig.from_pretrained(
            files.folder, config_file_name="config.json", local_files_only=True, _from_model_config=True
        )


def _eos_token_ids(
    generation_config: GenerationConfig, config: PretrainedConfig, tokenizer: PreTrainedTokenizerBase
) -> frozenset[int]:
    ids: set[int] = set()
    for owner in (generation_config, config.get_text_config(decoder=True), tokenizer):
        value = getattr(owner, "eos_token_id", None)
        ids.update(value if isinstance(value, list | tuple) else () if value is None else (value,))
    return frozenset(ids)


def own_chat_template(tokenizer: PreTrainedTokenizerBase) -> str | None:
    """The chat template that came with the tokenizer, the default one of several; None if it has none."""
    template = tokenizer.chat_template
    if isinstance(template, dict):
        template = template.get("default")
    return template if isinstance(template, str) and template.strip() else None
