"""Our top-p is the library's, to the bit where no two tokens are equal, and sorts only where it must."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from transformers.generation.logits_process import TopPLogitsWarper

from chatcache import top_p as module
from chatcache.top_p import QuickTopP

IDS = torch.empty((1, 0), dtype=torch.long)


@pytest.fixture
def num_sorts(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """How often ours asked the library."""
    calls: list[None] = []

    class Counted(TopPLogitsWarper):
        def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
            calls.append(None)
            return super().__call__(input_ids, scores)

    monkeypatch.setattr(module, "TopPLogitsWarper", Counted)
    return lambda: len(calls)


def check(scores: Tensor, top_p: float) -> None:
    assert torch.equal(QuickTopP(top_p)(IDS, scores), TopPLogitsWarper(top_p)(IDS, scores))


def random_scores(size: int, spread: float, seed: int) -> Tensor:
    return torch.randn((1, size), generator=torch.Generator().manual_seed(seed)) * spread


@pytest.mark.parametrize("top_p", [0.0, 0.1, 0.5, 0.9, 0.95, 0.999])
@pytest.mark.parametrize("spread", [0.1, 1.0, 3.0, 8.0])
@pytest.mark.parametrize("size", [3, 300, 5000])
def test_the_same_tokens_stay_as_with_the_library(size: int, spread: float, top_p: float) -> None:
    for seed in range(5):
        scores = random_scores(size, spread, seed)
        check(scores, top_p)
        check(scores.masked_fill(scores < scores.topk(min(size, 40)).values[:, -1:], -torch.inf), top_p)


@pytest.mark.parametrize("offset", [-2e-5, -1e-6, -1e-7, 0.0, 1e-7, 1e-6, 2e-5])
def test_a_limit_next_to_a_tokens_border_is_decided_as_by_the_library(offset: float) -> None:
    for seed in range(20):
        scores = random_scores(1000, 3.0, seed)
        mass = scores.double().softmax(-1).sort(descending=True).values.cumsum(-1)[0, seed + 1]
        check(scores, min(max(float(mass) + offset, 0.0), 1.0))


@pytest.mark.parametrize("seed", range(20))
def test_of_equal_tokens_at_the_border_all_stay(seed: int) -> None:
    scores = random_scores(3000, 4.0, seed).bfloat16().float()
    ours, library = QuickTopP(0.9)(IDS, scores), TopPLogitsWarper(0.9)(IDS, scores)
    kept = library.isfinite()
    last = scores[kept].min()
    assert torch.equal(ours.isfinite(), kept | (scores == last))
    assert torch.equal(ours[ours.isfinite()], scores[ours.isfinite()])


def test_a_usual_token_needs_no_sort_and_an_even_distribution_one(num_sorts: Callable[[], int]) -> None:
    check(random_scores(50_000, 4.0, 0), 0.9)
    assert num_sorts() == 0
    check(random_scores(50_000, 0.1, 0), 0.9)
    assert num_sorts() == 1
