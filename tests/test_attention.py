"""Our attention for a few query tokens against the library's, on the same cache."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from tiny_models import FULL_ATTENTION, SLIDING, random_ids, tiny_model
from torch import Tensor
from transformers import PreTrainedModel

from chatcache.cache import attention
from chatcache.cache.attention import GROUPED_SDPA, use_grouped_attention
from chatcache.cache.kinds import make_session_cache

SDPA_MODELS = [name for name in FULL_ATTENTION + SLIDING if tiny_model(name).config._attn_implementation == "sdpa"]


def grouped(name: str) -> PreTrainedModel:
    model = copy.deepcopy(tiny_model(name))
    use_grouped_attention(model)
    assert model.config._attn_implementation == GROUPED_SDPA
    return model


def logits_after_prefill(model: PreTrainedModel, chunks: list[list[int]], num_tokens: int = 300) -> Tensor:
    """Logits of what follows a prefill of `num_tokens` tokens, forwarded chunk by chunk."""
    held = make_session_cache(model, "dynamic")
    with torch.inference_mode():
        model(torch.tensor([random_ids(num_tokens)]), cache=held.cache)
        return torch.cat([model(torch.tensor([chunk]), cache=held.cache).logits for chunk in chunks], dim=1)


@pytest.fixture
def num_library_calls(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """How often our function handed over to the library's since the fixture was made."""
    calls: list[None] = []
    inner = attention.sdpa_attention_forward
    monkeypatch.setattr(attention, "sdpa_attention_forward", lambda *a, **k: (calls.append(None), inner(*a, **k))[1])
    return lambda: len(calls)


@pytest.mark.parametrize("num_tokens", [1, 2, 3, 16])
@pytest.mark.parametrize("name", SDPA_MODELS)
def test_a_few_tokens_come_as_close_to_the_exact_logits_as_the_librarys_own_ways(
    name: str, num_tokens: int, num_library_calls: Callable[[], int]
) -> None:
    ids = random_ids(48, seed=1)
    few, steps = [ids[i : i + num_tokens] for i in range(0, 48, num_tokens)], [[i] for i in ids]
    exact = logits_after_prefill(copy.deepcopy(tiny_model(name)).double(), [ids])
    library_errors = [(logits_after_prefill(tiny_model(name), way) - exact).abs().max() for way in ([ids], steps)]
    ours = logits_after_prefill(grouped(name), few)
    assert num_library_calls() == 4, "only the prefill's layers go through the library's function"
    assert (ours - exact).abs().max() <= sum(library_errors)


@pytest.mark.parametrize("name", SDPA_MODELS)
def test_behind_a_long_context_single_tokens_come_as_close(name: str) -> None:
    num_tokens = attention._JOINED_FROM_TOKENS + 1
    ids = random_ids(8, seed=1)
    steps = [[i] for i in ids]
    exact = logits_after_prefill(copy.deepcopy(tiny_model(name)).double(), [ids], num_tokens)
    library = [logits_after_prefill(tiny_model(name), way, num_tokens) for way in ([ids], steps)]
    ours = logits_after_prefill(grouped(name), steps, num_tokens)
    assert (ours - exact).abs().max() <= sum((logits - exact).abs().max() for logits in library)


def test_models_that_do_not_use_sdpa_are_left_alone() -> None:
    model = copy.deepcopy(tiny_model("gpt-oss"))
    use_grouped_attention(model)
    assert model.config._attn_implementation == "eager"


@pytest.mark.parametrize("chunks", [(48,), (20, 28), (5,) * 8])
@pytest.mark.parametrize("name", SDPA_MODELS)
def test_chunks_in_bfloat16_come_as_close_to_the_exact_logits_as_the_librarys_own_ways(
    name: str, chunks: tuple[int, ...], num_library_calls: Callable[[], int]
) -> None:
    ids = iter(random_ids(48, seed=2))
    pieces = [[next(ids) for _ in range(length)] for length in chunks]
    rounded = copy.deepcopy(tiny_model(name)).bfloat16()
    exact = logits_after_prefill(copy.deepcopy(rounded).double(), pieces)
    steps = [[token] for piece in pieces for token in piece]
    library_errors = [(logits_after_prefill(rounded, way) - exact).abs().mean() for way in (pieces, steps)]
    use_grouped_attention(rounded)
    assert (logits_after_prefill(rounded, pieces) - exact).abs().mean() <= sum(library_errors)
    assert num_library_calls() == 0


def test_where_a_gradient_is_wanted_it_comes_from_the_librarys_way(num_library_calls: Callable[[], int]) -> None:
    model = grouped("llama-gqa").bfloat16()
    model(torch.tensor([random_ids(20)])).logits.sum().backward()
    assert num_library_calls() == model.config.num_hidden_layers
    assert model.get_input_embeddings().weight.grad is not None
