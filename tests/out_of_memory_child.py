"""A service whose process may not grow any further: run by `test_out_of_memory.py`, prints what happened as JSON.

Arguments: data directory of the models, data directory of the chats, and where memory runs out, "prefill" or "decode".
"""

from __future__ import annotations

import contextlib
import json
import resource
import sys
from pathlib import Path

import psutil
import torch
from services import GREEDY, open_service, runtime_of

from chatcache.config import ServiceConfig
from chatcache.events import CacheEvent, TextEvent
from chatcache.loader import load_model
from chatcache.stats import Sampling
from chatcache.turn import Turn

SPARE_BYTES = 8_000_000


def told(turn: Turn) -> dict[str, object]:
    reply = turn.result(600)
    stats = reply.stats
    return {
        "text": reply.message.text,
        "token_ids": reply.message.token_ids,
        "finish_reason": stats.finish_reason,
        "cache_kind": stats.cache_kind,
        "miss_reason": stats.miss_reason,
        "num_prompt_tokens": stats.num_prompt_tokens,
        "num_cached_tokens": stats.num_cached_tokens,
        "num_recomputed_tokens": stats.num_recomputed_tokens,
        "events": [
            [event.kind, event.token_index, event.message] for event in turn.events() if isinstance(event, CacheEvent)
        ],
    }


def limit_memory(spare_bytes: int) -> None:
    soft = psutil.Process().memory_info().vms + spare_bytes
    resource.setrlimit(resource.RLIMIT_AS, (soft, resource.RLIM_INFINITY))


def fill_up() -> list[torch.Tensor]:
    """Take what the allocator has left, on the thread that will want it, but for `SPARE_BYTES`."""
    ballast: list[torch.Tensor] = []
    for num_bytes in (2**20, 2**17):
        with contextlib.suppress(RuntimeError):
            while True:
                ballast.append(torch.empty(num_bytes, dtype=torch.uint8))
    return ballast[SPARE_BYTES // 2**20 :]


def main() -> None:
    models, chats, where = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
    torch.set_num_threads(1)
    loaded = load_model(ServiceConfig(data_dir=models, device="cpu", dtype="float32"))
    history = " ".join(f"{number} apples and {number * 7 % 13} pears." for number in range(170))
    with open_service(loaded, chats, memory_budget_bytes=2**40) as service:
        runtime_of(service).prompts.end_token_ids = frozenset()  # replies end by their length
        idle, session = service.create_session(), service.create_session()
        result = {"idle": told(service.send(idle.id, "My name is Ada. Say hello.", GREEDY))}
        ballast: list[torch.Tensor] = []
        if where == "prefill":
            limit_memory(SPARE_BYTES)
            turn = service.send(session.id, history, GREEDY)
        else:
            turn = service.send(session.id, history, Sampling(temperature=0.0, max_new_tokens=300))
            next(event for event in turn.events() if isinstance(event, TextEvent))
            limit_memory(0)
            ballast = runtime_of(service).scheduler.call(fill_up)
        result["short"] = told(turn)
        del ballast
        resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        result["after"] = told(service.send(session.id, "And now?", GREEDY))
        result["idle after"] = told(service.send(idle.id, "What is my name?", GREEDY))
    sys.stdout.write(json.dumps(result))


if __name__ == "__main__":
    main()
