"""A real out-of-memory: the process may not grow any further, so that the allocator itself fails. The chat goes on."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

CHILD = Path(__file__).with_name("out_of_memory_child.py")


def run_child(models: Path, chats: Path, where: str) -> dict[str, Any]:
    process = subprocess.run(
        [sys.executable, str(CHILD), str(models), str(chats), where],
        capture_output=True,
        text=True,
        timeout=280,
        cwd=CHILD.parent.parent,
        env={"PYTHONPATH": str(CHILD.parent.parent), "OMP_NUM_THREADS": "1", "PATH": ""},
        check=False,
    )
    assert process.returncode == 0, process.stderr[-4000:]
    result: dict[str, Any] = json.loads(process.stdout.splitlines()[-1])
    return result


@pytest.mark.skipif(sys.platform != "linux", reason="RLIMIT_AS limits what a process may allocate on Linux only")
@pytest.mark.usefixtures("embedded_model_dir")
@pytest.mark.parametrize("where", ["prefill", "decode"])
def test_a_process_that_may_not_grow_goes_on_in_a_smaller_cache_and_recovers(
    test_data_dir: Path, tmp_path: Path, where: str
) -> None:
    result = run_child(test_data_dir, tmp_path, where)
    short = result["short"]
    kinds = [kind for kind, _, _ in short["events"]]
    assert short["finish_reason"] == "length"
    assert len(short["text"]) > 5
    assert "retry" in kinds
    assert kinds[-1] == "convert"
    assert short["cache_kind"] in ("quantized-int8", "quantized-int4")
    at = short["events"][-1][1]
    prompt = short["num_prompt_tokens"]
    assert (at < prompt) is (where == "prefill")
    # Memory returns: the next turn has its cache in full precision again, and nobody else was harmed.
    assert result["after"]["cache_kind"] == "dynamic"
    assert result["after"]["miss_reason"] == "smaller-form"
    assert result["after"]["finish_reason"] == "length"
    assert result["idle after"]["finish_reason"] == "length"
    assert result["idle after"]["miss_reason"] is None
    assert result["idle after"]["num_cached_tokens"] > 40
