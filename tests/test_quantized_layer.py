"""Codecs and the layer that uses them: how good, how small, and exact under crop, export and import."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from chatcache.cache.codecs import Codec, Fp8Codec, Int4Codec, Int8Codec, group_size_for
from chatcache.cache.errors import CacheStateError
from chatcache.cache.layers import KEPT_TAIL_TOKENS, AppendLayer
from chatcache.cache.quantized_layer import MAX_TAIL_TOKENS, QuantizedLayer
from chatcache.cache.workspace import Workspace

CODECS = [Int8Codec, Int4Codec, Fp8Codec]
HEADS, DIM = 3, 64


@pytest.fixture(autouse=True)
def _inference():
    with torch.inference_mode():
        yield


def states(num_tokens: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shape = (1, HEADS, num_tokens, DIM)
    return torch.randn(shape, generator=generator).to(dtype), torch.randn(shape, generator=generator).to(dtype)


def layer_of(codec: type[Codec], window: int | None = None, dtype: torch.dtype = torch.float32) -> QuantizedLayer:
    return QuantizedLayer(codec(), dtype, Workspace(), sliding_window=window)


def read(layer, start: int = 0) -> tuple[Tensor, Tensor]:
    keys, values = layer.states(start, layer.num_tokens)
    return keys.clone(), values.clone()


@pytest.mark.parametrize(("head_dim", "group"), [(64, 64), (128, 64), (96, 48), (80, 40), (8, 8), (97, 1), (65, 13)])
def test_groups_are_the_largest_divisor_up_to_64(head_dim: int, group: int) -> None:
    assert group_size_for(head_dim) == group


@pytest.mark.parametrize("head_dim", [8, 64, 80, 128])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("codec", "num_steps"), [(Int8Codec(), 254), (Int4Codec(), 15)])
def test_integer_codes_are_within_half_a_step_of_every_value(
    codec: Codec, num_steps: int, dtype: torch.dtype, head_dim: int
) -> None:
    rows = (torch.randn(50, 1, HEADS, head_dim) * torch.logspace(-3, 3, 50).view(-1, 1, 1, 1)).to(dtype)
    decoded = torch.empty_like(rows)
    codec.decode(codec.encode(rows), decoded)
    groups = rows.float().unflatten(-1, (-1, group_size_for(head_dim)))
    widest = (
        2 * groups.abs().amax(-1, keepdim=True) if num_steps == 254 else groups.amax(-1, True) - groups.amin(-1, True)
    )
    # Beside half a step: the rounding of scale and minimum to two bytes, and of the result to its own type.
    rounding = groups.abs().amax(-1, keepdim=True) * 4 * torch.finfo(torch.bfloat16).eps
    error = (decoded.float() - rows.float()).abs().unflatten(-1, (-1, group_size_for(head_dim)))
    assert (error <= widest / num_steps / 2 + rounding).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_every_fp8_number_is_unpacked_as_torch_converts_it(dtype: torch.dtype) -> None:
    codes = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn)
    codes = codes[~codes.float().isnan()].view(-1, 1, 1, 2)
    decoded = torch.empty(codes.shape, dtype=dtype)
    Fp8Codec().decode({"codes": codes, "scales": torch.ones(len(codes), 1, 1, 1, dtype=torch.float16)}, decoded)
    assert torch.equal(decoded, codes.to(dtype))


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("value", [0.0, 1.0, -3.0, 1e-30, 60000.0])
def test_constant_rows_survive(codec: type[Codec], value: float) -> None:
    rows = torch.full((2, 1, 1, DIM), value)
    decoded = torch.empty_like(rows)
    codec().decode(codec().encode(rows), decoded)
    assert torch.allclose(decoded, rows, rtol=2 * torch.finfo(torch.float16).eps, atol=1e-7)


@pytest.mark.parametrize("codec", CODECS)
def test_what_is_kept_of_a_token_depends_on_that_token_alone(codec: type[Codec]) -> None:
    rows = torch.randn(20, 1, HEADS, DIM)
    together = codec().encode(rows)
    for index in range(20):
        alone = codec().encode(rows[index : index + 1])
        assert all(torch.equal(together[name][index : index + 1], alone[name]) for name in together)


@pytest.mark.parametrize("head_dim", [8, 64, 80, 128])
@pytest.mark.parametrize("codec", CODECS)
def test_bytes_of_a_row_are_known_before_it_exists(codec: type[Codec], head_dim: int) -> None:
    parts = codec().encode(torch.randn(5, 1, HEADS, head_dim))
    assert sum(part.nbytes for part in parts.values()) == 5 * HEADS * codec().num_row_bytes(head_dim)


@pytest.mark.parametrize(("codec", "limit"), [(Int8Codec, 0.60), (Int4Codec, 0.36), (Fp8Codec, 0.60)])
@pytest.mark.parametrize("chunk", [1, 100, 512])
def test_bytes_against_bf16_at_2048_tokens(codec: type[Codec], limit: float, chunk: int) -> None:
    layer, plain = layer_of(codec, dtype=torch.bfloat16), AppendLayer()
    keys, values = states(2048, dtype=torch.bfloat16)
    for start in range(0, 2048, chunk):
        layer.append(keys[:, :, start : start + chunk], values[:, :, start : start + chunk])
        if chunk == 512:
            layer.settle()
        elif layer.num_tokens - layer.num_settled_tokens >= MAX_TAIL_TOKENS:
            layer.update(keys[:, :, :0], values[:, :, :0])
    plain.append(keys, values)
    assert layer.num_bytes <= limit * plain.num_bytes


@pytest.mark.parametrize("codec", CODECS)
def test_a_running_turn_sees_its_last_tokens_in_full_precision(codec: type[Codec]) -> None:
    layer = layer_of(codec)
    keys, values = states(600)
    for start in range(600):
        seen, _ = layer.update(keys[:, :, start : start + 1], values[:, :, start : start + 1])
        assert layer.num_tokens - layer.num_settled_tokens <= MAX_TAIL_TOKENS
        exact = slice(max(start - KEPT_TAIL_TOKENS, 0), start + 1)
        assert torch.equal(seen[:, :, exact], keys[:, :, exact])
    assert not torch.equal(seen[:, :, :300], keys[:, :, :300])


@pytest.mark.parametrize("window", [None, 16, 500])
@pytest.mark.parametrize("kept", [0, 1, 255, 256, 300, 399, 400])
@pytest.mark.parametrize("codec", CODECS)
def test_cropping_then_going_on_equals_never_having_had_the_tokens(
    codec: type[Codec], kept: int, window: int | None
) -> None:
    layer, fresh = layer_of(codec, window), layer_of(codec, window)
    keys, values = states(500)
    layer.update(keys[:, :, :400], values[:, :, :400])
    layer.settle()
    layer.update(keys[:, :, 400:], values[:, :, 400:])
    layer.crop_to(kept)
    fresh.update(keys[:, :, :kept], values[:, :, :kept])
    fresh.settle()
    for seed in range(3):
        assert all(map(torch.equal, layer.update(*states(70, seed)), fresh.update(*states(70, seed))))


@pytest.mark.parametrize("codec", CODECS)
def test_rejected_candidates_leave_no_trace(codec: type[Codec]) -> None:
    layer, plain = layer_of(codec), layer_of(codec)
    keys, values = states(400)
    for start in range(400):
        one = keys[:, :, start : start + 1], values[:, :, start : start + 1]
        layer.update(
            *(torch.cat([tensor, junk], dim=2) for tensor, junk in zip(one, states(7, seed=start), strict=True))
        )
        layer.crop_to(start + 1)
        plain.update(*one)
        assert layer.num_settled_tokens == plain.num_settled_tokens
    assert all(map(torch.equal, read(layer), read(plain)))


@pytest.mark.parametrize("codec", CODECS)
def test_exported_ranges_rebuild_the_layer_byte_for_byte(codec: type[Codec]) -> None:
    layer, copy = layer_of(codec), layer_of(codec)
    layer.update(*states(300))
    with pytest.raises(CacheStateError, match="0 settled"):
        layer.export(0, 10)
    layer.settle()
    for start, stop in ((0, 1), (1, 130), (130, 300)):
        copy.import_(layer.export(start, stop))
    assert all(map(torch.equal, read(copy), read(layer)))
    assert all(map(torch.equal, copy.update(*states(3)), (part.clone() for part in layer.update(*states(3)))))


def test_a_failure_while_quantizing_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    layer, twin = layer_of(Int8Codec), layer_of(Int8Codec)
    for one in (layer, twin):
        one.update(*states(300))
        one.settle()
        one.update(*states(200))
    encode, calls = Int8Codec.encode, []

    def fail_late(self: Int8Codec, rows: Tensor) -> dict[str, Tensor]:
        calls.append(None)
        if len(calls) == 2:
            raise torch.OutOfMemoryError("injected")
        return encode(self, rows)

    with monkeypatch.context() as patch:
        patch.setattr(Int8Codec, "encode", fail_late)
        with pytest.raises(torch.OutOfMemoryError):
            layer.settle()
    assert (layer.num_tokens, layer.num_settled_tokens) == (500, 300)
    assert all(map(torch.equal, read(layer), read(twin)))
    layer.settle()
    twin.settle()
    assert all(map(torch.equal, read(layer), read(twin)))
