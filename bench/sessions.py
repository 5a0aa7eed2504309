"""Row: tokens per second of several chats that are answered at the same time, against one alone."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from functools import partial

from bench.line import Line, Ratio
from bench.speed import NUM_NEW_TOKENS
from bench.subjects import greedy, settle
from bench.workbench import Workbench, new_owner
from chatcache.chat import ChatService

COUNTS = (1, 2, 4, 8)
NUM_CONTEXT_TOKENS = 512

_GOALS = {4: 2.2, 8: 3.0}


def measure_sessions(bench: Workbench) -> Iterator[Line]:
    """All tokens of all chats, divided by the time from the first click to the last token."""
    counts = COUNTS[:2] if bench.is_quick else COUNTS
    with bench.service(max_concurrent_turns=max(counts)) as service:
        mine = service.for_owner(new_owner())
        sessions = [_chat(bench, mine) for _ in range(max(counts))]
        speeds = bench.alternate({str(count): partial(_speed, mine, sessions[:count]) for count in counts})
    for count in counts:
        ratio = Ratio("one", speeds[str(count)] / speeds["1"], at_least=_GOALS.get(count))
        what = f"{count} chats at once, at {NUM_CONTEXT_TOKENS}" if count > 1 else f"one chat, at {NUM_CONTEXT_TOKENS}"
        yield Line(what, "tokens/s", speeds[str(count)], {}, (ratio,) if count > 1 else ())


def _chat(bench: Workbench, service: ChatService) -> str:
    session_id = service.create_session().id
    service.send(session_id, bench.prompt(NUM_CONTEXT_TOKENS), greedy(1)).result()
    return session_id


def _speed(service: ChatService, session_ids: Sequence[str]) -> float:
    settle(service)
    sampling = greedy(NUM_NEW_TOKENS)
    began_s = time.perf_counter()
    turns = [service.regenerate(session_id, sampling=sampling) for session_id in session_ids]
    num_tokens = sum(turn.result().stats.num_completion_tokens for turn in turns)
    return num_tokens / (time.perf_counter() - began_s)
