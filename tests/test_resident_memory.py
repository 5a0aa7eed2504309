"""What the operating system says of a process in which many chats come and go."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

CHILD = Path(__file__).with_name("resident_memory_child.py")
BUDGET_BYTES = 64 * 2**20


@pytest.fixture(scope="module")
def wide_model(tiny_tokenizer: PreTrainedTokenizerFast, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that computes little and caches a lot: 16 KiB for a token."""
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("wide")
    config = LlamaConfig(
        vocab_size=len(tiny_tokenizer),
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=8,
        head_dim=64,
        max_position_embeddings=4096,
        bos_token_id=tiny_tokenizer.bos_token_id,
        eos_token_id=tiny_tokenizer.eos_token_id,
        pad_token_id=tiny_tokenizer.pad_token_id,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    tiny_tokenizer.save_pretrained(folder)
    return folder


def test_a_hundred_chats_stay_within_the_budget_and_leave_nothing_when_they_are_closed(
    wide_model: Path, tmp_path: Path
) -> None:
    process = subprocess.run(
        [sys.executable, str(CHILD), str(wide_model), str(tmp_path), str(BUDGET_BYTES), "230"],
        capture_output=True,
        text=True,
        timeout=580,
        cwd=CHILD.parent.parent,
        env={"PYTHONPATH": str(CHILD.parent.parent), "OMP_NUM_THREADS": "1", "PATH": ""},
        check=False,
    )
    assert process.returncode == 0, process.stderr[-4000:]
    seen = json.loads(process.stdout.splitlines()[-1])
    assert seen["session_bytes"] * 100 > 4 * BUDGET_BYTES, "the budget was never reached, so the test says nothing"
    assert seen["live_bytes"] > BUDGET_BYTES / 2
    assert seen["most"] - seen["before"] <= 1.05 * BUDGET_BYTES, "copies that wait for a slow disk included"
    assert seen["after"] - seen["before"] <= 0.1 * BUDGET_BYTES
