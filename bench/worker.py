"""`Worker`: a subject in a process of its own, in an environment that may be its own, too.

One JSON command a line goes in, one answer a line comes out. {"read": ids} computes a prompt anew, {"write": number}
goes on greedily from its end, as often as asked; the answer is {"tokens_per_s": …}.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

from transformers.tokenization_utils_base import PreTrainedTokenizerBase

from bench.subjects import BenchError

MOST_SAID = 600
"""Characters of what a program said that are shown when it fails."""


class Worker:
    """It reads the ids that the others read."""

    def __init__(
        self, name: str, command: Sequence[object], tokenizer: PreTrainedTokenizerBase, unset: Sequence[str] = ()
    ) -> None:
        """`unset`: variables of the environment that it is to do without."""
        self.name = name
        self._tokenizer = tokenizer
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 - open until `close`
        environment: Mapping[str, str] = {key: value for key, value in os.environ.items() if key not in unset}
        self._process = subprocess.Popen(
            list(map(str, command)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            text=True,
            env=environment,
        )

    def read(self, text: str) -> float:
        return self._ask({"read": self._tokenizer.encode(text, add_special_tokens=False)})

    def write(self, num_tokens: int) -> float:
        return self._ask({"write": num_tokens})

    def close(self) -> None:
        self._process.communicate(timeout=60)
        self._said.close()

    def _ask(self, command: dict[str, Any]) -> float:
        """Tokens per second. Raises BenchError with what the process said last if it has ended."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        answer = ""
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(command) + "\n")
            self._process.stdin.flush()
            answer = self._process.stdout.readline()
        if not answer:
            raise BenchError(f"{self.name} ended with status {self._process.wait()}: {self._last_said()}")
        return float(json.loads(answer)["tokens_per_s"])

    def _last_said(self) -> str:
        self._said.seek(0)
        return self._said.read().decode("utf-8", "replace").strip()[-MOST_SAID:]
