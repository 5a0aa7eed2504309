"""The lean step gives what the library's modules give, alone and for several sequences, or it steps aside."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from tiny_models import random_ids, tiny_model
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from chatcache.cache import attention, scores
from chatcache.cache.kinds import make_session_cache
from chatcache.cache.session_cache import SessionCache
from chatcache.decode_step import DecodeStep
from chatcache.weights.weight_form import apply_form

LLAMA_SHAPED = {
    "llama": {},
    "llama with biases": {"model_type": "llama", "attention_bias": True, "mlp_bias": True},
    "llama with scaled rotation": {
        "model_type": "llama",
        "rope_parameters": {
            "rope_type": "llama3",
            "rope_theta": 1e4,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        },
    },
    "llama with many key heads": {"model_type": "llama", "num_attention_heads": 8, "num_key_value_heads": 8},
    "mistral": {"sliding_window": 8},
    "qwen2": {},
    "qwen3": {"head_dim": 16},
}
OTHERS = {
    "gemma": {},
    "gemma2": {},
    "granite": {"residual_multiplier": 0.5},
    "ministral3": {},
    "olmo2": {},
    "smollm3": {},
    "phi3": {},
    "qwen3_moe": {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16},
    "gpt_neox": {},
    "mamba2": {"num_heads": 8, "head_dim": 16, "n_groups": 2},
}


def make_model(name: str, settings: dict) -> PreTrainedModel:
    config = CONFIG_MAPPING[settings.get("model_type", name)](
        **{
            "vocab_size": 97,
            "hidden_size": 64,
            "intermediate_size": 96,
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "max_position_embeddings": 4096,
            "pad_token_id": 0,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "initializer_range": 0.2,
            **settings,
        }
    )
    with torch.random.fork_rng():
        torch.manual_seed(3)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
        for name_, parameter in model.named_parameters():
            if name_.endswith(("bias", "norm.weight")):
                torch.nn.init.uniform_(parameter, 0.5, 1.5)
        return model


def filled(model: PreTrainedModel, num_tokens: int, seed: int = 0, kind: str = "dynamic") -> SessionCache:
    held = make_session_cache(model, kind)
    ids = random_ids(num_tokens, seed)
    model(torch.tensor([ids]), cache=held.cache)
    held.advance(ids)
    return held


def make_step(model: PreTrainedModel, form: str = "full") -> DecodeStep:
    """The step for `model`, whose weights have `form` from then on."""
    apply_form(model, form)
    step = DecodeStep.of(model)
    assert step is not None
    return step


def by_modules(model: PreTrainedModel, held: SessionCache, token_id: int) -> Tensor:
    logits = model(torch.tensor([[token_id]]), cache=held.cache).logits[0, -1]
    held.advance([token_id])
    return logits


def by_step(step: DecodeStep, caches: list[SessionCache], token_ids: list[int]) -> Tensor:
    logits = step([[each] for each in token_ids], caches)
    for held, token_id in zip(caches, token_ids, strict=True):
        held.advance([token_id])
    return logits


@pytest.fixture(autouse=True)
def _inference():
    with torch.inference_mode():
        yield


@pytest.mark.parametrize("num_tokens", [1, 20, 1100])
@pytest.mark.parametrize("name", LLAMA_SHAPED)
def test_a_step_gives_the_logits_and_the_cache_of_the_librarys_modules(name: str, num_tokens: int) -> None:
    model = make_model(name, LLAMA_SHAPED[name])
    theirs = filled(model, num_tokens)
    ours = theirs.fork(num_tokens)
    own = copy.deepcopy(model)
    step = make_step(own)
    for token_id in random_ids(5, seed=9):
        expected = by_modules(model, theirs, token_id)
        torch.testing.assert_close(by_step(step, [ours], [token_id])[0], expected, rtol=1e-4, atol=1e-4)
    end = num_tokens + 5
    for mine, their in zip(ours.export(0, end).layers, theirs.export(0, end).layers, strict=True):
        for key in their:
            torch.testing.assert_close(mine[key], their[key], rtol=1e-4, atol=1e-4)
    # The modules see the same weights afterwards.
    torch.testing.assert_close(own(torch.tensor([random_ids(9)])).logits, model(torch.tensor([random_ids(9)])).logits)


@pytest.mark.parametrize("name", ["llama", "mistral", "qwen3"])
def test_sequences_of_any_lengths_step_together_as_they_would_alone(name: str) -> None:
    model = make_model(name, LLAMA_SHAPED[name])
    step = make_step(model)
    lengths = [1, 1100, 30, 1024]
    together = [filled(model, length, seed) for seed, length in enumerate(lengths)]
    alone = [held.fork(held.num_tokens) for held in together]
    for seed in range(3):
        token_ids = random_ids(len(lengths), seed=50 + seed)
        logits = by_step(step, together, token_ids)
        for i, held in enumerate(alone):
            torch.testing.assert_close(logits[i], by_step(step, [held], [token_ids[i]])[0], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("num_tokens", [1, 3])
@pytest.mark.parametrize("kinds", [["quantized-int8"] * 3, ["quantized-int4", "dynamic", "quantized-int8"]])
def test_sequences_that_unpack_what_they_hold_do_not_disturb_each_other(kinds: list[str], num_tokens: int) -> None:
    model = make_model("llama", {})
    step = make_step(model)
    together, alone = ([filled(model, 600, seed, kind) for seed, kind in enumerate(kinds)] for _ in range(2))
    ids = [random_ids(num_tokens if seed == 0 else 1, seed) for seed in range(3)]
    expected = torch.cat([step([each], [held]) for each, held in zip(ids, alone, strict=True)])
    torch.testing.assert_close(step(ids, together), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("num_tokens", [2, 5, 20])
@pytest.mark.parametrize("num_held", [1, 700])
@pytest.mark.parametrize("name", ["llama", "qwen2", "qwen3"])
def test_several_tokens_at_once_see_what_they_would_see_one_by_one(name: str, num_held: int, num_tokens: int) -> None:
    model = make_model(name, LLAMA_SHAPED[name])
    step = make_step(model)
    ours, theirs, other = filled(model, num_held), filled(model, num_held), filled(model, 40, seed=3)
    single = other.fork(40)
    ids = random_ids(num_tokens, seed=8)
    assert step.fits(ours, num_tokens)
    logits = step([ids, [9]], [ours, other])
    ours.advance(ids)
    expected = torch.stack([by_modules(model, theirs, each) for each in ids])
    torch.testing.assert_close(logits[:-1], expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(logits[-1], by_step(step, [single], [9])[0], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(by_step(step, [ours], [5])[0], by_modules(model, theirs, 5), rtol=1e-4, atol=1e-4)


def test_several_tokens_do_not_fit_where_a_window_hides_some_of_the_past() -> None:
    model = make_model("mistral", LLAMA_SHAPED["mistral"])
    step = make_step(model)
    assert step.fits(filled(model, 3), 1)
    assert not step.fits(filled(model, 3), 2)
    assert not step.fits(make_session_cache(model, "none"), 1)


@pytest.mark.parametrize("form", ["int8", "int4"])
def test_a_step_on_packed_weights_gives_the_logits_of_modules_that_hold_the_same_values(form: str) -> None:
    model = make_model("llama", {"hidden_size": 64})
    before = model.model.layers[0].mlp.up_proj.weight.clone()
    step = make_step(model, form)
    assert not torch.equal(model.model.layers[0].mlp.up_proj.weight, before), "the modules read the packed values, too"
    theirs = filled(model, 40)
    ours = theirs.fork(40)
    torch.testing.assert_close(by_step(step, [ours], [5])[0], by_modules(model, theirs, 5), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("form", ["full", "int8", "int4"])
def test_in_bfloat16_steps_stay_within_the_rounding_of_the_modules(form: str) -> None:
    model = make_model("llama", {}).bfloat16()
    step = make_step(model, form)
    exact_model = make_model("llama", {})
    exact_model.load_state_dict(model.state_dict(), strict=False)
    exact_model.lm_head.weight.copy_(model.lm_head(torch.eye(64).bfloat16()).T)
    exact, theirs, ours = (filled(each, 40) for each in (exact_model, model, model))
    wanted = by_modules(exact_model, exact, 5)
    error_of_modules = (by_modules(model, theirs, 5) - wanted).abs().max()
    assert (by_step(step, [ours], [5])[0] - wanted).abs().max() <= 3 * error_of_modules


@pytest.mark.parametrize("num_held", [0, 700])
def test_a_chunk_of_a_prompt_stays_within_the_rounding_of_the_modules(num_held: int) -> None:
    model = make_model("llama", {}).bfloat16()
    step = make_step(model)
    exact_model = make_model("llama", {})
    exact_model.load_state_dict(model.state_dict(), strict=False)
    exact, theirs, ours, again = (
        filled(each, num_held) if num_held else make_session_cache(each, "dynamic")
        for each in (exact_model, model, model, model)
    )
    ids = random_ids(200, seed=4)
    assert step.fits(ours, len(ids))
    assert not make_step(exact_model).fits(exact, len(ids)), "in float32 the library's kernel is as quick"
    wanted = exact_model(torch.tensor([ids]), cache=exact.cache).logits[0]
    error_of_modules = (model(torch.tensor([ids]), cache=theirs.cache).logits[0] - wanted).abs().max()
    logits = step([ids], [ours])
    assert (logits - wanted).abs().max() <= 3 * error_of_modules
    torch.testing.assert_close(step([ids], [again], num_logits=1), logits[-1:], rtol=1e-2, atol=1e-2)
    ours.advance(ids)


@pytest.mark.parametrize("name", OTHERS)
def test_other_architectures_are_left_to_the_librarys_modules(name: str) -> None:
    model = make_model(name, OTHERS[name])
    apply_form(model, "full")
    assert DecodeStep.of(model) is None


def test_a_step_reads_its_ids_through_the_input_embedding() -> None:
    model = copy.deepcopy(tiny_model("llama-gqa"))
    seen: list[list[int]] = []
    model.get_input_embeddings().register_forward_hook(lambda _module, args, _output: seen.append(args[0].tolist()))
    step = make_step(model)
    by_step(step, [filled(model, 3), filled(model, 4)], [7, 8])
    assert seen[-1] == [[7, 8]]


def test_a_failure_within_a_step_leaves_caches_that_can_be_repaired() -> None:
    model = copy.deepcopy(tiny_model("llama-gqa"))
    step = make_step(model)
    held = filled(model, 10)
    expected = by_step(step, [held.fork(10)], [7])
    layer = held.cache.layers[2]
    update, layer.update = layer.update, lambda *_: 1 / 0
    with pytest.raises(ZeroDivisionError):
        step([[7]], [held])
    layer.update = update
    assert held.repair() == 10
    assert torch.equal(by_step(step, [held], [7]), expected)


@pytest.mark.slow
@pytest.mark.parametrize("num_tokens", [1, 5])
@pytest.mark.parametrize("num_held", [300, 1100])
@pytest.mark.parametrize("form", ["full", "int8", "int4"])
def test_the_number_of_threads_changes_no_bit(
    embedded_model_dir: Path, form: str, num_held: int, num_tokens: int
) -> None:
    model = AutoModelForCausalLM.from_pretrained(embedded_model_dir, dtype=torch.bfloat16).eval()
    step = make_step(model, form)
    held = filled(model, num_held)
    logits = []
    for num_threads in (1, 2):  # made where torch had one, the step leaves the number alone
        torch.set_num_threads(num_threads)
        logits.append(step([random_ids(num_tokens)], [held]))
        held.repair()
    torch.set_num_threads(1)
    assert torch.equal(*logits)


@pytest.mark.parametrize("most_scores", [scores.MAX_SCORES, 2**18])
def test_a_chunk_of_any_size_is_multiplied_as_matrices_of_so_many_scores_at_most(
    most_scores: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scores, "MAX_SCORES", most_scores)
    monkeypatch.setattr(attention, "_room", attention._Room())
    model = make_model("llama", {}).bfloat16()
    step = make_step(model)
    num_tokens, num_held = 1100, 3072
    held = filled(model, num_held)
    assert step.fits(held, num_tokens)
    ids = random_ids(num_tokens, seed=5)
    ours = step([ids], [held.fork(num_held)]).float()
    assert 0 < attention._room._scores.numel() <= most_scores
    modules = model(torch.tensor([ids]), cache=held.cache).logits[0].float()
    exact = model.float()(torch.tensor([[*random_ids(num_held), *ids]])).logits[0, num_held:]
    assert (ours - exact).norm() <= 1.25 * (modules - exact).norm()
