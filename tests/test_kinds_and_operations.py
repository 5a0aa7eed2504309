"""Every cache kind under everything a person can do to a chat: no operation is lost, and none changes what is said."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from examples import few_quick
from services import counted_forwards, open_service

from chatcache.chat import ChatService
from chatcache.events import Reply, TextEvent
from chatcache.loader import LoadedModel
from chatcache.stats import FinishReason, Sampling
from chatcache.turn import Turn
from storage.records import Role

KINDS = ("dynamic", "none", "quantized-int4", "quantized-int8", "quantized-fp8")
MARKED_KINDS = few_quick(KINDS, 3)
"""The last ones differ from the third in numbers alone."""
GREEDY = Sampling(temperature=0.0, max_new_tokens=5)
TIMEOUT_S = 120
SYSTEM_PROMPT = "Be brief."


class Chat:
    """A chat of two turns, and the checks that hold after every turn in it or in its forks."""

    def __init__(self, service: ChatService, kind: str) -> None:
        self.service, self.kind = service, kind
        self.loaded: LoadedModel = service._runtime.parts.loaded
        self.id = service.create_session(system_prompt=SYSTEM_PROMPT).id
        self.first = self.send("One")
        self.second = self.send("Two")

    def copied(self) -> Chat:
        """A fork of it, for an operation of its own."""
        forked = copy.copy(self)
        forked.id = self.service.fork(self.second.message.id).id
        first, second = self.service.messages(forked.id)[1::2]
        forked.first = dataclasses.replace(self.first, message=first)
        forked.second = dataclasses.replace(self.second, message=second)
        return forked

    def send(self, text: str, session_id: str | None = None, sampling: Sampling = GREEDY) -> Reply:
        return self.checked(lambda: self.service.send(session_id or self.id, text, sampling))

    def regenerate(self, sampling: Sampling = GREEDY) -> Reply:
        return self.checked(lambda: self.service.regenerate(self.id, sampling=sampling))

    def checked(self, start: Callable[[], Turn]) -> Reply:
        """The reply of a turn that ended well; its stats are held against what passed through the model."""
        with counted_forwards(self.loaded) as forwarded:
            reply = start().result(TIMEOUT_S)
        stats = reply.stats
        assert stats.finish_reason in (FinishReason.STOP, FinishReason.LENGTH)
        assert (stats.cache_kind, stats.fallbacks, stats.num_recomputed_tokens) == (self.kind, (), 0)
        assert stats.num_prompt_tokens == stats.num_cached_tokens + stats.num_computed_tokens
        assert stats.num_cached_tokens == sum(reuse.num_tokens for reuse in stats.reuse)
        if self.kind == "none":
            assert stats.num_cached_tokens == 0
        else:
            assert sum(forwarded) == stats.num_computed_tokens + stats.num_completion_tokens - 1
        assert self.service.turn_stats([reply.message.id])[reply.message.id] == stats
        self.check(reply.message.session_id)
        return reply

    def check(self, session_id: str) -> None:
        roles = [message.role for message in self.service.messages(session_id)]
        assert roles == [Role.USER, Role.ASSISTANT] * (len(roles) // 2)

    def held(self) -> int:
        return self.service.cache_report(self.id).num_tokens

    def stored(self) -> None:
        """Wait until what was computed is on disk."""
        self.service._runtime.persistence.flush()


def send_more(chat: Chat) -> None:
    expected = chat.service.fork(chat.second.message.id)
    assert said(chat.send("Three")) == said(chat.send("Three", expected.id))


def regenerate(chat: Chat) -> None:
    again = chat.regenerate()
    assert said(again) == said(chat.second)
    assert len(chat.service.alternatives(again.message.id)) == 2
    assert again.stats.num_computed_tokens == (again.stats.num_prompt_tokens if chat.kind == "none" else 1)


def roll_back(chat: Chat) -> None:
    chat.send("Three, which is undone again")
    undone = chat.service.rollback(chat.id, turns=2)
    chat.check(chat.id)
    assert undone.session.tip_id == chat.first.message.id
    assert said(chat.send("Two")) == said(chat.second)
    chat.service.rollback(chat.id, turns=2)
    chat.check(chat.id)
    assert said(chat.send("One")) == said(chat.first)


def edit_a_message(chat: Chat) -> None:
    user_message = chat.service.messages(chat.id)[2]
    other = chat.checked(lambda: chat.service.edit(user_message.id, "Something else", GREEDY))
    assert chat.service.messages(chat.id)[2].text == "Something else"
    again = chat.checked(lambda: chat.service.edit(other.message.parent_id or "", "Two", GREEDY))
    assert said(again) == said(chat.second)


def edit_a_reply(chat: Chat) -> None:
    edited = chat.service.edit(chat.second.message.id, "I never said that.").result(TIMEOUT_S)
    chat.check(chat.id)
    chat.send("Three")
    assert chat.service.messages(chat.id)[3].text == "I never said that."
    chat.service.select(edited.message.id)
    chat.check(chat.id)


def select(chat: Chat) -> None:
    """What the other branch held is read from disk again, byte for byte."""
    fork = chat.service.fork(chat.second.message.id)
    expected = chat.send("Three", fork.id)
    chat.service.drop_cache(fork.id)
    chat.stored()
    other = chat.regenerate(Sampling(temperature=2.0, seed=1, max_new_tokens=5))
    assert said(other) != said(chat.second)
    chat.service.select(chat.second.message.id)
    chat.check(chat.id)
    assert said(chat.send("Three")) == said(expected)


def fork(chat: Chat) -> None:
    """From the middle of the chat; neither changes the other."""
    forked = chat.service.fork(chat.first.message.id)
    chat.check(forked.id)
    assert said(chat.send("Something else", forked.id))
    assert said(chat.regenerate()) == said(chat.second)
    chat.service.rollback(forked.id)
    assert said(chat.send("Two", forked.id)) == said(chat.second)


def stop(chat: Chat) -> None:
    turn = chat.service.send(chat.id, "Three", Sampling(temperature=0.0, max_new_tokens=1000))
    next(event for event in turn.events() if isinstance(event, TextEvent))
    turn.stop()
    stopped = turn.result(TIMEOUT_S)
    assert stopped.stats.finish_reason is FinishReason.CANCELLED
    chat.check(chat.id)
    forked = chat.service.fork(stopped.message.id)
    assert said(chat.send("Four")) == said(chat.send("Four", forked.id))


def go_on_writing(chat: Chat) -> None:
    cut = chat.send("Tell me a long story.")
    assert cut.stats.finish_reason is FinishReason.LENGTH
    forked = chat.service.fork(cut.message.id)
    longer = chat.checked(lambda: chat.service.continue_reply(chat.id, GREEDY))
    assert said(longer)[: len(said(cut))] == said(cut)
    assert len(said(longer)) > len(said(cut))
    assert said(chat.checked(lambda: chat.service.continue_reply(forked.id, GREEDY))) == said(longer)


OPERATIONS = (send_more, regenerate, roll_back, edit_a_message, edit_a_reply, select, fork, stop, go_on_writing)


def said(reply: Reply) -> tuple[int, ...]:
    assert reply.message.token_ids is not None
    return tuple(reply.message.token_ids)


@pytest.fixture(scope="module", params=MARKED_KINDS)
def tiny_chat(
    request: pytest.FixtureRequest, tiny_llama: LoadedModel, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Chat]:
    """One for each kind, to be copied."""
    with open_service(tiny_llama, tmp_path_factory.mktemp(request.param), cache=request.param) as service:
        yield Chat(service, request.param)


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.__name__)
def test_every_operation_works_and_what_is_undone_leaves_no_trace(
    operation: Callable[[Chat], None], tiny_chat: Chat
) -> None:
    chat = tiny_chat.copied()
    operation(chat)
    chat.send("At last")


@pytest.mark.parametrize("kind", MARKED_KINDS)
def test_after_a_restart_the_chat_goes_on_as_if_there_had_been_none(
    kind: str, tiny_llama: LoadedModel, tmp_path: Path
) -> None:
    long = dataclasses.replace(GREEDY, max_new_tokens=300)
    with open_service(tiny_llama, tmp_path, cache=kind) as service:
        chat = Chat(service, kind)
        chat.send("word " * 200, sampling=long)
        fork = service.fork(service.get_session(chat.id).tip_id or "")
        num_held, expected = chat.held(), chat.send("At last", fork.id)
        service.drop_cache(fork.id)
    with open_service(tiny_llama, tmp_path, cache=kind) as service:
        chat.service = service
        resumed = chat.send("At last")
        assert said(resumed) == said(expected)
        assert resumed.stats.num_cached_tokens == num_held


@pytest.mark.parametrize(("kind", "other"), list(pairwise((*KINDS, KINDS[0]))))
def test_a_cache_stored_in_one_kind_is_never_read_as_another(
    kind: str, other: str, tiny_llama: LoadedModel, tmp_path: Path
) -> None:
    with open_service(tiny_llama, tmp_path, cache=kind) as service:
        session = service.create_session()
        service.send(session.id, "One", GREEDY).result(TIMEOUT_S)
        num_held = service.cache_report(session.id).num_tokens
    for reader, num_tokens in ((other, 0), (kind, num_held)):
        with open_service(tiny_llama, tmp_path, cache=reader) as service:
            service.prefetch(session.id)
            assert service.cache_report(session.id).num_tokens == num_tokens


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_every_operation_works_on_the_embedded_model(kind: str, embedded: LoadedModel, tmp_path: Path) -> None:
    with open_service(embedded, tmp_path, cache=kind) as service:
        chat = Chat(service, kind)
        for operation in OPERATIONS:
            operation(chat.copied())
