"""`ModelOutline`: what is known of a model before its weights are read: config, tokenizer, template, how it samples.

Enough to count tokens, to make prompts and to lay out a page. The weights are `loader`'s.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import GenerationConfig
from transformers.tokenization_utils_base import PreTrainedTokenizerBase

from chatcache.chat_template import DEFAULT_CHAT_TEMPLATE, DEFAULT_TEMPLATE_STOP
from chatcache.checkpoint.checkpoint_facts import CheckpointFacts, FactsMemory
from chatcache.checkpoint.model_files import ModelFiles, locate_model
from chatcache.checkpoint.tokenizer_files import eos_token_ids_of, read_tokenizer
from chatcache.config import ServiceConfig
from chatcache.errors import InvalidInputError
from chatcache.library_calls import quiet_transformers
from chatcache.model_options import DTYPES, check_form, resolve_context, resolve_device, resolve_dtype
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
    both are hex. `layer_types` are the library's, one for each layer; the model has `num_token_ids` token ids, its
    tokenizer perhaps more. Every field of `default_sampling` but the seed is set. `notices` are sentences for people.
    """

    name: str
    digest: str
    folder: Path
    device: torch.device
    dtype: torch.dtype
    layer_types: tuple[str, ...]
    num_token_ids: int
    tokenizer: PreTrainedTokenizerBase
    tokenizer_digest: str
    max_context_tokens: int
    default_sampling: Sampling
    eos_token_ids: frozenset[int]
    chat_template: str
    notices: tuple[str, ...]


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
        facts, tokenizer = _facts_and_tokenizer(files, FactsMemory(config.data_dir / "models" / "checkpoints.json"))
        generation_config = _load_generation_config(files)
    max_context_tokens = resolve_context(config.max_context_tokens, facts.max_context_tokens)
    sampling = sampling_of(generation_config, max_context_tokens)
    template = _own_chat_template(tokenizer)
    if template is None:
        sampling = dataclasses.replace(sampling, stop=DEFAULT_TEMPLATE_STOP)
    return ModelOutline(
        name=files.name,
        digest=files.digest,
        folder=files.folder,
        device=device,
        dtype=resolve_dtype(config.dtype, DTYPES.get(facts.dtype or ""), device),
        layer_types=facts.layer_types,
        num_token_ids=facts.num_token_ids,
        tokenizer=tokenizer,
        tokenizer_digest=facts.tokenizer_digest,
        max_context_tokens=max_context_tokens,
        default_sampling=sampling,
        eos_token_ids=frozenset(
            (*facts.eos_token_ids, *eos_token_ids_of(generation_config), *eos_token_ids_of(tokenizer))
        ),
        chat_template=template or DEFAULT_CHAT_TEMPLATE,
        notices=() if template else (NO_TEMPLATE_NOTICE,),
    )


def sampling_of(generation_config: Any, max_context_tokens: int) -> Sampling:
    """The model's own sampling. A file that says anything about sampling is taken at its word, with the library's
    meaning for what it leaves out; a model without one, or with an impossible one, gets temperature 0.7, top_p 0.9 and
    a repetition penalty of 1.1: without it, small models repeat themselves until the reply's longest length is reached.
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
            repetition_penalty=1.0 if has_opinion else 1.1,
            max_new_tokens=min(DEFAULT_MAX_NEW_TOKENS, max_context_tokens),
            stop=(),
        )
    )


def _facts_and_tokenizer(files: ModelFiles, memory: FactsMemory) -> tuple[CheckpointFacts, PreTrainedTokenizerBase]:
    """As they are remembered, or found out now."""
    known = memory.get(files)
    tokenizer_class = getattr(transformers, known.tokenizer_class, None) if known is not None else None
    if known is not None and tokenizer_class is not None:
        return known, read_tokenizer(files, tokenizer_class)
    from chatcache.checkpoint_reader import read_checkpoint  # imports what takes long

    facts, tokenizer = read_checkpoint(files)
    memory.put(files, facts)
    return facts, tokenizer


def _load_generation_config(files: ModelFiles) -> GenerationConfig:
    """As the library takes it for the model: from its own file, or else from the model's config."""
    try:
        return GenerationConfig.from_pretrained(files.folder, local_files_only=True)
    except OSError:
        return GenerationConfig.from_pretrained(
            files.folder, config_file_name="config.json", local_files_only=True, _from_model_config=True
        )


def _own_chat_template(tokenizer: PreTrainedTokenizerBase) -> str | None:
    """The chat template that came with the tokenizer, the default one of several; None if it has none."""
    template = tokenizer.chat_template
    if isinstance(template, dict):
        template = template.get("default")
    return template if isinstance(template, str) and template.strip() else None
