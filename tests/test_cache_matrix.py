"""Every architecture × every cache kind × the path a chat takes, against plain fresh caches with the same schedule."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
from tiny_models import FULL_ATTENTION, RECURRENT, SLIDING, WINDOW, random_ids, tiny_model
from torch import Tensor
from transformers import DynamicCache

from chatcache.cache.kinds import convert_session_cache, make_session_cache
from chatcache.cache.session_cache import Alignment, SessionCache
from chatcache.stats import MissReason

QUANTIZED = ("quantized-int8", "quantized-int4", "quantized-fp8")


@dataclass(frozen=True)
class Chunk:
    """Token ids fed in one forward; `is_settled` once a turn began, or its prompt ended, behind them."""

    token_ids: tuple[int, ...]
    is_settled: bool


def library_logits(name: str, chunks: list[Chunk]) -> Tensor:
    """The logits of the last chunk, all of them fed to a fresh cache of the library."""
    model = tiny_model(name)
    reference = DynamicCache(config=model.config)
    with torch.inference_mode():
        for chunk in chunks:
            logits = model(torch.tensor([chunk.token_ids]), cache=reference).logits
    return logits


def fresh_logits(name: str, kind: str, chunks: list[Chunk]) -> Tensor:
    """The logits of the last chunk, all of them fed to a fresh cache of ours."""
    held = make_session_cache(tiny_model(name), kind)
    for chunk in chunks:
        logits = feed(name, held, chunk)
    return logits


def feed(name: str, held: SessionCache, chunk: Chunk) -> Tensor:
    with torch.inference_mode():
        logits = tiny_model(name)(torch.tensor([chunk.token_ids]), cache=held.cache).logits
    held.advance(chunk.token_ids)
    if chunk.is_settled:
        held.settle()
    return logits


class Chat:
    """A cache of ours beside the chunks that a fresh cache would have to be fed to be where ours is."""

    def __init__(self, name: str, kind: str) -> None:
        self.name, self.kind = name, kind
        self.held = make_session_cache(tiny_model(name), kind)
        self.chunks: list[Chunk] = []

    def prompt(self, num_tokens: int, seed: int) -> None:
        self._feed(Chunk(tuple(random_ids(num_tokens, seed)), is_settled=True))

    def reply(self, num_tokens: int, seed: int) -> None:
        for token in random_ids(num_tokens, seed):
            self._feed(Chunk((token,), is_settled=False))

    def roll_back(self, num_chunks: int) -> None:
        """Drop the last chunks; a new turn begins there."""
        del self.chunks[len(self.chunks) - num_chunks :]
        self.held.crop_to(sum(len(chunk.token_ids) for chunk in self.chunks))
        self.held.settle()
        if self.chunks:
            self.chunks[-1] = replace(self.chunks[-1], is_settled=True)
        self._check()

    def _feed(self, chunk: Chunk) -> None:
        logits = feed(self.name, self.held, chunk)
        self.chunks.append(chunk)
        if self.kind == "dynamic":
            assert torch.equal(logits, library_logits(self.name, self.chunks))
        else:
            assert torch.equal(logits, fresh_logits(self.name, self.kind, self.chunks))
        self._check()

    def _check(self) -> None:
        ids = [i for chunk in self.chunks for i in chunk.token_ids]
        assert list(self.held.token_ids) == ids
        for layer in self.held.cache.layers:
            assert not hasattr(layer, "get_seq_length") or layer.get_seq_length() == len(ids)


@pytest.mark.parametrize("kind", ["dynamic", *QUANTIZED])
@pytest.mark.parametrize("name", FULL_ATTENTION + SLIDING)
def test_a_chats_path_gives_the_logits_of_a_fresh_cache_at_every_step(name: str, kind: str) -> None:
    chat = Chat(name, kind)
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


def turn(name: str, held: SessionCache, wanted: list[int]) -> tuple[Alignment, Tensor]:
    """What a turn does: align, feed the prompt but its last token, then that one; its logits."""
    alignment = held.align(wanted)
    if alignment.num_cached_tokens < len(wanted) - 1:
        feed(name, held, Chunk(tuple(wanted[alignment.num_cached_tokens : -1]), False))
    return alignment, feed(name, held, Chunk((wanted[-1],), False))


@pytest.mark.parametrize("kind", ["dynamic", "quantized-int8"])
@pytest.mark.parametrize("name", RECURRENT)
def test_recurrent_models_roll_back_to_kept_states_exactly(name: str, kind: str) -> None:
    if (name, kind) == ("mamba2", "quantized-int8"):
        pytest.skip("it has no keys and values to quantize")
    ids = [random_ids(20, seed) for seed in range(5)]
    model = tiny_model(name)
    held, fresh = make_session_cache(model, kind), make_session_cache(model, kind)

    def reply(cache: SessionCache, number: int) -> None:
        for token in random_ids(3, seed=50 + number):
            feed(name, cache, Chunk((token,), False))

    # Two turns, then the second reply again, then another second message: each from a kept state, nothing recomputed.
    assert turn(name, held, ids[0])[0] == Alignment(0, 0, 0, MissReason.NO_CACHE)
    reply(held, 0)
    second = [*held.token_ids, *ids[1]]
    _, first_logits = turn(name, held, second)
    reply(held, 1)
    again, second_logits = turn(name, held, second)
    assert again == Alignment(len(second) - 1, 4)
    assert torch.equal(first_logits, second_logits)
    reply(held, 1)
    first_part = second[: len(ids[0]) + 3]
    other, logits = turn(name, held, [*first_part, *ids[2]])
    assert other == Alignment(len(first_part), len(second) + 3 - len(first_part), len(first_part), MissReason.HISTORY)
    turn(name, fresh, ids[0])
    reply(fresh, 0)
    assert torch.equal(logits, turn(name, fresh, [*first_part, *ids[2]])[1])
    # In the middle of the first prompt nothing is kept: everything is computed again, and it says why.
    inside, logits = turn(name, held, [*ids[0][:10], *ids[3]])
    assert (inside.num_cached_tokens, inside.mismatch_index, inside.reason) == (0, 0, MissReason.NOT_CROPPABLE)
    assert torch.equal(logits, turn(name, make_session_cache(model, kind), [*ids[0][:10], *ids[3]])[1])


@pytest.mark.parametrize("name", RECURRENT)
def test_a_state_kept_at_a_shared_beginning_is_there_forever(name: str) -> None:
    held = make_session_cache(tiny_model(name), "dynamic")
    system = random_ids(10)
    feed(name, held, Chunk(tuple(system), False))
    held.keep_state()
    wanted = list(held.token_ids)
    for seed in range(12):
        wanted = [*wanted, *random_ids(5, seed)]
        turn(name, held, wanted)
        wanted = list(held.token_ids)
    assert len(held.kept_positions) <= 6
    alignment, logits = turn(name, held, [*system, *random_ids(5, 77)])
    assert (alignment.num_cached_tokens, alignment.reason) == (10, MissReason.HISTORY)
    fresh = [
        Chunk(tuple(system), False),
        Chunk(tuple(random_ids(5, 77)[:-1]), False),
        Chunk((random_ids(5, 77)[-1],), False),
    ]
    assert torch.equal(logits, library_logits(name, fresh))


@pytest.mark.parametrize("name", RECURRENT)
def test_recurrent_models_extend_exactly(name: str) -> None:
    chat = Chat(name, "dynamic")
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
    feed(name, dense, prompt)
    assert dense.is_pure
    packed = dense.fork(300)
    convert_session_cache(packed, model, kind)
    assert (packed.kind, packed.num_tokens, packed.is_pure) == (kind, 300, False)
    packed.check()
    assert packed.num_bytes < dense.num_bytes
    unpacked = packed.fork(300)
    assert not unpacked.is_pure
    convert_session_cache(unpacked, model, "dynamic")
    assert torch.equal(feed(name, packed, more), feed(name, unpacked, more))
    packed.crop_to(100)
    unpacked.crop_to(100)
    assert torch.equal(feed(name, packed, more), feed(name, unpacked, more))
    unpacked.crop_to(0)
    assert unpacked.is_pure
    assert torch.equal(feed(name, unpacked, prompt), fresh_logits(name, "dynamic", [prompt]))


def test_a_conversion_that_fails_on_the_way_loses_nothing_and_can_be_taken_up_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name, chunks = "gemma3", [Chunk(tuple(random_ids(50)), True), Chunk(tuple(random_ids(9, 1)), False)]
    model = tiny_model(name)
    held, whole = (make_session_cache(model, "dynamic") for _ in range(2))
    for cache in (held, whole):
        feed(name, cache, chunks[0])
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
    assert torch.equal(feed(name, held, chunks[1]), feed(name, whole, chunks[1]))
