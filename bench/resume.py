"""Rows: what a chat costs that goes on after a restart, and what keeping caches on disk costs."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass

from bench.line import Line, Ratio
from bench.subjects import greedy
from bench.workbench import Workbench, new_owner
from chatcache.cache.token_buffer import capacity_for
from chatcache.chat import ChatService
from chatcache.session_key import SessionKey
from chatcache.stats import Sampling, TurnStats
from chatcache.template_chat import PromptMessage
from storage.records import Role

HISTORIES = (512, 2048, 4096)
NUM_TURNS = 32
NUM_CHATS = 10
SHARED_TOKENS = 1000
LOOKED_UP_TOKENS = 4096

_OF_COLD = {2048: 0.10, 4096: 0.06}
_OF_LIVE = 1.6
_FIRST_TOKEN = greedy(1)
_messages = (f"Tell me more about number {number}, please." for number in itertools.count(1))


@dataclass(frozen=True, slots=True)
class _FirstTokens:
    """Seconds to the first token: of a history nobody knows, of the next message in the same process and in another,
    and how long reading from disk took of the last."""

    cold_s: float
    live_s: float
    resumed_s: float
    restore_s: float


def measure_resume(bench: Workbench) -> Iterator[Line]:
    """Time to the first token after a restart, beside a cold start and a live chat."""
    for num_tokens in HISTORIES[:1] if bench.is_quick else HISTORIES[1:]:
        runs = [_first_tokens(bench, num_tokens) for _ in range(bench.num_runs)]
        cold, live, resumed, restore = (
            statistics.median(getattr(run, name) for run in runs)
            for name in ("cold_s", "live_s", "resumed_s", "restore_s")
        )
        ratios = (
            Ratio("cold", resumed / cold, at_most=_OF_COLD.get(num_tokens)),
            Ratio("live", resumed / live, at_most=_OF_LIVE),
        )
        what = f"first token after a restart, {num_tokens:,} tokens of history"
        yield Line(what, "s", resumed, {"cold": cold, "live": live, "reading from disk": restore}, ratios)


def measure_disk(bench: Workbench) -> Iterator[Line]:
    """What is written for a turn and for chats that begin alike, and how long looking for a prompt takes."""
    owner = _new_owner()
    with bench.service() as service:
        mine = service.for_owner(owner)
        yield _written_by_turn(mine, 4 if bench.is_quick else NUM_TURNS)
        mine.drop_all_caches()
        yield _shared(bench, mine)
        yield _lookup(bench, mine, owner)
        if not bench.is_quick:
            yield _decode_while_saving(bench, mine)
        mine.drop_all_caches()


def _first_tokens(bench: Workbench, num_tokens: int) -> _FirstTokens:
    owner = _new_owner()
    with bench.service() as service:
        _warm_up(service)
        mine = service.for_owner(owner)
        session = mine.create_session()
        cold = _send(mine, session.id, bench.prompt(num_tokens))
        _flush(mine)
        live = _send(mine, session.id, next(_messages))
        _flush(mine)
    with bench.service() as service:
        _warm_up(service)
        mine = service.for_owner(owner)
        resumed = _send(mine, session.id, next(_messages))
        mine.drop_all_caches()
    assert {reuse.source for reuse in resumed.reuse} == {"disk"}
    assert cold.ttft_s is not None
    assert live.ttft_s is not None
    assert resumed.ttft_s is not None
    return _FirstTokens(cold.ttft_s, live.ttft_s, resumed.ttft_s, resumed.restore_s or 0.0)


def _warm_up(service: ChatService) -> None:
    """The first turn of a process is slow for reasons of its own; as an owner whose cache helps nobody."""
    other = service.for_owner(_new_owner())
    _send(other, other.create_session().id, "Hello")
    other.drop_all_caches()


def _new_owner() -> str:
    """One that no row has, nor had in an earlier process on the same data folder."""
    return f"{new_owner()}-{time.time_ns()}"


def _send(service: ChatService, session_id: str, text: str, sampling: Sampling = _FIRST_TOKEN) -> TurnStats:
    return service.send(session_id, text, sampling).result().stats


def _flush(service: ChatService) -> None:
    """Wait until all that was computed is written."""
    service._runtime.persistence.flush()


def _bytes_per_token(service: ChatService, session_id: str) -> float:
    live = service.cache_report(session_id)
    return live.num_bytes / capacity_for(live.num_tokens)


def _written_by_turn(service: ChatService, num_turns: int) -> Line:
    session = service.create_session()
    for _ in range(num_turns):
        _flush(service)
        num_bytes = service.storage_report().cache.num_bytes
        num_tokens = service.cache_report(session.id).num_tokens
        _send(service, session.id, next(_messages), greedy(32))
    _flush(service)
    written = service.storage_report().cache.num_bytes - num_bytes
    needed = (service.cache_report(session.id).num_tokens - num_tokens) * _bytes_per_token(service, session.id)
    ratio = Ratio("new tokens", written / needed, at_most=1.1)
    return Line(f"bytes written by turn {num_turns}", "bytes", written, {"new tokens": needed}, (ratio,))


def _shared(bench: Workbench, service: ChatService) -> Line:
    prompt = bench.prompt(SHARED_TOKENS)
    sessions = [service.create_session(system_prompt=prompt) for _ in range(NUM_CHATS)]
    for session in sessions:
        _send(service, session.id, next(_messages), greedy(32))
        _flush(service)
    report = service.storage_report().cache
    per_token = _bytes_per_token(service, sessions[0].id)
    num_held = [service.cache_report(session.id).num_tokens for session in sessions]
    num_tail = sum(num_held) - NUM_CHATS * SHARED_TOKENS
    needed = (SHARED_TOKENS + num_tail) * per_token
    ratio = Ratio("one prompt and the tails", report.num_bytes / needed, at_most=1.05)
    what = f"{NUM_CHATS} chats that share {SHARED_TOKENS:,} tokens"
    return Line(what, "bytes", report.num_bytes, {"one prompt and the tails": needed}, (ratio,))


def _lookup(bench: Workbench, service: ChatService, owner: str) -> Line:
    """For a prompt that begins as this owner's chats do, and goes on as none does."""
    runtime = service._runtime
    message = PromptMessage(Role.USER, bench.prompt(LOOKED_UP_TOKENS))
    ids = runtime.prompts.build([message], system_prompt=None, template_vars={}).token_ids

    def look() -> float:
        began_s = time.perf_counter()
        runtime.persistence.num_saved(SessionKey(owner, ""), ids)
        return (time.perf_counter() - began_s) * 1000

    figures = bench.alternate({"lookup": look})
    ratio = Ratio("1 ms", figures["lookup"], at_most=5)
    return Line(f"look for {len(ids):,} tokens on disk", "ms", figures["lookup"], {}, (ratio,))


def _decode_while_saving(bench: Workbench, service: ChatService) -> Line:
    """Tokens per second of one chat while another one's long prompt is written to disk, and while nothing is."""
    writer, session = service.create_session(), service.create_session()
    _send(service, session.id, bench.prompt(512))
    sampling = greedy(48)

    def decode() -> float:
        speed = service.regenerate(session.id, sampling=sampling).result().stats.decode_tokens_per_s
        assert speed is not None
        return speed

    def quiet() -> float:
        _flush(service)
        return decode()

    def saving() -> float:
        service.drop_cache(writer.id)
        _send(service, writer.id, bench.prompt(2048))
        return decode()

    speeds = bench.alternate({"saving": saving, "quiet": quiet})
    ratio = Ratio("quiet", speeds["saving"] / speeds["quiet"], at_least=0.97)
    return Line("decode while a chat is saved", "tokens/s", speeds["saving"], {"quiet": speeds["quiet"]}, (ratio,))
