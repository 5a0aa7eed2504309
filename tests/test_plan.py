"""The memory plan: exact for caches, from above for the workspace, and advice in the order that helps."""

from __future__ import annotations

import copy
import dataclasses
import functools
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from examples import examples, few_quick
from hypothesis import given, settings
from hypothesis import strategies as st
from markup import plain
from tiny_models import FULL_ATTENTION, RECURRENT, SLIDING, WINDOW, random_ids, tiny_model
from torch import Tensor
from torch.profiler import ProfilerActivity, profile
from transformers import AutoConfig, DynamicCache, PreTrainedModel

from chatcache.cache import attention
from chatcache.cache.attention import use_grouped_attention
from chatcache.cache.kinds import KINDS, KindFit, facts_of, make_session_cache, table_of_kinds
from chatcache.cache.layers import TokenLayer
from chatcache.cache.quantized_layer import MAX_TAIL_TOKENS
from chatcache.cache.states import NUM_KEPT_STATES, StateRole, is_worth_keeping
from chatcache.config import EMBEDDED_MODEL
from chatcache.errors import InvalidInputError, ModelLoadError, UnsupportedOptionError
from chatcache.memory import model_config
from chatcache.memory.advice import advise, weight_bytes_in
from chatcache.memory.byte_sizes import parse_size
from chatcache.memory.model_config import load_model_config
from chatcache.memory.model_shape import LayerShape, ModelShape
from chatcache.memory.plan import main
from chatcache.memory.planner import (
    MemoryPlan,
    PlanRequest,
    plan_cache,
    plan_memory,
    workspace_bytes,
)
from chatcache.memory.rehearsal import rehearse
from chatcache.prefill_chunks import ChunkSchedule
from chatcache.ui.texts import ENGLISH
from storage.byte_sizes import format_size

LLAMA_3_1_8B: dict[str, Any] = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "tie_word_embeddings": False,
    "dtype": "bfloat16",
}
SMOLLM2_135M: dict[str, Any] = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "vocab_size": 49152,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": True,
    "dtype": "bfloat16",
}
NUM_TOKENS = 300
"""More than one block of a buffer, and far past the window."""


@pytest.fixture(scope="module")
def llama_8b(tmp_path_factory: pytest.TempPathFactory) -> ModelShape:
    return shape_from_file(tmp_path_factory.mktemp("llama"), LLAMA_3_1_8B, torch.float16)


def shape_from_file(folder: Path, config: dict[str, Any], dtype: torch.dtype) -> ModelShape:
    path = folder / "config.json"
    path.write_text(json.dumps(config), "utf-8")
    return rehearse(load_model_config(str(path)), dtype, "a model")


@functools.cache
def tiny_shape(name: str) -> ModelShape:
    return rehearse(tiny_model(name).config, torch.float32, name)


def a_shape(**changes: Any) -> ModelShape:
    """Two layers of four query heads and two key heads of 16 values in 16 bits: 256 bytes per token."""
    layer = LayerShape(num_heads=2, key_dim=16, value_dim=16, itemsize=2)
    values: dict[str, Any] = {
        "name": "a model",
        "architecture": "llama",
        "dtype": "float16",
        "itemsize": 2,
        "num_parameters": 500_000,
        "num_quantizable_parameters": 400_000,
        "weight_bytes": 1_000_000,
        "layers": (layer, layer),
        "vocab_size": 1000,
        "hidden_size": 64,
        "num_attention_heads": 4,
        "widest_projection": 128,
        "max_context_tokens": 8192,
        "layer_types": ("full_attention", "full_attention"),
    }
    return ModelShape(**(values | changes))


# What the field's tables say of two well-known models.


@pytest.mark.parametrize(("num_tokens", "expected"), [(1, 131_072), (32_768, 4_294_967_296), (131_072, 17_179_869_184)])
def test_the_cache_of_llama_3_1_8b_in_16_bits_is_what_its_config_says(
    llama_8b: ModelShape, num_tokens: int, expected: int
) -> None:
    cache = plan_cache(llama_8b, "dynamic", num_tokens)
    assert cache.bytes_per_token == 131_072
    assert cache.used_bytes == expected


