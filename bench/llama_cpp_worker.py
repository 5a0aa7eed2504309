"""Runs llama.cpp in a process of its own, in the peers' environment; see `worker.py`.

This file imports nothing of chatcache, which is not installed there.
"""

import json
import sys
import time

from llama_cpp import Llama


def main() -> None:
    file, num_threads, num_context = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    llama = Llama(file, n_ctx=num_context, n_threads=num_threads, n_threads_batch=num_threads, verbose=False)
    prompt: list[int] = []
    for line in sys.stdin:
        command = json.loads(line)
        began_s = time.perf_counter()
        if "read" in command:
            prompt = command["read"]
            llama.reset()
            llama.eval(prompt)
            num_tokens = len(prompt)
            seconds = time.perf_counter() - began_s
        else:
            num_tokens, seconds = write(llama, prompt, command["write"])
        sys.stdout.write(json.dumps({"tokens_per_s": num_tokens / seconds}) + "\n")
        sys.stdout.flush()


def write(llama: Llama, prompt: list[int], num_tokens: int) -> tuple[int, float]:
    """Tokens after the first one, and the seconds they took, as our stats count them."""
    times_s = []
    for _ in llama.generate(prompt, temp=0.0, reset=True):
        times_s.append(time.perf_counter())
        if len(times_s) == num_tokens:
            break
    return len(times_s) - 1, times_s[-1] - times_s[0]


if __name__ == "__main__":
    main()
