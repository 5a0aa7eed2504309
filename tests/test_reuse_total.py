"""What the cache saved in a chat: added up from what its turns reported, wherever the chat is now."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from services import GREEDY, open_service

from chatcache.chat import ChatService
from chatcache.errors import NotFoundError
from chatcache.loader import LoadedModel
from chatcache.reuse_total import ReuseTotal
from chatcache.stats import FinishReason, TurnStats

READ = TurnStats(num_prompt_tokens=1000, num_computed_tokens=1000, prefill_s=2.0)
NEXT = TurnStats(num_prompt_tokens=1050, num_cached_tokens=1020, num_computed_tokens=30, prefill_s=0.6)
RESUMED = replace(NEXT, restore_s=0.5)
INTERRUPTED = TurnStats(finish_reason=FinishReason.INTERRUPTED)


@pytest.mark.parametrize(
    ("turns", "expected"),
    [
        ([], ReuseTotal()),
        ([INTERRUPTED], ReuseTotal()),
        ([READ], ReuseTotal(1, 1000, 0)),
        ([READ, INTERRUPTED, NEXT], ReuseTotal(2, 2050, 1020, saved_s=2.04)),
        ([READ, NEXT, RESUMED], ReuseTotal(3, 3100, 2040, saved_s=3.58)),
        ([READ, replace(READ, prefill_s=1.0), NEXT], ReuseTotal(3, 3050, 1020, saved_s=1.02)),
        ([NEXT, NEXT], ReuseTotal(2, 2100, 2040)),
        ([READ, replace(RESUMED, restore_s=3.0)], ReuseTotal(2, 2050, 1020)),
    ],
    ids=["none", "interrupted", "first", "next", "less-fetching", "highest-speed", "never-read-at-once", "took-longer"],
)
def test_turns_add_up_and_seconds_are_told_only_where_the_chat_itself_was_read(
    turns: list[TurnStats], expected: ReuseTotal
) -> None:
    total = ReuseTotal.of(turns)
    assert replace(total, saved_s=None) == replace(expected, saved_s=None)
    assert total.saved_s == (None if expected.saved_s is None else pytest.approx(expected.saved_s))


@pytest.fixture
def service(tiny_llama: LoadedModel, tmp_path: Path) -> Iterator[ChatService]:
    with open_service(tiny_llama, tmp_path) as service:
        yield service


def chat(service: ChatService, num_turns: int = 3, *, temporary: bool = False) -> str:
    session = service.create_session(sampling=GREEDY, temporary=temporary)
    for number in range(num_turns):
        service.send(session.id, f"The quick brown fox {number}.").result(30)
    return session.id


def shown(service: ChatService, session_id: str) -> ReuseTotal:
    """As anybody adds it up who reads the figures below the replies that are shown."""
    replies = service.messages(session_id)[1::2]
    return ReuseTotal.of(service.turn_stats([reply.id for reply in replies]).values())


@pytest.mark.parametrize("temporary", [False, True])
def test_what_was_saved_once_stays_saved_whatever_version_is_shown(service: ChatService, temporary: bool) -> None:
    session_id = chat(service, temporary=temporary)
    whole = service.reuse_total(session_id)
    assert whole == shown(service, session_id)
    assert whole.num_turns == 3
    assert whole.num_reused_tokens > 0
    service.rollback(session_id)
    assert service.reuse_total(session_id) == whole != shown(service, session_id)
    stats = service.regenerate(session_id).result(30).stats
    again = service.reuse_total(session_id)
    assert again.num_turns == 4
    assert again.num_reused_tokens == whole.num_reused_tokens + stats.num_cached_tokens
    service.rollback(session_id, turns=2)
    assert service.messages(session_id) == ()
    assert service.reuse_total(session_id) == again
    assert service.reuse_total(service.create_session().id) == ReuseTotal(), "of this chat alone"
    with pytest.raises(NotFoundError):
        service.for_owner("other").reuse_total(session_id)


def test_of_a_reply_that_was_continued_every_turn_counts(service: ChatService) -> None:
    session_id = chat(service, 1)
    first = service.reuse_total(session_id)
    stats = service.continue_reply(session_id).result(30).stats
    both = service.reuse_total(session_id)
    assert both.num_turns == 2
    assert both.num_reused_tokens == first.num_reused_tokens + stats.num_cached_tokens


def test_a_fork_an_import_and_a_restart_tell_the_same_of_the_same_turns(
    tiny_llama: LoadedModel, tmp_path: Path
) -> None:
    with open_service(tiny_llama, tmp_path / "here") as service:
        session_id = chat(service)
        whole = service.reuse_total(session_id)
        second = service.messages(session_id)[3]
        fork = service.fork(second.id)
        assert service.reuse_total(fork.id) == shown(service, fork.id)
        assert service.reuse_total(fork.id).num_turns == 2
        assert service.reuse_total(session_id) == whole
        file = service.export(session_id)
    with open_service(tiny_llama, tmp_path / "here") as service:
        assert service.reuse_total(session_id) == whole
    with open_service(tiny_llama, tmp_path / "there") as service:
        imported = service.import_(file).session
        assert service.reuse_total(imported.id) == whole
        service.send(imported.id, "And now?").result(30)
        assert service.reuse_total(imported.id).num_turns == 4