def test_fp8_takes_about_half_of_16_bits(llama_8b: ModelShape) -> None:
    cache = plan_cache(llama_8b, "quantized-fp8", 32_768)
    assert cache.bytes_per_token == 65_536 + 65_536 // 32
    assert cache.used_bytes == pytest.approx(4_294_967_296 / 2, rel=0.04)


def test_the_weights_of_llama_3_1_8b_are_counted_without_making_them(llama_8b: ModelShape) -> None:
    assert llama_8b.num_parameters == 8_030_261_248
    assert llama_8b.weight_bytes == pytest.approx(2 * 8_030_261_248, rel=1e-6)


def test_smollm2_135m_in_bf16_takes_23040_bytes_per_token(tmp_path: Path) -> None:
    shape = shape_from_file(tmp_path, SMOLLM2_135M, torch.bfloat16)
    assert plan_cache(shape, "dynamic", 1).used_bytes == 23_040
    assert shape.num_parameters == 134_515_008


# Planned bytes are the bytes of a real cache.


@pytest.mark.parametrize("name", FULL_ATTENTION + SLIDING + RECURRENT)
def test_planned_bytes_are_those_of_a_real_cache_after_a_prefill(name: str) -> None:
    model, held = tiny_model(name), make_session_cache(tiny_model(name), "dynamic")
    forward(model, NUM_TOKENS, held.cache)
    planned = plan_cache(tiny_shape(name), "dynamic", NUM_TOKENS)
    assert planned.used_bytes == sum(used_bytes(layer) for layer in held.cache.layers)


@pytest.mark.parametrize("name", FULL_ATTENTION + SLIDING)
@pytest.mark.parametrize("num_tokens", [1, 256, 257])
def test_reserved_bytes_are_those_a_real_cache_has_allocated(name: str, num_tokens: int) -> None:
    held = make_session_cache(tiny_model(name), "dynamic")
    forward(tiny_model(name), num_tokens, held.cache)
    assert plan_cache(tiny_shape(name), "dynamic", num_tokens).reserved_bytes == held.num_bytes


@pytest.mark.parametrize("name", FULL_ATTENTION + SLIDING)
@pytest.mark.parametrize("kind", ["quantized-int8", "quantized-int4", "quantized-fp8"])
def test_a_quantized_cache_never_takes_more_than_is_reserved_nor_much_less(name: str, kind: str) -> None:
    held = make_session_cache(tiny_model(name), kind)
    reserved = plan_cache(tiny_shape(name), kind, NUM_TOKENS).reserved_bytes
    ids = random_ids(NUM_TOKENS)
    for part in (ids[:-MAX_TAIL_TOKENS], ids[-MAX_TAIL_TOKENS:]):
        held.settle()
        with torch.inference_mode():
            tiny_model(name)(torch.tensor([part]), cache=held.cache)
        held.advance(part)
    assert held.num_bytes <= reserved
    held.crop_to(NUM_TOKENS - MAX_TAIL_TOKENS)
    held.settle()
    tail = ids[-MAX_TAIL_TOKENS:]
    for part in (tail[start : start + 32] for start in range(0, MAX_TAIL_TOKENS, 32)):
        with torch.inference_mode():
            tiny_model(name)(torch.tensor([part]), cache=held.cache)
        held.advance(part)
    spare = 2 * 256 * plan_cache(tiny_shape(name), kind, 1).bytes_per_token
    assert reserved - spare <= held.num_bytes <= reserved


@pytest.mark.parametrize(
    "name", ["llama-gqa", *(pytest.param(name, marks=pytest.mark.slow) for name in (FULL_ATTENTION + SLIDING)[1:])]
)
@pytest.mark.parametrize("kind", few_quick(["quantized-int8", "quantized-int4", "quantized-fp8"]))
def test_planned_bytes_are_those_of_a_quantized_cache_after_a_prefill_within_5_percent(name: str, kind: str) -> None:
    num_tokens = 4000
    held = make_session_cache(tiny_model(name), kind)
    ids = random_ids(num_tokens)
    for start in range(0, num_tokens, 500):
        with torch.inference_mode():
            tiny_model(name)(torch.tensor([ids[start : start + 500]]), cache=held.cache, logits_to_keep=1)
        held.advance(ids[start : start + 500])
    used = sum(
        sum(t.nbytes for t in layer.rows(0, layer.num_settled_tokens).values())
        + sum(t.nbytes for t in layer._tail.values())
        for layer in held.cache.layers
    )
    assert plan_cache(tiny_shape(name), kind, num_tokens).used_bytes == pytest.approx(used, rel=0.05)


