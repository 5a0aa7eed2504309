"""How much memory may be used: what is free, within every limit that applies, less a reserve.

Reading and deciding are apart: `usable_memory` is a pure function of `MemoryReadings`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import psutil
import torch

MIN_RESERVE_BYTES = 512 * 2**20
RESERVE_SHARE = 0.05
"""The reserve is this share of what there is at all, and at least `MIN_RESERVE_BYTES`; at most half of what is free."""

_NO_LIMIT_BYTES = 2**60
"""Version 1 of control groups writes a huge number for no limit."""


@dataclass(frozen=True, slots=True)
class Limit:
    """A cap on a group of processes: `used_bytes` of `limit_bytes` are in use, file cache that can go not counted."""

    name: str
    limit_bytes: int
    used_bytes: int


@dataclass(frozen=True, slots=True)
class MemoryReadings:
    """What one device says of its memory at one moment."""

    device: str
    total_bytes: int
    free_bytes: int
    limits: tuple[Limit, ...] = ()


@dataclass(frozen=True, slots=True)
class UsableMemory:
    """`usable_bytes` = free within the tightest limit, less `reserve_bytes`. `limited_by` names that limit."""

    device: str
    usable_bytes: int
    free_bytes: int
    reserve_bytes: int
    limited_by: str | None = None


def usable_memory(readings: MemoryReadings) -> UsableMemory:
    """What may be used of it."""
    free, total, limited_by = readings.free_bytes, readings.total_bytes, None
    for limit in readings.limits:
        total = min(total, limit.limit_bytes)
        if limit.limit_bytes - limit.used_bytes < free:
            free, limited_by = limit.limit_bytes - limit.used_bytes, limit.name
    free = max(free, 0)
    reserve = min(max(MIN_RESERVE_BYTES, int(total * RESERVE_SHARE)), free // 2)
    return UsableMemory(readings.device, free - reserve, free, reserve, limited_by)


def measure_usable_memory(device: torch.device) -> UsableMemory:
    """What may be used now of the memory that `device` computes in."""
    return usable_memory(read_memory(device))


def read_memory(device: torch.device) -> MemoryReadings:
    """The device's memory as it is now: RAM and its limits for the CPU, an accelerator's own memory otherwise."""
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        # What PyTorch holds back for itself is free for us.
        idle = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return MemoryReadings(str(device), total, free + idle)
    if device.type == "mps":
        total = torch.mps.recommended_max_memory()
        return MemoryReadings(str(device), total, total - torch.mps.current_allocated_memory())
    ram = psutil.virtual_memory()
    return MemoryReadings("cpu", ram.total, ram.available, tuple(read_limits()))


def read_limits(proc: Path = Path("/proc"), mount: Path = Path("/sys/fs/cgroup")) -> Iterator[Limit]:
    """The limits of the control groups this process is in, both versions, each group's parents included."""
    for line in _read(proc / "self" / "cgroup").splitlines():
        _, controllers, path = (*line.split(":", 2), "", "")[:3]
        if controllers == "":
            yield from _limits(mount, path, "memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
            yield from _limits(mount / "memory", path, *names)


def _limits(root: Path, path: str, limit_file: str, usage_file: str, idle_key: str) -> Iterator[Limit]:
    """Inside a container the group's path may not exist below the mount; the mount itself is the group then."""
    group = PurePosixPath("/") / path
    for ancestor in (group, *group.parents):
        folder = root / ancestor.relative_to("/")
        limit, usage = _number(_read(folder / limit_file)), _number(_read(folder / usage_file))
        if limit is not None and limit < _NO_LIMIT_BYTES and usage is not None:
            stat = dict(line.split(" ", 1) for line in _read(folder / "memory.stat").splitlines() if " " in line)
            idle = _number(stat.get(idle_key, "")) or 0
            yield Limit(f"control group {ancestor}", limit, max(usage - idle, 0))


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except OSError:
        return ""


def _number(text: str) -> int | None:
    return int(text) if text.strip().isdecimal() else None
