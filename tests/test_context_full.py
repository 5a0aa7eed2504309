"""A chat longer than the model's context goes on: the oldest turns are left out, many at once. Or it stops, if told."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch
from services import counted_forwards, open_service

from chatcache.chat import ChatService
from chatcache.errors import ContextFullError, InvalidInputError
from chatcache.events import CacheEvent, Reply
from chatcache.loader import LoadedModel
from chatcache.prompt import PromptBuilder
from chatcache.stats import FinishReason, MissReason, Sampling
from chatcache.template_chat import PromptMessage
from storage.records import Role

TIMEOUT_S = 60
WINDOW = 512
SYSTEM_PROMPT = "You are a fox."
SHORT = Sampling(temperature=0.0, max_new_tokens=6)


@pytest.fixture
def loaded(tiny_llama: LoadedModel) -> LoadedModel:
    return dataclasses.replace(tiny_llama, max_context_tokens=WINDOW)


def send(service: ChatService, session_id: str, text: str, sampling: Sampling = SHORT) -> Reply:
    return service.send(session_id, text, sampling).result(TIMEOUT_S)


def text_of(number: int) -> str:
    return f"{number} " + "word " * 6


def fill(service: ChatService, session_id: str) -> Reply:
    """Send until the oldest turns are left out."""
    for number in range(100):
        reply = send(service, session_id, text_of(number))
        if reply.stats.context_start:
            return reply
    raise AssertionError("the context was never full")


def prompt_ids(service: ChatService, session_id: str) -> tuple[int, ...]:
    """The ids of the prompt that the tip answers, made from what the model still sees."""
    loaded = service._runtime.parts.loaded
    session = service.get_session(session_id)
    seen = service.messages(session_id)[service.context_start(session_id) : -1]
    messages = [PromptMessage(m.role, m.text, m.reasoning, m.token_ids) for m in seen]
    prompts = PromptBuilder(loaded.tokenizer, loaded.chat_template, loaded.eos_token_ids)
    return prompts.build(messages, system_prompt=SYSTEM_PROMPT, template_vars=session.template_vars).token_ids


def assert_as_if_computed_anew(service: ChatService, session_id: str) -> None:
    """The tip is what the model says, without any cache, to what it still sees."""
    loaded, ids = service._runtime.parts.loaded, prompt_ids(service, session_id)
    said = service.messages(session_id)[-1].text
    whole = torch.tensor([ids])
    with torch.inference_mode():
        generated = loaded.model.generate(
            whole, attention_mask=torch.ones_like(whole), do_sample=False, max_new_tokens=6, use_cache=False
        )
    assert loaded.tokenizer.decode(generated[0, len(ids) :], skip_special_tokens=True).strip().startswith(said.strip())


@pytest.mark.slow
def test_ten_windows_long_the_chat_goes_on_with_one_large_recompute_per_drop(
    loaded: LoadedModel, tmp_path: Path
) -> None:
    with open_service(loaded, tmp_path) as service, counted_forwards(loaded) as forwarded:
        session = service.create_session(system_prompt=SYSTEM_PROMPT)
        num_fed, num_drops, num_since, previous_start = 0, 0, 99, 0
        number = 0
        while num_fed < 10 * WINDOW:
            forwarded.clear()
            reply = send(service, session.id, text_of(number))
            stats, start = reply.stats, service.context_start(session.id)
            assert stats.finish_reason in (FinishReason.LENGTH, FinishReason.STOP)
            assert stats.context_start == start >= previous_start
            prompt = prompt_ids(service, session.id)
            assert stats.num_prompt_tokens == len(prompt) <= WINDOW - 6
            assert stats.num_prompt_tokens == stats.num_cached_tokens + stats.num_computed_tokens
            assert sum(forwarded) == stats.num_computed_tokens + stats.num_completion_tokens - 1
            assert service.messages(session.id)[start].role is Role.USER
            if start > previous_start:
                assert start - previous_start >= 4, "many turns at once"
                assert len(prompt) <= WINDOW * 3 / 4
                assert (stats.miss_reason, num_since >= 2) == (MissReason.CONTEXT, True)
                assert stats.num_cached_tokens > 10, "the system prompt is not computed again"
                assert_as_if_computed_anew(service, session.id)
                num_drops, num_since = num_drops + 1, 0
            else:
                assert stats.miss_reason is None
                assert stats.num_computed_tokens < 45, "the turns after a drop only add"
                num_since += 1
            num_fed += stats.num_completion_tokens + 30
            previous_start, number = start, number + 1
        assert num_drops > 5


def test_the_turn_says_what_was_left_out_and_how_much_it_computes(loaded: LoadedModel, tmp_path: Path) -> None:
    with open_service(loaded, tmp_path) as service:
        session = service.create_session(system_prompt=SYSTEM_PROMPT)
        reply = fill(service, session.id)
        turn = service.regenerate(session.id, sampling=SHORT)
        assert turn.result(TIMEOUT_S).stats.context_start == reply.stats.context_start
        sentence = reply.stats.fallbacks[0]
        assert f"{reply.stats.context_start} oldest messages" in sentence
        assert f"{reply.stats.num_computed_tokens} tokens" in sentence
        events = [event for event in turn.events() if isinstance(event, CacheEvent)]
        assert events == [], "a new alternative leaves out no more"


def test_a_prompt_is_a_function_of_the_branch(loaded: LoadedModel, tmp_path: Path) -> None:
    with open_service(loaded, tmp_path) as service:
        session = service.create_session(system_prompt=SYSTEM_PROMPT)
        before = send(service, session.id, "First")
        dropped = fill(service, session.id)
        start = service.context_start(session.id)
        again = service.regenerate(session.id, sampling=SHORT).result(TIMEOUT_S)
        assert (again.stats.num_computed_tokens, service.context_start(session.id)) == (1, start)
        fork = service.fork(dropped.message.id)
        assert service.context_start(fork.id) == start
        assert send(service, fork.id, "Go on").stats.num_computed_tokens < 40
        service.select(before.message.id)
        service.rollback(session.id, turns=len(service.messages(session.id)) // 2 - 1)
        assert service.context_start(session.id) == 0
        assert send(service, session.id, "Another way").stats.context_start == 0
        service.select(dropped.message.id)
        assert service.context_start(session.id) == start
    with open_service(loaded, tmp_path) as service:
        resumed = send(service, session.id, "And?")
        assert (resumed.stats.miss_reason, resumed.stats.context_start) == (None, start)
        assert resumed.stats.reuse[0].source == "disk"


def test_continuing_at_the_end_of_the_window_leaves_out_old_turns(loaded: LoadedModel, tmp_path: Path) -> None:
    with open_service(loaded, tmp_path) as service:
        session = service.create_session(system_prompt=SYSTEM_PROMPT)
        for number in range(3):
            send(service, session.id, text_of(number))
        service._runtime.prompts.end_token_ids = frozenset()
        reply = send(service, session.id, "Tell me all", Sampling(temperature=0.0, max_new_tokens=1000))
        assert reply.stats.finish_reason is FinishReason.CONTEXT_FULL
        more = service.continue_reply(session.id, SHORT).result(TIMEOUT_S)
        assert more.stats.context_start > 0
        assert more.message.text.startswith(reply.message.text)
        assert len(more.message.text) > len(reply.message.text)


def test_the_last_message_is_always_kept_however_long(loaded: LoadedModel, tmp_path: Path) -> None:
    with open_service(loaded, tmp_path) as service:
        session = service.create_session(system_prompt=SYSTEM_PROMPT)
        send(service, session.id, "Hello")
        reply = send(service, session.id, "word " * 228)
        assert reply.stats.context_start == 2
        assert 0.75 * WINDOW < reply.stats.num_prompt_tokens == len(prompt_ids(service, session.id)) < WINDOW
        with pytest.raises(ContextFullError, match="512") as caught:
            service.send(session.id, "word " * 300)
        assert caught.value.num_prompt_tokens > caught.value.max_context_tokens == WINDOW
        assert len(service.messages(session.id)) == 4


def test_with_the_setting_stop_the_reply_ends_with_everything_kept(loaded: LoadedModel, tmp_path: Path) -> None:
    with open_service(loaded, tmp_path) as service:
        session = service.create_session(system_prompt=SYSTEM_PROMPT, settings={"context_full": "stop"})
        with pytest.raises(ContextFullError, match="512"):
            fill(service, session.id)
        assert len(service.messages(session.id)) > 10
        assert service.context_start(session.id) == 0
        service.rollback(session.id)
        service._runtime.prompts.end_token_ids = frozenset()
        full = send(service, session.id, "x", Sampling(temperature=0.0, max_new_tokens=1000))
        assert full.stats.finish_reason is FinishReason.CONTEXT_FULL
        assert full.stats.num_prompt_tokens + full.stats.num_completion_tokens == WINDOW
        for _ in range(10):
            with pytest.raises(ContextFullError):
                service.send(session.id, "x")
        service.update_session(session.id, settings={"context_full": "drop-oldest"})
        assert send(service, session.id, "x").stats.context_start > 0
        with pytest.raises(InvalidInputError, match="drop-oldest"):
            service.update_session(session.id, settings={"context_full": "explode"})
