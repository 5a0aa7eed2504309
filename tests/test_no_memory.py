"""Weights that memory does not hold: one sentence, with what they take and what would help."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from services import HeldWeights, loading_service, runtime_of

from chatcache.errors import ModelLoadError
from chatcache.loader import LoadedModel
from chatcache.memory.model_shape import ModelShape
from chatcache.memory.no_memory import no_memory_sentence

ROOT = Path(__file__).parent.parent
TIMEOUT_S = 200
SHAPE = ModelShape(
    name="tiny",
    architecture="llama",
    dtype="bfloat16",
    itemsize=2,
    num_parameters=2**30,
    num_quantizable_parameters=2**30,
    weight_bytes=2**31,
    layers=(),
    vocab_size=1,
    hidden_size=1,
    num_attention_heads=1,
    widest_projection=1,
)

SHORT_OF_MEMORY = """
import sys
import app
from chatcache import loader
from out_of_memory_child import limit_memory

name = sys.argv[1]
real = getattr(loader, name)

def limited(*given):
    limit_memory(20_000_000)
    return real(*given)

setattr(loader, name, limited)
status = app.main(sys.argv[2:])
sys.stdout.flush()
app.os._exit(status)
"""
"""The app, whose process may not grow any further once it does what it is told first."""


@pytest.mark.parametrize(
    ("shape", "device_type", "form", "says"),
    [
        (
            SHAPE,
            "cpu",
            "full",
            "its weights take 2.0 GiB in bfloat16. Close other programs, or choose a smaller model.",
        ),
        (
            SHAPE,
            "cpu",
            "auto",
            "its weights take 2.0 GiB in bfloat16, and up to 1.0 GiB more in a smaller form beside. Close other "
            "programs, or choose --weights full or a smaller model.",
        ),
        (SHAPE, "cpu", "int4", "up to 640.0 MiB more in a smaller form"),
        (SHAPE, "cuda", "auto", "in bfloat16. Close other programs, or choose --device cpu or a smaller model."),
        (replace(SHAPE, dtype="float32"), "cpu", "full", "choose --dtype bfloat16 or a smaller model."),
        (None, "cpu", "full", "There is not enough memory for tiny. Close other programs, or choose a smaller model."),
    ],
)
def test_the_sentence_says_what_the_weights_take_and_what_would_take_less(
    shape: ModelShape | None, device_type: str, form: str, says: str
) -> None:
    assert says in no_memory_sentence(shape, "tiny", device_type, form)


def test_what_waits_for_weights_that_do_not_fit_hears_why(tiny_llama: LoadedModel, tmp_path: Path) -> None:
    weights = HeldWeights(tiny_llama, failure=RuntimeError("DefaultCPUAllocator: can't allocate memory: 9 bytes"))
    weights.arrive()
    with (
        loading_service(weights, tmp_path) as service,
        pytest.raises(ModelLoadError, match="There is not enough memory for tiny-llama"),
    ):
        runtime_of(service).loading.result()


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="RLIMIT_AS limits what a process may allocate on Linux only")
@pytest.mark.parametrize("step", ["_read_weights", "apply_form"])
def test_a_process_whose_memory_ends_while_it_loads_or_packs_weights_ends_with_one_sentence(
    step: str, tmp_path: Path, embedded_model_dir: Path
) -> None:
    arguments = ["--port=0", f"--data-dir={tmp_path}", f"--model={embedded_model_dir}", "--device=cpu"]
    done = subprocess.run(
        [sys.executable, "-c", SHORT_OF_MEMORY, step, *arguments, "--dtype=float32", "--weights=int4"],
        cwd=ROOT,
        env={"PYTHONPATH": f"{ROOT}:{Path(__file__).parent}", "OMP_NUM_THREADS": "1", "PATH": ""},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.startswith("chatcache: There is not enough memory for ")
    assert done.stderr.endswith("choose --dtype bfloat16, --weights full or a smaller model.\n")
    assert done.stderr.count("\n") == 1
    assert "Ready" in done.stdout
