"""llama.cpp as a subject: installed once into an environment of its own, run there by `llama_cpp_worker`."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from transformers.tokenization_utils_base import PreTrainedTokenizerBase

from bench.subjects import BenchError

PACKAGE = "llama-cpp-python==0.3.36"
INSTALL_TIMEOUT_S = 1800
CONTEXT_TOKENS = 8192

_MOST_SAID = 600
"""Characters of what an installer or a worker said that are shown when it fails."""

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
                said = (done.stderr or done.stdout).strip()[-_MOST_SAID:]
                raise BenchError(f"{PACKAGE} could not be installed: {said}")
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BenchError(f"{PACKAGE} could not be installed: {error}") from error
    return python


class LlamaCpp:
    """llama.cpp on a GGUF file, in as many threads as torch uses here, reading the ids that the others read."""

    name = "llama.cpp"

    def __init__(self, python: Path, gguf_file: Path, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer = tokenizer
        # -P: else this module, beside the worker, would be found there in place of the package of its name.
        arguments = [python, "-P", _WORKER, gguf_file, torch.get_num_threads(), CONTEXT_TOKENS]
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 - open until `close`
        self._process = subprocess.Popen(
            list(map(str, arguments)), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._said, text=True
        )

    def read(self, text: str) -> float:
        return self._ask({"read": self._tokenizer.encode(text, add_special_tokens=False)})

    def write(self, num_tokens: int) -> float:
        return self._ask({"write": num_tokens})

    def close(self) -> None:
        self._process.communicate(timeout=60)
        self._said.close()

    def _ask(self, command: dict[str, Any]) -> float:
        """Tokens per second. Raises BenchError with what the worker said last if it has ended."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        answer = ""
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(command) + "\n")
            self._process.stdin.flush()
            answer = self._process.stdout.readline()
        if not answer:
            raise BenchError(f"llama.cpp ended with status {self._process.wait()}: {self._last_said()}")
        done = json.loads(answer)
        return float(done["num_tokens"] / done["seconds"])

    def _last_said(self) -> str:
        self._said.seek(0)
        return self._said.read().decode("utf-8", "replace").strip()[-_MOST_SAID:]
