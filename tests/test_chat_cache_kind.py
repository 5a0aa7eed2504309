"""A cache kind that a person sets for one chat: when it begins to count, what it costs, and what stays as it was."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from services import GREEDY, counted_forwards, open_service, runtime_of

from chatcache.cache.session_cache import SessionCache
from chatcache.cache_problems import HALF_CONVERTED
from chatcache.chat import ChatService
from chatcache.events import CacheEvent, Reply
from chatcache.loader import LoadedModel
from chatcache.prompt import PromptBuilder
from chatcache.session_key import SessionKey
from chatcache.stats import FinishReason, MissReason, Sampling
from storage.records import ChatSession

TIMEOUT_S = 60
INT8 = {"cache": "quantized-int8"}
BLOCK_BYTES = 256 * 2 * 2 * 2 * 16 * 4
"""What 256 tokens take in `tiny_llama`: two layers, keys and values, two heads of 16 float32."""


@pytest.fixture
def service(tiny_llama: LoadedModel, tmp_path: Path) -> Iterator[ChatService]:
    with open_service(tiny_llama, tmp_path) as opened:
        yield opened


def send(service: ChatService, session: ChatSession, text: str, sampling: Sampling = GREEDY) -> Reply:
    return service.send(session.id, text, sampling).result(TIMEOUT_S)


def told(service: ChatService, session: ChatSession, text: str) -> tuple[Reply, list[str]]:
    turn = service.send(session.id, text, GREEDY)
    reply = turn.result(TIMEOUT_S)
    return reply, [event.kind for event in turn.events() if isinstance(event, CacheEvent)]


def learn_int8(service: ChatService) -> None:
    """The first chat of a kind has a token forwarded that is no chat's."""
    send(service, service.create_session(settings=INT8), "Something else")


def held_after(reply: Reply) -> int:
    return reply.stats.num_prompt_tokens + reply.stats.num_completion_tokens - 1


def test_the_model_info_says_what_a_settings_panel_needs(service: ChatService) -> None:
    info = service.model_info
    assert info.cache_kind == "dynamic"
    assert {"dynamic", "quantized-int8", "quantized-int4", "none"} <= set(info.cache_kinds)
    assert "offloaded" not in info.cache_kinds, "the tests' device is a CPU"
    assert info.default_sampling.temperature == 0.7
    assert info.supports_thinking_switch is False


def test_chats_of_several_kinds_live_beside_each_other(service: ChatService) -> None:
    kinds = ("quantized-int8", "quantized-int4", "none", None)
    chats = {kind: service.create_session(settings={"cache": kind}) for kind in kinds}
    for _ in range(2):
        replies = {kind: send(service, chat, "Hello") for kind, chat in chats.items()}
    assert {kind: reply.stats.cache_kind for kind, reply in replies.items()} == {
        kind: kind or "dynamic" for kind in kinds
    }
    assert all(service.cache_report(chat.id).kind == (kind or "dynamic") for kind, chat in chats.items())
    assert {reply.stats.reuse[0].source for kind, reply in replies.items() if kind != "none"} == {"live"}
    assert replies["none"].stats.reuse == ()
    assert replies["none"].message.text == replies[None].message.text


def test_a_chat_of_another_kind_is_not_begun_with_a_copy(service: ChatService) -> None:
    exact, rounded = service.create_session(), service.create_session(settings=INT8)
    send(service, exact, "The quick brown fox jumps over the lazy dog.")
    reply = send(service, rounded, "The quick brown fox jumps over the lazy dog.")
    assert (reply.stats.reuse, reply.stats.cache_kind) == ((), "quantized-int8")
    same = service.create_session(settings=INT8)
    assert send(service, same, "The quick brown fox jumps over the lazy dog.").stats.reuse[0].source == "prefix"


def test_a_live_cache_is_converted_and_nothing_is_computed_again(service: ChatService, tiny_llama: LoadedModel) -> None:
    learn_int8(service)
    session = service.create_session()
    before = send(service, session, "Hello")
    service.update_session(session.id, settings=INT8)
    assert service.cache_report(session.id).kind == "dynamic", "until the next turn"
    with counted_forwards(tiny_llama) as forwarded:
        after, events = told(service, session, "Go on")
    stats = after.stats
    assert stats.cache_kind == service.cache_report(session.id).kind == "quantized-int8"
    assert (stats.num_cached_tokens, stats.miss_reason, stats.fallbacks) == (held_after(before), None, ())
    assert sum(forwarded) == stats.num_computed_tokens + stats.num_completion_tokens - 1
    assert events == ["cache-kind"]
    again, events = told(service, session, "And?")
    assert (again.stats.num_cached_tokens, again.stats.cache_kind, events) == (held_after(after), "quantized-int8", [])


def test_going_back_up_restores_what_was_exact_and_names_what_is_computed(service: ChatService) -> None:
    session = service.create_session()
    exact = send(service, session, "Hello")
    service.update_session(session.id, settings=INT8)
    send(service, session, "Go on")
    service.update_session(session.id, settings={})
    reply, events = told(service, session, "And?")
    stats = reply.stats
    assert (stats.cache_kind, stats.reuse[0].source) == ("dynamic", "disk")
    assert (stats.miss_reason, stats.miss_index) == (MissReason.CACHE_KIND, held_after(exact))
    assert "cache-kind" in events
    assert told(service, session, "More")[0].stats.miss_reason is None


