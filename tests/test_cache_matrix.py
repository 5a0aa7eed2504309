"""Every architecture × every cache kind × the path a chat takes, against plain fresh caches with the same schedule."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
from tiny_models import FULL_ATTENTION, RECURRENT, SLIDING, WINDOW, random_ids, tiny_model
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from chatcache.cache.alignment import Alignment
from chatcache.cache.kinds import _make_layers, convert_session_cache, make_session_cache
from chatcache.cache.layers import TokenLayer
from chatcache.cache.session_cache import SessionCache
from chatcache.loader import LoadedModel
from chatcache.stats import MissReason

QUANTIZED = ("quantized-int8", "quantized-int4", "quantized-fp8")
HYBRID = tuple(name for name in RECURRENT if name != "mamba2")
"""Mamba 2 has no keys and values to quantize."""
RECURRENT_KINDS = [(name, "dynamic") for name in RECURRENT] + [(name, kind) for name in HYBRID for kind in QUANTIZED]


@dataclass(frozen=True)
class Chunk:
    """Token ids fed in one forward; `is_settled` once a turn began, or its prompt ended, behind them."""

    token_ids: tuple[int, ...]
    is_settled: bool


def library_logits(model: PreTrainedModel, chunks: list[Chunk]) -> Tensor:
    """The logits of the last chunk, all of them fed to a fresh cache of the library."""
    reference = DynamicCache(config=model.config)
    with torch.inference_mode():
        for chunk in chunks:
            logits = model(torch.tensor([chunk.token_ids]), cache=reference).logits
    return logits


def fresh_logits(model: PreTrainedModel, kind: str, chunks: list[Chunk]) -> Tensor:
    """The logits of the last chunk, all of them fed to a fresh cache of ours."""
    held = make_session_cache(model, kind)
    for chunk in chunks:
        logits = feed(model, held, chunk)
    return logits


def feed(model: PreTrainedModel, held: SessionCache, chunk: Chunk) -> Tensor:
    with torch.inference_mode():
        logits = model(torch.tensor([chunk.token_ids]), cache=held.cache).logits
    held.advance(chunk.token_ids)
    if chunk.is_settled:
        held.settle()
    check_lengths(held)
    return logits


def check_lengths(held: SessionCache) -> None:
    for layer in held.cache.layers:
        assert not hasattr(layer, "get_seq_length") or layer.get_seq_length() == held.num_tokens


class Chat:
    """A cache of ours beside the chunks that a fresh cache would have to be fed to be where ours is."""

    def __init__(self, model: PreTrainedModel, kind: str) -> None:
        self.model, self.kind = model, kind
        self.held = make_session_cache(model, kind)
        self.chunks: list[Chunk] = []

    def prompt(self, num_tokens: int, seed: int) -> None:
        self._compare(self._feed(Chunk(tuple(random_ids(num_tokens, seed)), is_settled=True)))

    def reply(self, num_tokens: int, seed: int) -> None:
        for token in random_ids(num_tokens, seed):
            logits = self._feed(Chunk((token,), is_settled=False))
        self._compare(logits)

    def roll_back(self, num_chunks: int) -> None:
        """Drop the last chunks; a new turn begins there."""
        del self.chunks[len(self.chunks) - num_chunks :]
        self.held.crop_to(sum(len(chunk.token_ids) for chunk in self.chunks))
        self.held.settle()
        check_lengths(self.held)
        if self.chunks:
            self.chunks[-1] = replace(self.chunks[-1], is_settled=True)

    def _feed(self, chunk: Chunk) -> Tensor:
        logits = feed(self.model, self.held, chunk)
        self.chunks.append(chunk)
        assert list(self.held.token_ids) == [i for chunk in self.chunks for i in chunk.token_ids]
        return logits

    def _compare(self, logits: Tensor) -> None:
        if self.kind == "dynamic":
            assert torch.equal(logits, library_logits(self.model, self.chunks))
        else:
            assert torch.equal(logits, fresh_logits(self.model, self.kind, self.chunks))


def take_the_path(chat: Chat) -> None:
    """Past the window, decode, crop one, crop a turn, crop across the window and several blocks, crop to nothing."""
    chat.prompt(3 * WINDOW, seed=0)
    chat.reply(4, seed=1)
    chat.roll_back(1)
    chat.reply(1, seed=2)
    chat.roll_back(4)
    chat.reply(2, seed=3)
    chat.prompt(2 * WINDOW, seed=4)
    chat.reply(1, seed=5)
    chat.roll_back(3)
    chat.prompt(WINDOW - 1, seed=6)
    chat.prompt(300, seed=7)
    chat.reply(1, seed=8)
    chat.roll_back(2)
    chat.reply(2, seed=9)
    chat.roll_back(len(chat.chunks))
    chat.prompt(WINDOW + 1, seed=10)
    chat.reply(1, seed=11)


@pytest.mark.parametrize("kind", ["dynamic", *QUANTIZED[:-1], pytest.param(QUANTIZED[-1], marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", FULL_ATTENTION + SLIDING)
def test_a_chats_path_gives_the_logits_of_a_fresh_cache_after_every_step(name: str, kind: str) -> None:
    take_the_path(Chat(tiny_model(name), kind))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["dynamic", *QUANTIZED])
def test_so_does_the_embedded_models(kind: str, embedded: LoadedModel) -> None:
    take_the_path(Chat(embedded.model, kind))


def turn(model: PreTrainedModel, held: SessionCache, wanted: list[int]) -> tuple[Alignment, Tensor]:
    """What a turn does: align, feed the prompt but its last token, then that one; its logits."""
    alignment = held.align(wanted)
    if alignment.num_cached_tokens < len(wanted) - 1:
        feed(model, held, Chunk(tuple(wanted[alignment.num_cached_tokens : -1]), False))
    return alignment, feed(model, held, Chunk((wanted[-1],), False))


@pytest.mark.parametrize(("name", "kind"), RECURRENT_KINDS)
def test_recurrent_models_roll_back_to_kept_states_exactly(name: str, kind: str) -> None:
    ids = [random_ids(20, seed) for seed in range(5)]
    model = tiny_model(name)
    held, fresh = make_session_cache(model, kind), make_session_cache(model, kind)

    def reply(cache: SessionCache, number: int) -> None:
        for token in random_ids(3, seed=50 + number):
            feed(model, cache, Chunk((token,), False))

    # Two turns, then the second reply again, then another second message: each from a kept state, nothing recomputed.
    assert turn(model, held, ids[0])[0] == Alignment(0, 0, MissReason.NO_CACHE)
    reply(held, 0)
    second = [*held.token_ids, *ids[1]]
    _, first_logits = turn(model, held, second)
    reply(held, 1)
    again, second_logits = turn(model, held, second)
    assert again == Alignment(len(second) - 1)
    assert torch.equal(first_logits, second_logits)
    reply(held, 1)
    first_part = second[: len(ids[0]) + 3]
    other, logits = turn(model, held, [*first_part, *ids[2]])
    assert other == Alignment(len(first_part), len(first_part), MissReason.HISTORY)
    turn(model, fresh, ids[0])
    reply(fresh, 0)
    assert torch.equal(logits, turn(model, fresh, [*first_part, *ids[2]])[1])
    # In the middle of the first prompt nothing is kept: everything is computed again, and it says why.
    inside, logits = turn(model, held, [*ids[0][:10], *ids[3]])
    assert (inside.num_cached_tokens, inside.mismatch_index, inside.reason) == (0, 0, MissReason.NOT_CROPPABLE)
    assert torch.equal(logits, turn(model, make_session_cache(model, kind), [*ids[0][:10], *ids[3]])[1])


@pytest.mark.parametrize("name", RECURRENT)
def test_a_state_kept_at_a_shared_beginning_is_there_forever(name: str) -> None:
    model = tiny_model(name)
    held = make_session_cache(model, "dynamic")
    system = random_ids(10)
    feed(model, held, Chunk(tuple(system), False))
    held.keep_state()
    wanted = list(held.token_ids)
    for seed in range(12):
        wanted = [*wanted, *random_ids(5, seed)]
        turn(model, held, wanted)
        wanted = list(held.token_ids)
    assert len(held.kept_positions) <= 6
    alignment, logits = turn(model, held, [*system, *random_ids(5, 77)])
    assert (alignment.num_cached_tokens, alignment.reason) == (10, MissReason.HISTORY)
    fresh = [
        Chunk(tuple(system), False),
        Chunk(tuple(random_ids(5, 77)[:-1]), False),
        Chunk((random_ids(5, 77)[-1],), False),
    ]
    assert torch.equal(logits, library_logits(model, fresh))


@pytest.mark.parametrize(("name", "kind"), RECURRENT_KINDS)
def test_recurrent_models_extend_exactly(name: str, kind: str) -> None:
    chat = Chat(tiny_model(name), kind)
    chat.prompt(3 * WINDOW, seed=0)
    chat.reply(2, seed=1)
    chat.prompt(9, seed=2)
    chat.roll_back(len(chat.chunks))
    chat.prompt(5, seed=3)
    chat.reply(1, seed=4)


@pytest.mark.parametrize("kind", QUANTIZED)
@pytest.mark.parametrize("name", FULL_ATTENTION + SLIDING)
def test_conversion_keeps_the_tokens_and_what_is_read_of_them(name: str, kind: str) -> None:
    model, prompt, more = tiny_model(name), Chunk(tuple(random_ids(300)), True), Chunk(tuple(random_ids(9, 1)), False)
    dense = make_session_cache(model, "dynamic")
    feed(model, dense, prompt)
    assert dense.is_pure
    packed = dense.fork(300)
    convert_session_cache(packed, model, kind)
    assert (packed.kind, packed.num_tokens, packed.is_pure) == (kind, 300, False)
    packed.check()
    assert packed.num_bytes < dense.num_bytes
    unpacked = packed.fork(300)
    assert not unpacked.is_pure
    convert_session_cache(unpacked, model, "dynamic")
    assert torch.equal(feed(model, packed, more), feed(model, unpacked, more))
    packed.crop_to(100)
    unpacked.crop_to(100)
    assert torch.equal(feed(model, packed, more), feed(model, unpacked, more))
    unpacked.crop_to(0)
    assert unpacked.is_pure
    assert torch.equal(feed(model, unpacked, prompt), fresh_logits(model, "dynamic", [prompt]))


@pytest.mark.parametrize("kind", QUANTIZED)
@pytest.mark.parametrize("name", HYBRID)
def test_a_converted_hybrid_goes_on_and_back_to_its_kept_states(name: str, kind: str) -> None:
    model, more = tiny_model(name), Chunk(tuple(random_ids(9, 2)), False)
    packed, unpacked = (make_session_cache(model, "dynamic") for _ in range(2))
    for held in (packed, unpacked):
        feed(model, held, Chunk(tuple(random_ids(40)), True))
        held.keep_state()
        feed(model, held, Chunk(tuple(random_ids(20, 1)), True))
        convert_session_cache(held, model, kind)
    convert_session_cache(unpacked, model, "dynamic")
    assert torch.equal(feed(model, packed, more), feed(model, unpacked, more))
    for held in (packed, unpacked):
        held.crop_to(40)
        check_lengths(held)
    assert torch.equal(feed(model, packed, more), feed(model, unpacked, more))
    for held in (packed, unpacked):
        held.crop_to(0)
    assert torch.equal(feed(model, packed, more), fresh_logits(model, kind, [more]))
    assert torch.equal(feed(model, unpacked, more), library_logits(model, [more]))


@pytest.mark.parametrize("kinds", [("dynamic", "quantized-int8"), ("quantized-int8", "dynamic")])
def test_while_a_cache_is_converted_one_layer_exists_twice_at_most(kinds: tuple[str, str]) -> None:
    model, after = tiny_model("llama-gqa"), kinds[1]
    held, reference = (make_session_cache(model, kind) for kind in kinds)
    for cache in (held, reference):
        feed(model, cache, Chunk(tuple(random_ids(1000)), True))
    limit = max(held.num_bytes, reference.num_bytes) + max(layer.num_bytes for layer in reference.cache.layers)
    new_layers, seen = _make_layers(model, after), []

    def watched(layer: TokenLayer) -> TokenLayer:
        settle = layer.settle

        def settle_and_look() -> None:
            settle()
            seen.append(held.num_bytes + (0 if layer in held.cache.layers else layer.num_bytes))

        layer.settle = settle_and_look
        return layer

    held.convert(after, lambda: [watched(layer) for layer in new_layers])
    assert len(seen) == 4 * len(new_layers), "it was looked at after every block of every layer"
    assert max(seen) <= limit


def test_a_conversion_that_fails_on_the_way_loses_nothing_and_can_be_taken_up_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name, chunks = "gemma3", [Chunk(tuple(random_ids(50)), True), Chunk(tuple(random_ids(9, 1)), False)]
    model = tiny_model(name)
    held, whole = (make_session_cache(model, "dynamic") for _ in range(2))
    for cache in (held, whole):
        feed(model, cache, chunks[0])
    convert_session_cache(whole, model, "quantized-int8")
    third = held.cache.layers[2]

    def fail(*_: int) -> None:
        raise torch.OutOfMemoryError("injected")

    with monkeypatch.context() as patch:
        patch.setattr(third, "states", fail)
        with pytest.raises(torch.OutOfMemoryError):
            convert_session_cache(held, model, "quantized-int8")
    assert held.kind == "dynamic"
    assert not held.is_pure
    held.check()
    convert_session_cache(held, model, "quantized-int8")
    assert held.kind == "quantized-int8"
    assert torch.equal(feed(model, held, chunks[1]), feed(model, whole, chunks[1]))
