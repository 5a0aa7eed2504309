"""Which step comes next when memory is short, and what counts as memory running out."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from chatcache.memory.ladder import Shortage, Step, next_step, smaller_chunks, smaller_kinds
from chatcache.out_of_memory import is_out_of_memory

ALL = Shortage(
    was_allocating=True, has_retried=False, can_spill=True, can_shrink_chunk=True, smaller_kinds=("quantized-int8",)
)
AGAIN = replace(ALL, has_retried=True)


@pytest.mark.parametrize(
    ("shortage", "expected"),
    [
        (ALL, Step.RETRY),
        (AGAIN, Step.SPILL),
        (replace(AGAIN, can_spill=False), Step.SMALLER_CHUNKS),
        (replace(AGAIN, can_spill=False, can_shrink_chunk=False), Step.CONVERT),
        (replace(AGAIN, can_spill=False, can_shrink_chunk=False, smaller_kinds=()), Step.STOP),
        (replace(AGAIN, can_wait=True), Step.SPILL),
        (replace(AGAIN, can_spill=False, can_wait=True), Step.WAIT),
        (replace(AGAIN, can_shorten=True), Step.SPILL),
        (replace(AGAIN, can_spill=False, can_wait=True, can_shorten=True), Step.SHORTEN),
        (replace(ALL, was_allocating=False), Step.SPILL),
        (replace(ALL, was_allocating=False, can_spill=False), Step.SMALLER_CHUNKS),
        (replace(ALL, was_allocating=False, can_spill=False, can_shrink_chunk=False), Step.CONVERT),
        (replace(ALL, was_allocating=False, can_spill=False, can_shrink_chunk=False, smaller_kinds=()), Step.STOP),
    ],
)
def test_the_step_that_costs_least_of_those_that_help_comes_next(shortage: Shortage, expected: Step) -> None:
    assert next_step(shortage) is expected


@pytest.mark.parametrize(
    ("kind", "possible", "expected"),
    [
        ("dynamic", {"dynamic", "offloaded", "quantized-int8", "quantized-int4", "none"}, 3),
        ("dynamic", {"dynamic", "quantized-int8", "quantized-int4"}, 2),
        ("quantized-int8", {"dynamic", "quantized-int8", "quantized-int4"}, 1),
        ("quantized-int4", {"dynamic", "quantized-int8", "quantized-int4"}, 0),
        ("quantized-fp8", {"quantized-int4"}, 0),
        ("none", {"dynamic"}, 0),
    ],
)
def test_kinds_come_in_the_order_of_what_they_cost(kind: str, possible: set[str], expected: int) -> None:
    order = ("offloaded", "quantized-int8", "quantized-int4")
    kinds = smaller_kinds(kind, possible)
    assert len(kinds) == expected
    assert list(kinds) == [one for one in order if one in kinds]


@pytest.mark.parametrize(
    ("before", "after"),
    [(128, [64, 32, 16]), (100, [64, 32, 16]), (33, [32, 16]), (32, [16]), (17, [16]), (16, []), (1, []), (0, [])],
)
def test_chunks_shrink_by_powers_of_two(before: int, after: list[int]) -> None:
    assert smaller_chunks(before) == after


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB."), True),
        (torch.OutOfMemoryError(), True),
        (MemoryError(), True),
        (
            RuntimeError("[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory"),
            True,
        ),
        (RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 8 bytes."), True),
        (RuntimeError("MPS backend out of memory (MPS allocated: 5.00 GB)"), True),
        (RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported"), True),
        (RuntimeError("The size of tensor a (3) must match the size of tensor b (4)"), False),
        (RuntimeError("my memory of this is bad"), False),
        (ValueError("DefaultCPUAllocator: can't allocate memory"), False),
        (KeyboardInterrupt(), False),
    ],
)
def test_memory_running_out_is_told_from_other_failures(error: BaseException, expected: bool) -> None:
    assert is_out_of_memory(error) is expected


def test_a_real_failure_of_the_cpu_allocator_is_recognized() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**60, dtype=torch.uint8)
    assert is_out_of_memory(caught.value)
