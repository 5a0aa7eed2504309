"""A hundred chats opened and closed: run by `test_resident_memory.py`, prints resident bytes as JSON.

Arguments: the model's folder, a data directory, the memory budget in bytes, and how many words a message has.
"""

from __future__ import annotations

import gc
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import torch

from chatcache.chat import ChatService
from chatcache.config import ServiceConfig
from chatcache.out_of_memory import return_to_system
from chatcache.stats import Sampling
from storage.segment_files import SegmentFolder, WrittenFile

NUM_CHATS = 100
NUM_FIRST_CHATS = 20
"""More than there is memory for: what is loaded or kept once, also on a first spill, is there before it counts."""
WRITE_S = 0.05
"""A disk that is behind: copies of the caches wait for it."""


def resident_bytes() -> int:
    gc.collect()
    return int(psutil.Process().memory_info().rss)


def bytes_in_use() -> int:
    """Those resident, without what the allocator keeps free for the next chat: it does not count against the budget."""
    return_to_system()
    return resident_bytes()


def slowly(write: Callable[..., WrittenFile]) -> Callable[..., WrittenFile]:
    def slow(*arguments: Any) -> WrittenFile:
        time.sleep(WRITE_S)
        return write(*arguments)

    return slow


def main() -> None:
    SegmentFolder.write = slowly(SegmentFolder.write)  # type: ignore[method-assign]
    model, data_dir, budget_bytes, num_words = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    torch.set_num_threads(1)
    config = ServiceConfig(
        model=model,
        data_dir=data_dir,
        device="cpu",
        dtype="float32",
        weights="full",
        memory_budget_bytes=budget_bytes,
        disk_quota_bytes=2 * budget_bytes,
    )
    service = ChatService.open(config)

    def chat(number: int) -> str:
        session = service.create_session()
        text = f"{number} " + "word " * num_words
        service.send(session.id, text, Sampling(temperature=0.0, max_new_tokens=4)).result(250)
        return session.id

    def close(session_id: str) -> None:
        service.drop_cache(session_id)
        service.delete(session_id)

    for session_id in [chat(number) for number in range(NUM_FIRST_CHATS)]:
        close(session_id)
    before = bytes_in_use()
    opened, seen = [], []
    for number in range(NUM_FIRST_CHATS, NUM_FIRST_CHATS + NUM_CHATS):
        opened.append(chat(number))
        seen.append(bytes_in_use())
    live_bytes = service.cache_report(opened[-1]).total_bytes
    session_bytes = service.cache_report(opened[-1]).num_bytes
    for session_id in opened:
        close(session_id)
    result = {
        "before": before,
        "most": max(seen),
        "after": resident_bytes(),
        "live_bytes": live_bytes,
        "session_bytes": session_bytes,
    }
    service.close()
    sys.stdout.write(json.dumps(result))


if __name__ == "__main__":
    main()
