"""No token is computed twice: a long chat with the embedded model, counted where tokens enter the model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from services import counted_forwards, open_service

from chatcache.chat import ChatService
from chatcache.events import Reply
from chatcache.loader import LoadedModel
from chatcache.stats import Sampling
from chatcache.turn import Turn

pytestmark = pytest.mark.slow

QUESTIONS = [
    "Hello! What is your name?",
    "Name three colours.",
    "Türkçe bir kelime söyle. 🙂",
    "What is 2 + 2?",
    "Write one line of Python.",
]
SHORT = Sampling(temperature=0.0, max_new_tokens=12)


@pytest.fixture
def service(embedded: LoadedModel, tmp_path: Path) -> Iterator[ChatService]:
    with open_service(embedded, tmp_path) as opened:
        yield opened


def counted(loaded: LoadedModel, start: Callable[[], Turn]) -> Reply:
    """The reply of a turn, after what its stats say was held against what passed through the input embedding."""
    with counted_forwards(loaded) as forwarded:
        reply = start().result(timeout_s=120)
    assert sum(forwarded) == reply.stats.num_computed_tokens + reply.stats.num_completion_tokens - 1
    assert reply.stats.num_prompt_tokens == reply.stats.num_cached_tokens + reply.stats.num_computed_tokens
    return reply


def test_twenty_turns_compute_every_token_once(service: ChatService, embedded: LoadedModel) -> None:
    session = service.create_session(system_prompt="You are a helpful assistant.")

    def say(text: str) -> Reply:
        return counted(embedded, lambda: service.send(session.id, text, SHORT))

    num_held = num_forwarded = 0
    for number in range(20):
        reply = say(f"{QUESTIONS[number % len(QUESTIONS)]} ({number})")
        stats = reply.stats
        assert stats.num_cached_tokens == num_held, "the cache was used to its end"
        assert stats.num_computed_tokens == stats.num_prompt_tokens - num_held
        assert stats.miss_reason is None
        num_forwarded += stats.num_computed_tokens + stats.num_completion_tokens - 1
        num_held = stats.num_prompt_tokens + stats.num_completion_tokens - 1
        assert service.cache_report(session.id).num_tokens == num_held
    assert num_forwarded == num_held, "computed + completion - 1, over all turns, is the length of the cache"

    again = counted(embedded, lambda: service.regenerate(session.id, sampling=SHORT))
    assert again.stats.num_computed_tokens == 1

    before = service.rollback(session.id)
    num_prompt_before = service.turn_stats([before.undone.id])[before.undone.id].num_prompt_tokens
    resent = say(before.prompt.text)
    assert resent.stats.num_prompt_tokens == num_prompt_before
    assert resent.message.token_ids == again.message.token_ids

    service.rollback(session.id)
    tip_id = service.get_session(session.id).tip_id
    assert tip_id is not None
    tip = service.turn_stats([tip_id])[tip_id]
    other = say("Something else entirely.")
    assert other.stats.num_cached_tokens >= tip.num_prompt_tokens + tip.num_completion_tokens - 1
