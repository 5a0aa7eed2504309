"""llama.cpp as a subject: installed once into an environment of its own, run there by `llama_cpp_worker`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import torch
from transformers.tokenization_utils_base import PreTrainedTokenizerBase

from bench.subjects import BenchError
from bench.worker import MOST_SAID, Worker

PACKAGE = "llama-cpp-python==0.3.36"
INSTALL_TIMEOUT_S = 1800
CONTEXT_TOKENS = 8192

_WORKER = Path(__file__).parent / "llama_cpp_worker.py"


def ensure_installed(environment: Path) -> Path:
    """The Python of `environment`, with llama-cpp-python in it; compiled now, with low priority, if it is not there.

    Raises BenchError with the end of what the installer said.
    """
    python = environment / "bin" / "python"
    is_there = [str(python), "-c", "import llama_cpp"]
    if python.exists() and subprocess.run(is_there, capture_output=True).returncode == 0:
        return python
    sys.stderr.write(f"Installing {PACKAGE} into {environment}; it is compiled, which takes some minutes …\n")
    install = ["nice", "-n", "15", str(python), "-m", "pip", "install", "--disable-pip-version-check", PACKAGE]
    settings = {**os.environ, "CMAKE_BUILD_PARALLEL_LEVEL": "2"}
    try:
        for command in ([sys.executable, "-m", "venv", str(environment)], install):
            done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_TIMEOUT_S, env=settings)
            if done.returncode != 0:
                said = (done.stderr or done.stdout).strip()[-MOST_SAID:]
                raise BenchError(f"{PACKAGE} could not be installed: {said}")
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BenchError(f"{PACKAGE} could not be installed: {error}") from error
    return python


def llama_cpp(python: Path, gguf_file: Path, tokenizer: PreTrainedTokenizerBase) -> Worker:
    """llama.cpp on a GGUF file, in as many threads as torch uses here."""
    # -P: else this module, beside the worker, would be found there in place of the package of its name.
    command = (python, "-P", _WORKER, gguf_file, torch.get_num_threads(), CONTEXT_TOKENS)
    return Worker("llama.cpp", command, tokenizer)
