"""Every way in which a reply can end, for tests of what comes after."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from services import GREEDY, runtime_of

from chatcache.chat import ChatService
from chatcache.events import Reply, TextEvent
from chatcache.stats import FinishReason, Sampling

TIMEOUT_S = 120
PROMPT = "Hello"


def end_by_length(service: ChatService, session_id: str) -> Reply:
    reply = service.send(session_id, PROMPT, GREEDY).result(TIMEOUT_S)
    assert reply.stats.finish_reason is FinishReason.LENGTH
    return reply


def end_by_eos(service: ChatService, session_id: str) -> Reply:
    """Of a model that ends replies to the prompt by itself."""
    reply = service.send(session_id, PROMPT, Sampling(temperature=0.0, max_new_tokens=100)).result(TIMEOUT_S)
    assert reply.stats.finish_reason is FinishReason.STOP
    return reply


def end_by_stop_string(service: ChatService, session_id: str) -> Reply:
    """The stop string is taken from what the model says anyway, and need not be whole tokens."""
    system_prompt = service.get_session(session_id).system_prompt
    probe = service.create_session(system_prompt=system_prompt)
    sampling = Sampling(temperature=0.0, max_new_tokens=40)
    said = service.send(probe.id, PROMPT, sampling).result(TIMEOUT_S).message.text
    service.drop_cache(probe.id)
    sampling = dataclasses.replace(sampling, stop=(said[4:7],))
    reply = service.send(session_id, PROMPT, sampling).result(TIMEOUT_S)
    assert reply.stats.finish_reason is FinishReason.STOP
    assert reply.message.text == said[: said.index(said[4:7])]
    return reply


def end_by_stopping(service: ChatService, session_id: str) -> Reply:
    turn = service.send(session_id, PROMPT, Sampling(temperature=0.0, max_new_tokens=1500))
    next(event for event in turn.events() if isinstance(event, TextEvent))
    turn.stop()
    reply = turn.result(TIMEOUT_S)
    assert reply.stats.finish_reason is FinishReason.CANCELLED
    return reply


def end_by_failure(service: ChatService, session_id: str) -> Reply:
    """The model fails after a few tokens, and again when the turn tries again."""
    embedding = runtime_of(service).parts.loaded.model.get_input_embeddings()
    num_calls = 0

    def fail_late(*_args: object) -> None:
        nonlocal num_calls
        num_calls += 1
        if num_calls > 5:
            raise RuntimeError("injected")

    handle = embedding.register_forward_hook(fail_late)
    try:
        reply = service.send(session_id, PROMPT, GREEDY).result(TIMEOUT_S)
    finally:
        handle.remove()
    assert reply.stats.finish_reason is FinishReason.ERROR
    return reply


ENDINGS: dict[str, Callable[[ChatService, str], Reply]] = {
    "length": end_by_length,
    "eos": end_by_eos,
    "stop string": end_by_stop_string,
    "stopped": end_by_stopping,
    "failure": end_by_failure,
}
