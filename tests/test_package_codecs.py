"""hqq and quanto as backends: their limits, with or without the packages, and what they keep where they are there."""

from __future__ import annotations

import pytest
import torch
from tiny_models import tiny_model

from chatcache.cache.codecs import Codec
from chatcache.cache.kinds import (
    ModelFacts,
    facts_of,
    installed_packages,
    make_session_cache,
    resolve_kind,
    table_of_kinds,
)
from chatcache.cache.layers import AppendLayer
from chatcache.cache.package_codecs import HqqCodec, QuantoCodec
from chatcache.cache.quantized_layer import QuantizedLayer
from chatcache.errors import UnsupportedOptionError

PACKAGES = {"hqq": "hqq", "quanto": "optimum-quanto"}
CODECS = [HqqCodec(bits) for bits in HqqCodec.bits] + [QuantoCodec(bits) for bits in QuantoCodec.bits]


@pytest.fixture(params=CODECS, ids=lambda codec: codec.name)
def codec(request: pytest.FixtureRequest) -> Codec:
    package = PACKAGES[request.param.name.rstrip("0123456789")]
    if package not in installed_packages():
        pytest.skip(f"{package} is not installed (requirements-extra.txt)")
    return request.param


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("quantized-quanto8", "quanto has 2 and 4 bits"),
        ("quantized-quanto3", "quanto has 2 and 4 bits"),
        ("quantized-hqq5", "hqq has 1, 2, 3, 4 and 8 bits"),
        ("quantized-hqq4-axis2", "hqq has no axis 2, only 0 and 1"),
        ("quantized-hqq4-axis0", "none could be cropped; choose quantized-hqq4"),
        ("quantized-hqq4-axis1", "is what quantized-hqq4 uses"),
        ("quantized-quanto4-axis1", "quanto has no axis 1, only 0 and -1"),
        ("quantized-quanto4-axis-1", "none could be cropped"),
        ("quantized-fp4", "fp8 takes no number of bits, axis or group"),
        ("quantized-fp8-axis0", "fp8 takes no number of bits, axis or group"),
        ("quantized-fp8-group64", "fp8 takes no number of bits, axis or group"),
        ("quantized-int2", "int has 4 and 8 bits"),
        ("quantized-int8-axis0", "int8 takes no axis"),
        ("quantized-hqq4-group32", "largest divisor of head_dim"),
        ("quantized-hqq", "hqq has 1, 2, 3, 4 and 8 bits"),
    ],
)
def test_what_a_backend_cannot_do_is_refused_with_the_reason(kind: str, reason: str) -> None:
    with pytest.raises(UnsupportedOptionError) as refused:
        resolve_kind(facts_of(tiny_model("llama-gqa").config, "cpu"), kind)
    assert reason in str(refused.value)


@pytest.mark.parametrize(("kind", "package"), [("quantized-hqq4", "hqq"), ("quantized-quanto4", "optimum-quanto")])
def test_a_backend_whose_package_is_missing_says_how_to_get_it(kind: str, package: str) -> None:
    def refusal(packages: set[str]) -> str | None:
        facts = ModelFacts(("full_attention",), "cpu", frozenset(packages))
        return {row.kind: row.refusal for row in table_of_kinds(facts)}[kind]

    assert refusal({package}) is None
    assert refusal(set()) == f"{package} is not installed (pip install --no-deps -r requirements-extra.txt)"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_values_are_about_a_step_from_what_they_were(codec: Codec, dtype: torch.dtype) -> None:
    rows = torch.randn(40, 1, 3, 64).to(dtype)
    decoded = torch.empty_like(rows)
    codec.decode(codec.encode(rows), decoded)
    step = (rows.amax(-1) - rows.amin(-1)).float() / (2**codec.code_bits - 1)
    error = (decoded.float() - rows.float()).abs().mean(-1)
    assert (error <= 0.5 * step + 0.03).all()


@pytest.mark.parametrize("value", [0.0, 1.0, -3.0])
def test_constant_rows_survive(codec: Codec, value: float) -> None:
    rows = torch.full((2, 1, 1, 64), value)
    decoded = torch.empty_like(rows)
    codec.decode(codec.encode(rows), decoded)
    assert torch.allclose(decoded, rows, rtol=1e-2)


@pytest.mark.parametrize("head_dim", [8, 64, 128])
def test_what_is_kept_of_a_token_depends_on_that_token_alone_and_its_size_is_known(codec: Codec, head_dim: int) -> None:
    rows = torch.randn(20, 1, 3, head_dim)
    together = codec.encode(rows)
    for index in range(20):
        alone = codec.encode(rows[index : index + 1])
        assert all(torch.equal(together[name][index : index + 1], alone[name]) for name in together)
    assert codec.head_dim(together["codes"]) == head_dim
    assert sum(part.nbytes for part in together.values()) == 20 * 3 * codec.num_row_bytes(head_dim)


def test_cropping_then_going_on_equals_never_having_had_the_tokens(codec: Codec) -> None:
    with torch.inference_mode():
        layer, fresh = (QuantizedLayer(codec, torch.float32, None) for _ in range(2))
        keys, values = torch.randn(2, 1, 3, 300, 64)
        layer.update(keys, values)
        layer.settle()
        layer.crop_to(200)
        fresh.update(keys[:, :, :200], values[:, :, :200])
        fresh.settle()
        more = torch.randn(2, 1, 3, 5, 64)
        assert all(map(torch.equal, layer.update(*more), fresh.update(*more)))
        layer.settle()
        copy = QuantizedLayer(codec, torch.float32, None)
        copy.import_(layer.export(0, 205))
        assert all(map(torch.equal, copy.states(0, 205), layer.states(0, 205)))
        plain = AppendLayer()
        plain.append(keys, values)
        assert layer.num_bytes < plain.num_bytes


def test_a_model_runs_on_it(codec: Codec) -> None:
    model = tiny_model("llama-gqa")
    held = make_session_cache(model, f"quantized-{codec.name}")
    for ids in ([3, 4, 5, 6], [7]):
        with torch.inference_mode():
            logits = model(torch.tensor([ids]), cache=held.cache).logits
        held.advance(ids)
        held.settle()
    assert logits.isfinite().all()
    held.check()
