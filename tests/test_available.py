"""How much memory may be used, decided from readings, and the readings themselves from files of both versions."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from chatcache.memory.available import (
    Limit,
    MemoryReadings,
    measure_usable_memory,
    read_limits,
    read_memory,
    usable_memory,
)

GIB = 2**30
MIB = 2**20


@pytest.mark.parametrize(
    ("total", "free", "limits", "usable", "limited_by"),
    [
        pytest.param(64 * GIB, 32 * GIB, (), 32 * GIB - 64 * GIB // 20, None, id="five percent of what there is"),
        pytest.param(4 * GIB, 3 * GIB, (), 3 * GIB - 512 * MIB, None, id="at least half a GiB"),
        pytest.param(4 * GIB, 400 * MIB, (), 200 * MIB, None, id="at most half of what is free"),
        pytest.param(64 * GIB, 32 * GIB, ((8 * GIB, 2 * GIB),), 6 * GIB - 512 * MIB, "group 0", id="a limit"),
        pytest.param(64 * GIB, 2 * GIB, ((8 * GIB, GIB),), 2 * GIB - 512 * MIB, None, id="a limit that is not reached"),
        pytest.param(
            64 * GIB, 32 * GIB, ((16 * GIB, GIB), (8 * GIB, 3 * GIB)), 5 * GIB - 512 * MIB, "group 1", id="the tightest"
        ),
        pytest.param(64 * GIB, 32 * GIB, ((GIB, 2 * GIB),), 0, "group 0", id="a limit that is exceeded"),
        pytest.param(4 * GIB, 0, (), 0, None, id="nothing"),
    ],
)
def test_usable_is_what_is_free_within_the_tightest_limit_less_a_reserve(
    total: int, free: int, limits: tuple[tuple[int, int], ...], usable: int, limited_by: str | None
) -> None:
    named = tuple(Limit(f"group {number}", *sizes) for number, sizes in enumerate(limits))
    memory = usable_memory(MemoryReadings("cpu", total, free, named))
    assert memory.usable_bytes == usable
    assert memory.limited_by == limited_by
    assert memory.usable_bytes + memory.reserve_bytes == memory.free_bytes


class Machine:
    """The files that Linux shows for a process's control groups."""

    def __init__(self, folder: Path) -> None:
        self.proc, self.mount = folder / "proc", folder / "cgroup"
        (self.proc / "self").mkdir(parents=True)

    def write(self, path: str, **files: str) -> None:
        folder = self.mount / path
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (folder / name.replace("__", ".")).write_text(text)

    def limits(self, groups: str) -> list[tuple[int, int]]:
        (self.proc / "self" / "cgroup").write_text(groups)
        return [(limit.limit_bytes, limit.used_bytes) for limit in read_limits(self.proc, self.mount)]


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_version_2_reads_the_group_and_its_parents(machine: Machine) -> None:
    machine.write("a/b", memory__max="max\n", memory__current="700\n", memory__stat="anon 1\n")
    machine.write("a", memory__max="1000\n", memory__current="900\n", memory__stat="anon 1\ninactive_file 150\n")
    assert machine.limits("0::/a/b\n") == [(1000, 750)]


def test_version_1_reads_the_memory_controller_only(machine: Machine) -> None:
    machine.write("cpu/a", memory__limit_in_bytes="5\n", memory__usage_in_bytes="1\n")
    machine.write(
        "memory/a",
        memory__limit_in_bytes="1000\n",
        memory__usage_in_bytes="900\n",
        memory__stat="inactive_file 1\ntotal_inactive_file 200\n",
    )
    assert machine.limits("4:memory:/a\n3:cpu,cpuacct:/a\n0::/\n") == [(1000, 700)]


def test_version_1_writes_a_huge_number_for_no_limit(machine: Machine) -> None:
    machine.write("memory", memory__limit_in_bytes="9223372036854771712\n", memory__usage_in_bytes="900\n")
    assert machine.limits("4:memory:/\n") == []


def test_inside_a_container_the_mount_itself_is_the_group(machine: Machine) -> None:
    machine.write("", memory__max="1000\n", memory__current="400\n")
    assert machine.limits("0::/system.slice/docker-1234.scope\n") == [(1000, 400)]


def test_more_file_cache_than_usage_counts_as_nothing_used(machine: Machine) -> None:
    machine.write("", memory__max="1000\n", memory__current="400\n", memory__stat="inactive_file 500\n")
    assert machine.limits("0::/\n") == [(1000, 0)]


@pytest.mark.parametrize("groups", ["", "nonsense\n", "0::/\n", "7::\n"])
def test_without_control_groups_there_is_no_limit(machine: Machine, groups: str) -> None:
    assert machine.limits(groups) == []


def test_a_system_without_these_files_has_no_limit(tmp_path: Path) -> None:
    assert list(read_limits(tmp_path / "proc", tmp_path / "cgroup")) == []


def test_this_machines_memory_can_be_read() -> None:
    readings = read_memory(torch.device("cpu"))
    assert 0 < readings.free_bytes <= readings.total_bytes
    assert 0 < measure_usable_memory(torch.device("cpu")).usable_bytes < readings.total_bytes


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_an_accelerators_own_memory_is_read() -> None:
    readings = read_memory(torch.device("cuda"))
    assert 0 < readings.free_bytes <= readings.total_bytes
    assert readings.limits == ()
