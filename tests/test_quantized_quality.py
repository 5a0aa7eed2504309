"""What quantized caches cost in quality on the embedded model, and that they stay within what was promised."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

import chatcache.weights
from chatcache.cache.kinds import make_session_cache
from chatcache.loader import LoadedModel

NUM_TOKENS = 2048
CHUNK = 512


@pytest.fixture(scope="module")
def english_ids(embedded: LoadedModel) -> list[int]:
    text = (Path(chatcache.weights.__file__).parent / "sample_text.txt").read_text("utf-8")
    ids = embedded.tokenizer(text)["input_ids"]
    assert len(ids) >= NUM_TOKENS
    return ids[:NUM_TOKENS]


def teacher_forced(embedded: LoadedModel, kind: str, ids: list[int]) -> tuple[Tensor, int]:
    """Log-probabilities `[tokens, vocabulary]`, and the bytes the cache takes once its prompt has ended."""
    held = make_session_cache(embedded.model, kind)
    pieces = []
    with torch.inference_mode():
        for start in range(0, NUM_TOKENS, CHUNK):
            chunk = ids[start : start + CHUNK]
            logits = embedded.model(torch.tensor([chunk]), cache=held.cache).logits[0]
            pieces.append(logits.log_softmax(-1))
            held.advance(chunk)
    held.settle()
    return torch.cat(pieces), held.num_bytes


@pytest.fixture(scope="module")
def full_precision(embedded: LoadedModel, english_ids: list[int]) -> tuple[Tensor, int]:
    return teacher_forced(embedded, "dynamic", english_ids)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "max_kl", "min_agreement", "max_bytes"),
    [("quantized-int8", 0.0005, 0.99, 0.60), ("quantized-int4", 0.012, 0.94, 0.36)],
)
def test_quality_and_bytes_over_2048_tokens_of_english(
    embedded: LoadedModel,
    english_ids: list[int],
    full_precision: tuple[Tensor, int],
    kind: str,
    max_kl: float,
    min_agreement: float,
    max_bytes: float,
) -> None:
    expected, dense_bytes = full_precision
    got, num_bytes = teacher_forced(embedded, kind, english_ids)
    divergence = (expected.exp() * (expected - got)).sum(-1).mean().item()
    agreement = (expected.argmax(-1) == got.argmax(-1)).float().mean().item()
    assert divergence <= max_kl
    assert agreement >= min_agreement
    assert num_bytes <= max_bytes * dense_bytes / 2, "dense is in 32 bits here, the promise is against 16"
