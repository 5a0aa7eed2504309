"""Sliding layers that forget what lies far behind their window: the same logits, less memory, fewer tokens to crop."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch
from services import open_service, runtime_of
from tiny_models import SLIDING, WINDOW, random_ids, tiny_model, with_model
from torch import Tensor

from chatcache.cache.alignment import Alignment
from chatcache.cache.errors import CacheStateError
from chatcache.cache.kinds import convert_session_cache, make_session_cache
from chatcache.cache.session_cache import SessionCache
from chatcache.cache.token_buffer import BLOCK_TOKENS
from chatcache.events import CacheEvent, Reply
from chatcache.loader import LoadedModel
from chatcache.persistence import Persistence
from chatcache.prompt import PromptBuilder
from chatcache.stats import FinishReason, MissReason, Sampling
from chatcache.turn import Turn

MARKED_SLIDING = [
    pytest.param(name, marks=() if name in ("mistral", "gemma3") else pytest.mark.slow) for name in SLIDING
]
KEPT = 256
LONG = 2 * BLOCK_TOKENS + KEPT + WINDOW
"""Enough that a whole block is forgotten."""


@pytest.fixture(autouse=True)
def _short_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chatcache.cache.layers.KEPT_PAST_TOKENS", KEPT)


def feed(name: str, held: SessionCache, ids: list[int]) -> Tensor:
    with torch.inference_mode():
        logits: Tensor = tiny_model(name)(torch.tensor([ids]), cache=held.cache).logits
    held.advance(ids)
    return logits


def pair(name: str, kind: str = "dynamic") -> tuple[SessionCache, SessionCache]:
    """A shortened cache and one that is not, with the same tokens."""
    whole, short = (make_session_cache(tiny_model(name), kind) for _ in range(2))
    short.shorten()
    for start in range(0, LONG, 100):
        ids = random_ids(LONG)[start : start + 100]
        assert torch.equal(feed(name, short, ids), feed(name, whole, ids))
    return whole, short


@pytest.mark.parametrize("kind", ["dynamic", "quantized-int8"])
@pytest.mark.parametrize("name", MARKED_SLIDING)
def test_logits_are_those_of_a_whole_cache_and_memory_is_bounded(name: str, kind: str) -> None:
    whole, short = pair(name, kind)
    assert whole.num_forgotten_tokens == 0
    assert short.num_forgotten_tokens == BLOCK_TOKENS
    for seed, num_tokens in enumerate((1, 1, 30, 1, 300, 1, 700, 1)):
        ids = random_ids(num_tokens, seed)
        assert torch.equal(feed(name, short, ids), feed(name, whole, ids))
        num_held = [layer.num_tokens - layer.num_forgotten_tokens for layer in short.cache.layers if layer.is_sliding]
        assert max(num_held) < WINDOW + KEPT + BLOCK_TOKENS + num_tokens
        assert all(layer.num_forgotten_tokens == 0 for layer in short.cache.layers if not layer.is_sliding)
    assert short.num_bytes < whole.num_bytes


@pytest.mark.parametrize("kind", ["dynamic", "quantized-int8"])
@pytest.mark.parametrize("name", MARKED_SLIDING)
def test_within_what_is_kept_it_can_be_cropped_and_goes_on_alike(name: str, kind: str) -> None:
    whole, short = pair(name, kind)
    for held in (whole, short):
        held.settle()
    for num_kept in (LONG - 1, LONG - 20, LONG - KEPT + 40):
        for held in (whole, short):
            held.crop_to(num_kept)
            held.check()
        for ids in (random_ids(1, num_kept), random_ids(40, num_kept)):
            assert torch.equal(feed(name, short, ids), feed(name, whole, ids))
        for held in (whole, short):
            held.settle()


@pytest.mark.parametrize("name", SLIDING)
def test_further_back_it_is_emptied_and_whole_again(name: str) -> None:
    _, short = pair(name)
    with pytest.raises(CacheStateError, match="256 tokens are forgotten"):
        short.crop_to(100)
    assert short.nearest_length(100) == 0
    ids = random_ids(LONG)
    assert short.align(ids[:100]) == Alignment(0, 0, MissReason.NOT_CROPPABLE)
    assert not short.is_shortened
    assert torch.equal(
        feed(name, short, ids[:100]), feed(name, make_session_cache(tiny_model(name), "dynamic"), ids[:100])
    )


def test_a_long_cache_is_shortened_at_once_and_only_where_a_layer_has_a_window() -> None:
    whole, short = (
        make_session_cache(tiny_model("gemma3"), "dynamic"),
        make_session_cache(tiny_model("gemma3"), "dynamic"),
    )
    for held in (whole, short):
        feed("gemma3", held, random_ids(LONG))
    assert short.can_be_shortened
    short.shorten()
    assert not short.can_be_shortened
    short.trim()
    assert short.num_bytes < whole.num_bytes
    ids = random_ids(5, seed=9)
    assert torch.equal(feed("gemma3", short, ids), feed("gemma3", whole, ids))
    full = make_session_cache(tiny_model("llama-gqa"), "dynamic")
    full.shorten()
    assert not full.is_shortened
    assert not full.can_be_shortened


def test_what_is_held_can_be_given_out_and_the_rest_is_refused() -> None:
    whole, short = pair("gemma3")
    for mine, its in zip(short.export(300, LONG).layers, whole.export(300, LONG).layers, strict=True):
        assert all(torch.equal(mine[name], its[name]) for name in its)
    with pytest.raises(CacheStateError, match="256 of them forgotten"):
        short.export(255, LONG)
    assert short.fork(LONG).num_tokens == 0


def test_what_is_taken_in_piece_by_piece_is_forgotten_on_the_way() -> None:
    whole, _ = pair("gemma3")
    restored = make_session_cache(tiny_model("gemma3"), "dynamic")
    restored.shorten()
    for start in range(0, LONG, 128):
        restored.import_(whole.export(start, min(start + 128, LONG)))
    assert restored.num_forgotten_tokens == BLOCK_TOKENS
    ids = random_ids(5, seed=9)
    assert torch.equal(feed("gemma3", restored, ids), feed("gemma3", whole, ids))


@pytest.mark.parametrize("name", SLIDING)
def test_it_is_converted_as_it_is(name: str) -> None:
    whole, short = pair(name)
    for held in (whole, short):
        convert_session_cache(held, tiny_model(name), "quantized-int8")
    assert short.num_forgotten_tokens == BLOCK_TOKENS
    assert short.is_shortened
    for ids in (random_ids(5, seed=9), random_ids(300, seed=10), random_ids(1, seed=11)):
        assert torch.equal(feed(name, short, ids), feed(name, whole, ids))
    assert short.num_forgotten_tokens == 3 * BLOCK_TOKENS


def test_after_a_failed_forward_it_is_repaired() -> None:
    whole, short = pair("gemma3")

    def fail(*_: object) -> None:
        raise RuntimeError("injected")

    with (
        tiny_model("gemma3").model.layers[2].register_forward_hook(fail),
        pytest.raises(RuntimeError, match="injected"),
    ):
        feed("gemma3", short, random_ids(30, seed=3))
    assert short.repair() == LONG
    ids = random_ids(5, seed=9)
    assert torch.equal(feed("gemma3", short, ids), feed("gemma3", whole, ids))


# ---------------------------------------------------------------------- in a chat


SAMPLING = Sampling(temperature=0.0, max_new_tokens=20)
TOKEN_BYTES = 2 * 2 * 8 * 4
"""Of one layer: keys and values, two heads of 8 float32."""


def budget_for(num_whole: int, num_short: int) -> int:
    """Room for one full layer with `num_whole` tokens and three sliding ones with `num_short`, and one layer more."""
    return (2 * num_whole + 3 * num_short) * TOKEN_BYTES


@pytest.fixture
def gemma(tiny_llama: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> LoadedModel:
    """Three sliding layers and a full one; it never ends a reply by itself."""
    monkeypatch.setattr(PromptBuilder, "_terminator", lambda *_: frozenset())
    return with_model(tiny_llama, tiny_model("gemma3", 384), eos_token_ids=frozenset())


def ended(turn: Turn) -> tuple[Reply, list[str]]:
    reply = turn.result(60)
    assert reply.stats.finish_reason is FinishReason.LENGTH
    return reply, [event.kind for event in turn.events() if isinstance(event, CacheEvent)]


@pytest.mark.slow
def test_a_chat_that_runs_short_of_memory_goes_on_with_shortened_layers_and_says_the_same(
    gemma: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chatcache.prefill_chunks.ChunkSchedule.num_tokens", lambda *_: 128)
    texts = ["word " * 150, "again " * 200, "and " * 150]
    with open_service(gemma, tmp_path / "unlimited") as service:
        session = service.create_session()
        expected = [ended(service.send(session.id, text, SAMPLING))[0] for text in texts]
    num_tokens = expected[-1].stats.num_prompt_tokens + 20
    assert num_tokens > 6 * BLOCK_TOKENS
    budget = budget_for(-(-num_tokens // BLOCK_TOKENS) * BLOCK_TOKENS, 5 * BLOCK_TOKENS)
    with open_service(gemma, tmp_path / "limited", memory_budget_bytes=budget) as service:
        session = service.create_session()
        told = []
        for text, reference in zip(texts, expected, strict=True):
            reply, kinds = ended(service.send(session.id, text, SAMPLING))
            assert reply.message.token_ids == reference.message.token_ids
            assert (reply.stats.cache_kind, reply.stats.num_recomputed_tokens) == ("dynamic", 0)
            assert runtime_of(service).parts.pool.budget.reserved_bytes <= budget
            told += kinds
        assert told == ["shorten"]
        again, kinds = ended(service.regenerate(session.id, sampling=SAMPLING))
        assert (again.stats.num_computed_tokens, kinds) == (1, [])
        assert again.message.token_ids == expected[-1].message.token_ids
        service.rollback(session.id, turns=3)
        back, _ = ended(service.send(session.id, texts[0], SAMPLING))
        assert back.message.token_ids == expected[0].message.token_ids
        assert back.stats.reuse[0].source == "disk", "what memory forgot comes from there"
        assert back.stats.num_computed_tokens == 1
    with open_service(gemma, tmp_path / "limited", memory_budget_bytes=budget) as service:
        resumed, _ = ended(service.send(session.id, texts[1], SAMPLING))
        assert resumed.message.token_ids == expected[1].message.token_ids
        assert resumed.stats.num_computed_tokens == 1


def test_what_is_not_on_disk_yet_is_saved_before_layers_forget_it(
    gemma: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chatcache.prefill_chunks.ChunkSchedule.num_tokens", lambda *_: 128)
    text = "and " * 300  # needs another block
    with open_service(gemma, tmp_path) as service:
        session = service.create_session()
        with monkeypatch.context() as patch:
            patch.setattr(Persistence, "save", lambda *_, **__: False)
            for earlier in ("word " * 150, "again " * 200):
                ended(service.send(session.id, earlier, SAMPLING))
        num_tokens = service.cache_report(session.id).num_tokens + service.count_tokens(text) + 50
        budget = budget_for(-(-num_tokens // BLOCK_TOKENS) * BLOCK_TOKENS, 5 * BLOCK_TOKENS)
        runtime_of(service).parts.pool.budget.limit_bytes = budget
        reply, kinds = ended(service.send(session.id, text, SAMPLING))
        assert kinds == ["shorten"]
        assert service.cache_report(session.id).problem is None
    with open_service(gemma, tmp_path) as service:
        again, _ = ended(service.regenerate(session.id, sampling=SAMPLING))
        assert again.stats.num_computed_tokens == 1
        assert again.message.token_ids == reply.message.token_ids


@pytest.mark.slow
def test_a_reply_that_grows_beyond_memory_goes_on_with_shortened_layers_then_in_8_bits(
    gemma: LoadedModel, tmp_path: Path
) -> None:
    long = dataclasses.replace(SAMPLING, max_new_tokens=1800)
    with open_service(gemma, tmp_path / "unlimited") as service:
        expected, _ = ended(service.send(service.create_session().id, "Hello", long))
    for num_full, told in ((8, ["shorten"]), (5, ["shorten", "convert"])):
        budget = budget_for(num_full * BLOCK_TOKENS, 4 * BLOCK_TOKENS)
        with open_service(gemma, tmp_path / f"limited-{num_full}", memory_budget_bytes=budget) as service:
            reply, kinds = ended(service.send(service.create_session().id, "Hello", long))
        assert kinds == told
        if "convert" not in told:
            assert reply.message.token_ids == expected.message.token_ids
        assert reply.stats.num_recomputed_tokens == 0
        assert "layers that see only the last tokens" in reply.stats.fallbacks[0]
