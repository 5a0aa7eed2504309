"""The memory of a tensor as Python's `memoryview`, for files to be written from and read into without a copy."""

from __future__ import annotations

import torch


def bytes_of(tensor: torch.Tensor) -> memoryview:
    """The bytes of a contiguous tensor on the CPU, shared with it."""
    return memoryview(tensor.reshape(-1).view(torch.uint8).numpy().data)
