"""Every architecture × every cache kind × the path a chat takes, against plain fresh caches of the library."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from tiny_models import FULL_ATTENTION, RECURRENT, SLIDING, WINDOW, random_ids, tiny_model
from torch import Tensor
from transformers import DynamicCache

from chatcache.cache.kinds import make_session_cache

LOSSLESS = ("dynamic",)


def plain_logits(name: str, chunks: Sequence[Sequence[int]]) -> list[Tensor]:
    """The logits of each chunk, fed to a fresh cache of the library."""
    model = tiny_model(name)
    reference = DynamicCache(config=model.config)
    with torch.inference_mode():
        return [model(torch.tensor([list(chunk)]), cache=reference).logits for chunk in chunks]


class Path:
    """A cache of ours beside the chunks that a fresh cache would have to be fed to be where ours is."""

    def __init__(self, name: str, kind: str) -> None:
        self.name, self.model = name, tiny_model(name)
        self.held = make_session_cache(self.model, kind)
        self.chunks: list[list[int]] = []

    def feed(self, token_ids: list[int]) -> None:
        with torch.inference_mode():
            logits = self.model(torch.tensor([token_ids]), cache=self.held.cache).logits
        self.held.advance(token_ids)
        self.chunks.append(token_ids)
        assert torch.equal(logits, plain_logits(self.name, self.chunks)[-1])
        self.check()

    def crop(self, num_chunks: int) -> None:
        """Drop the last chunks, as a roll back does."""
        del self.chunks[len(self.chunks) - num_chunks :]
        self.held.crop_to(sum(map(len, self.chunks)))
        self.check()

    def check(self) -> None:
        num_tokens = sum(map(len, self.chunks))
        assert list(self.held.token_ids) == [i for chunk in self.chunks for i in chunk]
        assert [layer.get_seq_length() for layer in self.held.cache.layers if hasattr(layer, "get_seq_length")] == [
            num_tokens
        ] * sum(hasattr(layer, "get_seq_length") for layer in self.held.cache.layers)


@pytest.mark.parametrize("kind", LOSSLESS)
@pytest.mark.parametrize("name", FULL_ATTENTION + SLIDING)
def test_a_chats_path_gives_the_logits_of_a_fresh_cache_at_every_step(name: str, kind: str) -> None:
    path = Path(name, kind)
    path.feed(random_ids(3 * WINDOW))
    for token in random_ids(4, seed=1):
        path.feed([token])
    path.crop(1)
    path.feed([5])
    path.crop(4)
    path.feed(random_ids(2, seed=2))
    path.feed(random_ids(2 * WINDOW, seed=3))
    path.feed([7])
    path.crop(3)
    path.feed(random_ids(WINDOW - 1, seed=4))
    path.feed(random_ids(300, seed=5))
    path.crop(len(path.chunks))
    path.feed(random_ids(WINDOW + 1, seed=6))
    path.feed([9])


@pytest.mark.parametrize("kind", LOSSLESS)
@pytest.mark.parametrize("name", RECURRENT)
def test_recurrent_models_extend_exactly(name: str, kind: str) -> None:
    path = Path(name, kind)
    path.feed(random_ids(3 * WINDOW))
    path.feed([5])
    path.feed(random_ids(9, seed=1))
    path.crop(3)
    path.feed(random_ids(5, seed=2))
    path.feed([6])