@pytest.mark.parametrize("name", SLIDING)
def test_windowed_bytes_are_those_of_the_librarys_sliding_layers(name: str) -> None:
    model = tiny_model(name)
    cache = DynamicCache(config=model.config)
    forward(model, NUM_TOKENS, cache)
    planned = plan_cache(tiny_shape(name), "dynamic", NUM_TOKENS)
    assert planned.windowed_bytes == sum(used_bytes(layer) for layer in cache.layers)
    assert planned.windowed_bytes < planned.used_bytes


@pytest.mark.parametrize("name", RECURRENT)
def test_the_state_of_recurrent_layers_is_planned_apart_from_tokens(name: str) -> None:
    shape = tiny_shape(name)
    short, long = (plan_cache(shape, "dynamic", n) for n in (1, 257))
    assert shape.state_bytes > 0
    assert long.used_bytes - short.used_bytes == 256 * short.bytes_per_token
    assert short.reserved_bytes == 256 * short.bytes_per_token + shape.state_bytes * (1 + NUM_KEPT_STATES)


@pytest.mark.parametrize("name", FULL_ATTENTION + SLIDING + RECURRENT)
def test_weights_are_those_of_the_real_model(name: str) -> None:
    model, shape = tiny_model(name), tiny_shape(name)
    assert shape.num_parameters == sum(p.numel() for p in model.parameters())
    assert shape.weight_bytes == sum(t.nbytes for t in (*model.parameters(), *model.buffers()))


@pytest.mark.parametrize(
    "name", few_quick(["llama-gqa", "falcon-h1", "llama-mqa", "mistral", "gemma2", "gpt-oss", "mamba2"], 2)
)
def test_a_forward_stays_within_the_planned_workspace(name: str) -> None:
    num_past, num_new = 1030, 200  # within the room that the first forward made
    held = make_session_cache(tiny_model(name), "dynamic")
    forward(tiny_model(name), num_past, held.cache)
    peak = peak_bytes_of_forward(tiny_model(name), num_new, held.cache)
    assert peak <= workspace_bytes(tiny_shape(name), "dynamic", num_past + num_new, num_new) <= 3 * peak


