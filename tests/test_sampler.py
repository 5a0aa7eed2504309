"""Tokens are chosen as `generate` chooses them, and a token's draw depends on nothing but (seed, position)."""

from __future__ import annotations

import pytest
import torch
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, LogitsProcessor, LogitsProcessorList

from chatcache.sampler import NonFiniteLogitsError, Sampler, alternative_seed, token_seed
from chatcache.stats import Sampling

OFF = Sampling(temperature=1.0, top_p=1.0, top_k=0, min_p=0.0, repetition_penalty=1.0, seed=7)
PROMPT = (3, 14, 15, 92, 65, 35, 89)


@pytest.fixture(scope="module")
def model() -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=300,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        initializer_range=0.3,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=0,
    )
    return LlamaForCausalLM(config).eval()


class _SeedEachToken(LogitsProcessor):
    """Gives `generate`, which draws from torch's default generator, our generator for each token."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        torch.default_generator.manual_seed(token_seed(self._seed, input_ids.shape[1]))
        return scores


def _generated(model: LlamaForCausalLM, sampling: Sampling, num_tokens: int) -> list[int]:
    is_greedy = sampling.temperature == 0
    chosen = {} if is_greedy else {n: getattr(sampling, n) for n in ("temperature", "top_p", "top_k", "min_p")}
    config = GenerationConfig(
        do_sample=not is_greedy,
        repetition_penalty=sampling.repetition_penalty,
        max_new_tokens=num_tokens,
        pad_token_id=0,
        **chosen,
    )
    assert sampling.seed is not None
    ids = torch.tensor([PROMPT])
    output = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        generation_config=config,
        logits_processor=LogitsProcessorList([_SeedEachToken(sampling.seed)]),
    )
    return output[0, len(PROMPT) :].tolist()


def _chosen(model: LlamaForCausalLM, sampling: Sampling, ids: tuple[int, ...], num_tokens: int) -> list[int]:
    sampler, all_ids = Sampler(sampling), list(ids)
    with torch.inference_mode():
        for _ in range(num_tokens):
            logits = model(input_ids=torch.tensor([all_ids]), use_cache=False).logits[0, -1]
            all_ids.append(sampler.choose(all_ids, logits))
    return all_ids[len(ids) :]


@pytest.mark.parametrize(
    "sampling",
    [
        OFF.merged(OFF),
        Sampling(temperature=0.0).merged(OFF),
        Sampling(temperature=0.0, repetition_penalty=1.3).merged(OFF),
        Sampling(temperature=0.7, top_p=0.9).merged(OFF),
        Sampling(temperature=1.5, top_k=20).merged(OFF),
        Sampling(temperature=1.2, min_p=0.05).merged(OFF),
        Sampling(temperature=0.8, top_p=0.8, top_k=40, min_p=0.02, repetition_penalty=1.15, seed=2**62).merged(OFF),
    ],
    ids=["plain", "greedy", "greedy-penalty", "top-p", "top-k", "min-p", "all"],
)
def test_the_tokens_are_those_of_generate(model: LlamaForCausalLM, sampling: Sampling) -> None:
    assert _chosen(model, sampling, PROMPT, 40) == _generated(model, sampling, 40)


@pytest.mark.parametrize("num_last_possible", [1, 7, 33, 1000, 4999])
def test_leaving_out_what_cannot_be_drawn_changes_no_draw(num_last_possible: int) -> None:
    logits = torch.randn(5000, generator=torch.Generator().manual_seed(num_last_possible))
    logits[num_last_possible:] = float("-inf")
    for position in range(1, 30):
        generator = torch.Generator().manual_seed(token_seed(7, position))
        expected = int(torch.multinomial(logits.softmax(-1), 1, generator=generator))
        assert Sampler(OFF).choose([0] * position, logits) == expected


def test_another_seed_gives_other_tokens(model: LlamaForCausalLM) -> None:
    assert _chosen(model, OFF, PROMPT, 20) != _chosen(model, Sampling(seed=8).merged(OFF), PROMPT, 20)


def test_going_on_after_a_stop_gives_the_tokens_of_an_uninterrupted_run(model: LlamaForCausalLM) -> None:
    sampling = Sampling(temperature=0.9, top_p=0.95, repetition_penalty=1.2).merged(OFF)
    whole = _chosen(model, sampling, PROMPT, 30)
    first = _chosen(model, sampling, PROMPT, 11)
    assert first + _chosen(model, sampling, (*PROMPT, *first), 19) == whole


def test_the_repetition_penalty_counts_prompt_and_reply_alike() -> None:
    logits = torch.tensor([1.0, 0.9, 0.8, 0.0])
    sampler = Sampler(Sampling(temperature=0.0, repetition_penalty=2.0).merged(OFF))
    assert [sampler.choose(ids, logits) for ids in ([3], [0, 3], [3, 0, 1], [3, 1])] == [0, 1, 2, 0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_callers_logits_are_left_as_they_are(dtype: torch.dtype) -> None:
    logits = torch.randn(50).to(dtype)
    before = logits.clone()
    Sampler(Sampling(temperature=0.5, top_k=5, repetition_penalty=1.5).merged(OFF)).choose([1, 2], logits)
    assert torch.equal(logits, before)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_one_logit_that_is_not_finite_is_an_error(value: float, temperature: float) -> None:
    logits = torch.zeros(10)
    logits[4] = value
    with pytest.raises(NonFiniteLogitsError, match="token 3"):
        Sampler(Sampling(temperature=temperature).merged(OFF)).choose([1, 2, 3], logits)


def test_a_model_that_excludes_tokens_by_minus_infinity_is_fine_until_none_is_left() -> None:
    logits = torch.full((10,), float("-inf"))
    with pytest.raises(NonFiniteLogitsError):
        Sampler(OFF).choose([1], logits)
    logits[6] = 0.0
    assert Sampler(OFF).choose([1], logits) == 6


@pytest.mark.parametrize("temperature", [1e-38, 1e-9, 1e-5])
def test_a_temperature_next_to_zero_takes_the_best_token(temperature: float) -> None:
    logits = torch.tensor([-40.0, 29.0, 30.0])
    assert Sampler(Sampling(temperature=temperature).merged(OFF)).choose([0], logits) == 2


def test_top_p_zero_and_top_k_above_the_vocabulary_leave_a_token() -> None:
    logits = torch.tensor([0.0, 3.0, 1.0])
    assert Sampler(Sampling(top_p=0.0, top_k=1000).merged(OFF)).choose([0], logits) == 1


def test_a_sampling_with_an_open_field_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"Sampling\.top_p"):
        Sampler(Sampling(temperature=1.0))


def test_seeds_differ_fit_the_store_and_are_the_same_in_every_process_and_version() -> None:
    mine = [alternative_seed(1, n) for n in range(100)] + [token_seed(1, n) for n in range(100)]
    assert len(set(mine)) == 200
    assert all(0 <= s < 2**63 for s in mine)
    assert (alternative_seed(1, 2), token_seed(1, 2)) == (6_578_779_823_661_430_948, 5_193_224_066_360_937_316)