def test_from_one_rounded_kind_to_another_everything_is_computed_from_what_was_said(service: ChatService) -> None:
    session = service.create_session(settings=INT8)
    send(service, session, "Hello")
    service.update_session(session.id, settings={"cache": "quantized-int4"})
    stats = send(service, session, "Go on").stats
    assert (stats.cache_kind, stats.num_cached_tokens) == ("quantized-int4", 0)
    assert (stats.miss_reason, stats.miss_index) == (MissReason.CACHE_KIND, 0)


def test_a_chat_of_its_own_kind_from_the_start_is_restored_after_a_restart(
    tiny_llama: LoadedModel, tmp_path: Path
) -> None:
    with open_service(tiny_llama, tmp_path) as service:
        session = service.create_session(settings=INT8)
        first = send(service, session, "Hello")
        assert service.cache_report(session.id).problem is None
    with open_service(tiny_llama, tmp_path) as service:
        assert service.prefetch(session.id) == held_after(first)
        stats = send(service, session, "Go on").stats
        assert (stats.cache_kind, stats.num_cached_tokens) == ("quantized-int8", held_after(first))
        assert (stats.reuse[0].source, stats.miss_reason) == ("disk", None)


def test_a_converted_cache_is_stored_beside_those_of_its_kind_and_restored_after_restarts(
    tiny_llama: LoadedModel, tmp_path: Path
) -> None:
    def goes_on(service: ChatService, text: str, num_cached: int) -> Reply:
        with counted_forwards(tiny_llama) as forwarded:
            reply = send(service, session, text)
        stats = reply.stats
        assert (stats.num_cached_tokens, stats.miss_reason) == (num_cached, None)
        assert sum(forwarded) == stats.num_computed_tokens + stats.num_completion_tokens - 1
        assert service.cache_report(session.id).problem is None
        return reply

    with open_service(tiny_llama, tmp_path) as service:
        learn_int8(service)
        session = service.create_session()
        exact = send(service, session, "Hello")
        service.update_session(session.id, settings=INT8)
        rounded = goes_on(service, "Go on", held_after(exact))
        live = runtime_of(service).parts.pool.live.caches[SessionKey("local", session.id)]
        before = live.export(0, live.num_tokens)
    with open_service(tiny_llama, tmp_path) as service:
        assert service.prefetch(session.id) == held_after(rounded)
        restored = runtime_of(service).parts.pool.live.caches[SessionKey("local", session.id)]
        after = restored.export(0, restored.num_tokens)
        assert not restored.is_pure
        assert before.token_ids == after.token_ids
        for mine, its in zip(before.layers, after.layers, strict=True):
            assert all(torch.equal(mine[name], its[name]) for name in mine)
        rounded = goes_on(service, "And?", held_after(rounded))
        assert service.regenerate(session.id, sampling=GREEDY).result(TIMEOUT_S).stats.num_computed_tokens == 1
    with open_service(tiny_llama, tmp_path) as service:
        learn_int8(service)
        goes_on(service, "More", held_after(rounded))
        service.update_session(session.id, settings={})
        back = send(service, session, "Back")
        assert (back.stats.cache_kind, back.stats.miss_reason) == ("dynamic", MissReason.CACHE_KIND)
        assert back.stats.miss_index == held_after(exact), "what was exact is restored, what was rounded is not"
    with open_service(tiny_llama, tmp_path) as service:
        goes_on(service, "Once more", held_after(back))


def test_a_cache_that_is_half_converted_is_not_stored_and_that_is_told(
    tiny_llama: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_service(tiny_llama, tmp_path) as service:
        session = service.create_session()
        send(service, session, "Hello")
        monkeypatch.setattr(SessionCache, "is_mixed", True)
        pool = runtime_of(service).parts.pool
        assert not runtime_of(service).scheduler.call(lambda: pool.live.save(SessionKey("local", session.id)))
        assert service.cache_report(session.id).problem == HALF_CONVERTED


@pytest.mark.slow
def test_a_kind_that_was_set_does_not_get_smaller_for_want_of_memory(
    tiny_llama: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PromptBuilder, "_terminator", lambda *_: frozenset())
    endless = dataclasses.replace(tiny_llama, eos_token_ids=frozenset())
    long = Sampling(temperature=0.0, max_new_tokens=900)
    with open_service(endless, tmp_path, memory_budget_bytes=int(4.5 * BLOCK_BYTES)) as service:
        chosen = service.create_session(settings={"cache": "dynamic"})
        stats = send(service, chosen, "Hello", long).stats
        assert (stats.finish_reason, stats.cache_kind) == (FinishReason.CONTEXT_FULL, "dynamic")
        left_alone = service.create_session()
        assert send(service, left_alone, "Hello", long).stats.cache_kind.startswith("quantized")


def test_a_chat_from_a_machine_with_other_kinds_goes_on_in_the_usual_one_and_says_so(service: ChatService) -> None:
    session = service.create_session()
    store = runtime_of(service).store
    store.update_session("local", session.id, settings={"cache": "quantized-hqq99"})
    reply, events = told(service, session, "Hello")
    assert (reply.stats.cache_kind, reply.stats.finish_reason) == ("dynamic", FinishReason.LENGTH)
    assert "quantized-hqq99" in reply.stats.fallbacks[0]
    assert events == ["cache-kind-refused"]
    assert "quantized-hqq99" in (service.cache_report(session.id).problem or "")
