"""Model and tokenizer, ready for chat: on their device, checked, with everything the rest needs to know about them."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PretrainedConfig
from transformers.modeling_utils import PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING
from transformers.tokenization_utils_base import PreTrainedTokenizerBase

from chatcache.chat_template import DEFAULT_CHAT_TEMPLATE, DEFAULT_TEMPLATE_STOP
from chatcache.checkpoint.model_files import ModelFiles, locate_model
from chatcache.config import ServiceConfig
from chatcache.errors import InvalidInputError, ModelLoadError, UnsupportedOptionError
from chatcache.library_calls import first_sentence, quiet_transformers
from chatcache.stats import Sampling
from chatcache.told import Told
from chatcache.weights.form_choice import SAMPLE_TEXT_FILE, FormChoices, choose_form
from chatcache.weights.packed_linear import FORMS
from chatcache.weights.weight_form import apply_form
from storage.sentence import Sentence

logger = logging.getLogger(__name__)

MIN_CONTEXT_TOKENS = 16
CONTEXT_TOKENS_WITHOUT_LIMIT = 32_768
"""What is used for models whose architecture has no limit of its own (recurrent ones)."""
DEFAULT_MAX_NEW_TOKENS = 2048
NO_TEMPLATE_NOTICE = Sentence(
    "This model has no chat template of its own, so a plain one is used. "
    "Replies may be poor: it was perhaps never trained for chat.",
    Told.NO_TEMPLATE,
)

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True)
class LoadedModel:
    """A causal chat model in eval mode on its device, its tokenizer, and what was read from its files.

    `digest` covers config and weight files, `tokenizer_digest` decides whether stored token ids still mean the same;
    both are hex. Every field of `default_sampling` but the seed is set. `notices` are sentences for people.
    """

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    name: str
    digest: str
    tokenizer_digest: str
    max_context_tokens: int
    default_sampling: Sampling
    eos_token_ids: frozenset[int]
    chat_template: str
    notices: tuple[str, ...]
    weights: str = "full"


def load_model(config: ServiceConfig, progress: Callable[[str], None] = lambda _line: None) -> LoadedModel:
    """The model that `config` names. `progress` gets a line for people whenever something takes a while.

    Raises ModelLoadError if it cannot be found, read or used for chat, UnsupportedOptionError for a device, dtype,
    weight form or context length that it does not offer, StorageError if `config.data_dir` cannot be written.
    """
    device = resolve_device(config.device)
    _check_form(config.weights, device)
    files = locate_model(config.model, config.data_dir / "models", progress)
    with quiet_transformers():
        model_config = _load_config(files)
        _check_is_causal(model_config, files)
        max_context_tokens = _resolve_context(config.max_context_tokens, model_config)
        dtype = resolve_dtype(config.dtype, getattr(model_config, "dtype", None), device)
        tokenizer = _load_tokenizer(files)
        form = config.weights
        if form == "auto":
            form = _auto_form(files, tokenizer, dtype, device, config.data_dir / "models", progress)
        model = _load_in_form(files, dtype, device, form)
    sampling = sampling_of(model.generation_config, max_context_tokens)
    template = own_chat_template(tokenizer)
    if template is None:
        sampling = dataclasses.replace(sampling, stop=DEFAULT_TEMPLATE_STOP)
    return LoadedModel(
        model=model,
        tokenizer=tokenizer,
        name=files.name,
        digest=files.digest,
        tokenizer_digest=digest_of_tokenizer(tokenizer),
        max_context_tokens=max_context_tokens,
        default_sampling=sampling,
        eos_token_ids=_eos_token_ids(model, tokenizer),
        chat_template=template or DEFAULT_CHAT_TEMPLATE,
        notices=() if template else (NO_TEMPLATE_NOTICE,),
        weights=form,
    )


def resolve_device(requested: str) -> torch.device:
    """The device for a request such as "auto", "cpu", "cuda", "cuda:1" or "mps".

    Raises UnsupportedOptionError if this machine or this PyTorch does not have it.
    """
    if requested == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        device = torch.device(requested)
    except RuntimeError:
        device = torch.device("meta")
    is_there = {
        "cpu": device.index in (None, 0),
        "cuda": torch.cuda.is_available() and (device.index or 0) < torch.cuda.device_count(),
        "mps": torch.backends.mps.is_available() and device.index in (None, 0),
    }
    if not is_there.get(device.type, False):
        raise UnsupportedOptionError(f'The device "{requested}" is not available here. Use "auto" or "cpu".')
    return device


def resolve_dtype(requested: str, of_checkpoint: torch.dtype | None, device: torch.device) -> torch.dtype:
    """The dtype to compute in: what was asked for, or for "auto" the checkpoint's own where `device` computes it at
    full speed, else float32. Raises UnsupportedOptionError for an unknown name.
    """
    if requested != "auto":
        if requested not in _DTYPES:
            raise UnsupportedOptionError(f'dtype="{requested}" is not offered. Use auto, {", ".join(_DTYPES)}.')
        return _DTYPES[requested]
    if of_checkpoint == torch.bfloat16 and _has_fast_bfloat16(device):
        return torch.bfloat16
    if of_checkpoint == torch.float16 and device.type != "cpu":
        return torch.float16
    return torch.float32


def _has_fast_bfloat16(device: torch.device) -> bool:
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    if device.type == "mps":
        return bool(torch.backends.mps.is_macos_or_newer(14, 0))
    # x86 names the instruction sets avx512_bf16 and amx_bf16, ARM names it bf16. Without them it is emulated.
    capabilities = torch.cpu.get_capabilities()
    return any(capabilities.get(name, False) for name in ("avx512_bf16", "amx_bf16", "bf16"))


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
    classes = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    known = {getattr(c, "__name__", "") for c in (classes if isinstance(classes, tuple) else (classes,))}
    if config.architectures and not known & set(config.architectures):
        raise ModelLoadError(f"{refusal}its weights are not those of a causal language model.{remedy}")


def _resolve_context(requested: int | None, config: PretrainedConfig) -> int:
    text_config = config.get_text_config(decoder=True)
    names = ("max_position_embeddings", "max_seq_len", "seq_length")
    limit = next((value for name in names if isinstance(value := getattr(text_config, name, None), int)), None)
    if requested is None:
        return limit if limit is not None else CONTEXT_TOKENS_WITHOUT_LIMIT
    if requested < MIN_CONTEXT_TOKENS or (limit is not None and requested > limit):
        most = f"at most {limit}" if limit is not None else "no upper limit"
        raise UnsupportedOptionError(
            f"A context of {requested} tokens is not offered. This model takes at least {MIN_CONTEXT_TOKENS}, {most}."
        )
    return requested


def _load_tokenizer(files: ModelFiles) -> PreTrainedTokenizerBase:
    try:
        return AutoTokenizer.from_pretrained(files.folder, trust_remote_code=False, local_files_only=True)
    except Exception as error:  # missing or damaged files, a missing package: each has its own exception
        raise ModelLoadError(
            f"The tokenizer of {files.name} cannot be read: {first_sentence(error)} "
            "Copy or download the model again, tokenizer.json included."
        ) from error


def _load_weights(files: ModelFiles, dtype: torch.dtype, device: torch.device) -> PreTrainedModel:
    try:
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            files.folder,
            dtype=dtype,
            device_map={"": device} if device.type != "cpu" else None,
            trust_remote_code=False,
            local_files_only=True,
            output_loading_info=True,
        )
    except torch.OutOfMemoryError as error:
        raise ModelLoadError(
            f"{files.name} does not fit into the memory of {device}. Choose a smaller model or --device cpu."
        ) from error
    except Exception as error:  # damaged files, a quantization whose package is missing: each has its own exception
        raise ModelLoadError(
            f"The weights of {files.name} cannot be loaded: {first_sentence(error)} Copy or download the model again."
        ) from error
    model: PreTrainedModel = loaded[0]
    info: dict[str, Any] = loaded[1]
    if info["missing_keys"]:
        missing = sorted(info["missing_keys"])
        raise ModelLoadError(
            f"The weights of {files.name} lack {len(missing)} tensors ({missing[0]}, …). "
            "Copy or download the model again."
        )
    model.eval()
    return model


def _load_in_form(files: ModelFiles, dtype: torch.dtype, device: torch.device, form: str) -> PreTrainedModel:
    model = _load_weights(files, dtype, device)
    apply_form(model, form)
    return model


def _check_form(form: str, device: torch.device) -> None:
    if form not in ("auto", *FORMS):
        raise UnsupportedOptionError(f'weights="{form}" is not offered. Use auto, {", ".join(FORMS)}.')
    if form not in ("auto", "full") and device.type != "cpu":
        raise UnsupportedOptionError(
            f'weights="{form}" is offered on a CPU only: on {device} it would not be faster. Use "auto" or "full".'
        )


def _auto_form(
    files: ModelFiles,
    tokenizer: PreTrainedTokenizerBase,
    dtype: torch.dtype,
    device: torch.device,
    models_dir: Path,
    progress: Callable[[str], None],
) -> str:
    """The form chosen for this model earlier, or now, by measuring; "full" where no other can be faster."""
    if device.type != "cpu" or dtype != torch.bfloat16:
        return "full"
    choices = FormChoices(models_dir / "weight-forms.json")
    key = f"{files.digest} torch-{torch.__version__}"
    choice = choices.get(key)
    if choice is None:
        progress(f"Measuring, once, whether {files.name} says the same with smaller weights …")
        token_ids = tokenizer.encode(SAMPLE_TEXT_FILE.read_text("utf-8"))
        try:
            choice = choose_form(partial(_load_in_form, files, dtype, device), token_ids)
        except (RuntimeError, ValueError, TypeError, AttributeError):  # a model that is used in none of these ways
            logger.warning("Smaller weights could not be tried; the full ones are used", exc_info=True)
            return "full"
        choices.put(key, choice)
    return choice.form


def _eos_token_ids(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    ids: set[int] = set()
    for owner in (model.generation_config, model.config.get_text_config(decoder=True), tokenizer):
        value = getattr(owner, "eos_token_id", None)
        ids.update(value if isinstance(value, list | tuple) else () if value is None else (value,))
    return frozenset(ids)


def own_chat_template(tokenizer: PreTrainedTokenizerBase) -> str | None:
    """The chat template that came with the tokenizer, the default one of several; None if it has none."""
    template = tokenizer.chat_template
    if isinstance(template, dict):
        template = template.get("default")
    return template if isinstance(template, str) and template.strip() else None
