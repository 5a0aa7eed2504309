"""Telling that memory ran out, whichever allocator says so, and giving back what lies unused."""

from __future__ import annotations

import ctypes
import errno
import functools
import gc
import sys
from collections.abc import Callable

import torch
from accelerate.utils.memory import should_reduce_batch_size

_TEXTS = (
    "DefaultCPUAllocator: not enough memory",
    "CUDA error: out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "std::bad_alloc",
    "Cannot allocate memory",
)
"""What accelerate does not know: the CPU allocator on Windows, failures outside the caching allocator, mapped files."""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether `error` says that an allocation failed: CPU, CUDA, ROCm, XPU, MPS, or Python's own."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    if not isinstance(error, RuntimeError):
        return False
    return should_reduce_batch_size(error) or any(text in str(error) for text in _TEXTS)


def free_unused_memory(device: torch.device) -> None:
    """Collect what only cycles hold, and have the device's allocator give back its idle blocks."""
    gc.collect()
    return_to_system()
    if device.type == "cuda":
        torch.cuda.empty_cache()
    elif device.type == "mps":
        torch.mps.empty_cache()


def return_to_system() -> None:
    """Have the C library give back the memory that was freed. Of itself glibc keeps what threads other than the first
    have freed, for good; others have nothing to be asked."""
    trim = _malloc_trim()
    if trim is not None:
        trim(0)


@functools.cache
def _malloc_trim() -> Callable[[int], int] | None:
    if sys.platform != "linux":
        return None
    trim: Callable[[int], int] | None = getattr(ctypes.CDLL(None), "malloc_trim", None)
    return trim
