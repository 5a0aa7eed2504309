"""Offloaded caches: what the model sees is what a cache on its device would give it, and the tokens lie elsewhere."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from tiny_models import random_ids, tiny_model

from chatcache.cache.kinds import _make_layers, make_session_cache
from chatcache.cache.offloaded_layer import HOME, OffloadedLayer
from chatcache.cache.session_cache import SessionCache

NO_ACCELERATOR = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an accelerator (CUDA)")
DEVICES = ["cpu", pytest.param("cuda", marks=NO_ACCELERATOR)]
"""On "cpu" both places are the same memory: all but the transfer itself is tested."""


@pytest.fixture
def pair(request: pytest.FixtureRequest):
    """The model on the device, an offloaded cache and one that is not."""
    name, kind, device = request.param
    model = tiny_model(name).to(device)
    # Made directly: on a CPU the kind is refused, for there is nothing to gain.
    yield model, SessionCache(kind, partial(_make_layers, model, kind)), make_session_cache(model, "dynamic")
    tiny_model(name).to("cpu")


def feed(model, held: SessionCache, ids: list[int]) -> torch.Tensor:
    with torch.inference_mode():
        logits = model(torch.tensor([ids], device=model.device), cache=held.cache).logits
    held.advance(ids)
    return logits


CASES = [
    pytest.param(
        (name, kind, device.values[0] if hasattr(device, "values") else device), marks=getattr(device, "marks", ())
    )
    for device in DEVICES
    for name, kind in (("llama-gqa", "offloaded"), ("llama-mqa", "offloaded"), ("gemma3", "offloaded-non-sliding"))
]


@pytest.mark.parametrize("pair", CASES, indirect=True)
def test_logits_equal_those_of_a_dynamic_cache_at_every_step(pair) -> None:
    model, offloaded, dynamic = pair

    def both(ids: list[int]) -> None:
        assert torch.equal(feed(model, offloaded, ids), feed(model, dynamic, ids))

    both(random_ids(40))
    for token in random_ids(5, seed=1):
        both([token])
    for kept in (44, 20):
        offloaded.crop_to(kept)
        dynamic.crop_to(kept)
        both(random_ids(1, seed=kept))
        both(random_ids(300, seed=kept))
    fork, other = offloaded.fork(100), dynamic.fork(100)
    assert torch.equal(feed(model, fork, random_ids(3)), feed(model, other, random_ids(3)))
    both(random_ids(1, seed=9))


@pytest.mark.parametrize("pair", CASES, indirect=True)
def test_tokens_lie_at_home_and_survive_export_and_import(pair) -> None:
    model, offloaded, _ = pair
    feed(model, offloaded, random_ids(300))
    layers = [layer for layer in offloaded.cache.layers if isinstance(layer, OffloadedLayer)]
    assert layers
    assert all(buffer.device == HOME for layer in layers for buffer in layer.buffers().values())
    copy = SessionCache(offloaded.kind, partial(_make_layers, model, offloaded.kind))
    for start, stop in ((0, 100), (100, 300)):
        copy.import_(offloaded.export(start, stop))
    assert torch.equal(feed(model, copy, random_ids(2)), feed(model, offloaded, random_ids(2)))


@pytest.mark.parametrize("pair", CASES, indirect=True)
def test_conversion_from_and_to_a_dynamic_cache_changes_no_token(pair) -> None:
    model, offloaded, dynamic = pair
    feed(model, dynamic, random_ids(300))
    feed(model, offloaded, random_ids(300))
    dynamic.convert(offloaded.kind, partial(_make_layers, model, offloaded.kind))
    assert any(isinstance(layer, OffloadedLayer) for layer in dynamic.cache.layers)
    assert torch.equal(feed(model, dynamic, random_ids(2)), feed(model, offloaded, random_ids(2)))
    dynamic.convert("dynamic", partial(_make_layers, model, "dynamic"))
    assert not any(isinstance(layer, OffloadedLayer) for layer in dynamic.cache.layers)
    assert torch.equal(feed(model, dynamic, random_ids(2)), feed(model, offloaded, random_ids(2)))


def test_while_a_layer_is_at_work_only_the_next_ones_tokens_are_on_their_way(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model("llama-gqa")
    held = SessionCache("offloaded", partial(_make_layers, model, "offloaded"))
    feed(model, held, random_ids(20))
    layers = held.cache.layers
    under_way: list[list[int]] = []
    fetch_ahead = OffloadedLayer.fetch_ahead

    def noted(layer: OffloadedLayer, num_new: int) -> None:
        fetch_ahead(layer, num_new)
        under_way.append([index for index, each in enumerate(layers) if each._visit is not None])

    monkeypatch.setattr(OffloadedLayer, "fetch_ahead", noted)
    feed(model, held, random_ids(1))
    assert under_way == [[1], [2], [3]]
    assert all(layer._visit is None for layer in layers)