@pytest.mark.parametrize("num_new", [4, 200])
@pytest.mark.parametrize("name", few_quick(["llama-gqa", "llama-mha"]))
def test_so_does_one_in_bfloat16_whose_attention_is_multiplied_as_matrices(
    name: str, num_new: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    num_past = 2850  # within the room that the first forward made
    model = copy.deepcopy(tiny_model(name)).bfloat16()
    use_grouped_attention(model)
    held = make_session_cache(model, "dynamic")
    forward(model, num_past, held.cache)
    monkeypatch.setattr(attention, "_room", attention._Room())  # what the first forward left is too much for this one
    peak = peak_bytes_of_forward(model, num_new, held.cache)
    shape = rehearse(model.config, torch.bfloat16, name)
    assert peak <= workspace_bytes(shape, "dynamic", num_past + num_new, num_new) <= 3 * peak


@pytest.mark.parametrize("name", ["llama-gqa", "gemma3", "falcon-h1"])
def test_a_forward_of_all_tokens_without_a_cache_stays_within_the_planned_workspace(name: str) -> None:
    peak = peak_bytes_of_forward(tiny_model(name), 600, None)
    assert peak <= workspace_bytes(tiny_shape(name), "none", 600, 600) <= 3 * peak


@pytest.mark.parametrize(
    ("name", "dtype"),
    [("llama-gqa", torch.float32), ("llama-gqa", torch.bfloat16), ("llama-mha", torch.bfloat16)],
)
def test_so_does_one_whose_attention_is_given_no_mask(
    name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    num_tokens = 3000
    model = copy.deepcopy(tiny_model(name)).to(dtype)
    use_grouped_attention(model)
    monkeypatch.setattr(attention, "_room", attention._Room())
    peak = peak_bytes_of_forward(model, num_tokens, None)
    assert peak <= workspace_bytes(rehearse(model.config, dtype, name), "none", num_tokens, num_tokens) <= 3 * peak


def forward(model: PreTrainedModel, num_tokens: int, cache: Any) -> None:
    with torch.inference_mode():
        ids = torch.tensor([random_ids(num_tokens)])
        model(ids, cache=cache, use_cache=cache is not None, logits_to_keep=1)


def used_bytes(layer: Any) -> int:
    """Bytes of the tensors that hold tokens or state, without spare room."""
    if isinstance(layer, TokenLayer):
        tokens = [*layer.rows(0, layer.num_tokens).values()]
    else:
        tokens = [getattr(layer, name, None) for name in ("keys", "values")]
    states = [getattr(layer, name, {}).values() for name in ("conv_states", "recurrent_states")]
    return sum(t.nbytes for t in (*tokens, *(t for d in states for t in d)) if isinstance(t, Tensor))


def peak_bytes_of_forward(model: PreTrainedModel, num_tokens: int, cache: Any) -> int:
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        forward(model, num_tokens, cache)
    events = [e for e in profiler.profiler.kineto_results.events() if e.name() == "[memory]"]
    held = peak = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        held += event.nbytes()
        peak = max(peak, held)
    return peak


# The bill, by hand.


@pytest.mark.parametrize(
    ("kind", "per_token", "used", "reserved", "host"),
    [
        ("dynamic", 256, 76_800, 131_072, 0),
        ("offloaded", 256, 76_800, 131_072, 131_072),
        # 16 codes and a scale, or two, for each of 2 layers x 2 heads x (key, value); the last tokens as they are.
        ("quantized-int8", 144, 256 * 192 + 144 * 108, 256 * 192 + 144 * 512, 0),
        ("quantized-int4", 96, 256 * 192 + 96 * 108, 256 * 192 + 96 * 512, 0),
        ("quantized-fp8", 144, 256 * 192 + 144 * 108, 256 * 192 + 144 * 512, 0),
        ("static", 256, 76_800, 76_800, 0),
        ("none", 0, 0, 0, 0),
    ],
)
def test_the_cache_of_each_kind_at_300_tokens(kind: str, per_token: int, used: int, reserved: int, host: int) -> None:
    assert MAX_TAIL_TOKENS == 192
    cache = plan_cache(a_shape(), kind, 300)
    assert (cache.bytes_per_token, cache.used_bytes, cache.reserved_bytes, cache.host_bytes) == (
        per_token,
        used,
        reserved,
        host,
    )


def test_a_static_cache_keeps_windows_only_in_sliding_layers() -> None:
    layer = LayerShape(num_heads=1, key_dim=8, value_dim=8, itemsize=2, sliding_window=WINDOW)
    assert plan_cache(a_shape(layers=(layer,)), "static", 300).reserved_bytes == WINDOW * 32


def test_the_total_is_weights_and_every_session_and_one_workspace() -> None:
    request = PlanRequest(context_tokens=300, num_sessions=3)
    plan = plan_memory(a_shape(), request).of("dynamic")
    assert plan.total_bytes == 1_000_000 + 3 * 131_072 + plan.workspace_bytes
    assert plan.fits is None
    assert plan.max_context_tokens == 8192


@pytest.mark.parametrize("kind", KINDS)
def test_the_context_that_fits_is_the_last_one_that_fits(kind: str) -> None:
    shape = a_shape(max_context_tokens=None)
    memory = 2_500_000
    request = PlanRequest(1, memory_bytes=memory, prefill_chunk_tokens=1)
    longest = plan_memory(shape, request).of(kind).max_context_tokens
    assert longest
    totals = [
        plan_memory(shape, PlanRequest(num_tokens, prefill_chunk_tokens=1)).of(kind).total_bytes
        for num_tokens in (longest, longest + 1)
    ]
    assert totals[0] <= memory < totals[1]


@settings(max_examples=examples(100), deadline=None)
@given(
    kind=st.sampled_from(KINDS),
    heads=st.sampled_from([1, 2, 4]),
    dim=st.integers(1, 200),
    window=st.one_of(st.none(), st.integers(2, 600)),
    is_eager=st.booleans(),
    num_tokens=st.integers(1, 100_000),
    more=st.integers(0, 1000),
)
def test_a_longer_context_never_takes_less(
    kind: str, heads: int, dim: int, window: int | None, is_eager: bool, num_tokens: int, more: int
) -> None:
    layer = LayerShape(heads, dim, dim, 2, sliding_window=window)
    shape = a_shape(layers=(layer,), has_eager_attention=is_eager, scan_chunk_tokens=16, scan_width=80)
    short, long = (plan_memory(shape, PlanRequest(n)).of(kind).total_bytes for n in (num_tokens, num_tokens + more))
    assert short <= long


@pytest.mark.parametrize(
    "bad", [{"context_tokens": 0}, {"num_sessions": 0}, {"prefill_chunk_tokens": 0}, {"memory_bytes": -1}]
)
def test_impossible_requests_are_refused(bad: dict[str, int]) -> None:
    with pytest.raises(InvalidInputError, match=next(iter(bad))):
        PlanRequest(**({"context_tokens": 1} | bad))


def test_every_kind_is_planned_and_those_that_cannot_be_had_are_refused_as_the_engine_refuses_them() -> None:
    for name, device_type in (("mamba2", "cuda"), ("gemma3", "cuda"), ("llama-gqa", "cpu"), ("llama-gqa", "cuda")):
        plan = plan_memory(tiny_shape(name), PlanRequest(100, memory_bytes=10**12, device_type=device_type))
        facts = facts_of(tiny_model(name).config, device_type)
        assert [KindFit(p.cache.kind, p.refusal) for p in plan.kinds] == list(table_of_kinds(facts))
        assert [p.cache.kind for p in plan.kinds if p.fits] == [p.cache.kind for p in plan.kinds if not p.refusal]


@pytest.mark.parametrize(
    ("kind", "device_bytes", "host_bytes"), [("offloaded", 2 * 65_536, 131_072), ("offloaded-non-sliding", 131_072, 0)]
)
def test_of_an_offloaded_cache_two_layers_and_what_slides_stay_on_the_device(
    kind: str, device_bytes: int, host_bytes: int
) -> None:
    sliding = LayerShape(num_heads=2, key_dim=16, value_dim=16, itemsize=2, sliding_window=WINDOW)
    full = dataclasses.replace(sliding, sliding_window=None)
    layers = (full, full) if kind == "offloaded" else (sliding, sliding)
    cache = plan_cache(a_shape(layers=layers), kind, 300)
    assert (cache.reserved_bytes, cache.host_bytes) == (device_bytes, host_bytes)
    mixed = plan_cache(a_shape(layers=(sliding, full, full, full)), "offloaded-non-sliding", 300)
    assert (mixed.reserved_bytes, mixed.host_bytes) == (3 * 65_536, 3 * 65_536)


@pytest.mark.parametrize("name", ["llama-gqa", "gemma3", "falcon-h1"])
def test_the_planned_chunk_is_the_largest_one_the_engine_takes(name: str) -> None:
    schedule = ChunkSchedule.of(tiny_model(name))
    plan = plan_memory(tiny_shape(name), PlanRequest(100))
    assert plan.chunk_tokens == max(schedule.num_tokens(at, left) for at in (0, 64, 512) for left in range(1, 9000))
    assert plan_memory(tiny_shape(name), PlanRequest(100, prefill_chunk_tokens=16)).chunk_tokens == 16


def test_no_more_states_are_kept_than_are_planned_beside_those_of_every_eighth_turn() -> None:
    most = 0
    for last in range(1, 40):
        kept = [
            (turn, role)
            for turn in range(1, last + 1)
            for role in (StateRole.PROMPT, StateRole.REPLY)
            if is_worth_keeping(role, turn, last) and (turn % 8 or turn > last - 2)
        ]
        most = max(most, 1 + len(kept))  # and the shared beginning
    assert most == NUM_KEPT_STATES


# Advice.


def test_for_a_kind_that_is_not_possible_the_advice_is_about_the_dynamic_one() -> None:
    plan = plan_memory(tiny_shape("gemma3"), PlanRequest(4000, memory_bytes=1_000_000, prefill_chunk_tokens=16))
    assert plan.of("offloaded").refusal
    assert advise(plan, "offloaded") == advise(plan, "dynamic") != ()


def four_sessions(shape: ModelShape, *, like: str, less_bytes: int = 0) -> MemoryPlan:
    """The plan for four sessions where memory is what kind `like` takes, less `less_bytes`."""
    request = PlanRequest(4096, num_sessions=4, prefill_chunk_tokens=16)
    memory = plan_memory(shape, request).of(like).total_bytes - less_bytes
    return plan_memory(shape, dataclasses.replace(request, memory_bytes=memory))


def test_what_fits_needs_no_advice() -> None:
    assert advise(four_sessions(a_shape(), like="dynamic"), "dynamic") == ()


def test_advice_comes_in_the_order_that_helps_and_says_what_is_enough() -> None:
    plan = four_sessions(a_shape(), like="quantized-int8")
    weights, context, cache = advise(plan, "dynamic")
    assert weights.text.startswith("Quantize the weights: in int4")
    assert weights.total_bytes == plan.of("dynamic").total_bytes - 1_000_000 + weight_bytes_in(plan.shape, "int4")
    assert not weights.fits
    assert context.text == f"Shorten the context: {plan.of('dynamic').max_context_tokens:,} tokens fit."
    assert context.fits
    assert cache.text.startswith("Quantize the cache: as quantized-int8")
    assert cache.total_bytes == plan.of("quantized-int8").total_bytes
    assert cache.fits


def test_weights_are_quantized_no_further_than_is_needed() -> None:
    plan = four_sessions(a_shape(), like="dynamic", less_bytes=300_000)
    assert advise(plan, "dynamic")[0].text.startswith("Quantize the weights: in int8")
    assert advise(plan, "dynamic")[0].fits


@pytest.mark.parametrize(("less_bytes", "fits"), [(300_000, True), (700_000, False)])
def test_where_no_single_step_is_enough_all_are_added_up(less_bytes: int, fits: bool) -> None:
    plan = four_sessions(a_shape(), like="quantized-int4", less_bytes=less_bytes)
    together = advise(plan, "dynamic")[-1]
    assert together.text.startswith("Weights in int4 and a quantized-int4 cache together")
    assert together.total_bytes == plan.of("quantized-int4").total_bytes - 550_000
    assert together.fits is fits
    assert ("tokens of context fit" in together.text) is not fits


def test_a_model_with_a_key_for_every_query_head_is_advised_against() -> None:
    layer = LayerShape(num_heads=4, key_dim=16, value_dim=16, itemsize=2)
    plan = four_sessions(a_shape(layers=(layer, layer)), like="quantized-int4")
    assert advise(plan, "dynamic")[-1].text.startswith("Choose a model with grouped-query attention")
    assert not any("grouped" in a.text for a in advise(four_sessions(a_shape(), like="quantized-int4"), "dynamic"))


def test_a_context_that_leaves_no_token_is_not_advised() -> None:
    plan = plan_memory(a_shape(), PlanRequest(4096, memory_bytes=1000))
    assert not any(a.text.startswith("Shorten") or a.fits for a in advise(plan, "dynamic"))


# From a name to a configuration, and the command.


def test_a_cache_of_unknown_form_is_refused_rather_than_guessed() -> None:
    config = AutoConfig.for_model("rwkv", vocab_size=64, hidden_size=32, num_hidden_layers=2, context_length=64)
    with pytest.raises(UnsupportedOptionError, match="cannot be planned"):
        rehearse(config, torch.float32, "a model")


@pytest.mark.parametrize(
    ("text", "message"),
    [("{", "cannot be used"), ('{"model_type": "no-such"}', "cannot be used"), ('{"model_type": "t5"}', "No causal")],
)
def test_a_configuration_that_is_no_chat_model_is_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "config.json").write_text(text, "utf-8")
    with pytest.raises(ModelLoadError, match=message):
        rehearse(load_model_config(str(tmp_path)), torch.float32, "a model")


@pytest.mark.parametrize("model", ["./no-such-folder", "a b", "x/y/z"])
def test_what_is_neither_a_file_nor_a_hub_id_is_said_to_be_so(model: str) -> None:
    with pytest.raises(ModelLoadError, match=r"no hub id\. Check --model"):
        load_model_config(model)


def test_a_hub_id_without_a_network_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(*_: Any, **__: Any) -> None:
        raise OSError("[Errno -2] Name or service not known")

    monkeypatch.setattr(model_config.HfApi, "model_info", unreachable)
    with pytest.raises(
        ModelLoadError, match=r"not known\. Check --model, go online, or give the path of a config\.json"
    ):
        load_model_config("no-such-owner/no-such-model")


def test_a_folder_without_a_config_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match=r"has no config\.json"):
        load_model_config(str(tmp_path))


