"""Runs `PlainTransformers` in a process of its own; see `worker.py`. Arguments: model folder, device, threads."""

from __future__ import annotations

import json
import os
import sys

import torch
from transformers import AutoModelForCausalLM

from bench.subjects import PlainTransformers
from chatcache.library_calls import quiet_transformers
from chatcache.model_options import resolve_device, resolve_dtype


def main() -> None:
    folder, num_threads = sys.argv[1], int(sys.argv[3])
    device = resolve_device(sys.argv[2])
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a library prints is no answer
    torch.set_num_threads(num_threads)
    with quiet_transformers():
        model = AutoModelForCausalLM.from_pretrained(folder, local_files_only=True, dtype="auto").eval()
    model.to(device=device, dtype=resolve_dtype("auto", model.dtype, device))
    subject = PlainTransformers(model)
    for line in sys.stdin:
        command = json.loads(line)
        speed = subject.read(command["read"]) if "read" in command else subject.write(command["write"])
        answers.write(json.dumps({"tokens_per_s": speed}) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
