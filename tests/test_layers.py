"""Our cache layers against the library's, and what only ours can do."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from chatcache.cache.errors import CacheStateError
from chatcache.cache.layers import AppendLayer
from chatcache.cache.token_buffer import BLOCK_TOKENS

HEADS, DIM, WINDOW = 3, 8, 16


@pytest.fixture(autouse=True)
def _inference():
    with torch.inference_mode():
        yield


def states(num_tokens: int, seed: int, batch: int = 1) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shape = (batch, HEADS, num_tokens, DIM)
    return torch.randn(shape, generator=generator), torch.randn(shape, generator=generator)


def fed(layer, *lengths: int, seed: int = 0):
    for step, length in enumerate(lengths):
        layer.update(*states(length, seed + step))
    return layer


@pytest.mark.parametrize("make", [DynamicLayer, AppendLayer])
def test_full_layers_return_the_same_as_the_librarys(make: Callable) -> None:
    reference, layer = DynamicLayer(), make()
    for step, length in enumerate((5, 1, 1, 300, 1, 2)):
        assert layer.get_mask_sizes(length) == reference.get_mask_sizes(length)
        for ours, theirs in zip(
            layer.update(*states(length, step)), reference.update(*states(length, step)), strict=True
        ):
            assert torch.equal(ours, theirs)
        assert layer.get_seq_length() == reference.get_seq_length()


def test_sliding_layers_return_what_the_librarys_do_at_every_length() -> None:
    reference, layer = DynamicSlidingWindowLayer(sliding_window=WINDOW), AppendLayer(sliding_window=WINDOW)
    assert layer.is_sliding
    for step, length in enumerate((3, 1, 10, 1, 1, 1, 1, 40, 1, 5)):
        assert layer.get_mask_sizes(length) == reference.get_mask_sizes(length)
        for ours, theirs in zip(
            layer.update(*states(length, step)), reference.update(*states(length, step)), strict=True
        ):
            assert torch.equal(ours, theirs)
        assert layer.get_seq_length() == reference.get_seq_length()


def test_how_tokens_lie_in_memory_depends_on_the_length_alone() -> None:
    grown = fed(AppendLayer(), *[100] * 7)
    grown.crop_to(20)
    fresh = fed(AppendLayer(), 20)
    for layer in (grown, fresh):
        layer.update(*states(1, seed=9))
    for grown_tensor, fresh_tensor in ((grown.keys, fresh.keys), (grown.values, fresh.values)):
        assert grown_tensor.stride() == fresh_tensor.stride()
        assert grown_tensor.data_ptr() % 64 == fresh_tensor.data_ptr() % 64 == 0


def test_spare_room_grows_by_whole_blocks_and_cropping_keeps_it() -> None:
    layer = fed(AppendLayer(), 1)
    one_block = layer.num_bytes
    assert one_block == 2 * BLOCK_TOKENS * HEADS * DIM * 4
    address = layer.keys.data_ptr()
    fed(layer, BLOCK_TOKENS - 1)
    assert (layer.num_bytes, layer.keys.data_ptr()) == (one_block, address)
    fed(layer, 1)
    assert layer.num_bytes == 2 * one_block
    address = layer.keys.data_ptr()
    layer.crop_to(3)
    assert (layer.num_bytes, layer.keys.data_ptr()) == (2 * one_block, address)
    layer.crop_to(0)
    assert layer.num_bytes == 0


@pytest.mark.parametrize("kept", [0, 1, 15, 16, 255, 256, 257, 299])
@pytest.mark.parametrize("window", [None, WINDOW])
def test_cropping_then_going_on_equals_never_having_had_the_tokens(kept: int, window: int | None) -> None:
    keys, values = states(300, seed=1)
    layer, fresh = AppendLayer(sliding_window=window), AppendLayer(sliding_window=window)
    layer.update(keys, values)
    layer.crop_to(kept)
    fresh.update(keys[:, :, :kept], values[:, :, :kept])
    for ours, theirs in zip(layer.update(*states(4, 2)), fresh.update(*states(4, 2)), strict=True):
        assert torch.equal(ours, theirs)
    assert layer.num_tokens == fresh.num_tokens == kept + 4


def test_crop_takes_the_librarys_negative_counts() -> None:
    layer = fed(AppendLayer(), 10)
    layer.crop(0)
    assert layer.num_tokens == 10
    layer.crop(-3)
    assert layer.num_tokens == 7
    layer.crop(-50)
    assert layer.num_tokens == 0
    with pytest.raises(ValueError, match="negative"):
        layer.crop(3)


def test_keeping_more_than_there_is_is_refused() -> None:
    layer = fed(AppendLayer(), 10)
    with pytest.raises(CacheStateError, match="11"):
        layer.crop_to(11)
    with pytest.raises(CacheStateError, match="10"):
        layer.export(5, 11)
    assert layer.num_tokens == 10


def test_an_exported_range_is_contiguous_and_outlives_what_happens_to_the_layer() -> None:
    layer = fed(AppendLayer(), 300)
    expected = layer.keys[:, :, 100:200].clone()
    exported = layer.export(100, 200)
    layer.crop_to(50)
    fed(layer, 200, seed=7)
    assert exported["keys"].is_contiguous()
    assert torch.equal(exported["keys"].permute(1, 2, 0, 3), expected)
    assert exported["keys"].untyped_storage().nbytes() == exported["keys"].nbytes


def test_importing_exported_ranges_in_turn_rebuilds_the_layer_byte_for_byte() -> None:
    layer, copy = fed(AppendLayer(), 300), AppendLayer()
    for start, stop in ((0, 1), (1, 120), (120, 300)):
        copy.import_(layer.export(start, stop))
    assert torch.equal(copy.keys, layer.keys)
    assert torch.equal(copy.values, layer.values)


def test_a_failed_allocation_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = fed(AppendLayer(), 250)
    before = layer.export(0, 250)
    write = layer.buffers()["values"].write

    def fail(*_: object) -> None:
        raise torch.OutOfMemoryError("injected")

    monkeypatch.setattr(layer.buffers()["values"], "write", fail)
    with pytest.raises(torch.OutOfMemoryError):
        layer.update(*states(10, 3))
    monkeypatch.setattr(layer.buffers()["values"], "write", write)
    assert layer.num_tokens == 250
    reference = fed(AppendLayer(), 250)
    for ours, theirs in zip(layer.update(*states(10, 4)), reference.update(*states(10, 4)), strict=True):
        assert torch.equal(ours, theirs)
    assert all(torch.equal(rows, before[name]) for name, rows in layer.rows(0, 250).items())


def test_batches_are_repeated_selected_and_reordered_as_in_the_library() -> None:
    ours, theirs = AppendLayer(), DynamicLayer()
    for layer in (ours, theirs):
        layer.update(*states(5, 0, batch=2))
        layer.batch_repeat_interleave(2)
        layer.reorder_cache(torch.tensor([3, 0, 0, 1]))
        layer.batch_select_indices(torch.tensor([0, 2]))
    assert torch.equal(ours.keys, theirs.keys)
    for mine, its in zip(ours.update(*states(2, 1, batch=2)), theirs.update(*states(2, 1, batch=2)), strict=True):
        assert torch.equal(mine, its)


def test_a_trimmed_layer_gives_back_whole_blocks_and_keeps_its_tokens() -> None:
    layer = fed(AppendLayer(), 700)
    whole, keys = layer.num_bytes, layer.keys[:, :, :200].clone()
    layer.crop_to(200)
    layer.trim(500)
    assert layer.num_bytes == whole * 2 // 3, "room for the tokens to come stays"
    layer.trim(0)
    assert layer.num_bytes == whole // 3
    assert torch.equal(layer.keys, keys)
    returned, _ = layer.update(*states(5, 9))
    assert torch.equal(returned, torch.cat([keys, states(5, 9)[0]], dim=2))