def test_a_quantized_checkpoint_is_planned_in_full_precision_and_says_so(tmp_path: Path) -> None:
    config = SMOLLM2_135M | {"num_hidden_layers": 1, "quantization_config": {"quant_method": "fp8"}}
    assert "The checkpoint is quantized" in shape_from_file(tmp_path, config, torch.bfloat16).notes[0]


def test_the_command_prints_the_bill_of_every_kind(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.json").write_text(json.dumps(SMOLLM2_135M), "utf-8")
    arguments = ["--model", str(tmp_path), "--context", "4096", "--dtype", "bfloat16"]
    assert main([*arguments, "--memory", "1GB"]) == 0
    text = capsys.readouterr().out
    assert "22.5 KiB" in text
    assert all(kind in text for kind in KINDS)
    assert "It fits with a dynamic cache" in text
    assert main([*arguments, "--memory", "300MB", "--sessions", "2"]) == 1
    text = capsys.readouterr().out
    assert "It does not fit with a dynamic cache" in text
    assert text.index("Quantize the weights") < text.index("Quantize the cache")


def test_the_command_prints_json_with_the_same_numbers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.json").write_text(json.dumps(SMOLLM2_135M), "utf-8")
    options = ["--dtype", "bfloat16", "--cache", "quantized-int8", "--memory", "1GB", "--device", "cuda", "--json"]
    main(["--model", str(tmp_path), *options])
    values = json.loads(capsys.readouterr().out)
    assert values["request"]["context_tokens"] == 8192
    assert values["kind"] == "quantized-int8"
    assert [k["cache"]["kind"] for k in values["kinds"]] == list(KINDS)
    assert values["kinds"][0]["cache"]["bytes_per_token"] == 23_040
    refusals = {k["cache"]["kind"]: k["refusal"] for k in values["kinds"]}
    assert (refusals["dynamic"], refusals["offloaded"]) == (None, None)


@pytest.mark.parametrize(
    "wrong", [["--memory", "lots"], ["--context", "0"], ["--dtype", "float8"], ["--device", "mps"]]
)
def test_the_command_ends_with_a_sentence_where_it_cannot_plan(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], wrong: list[str]
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(SMOLLM2_135M | {"num_hidden_layers": 1}), "utf-8")
    assert main(["--model", str(tmp_path), *wrong]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "Traceback" not in captured.err
    assert captured.err.endswith(".\n")


@pytest.mark.slow
def test_the_embedded_model_is_planned_from_its_gguf_file_within_what_is_free(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["--model", EMBEDDED_MODEL, "--context", "512", "--dtype", "bfloat16"]) == 0
    text = capsys.readouterr().out
    assert "less a reserve of" in text
    assert "22.5 KiB" in text


@pytest.mark.parametrize(
    ("text", "num_bytes"),
    [
        ("16GB", 16 * 10**9),
        ("1.5 GiB", 3 * 2**29),
        ("800mb", 8 * 10**8),
        ("4096", 4096),
        ("2k", 2000),
        ("1 TiB", 2**40),
    ],
)
def test_sizes_are_read_as_people_write_them(text: str, num_bytes: int) -> None:
    assert parse_size(text) == num_bytes


@pytest.mark.parametrize("text", ["", "GB", "-1GB", "1 XB", "1,5GB", "nan"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(InvalidInputError, match="no size"):
        parse_size(text)


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (23_040, "22.5 KiB"),
        (1_048_575, "1,024.0 KiB"),
        (17_179_869_184, "16.0 GiB"),
        (2**52, "4,096.0 TiB"),
        (-2048, "-2.0 KiB"),
    ],
)
def test_sizes_are_written_in_one_way_on_the_page_and_in_a_terminal(num_bytes: int, text: str) -> None:
    assert format_size(num_bytes) == plain(ENGLISH.size(num_bytes)) == text
