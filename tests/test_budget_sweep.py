"""Four chats of 1,500 tokens on the embedded model in ever smaller budgets: never above, never wrong, never dead."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from services import open_service, runtime_of

from chatcache.cache.session_cache import SessionCache
from chatcache.chat import ChatService
from chatcache.events import CacheEvent, Reply
from chatcache.loader import LoadedModel
from chatcache.stats import FinishReason, Sampling

pytestmark = pytest.mark.slow

NUM_CHATS = 4
SAMPLING = Sampling(temperature=0.0, max_new_tokens=16)
QUESTIONS = ("Which numbers did I tell you?", "What did I tell you about?")
BYTES_PER_TOKEN = 30 * 2 * 3 * 64 * 4
"""Of SmolLM2-135M in float32: 30 layers, keys and values, three heads of 64."""
SESSION_BYTES = 1792 * BYTES_PER_TOKEN

Said = list[tuple[Reply, list[CacheEvent]]]


def history(number: int) -> str:
    return " ".join(f"{n} apples and {n * (7 + number) % 13} pears." for n in range(number, number + 152))


def talk(service: ChatService) -> list[Said]:
    """Each chat's turns: its history, then the questions, the chats taking turns."""
    sessions = [service.create_session(system_prompt=f"You are number {n}.").id for n in range(NUM_CHATS)]
    said: list[Said] = [[] for _ in sessions]
    for index in range(1 + len(QUESTIONS)):
        for number, session_id in enumerate(sessions):
            text = QUESTIONS[index - 1] if index else history(number)
            turn = service.send(session_id, text, SAMPLING)
            reply = turn.result(250)
            said[number].append((reply, [event for event in turn.events() if isinstance(event, CacheEvent)]))
    return said


@pytest.fixture(scope="module")
def unlimited(embedded: LoadedModel, tmp_path_factory: pytest.TempPathFactory) -> list[Said]:
    with open_service(embedded, tmp_path_factory.mktemp("unlimited")) as service:
        said = talk(service)
    assert all(reply.stats.num_prompt_tokens > 1450 for chat in said for reply, _ in chat)
    return said


@contextmanager
def watched(service: ChatService, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """All cache bytes together, measured after every forward and restored piece: never above the budget."""
    pool, advance = runtime_of(service).parts.pool, SessionCache.advance

    def look(self: SessionCache, token_ids: list[int]) -> None:
        for _ in range(2):  # before and after the tokens settle
            measured = sum(cache.num_bytes for cache in pool.live.caches.values())
            assert measured <= pool.budget.reserved_bytes <= pool.budget.limit_bytes
            if token_ids:
                advance(self, token_ids)
                token_ids = []

    with monkeypatch.context() as patch:
        patch.setattr(SessionCache, "advance", look)
        yield


@pytest.mark.parametrize("num_sessions", [5.0, 1.2, 0.6, 0.1])
def test_chats_stay_within_any_budget(
    embedded: LoadedModel,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    unlimited: list[Said],
    num_sessions: float,
) -> None:
    budget = int(num_sessions * SESSION_BYTES)
    with open_service(embedded, tmp_path, memory_budget_bytes=budget) as service, watched(service, monkeypatch):
        said = talk(service)
    steps = set()
    for chat, reference in zip(said, unlimited, strict=True):
        is_exact = True
        for (reply, events), (expected, _) in zip(chat, reference, strict=True):
            ids, expected_ids = reply.message.token_ids, expected.message.token_ids
            assert ids is not None
            assert expected_ids is not None
            lossy = [event for event in events if event.kind in ("convert", "stop")]
            steps |= {event.kind for event in events}
            if is_exact:
                num_exact = max(lossy[0].token_index - reply.stats.num_prompt_tokens, 0) if lossy else None
                assert ids[:num_exact] == expected_ids[:num_exact], "nothing differs before the first lossy step"
            if reply.stats.finish_reason is FinishReason.CONTEXT_FULL:
                assert any("tokens of this chat fit" in sentence for sentence in reply.stats.fallbacks)
            else:
                assert reply.stats.finish_reason in (FinishReason.LENGTH, FinishReason.STOP)
                assert ids
            is_exact = is_exact and not lossy
    if num_sessions == 5.0:
        assert steps <= {"restored"}
    elif num_sessions >= 1.2:
        assert "spill" in steps
        assert not steps & {"convert", "stop"}
    elif num_sessions >= 0.3:
        assert "convert" in steps
        assert "stop" not in steps
    else:
        assert "stop" in steps
