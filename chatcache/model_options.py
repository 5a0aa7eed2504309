"""What a person may ask of a model: device, dtype, weight form, context length; what "auto" means; what is refused."""

from __future__ import annotations

import torch

from chatcache.errors import UnsupportedOptionError
from chatcache.weights.packed_linear import FORMS

MIN_CONTEXT_TOKENS = 16
CONTEXT_TOKENS_WITHOUT_LIMIT = 32_768
"""What is used for models whose architecture has no limit of its own (recurrent ones)."""

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


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
        if requested not in DTYPES:
            raise UnsupportedOptionError(f'dtype="{requested}" is not offered. Use auto, {", ".join(DTYPES)}.')
        return DTYPES[requested]
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


def resolve_context(requested: int | None, limit: int | None) -> int:
    """The context length: what was asked for, or else what the model supports, whose architecture has this limit or
    none. Raises UnsupportedOptionError."""
    if requested is None:
        return limit if limit is not None else CONTEXT_TOKENS_WITHOUT_LIMIT
    if requested < MIN_CONTEXT_TOKENS or (limit is not None and requested > limit):
        most = f"at most {limit}" if limit is not None else "no upper limit"
        raise UnsupportedOptionError(
            f"A context of {requested} tokens is not offered. This model takes at least {MIN_CONTEXT_TOKENS}, {most}."
        )
    return requested


def check_form(form: str, device: torch.device) -> None:
    """Raises UnsupportedOptionError for a weight form that there is not, or not on this device."""
    if form not in ("auto", *FORMS):
        raise UnsupportedOptionError(f'weights="{form}" is not offered. Use auto, {", ".join(FORMS)}.')
    if form not in ("auto", "full") and device.type != "cpu":
        raise UnsupportedOptionError(
            f'weights="{form}" is offered on a CPU only: on {device} it would not be faster. Use "auto" or "full".'
        )
