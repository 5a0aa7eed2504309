"""The tokenizer of a checkpoint: read, and what identifies it and ends its texts."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from transformers.tokenization_utils_base import PreTrainedTokenizerBase

from chatcache.checkpoint.model_files import ModelFiles
from chatcache.errors import ModelLoadError
from chatcache.first_sentence import first_sentence


def read_tokenizer(files: ModelFiles, tokenizer_class: Any) -> PreTrainedTokenizerBase:
    """By a class of the library, or the one that chooses a class. Raises ModelLoadError."""
    try:
        tokenizer: PreTrainedTokenizerBase = tokenizer_class.from_pretrained(
            files.folder, trust_remote_code=False, local_files_only=True
        )
    except Exception as error:  # missing or damaged files, a missing package: each has its own exception
        raise ModelLoadError(
            f"The tokenizer of {files.name} cannot be read: {first_sentence(error)} "
            "Copy or download the model again, tokenizer.json included."
        ) from error
    return tokenizer


def digest_of_tokenizer(tokenizer: PreTrainedTokenizerBase) -> str:
    """Hex SHA-256 over every (id, token) and the special tokens: equal digests give stored ids the same meaning."""
    vocabulary = sorted((int(token_id), token) for token, token_id in tokenizer.get_vocab().items())
    special = sorted(int(token_id) for token_id in tokenizer.all_special_ids)
    return hashlib.sha256(json.dumps([vocabulary, special], separators=(",", ":")).encode()).hexdigest()


def eos_token_ids_of(owner: Any) -> tuple[int, ...]:
    """The end tokens that a config or a tokenizer names: one, several or none."""
    value = getattr(owner, "eos_token_id", None)
    return tuple(value) if isinstance(value, list | tuple) else () if value is None else (value,)
