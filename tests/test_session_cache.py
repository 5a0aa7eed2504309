"""Token ids and cache as one value: alignment, repair, forks, export and import."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from examples import few_quick
from tiny_models import FULL_ATTENTION, RECURRENT, SLIDING, WINDOW, random_ids, tiny_model
from torch import Tensor

from chatcache.cache.alignment import Alignment
from chatcache.cache.errors import CacheStateError
from chatcache.cache.kinds import KINDS, ModelFacts, facts_of, make_session_cache, resolve_kind, table_of_kinds
from chatcache.cache.quantized_layer import MAX_TAIL_TOKENS
from chatcache.cache.session_cache import SessionCache
from chatcache.errors import UnsupportedOptionError
from chatcache.stats import MissReason

CROPPABLE = FULL_ATTENTION + SLIDING


def feed(name: str, held: SessionCache, token_ids: Sequence[int]) -> Tensor:
    """One forward over `token_ids`; the logits of all of them."""
    with torch.inference_mode():
        logits = tiny_model(name)(torch.tensor([list(token_ids)]), cache=held.cache).logits[0]
    held.advance(token_ids)
    return logits


def dynamic(name: str, *chunks: Sequence[int]) -> SessionCache:
    held = make_session_cache(tiny_model(name), "dynamic")
    for chunk in chunks:
        feed(name, held, chunk)
    return held


@pytest.mark.parametrize(
    ("cached", "wanted", "expected"),
    [
        ([], [1], Alignment(0)),
        ([], [1, 2, 3], Alignment(0, 0, MissReason.NO_CACHE)),
        ([1, 2, 3], [1, 2, 3, 4, 5], Alignment(3)),
        ([1, 2, 3], [1, 2, 3], Alignment(2)),
        ([1, 2, 3, 4], [1, 2], Alignment(1)),
        ([1, 2, 3, 4], [1, 2, 9], Alignment(2)),
        ([1, 2, 3, 4], [1, 2, 9, 9], Alignment(2, 2, MissReason.HISTORY)),
        ([1, 2, 3, 4], [9, 2, 3, 4, 5], Alignment(0, 0, MissReason.HISTORY)),
        ([1, 2, 3, 4], [9], Alignment(0)),
    ],
)
def test_align_keeps_the_common_beginning_and_leaves_a_token_to_forward(
    cached: list[int], wanted: list[int], expected: Alignment
) -> None:
    held = dynamic("llama-gqa", *([cached] if cached else []))
    assert held.align(wanted) == expected
    assert list(held.token_ids) == wanted[: expected.num_cached_tokens]
    held.check()


def test_align_refuses_an_empty_wish() -> None:
    with pytest.raises(ValueError, match="empty"):
        dynamic("llama-gqa", [1]).align([])


@pytest.mark.parametrize("name", CROPPABLE)
def test_after_align_the_reply_is_the_one_of_a_cache_that_never_had_the_rest(name: str) -> None:
    ids = random_ids(40)
    held = dynamic(name, ids[:25], ids[25:30], random_ids(7, seed=5))
    assert held.align(ids) == Alignment(30, 30, MissReason.HISTORY)
    assert torch.equal(feed(name, held, ids[30:]), feed(name, dynamic(name, ids[:25], ids[25:30]), ids[30:]))


@pytest.mark.parametrize("name", RECURRENT)
def test_a_recurrent_cache_is_kept_when_extended_and_dropped_when_it_would_have_to_be_cropped(name: str) -> None:
    ids = random_ids(30)
    held = dynamic(name, ids[:20])
    assert held.align(ids[:21]) == Alignment(20)
    assert held.align(ids[:20]) == Alignment(0, 0, MissReason.NOT_CROPPABLE)
    assert held.num_tokens == 0
    assert torch.equal(feed(name, held, ids), feed(name, dynamic(name), ids))


def test_advance_and_check_report_a_layer_of_another_length() -> None:
    held = dynamic("llama-gqa", random_ids(10))
    held.cache.layers[2].crop(-1)
    with pytest.raises(CacheStateError, match=r"Layer 2 .* 9 tokens, expected 10"):
        held.check()
    with pytest.raises(CacheStateError):
        held.advance([5])


class InjectedError(Exception):
    pass


@pytest.mark.parametrize("seam", ["register_forward_pre_hook", "register_forward_hook"])
@pytest.mark.parametrize("layer_index", few_quick((2, 0, 1, 3)))
@pytest.mark.parametrize("name", CROPPABLE + RECURRENT)
def test_after_a_failure_in_any_layer_repair_gives_the_result_of_a_run_without_it(
    name: str, layer_index: int, seam: str
) -> None:
    model, ids = tiny_model(name), random_ids(40)
    chunks = [ids[:20], ids[20:21], ids[21:40]]
    held = dynamic(name, *chunks[:2])
    blocks = next(m for m in model.modules() if isinstance(m, torch.nn.ModuleList) and len(m) == 4)

    def fail(*_: object) -> None:
        raise InjectedError

    with getattr(blocks[layer_index], seam)(fail), pytest.raises(InjectedError):
        feed(name, held, ids[21:30])
    num_kept = held.repair()
    assert num_kept == (21 if name in CROPPABLE else 0)
    held.check()
    for chunk in chunks[2:] if num_kept else chunks:
        logits = feed(name, held, chunk)
    assert torch.equal(logits, feed(name, dynamic(name, *chunks[:2]), chunks[2]))


@pytest.mark.parametrize("kind", ["quantized-int8", "quantized-int4", "quantized-fp8"])
@pytest.mark.parametrize("name", ["llama-gqa", pytest.param("gemma3", marks=pytest.mark.slow)])
def test_a_quantized_cache_is_repaired_too_where_the_failed_forward_quantized_in_some_layers(
    name: str, kind: str
) -> None:
    model, ids = tiny_model(name), random_ids(MAX_TAIL_TOKENS + 30)
    chunks = [ids[:10], *([token] for token in ids[10:-30]), ids[-30:]]
    held, whole = (make_session_cache(model, kind) for _ in range(2))
    for cache in (held, whole):
        for chunk in chunks[:-1]:
            feed(name, cache, chunk)

    def fail(*_: object) -> None:
        raise InjectedError

    with model.model.layers[2].register_forward_hook(fail), pytest.raises(InjectedError):
        feed(name, held, chunks[-1])
    settled = [layer.num_settled_tokens for layer in held.cache.layers]
    assert settled[0] > settled[-1]
    assert held.repair() == len(ids) - 30
    held.check()
    assert torch.equal(feed(name, held, chunks[-1]), feed(name, whole, chunks[-1]))


def test_a_failure_in_the_very_first_forward_leaves_an_empty_cache() -> None:
    held = dynamic("mistral")
    held.cache.layers[0].update(torch.zeros(1, 2, 5, 8), torch.zeros(1, 2, 5, 8))
    assert held.repair() == 0
    ids = random_ids(12)
    assert torch.equal(feed("mistral", held, ids), feed("mistral", dynamic("mistral"), ids))


@pytest.mark.parametrize("name", CROPPABLE)
@pytest.mark.parametrize("num_tokens", [0, 1, WINDOW, 30])
def test_a_fork_goes_on_alike_and_shares_nothing_with_its_origin(name: str, num_tokens: int) -> None:
    ids, other = random_ids(40), random_ids(40, seed=3)
    origin = dynamic(name, ids[:30])
    forked = origin.fork(num_tokens)
    assert list(forked.token_ids) == ids[:num_tokens]
    before = origin.export(0, 30)
    feed(name, forked, other[:9])
    after = origin.export(0, 30)
    for mine, its in zip(before.layers, after.layers, strict=True):
        assert all(torch.equal(mine[key], its[key]) for key in mine)
    origin.crop_to(0)
    feed(name, origin, other)
    twin = dynamic(name, ids[:30])
    twin.crop_to(num_tokens)
    feed(name, twin, other[:9])
    assert torch.equal(feed(name, forked, other[9:]), feed(name, twin, other[9:]))


@pytest.mark.parametrize("name", RECURRENT)
def test_a_recurrent_cache_is_forked_at_its_end_or_where_a_state_is_kept(name: str) -> None:
    ids, other = random_ids(40), random_ids(9, seed=3)
    origin = dynamic(name, ids[:10])
    origin.keep_state()
    feed(name, origin, ids[10:30])
    lengths = {30: 30, 29: 10, 10: 10, 9: 0}
    for num_tokens, num_kept in lengths.items():
        forked = origin.fork(num_tokens)
        assert list(forked.token_ids) == ids[:num_kept]
        chunks = [ids[:10], ids[10:30]][: {30: 2, 10: 1, 0: 0}[num_kept]]
        assert torch.equal(feed(name, forked, other), feed(name, dynamic(name, *chunks), other))
    assert torch.equal(feed(name, origin, ids[30:]), feed(name, dynamic(name, ids[:10], ids[10:30]), ids[30:]))


@pytest.mark.parametrize("name", CROPPABLE)
def test_exported_ranges_rebuild_a_cache_that_goes_on_exactly_as_the_old_one(name: str) -> None:
    ids = random_ids(60)
    held, restored = dynamic(name, ids[:50]), dynamic(name)
    for start, stop in ((0, 7), (7, 8), (8, 50)):
        piece = held.export(start, stop)
        assert piece.token_ids == tuple(ids[start:stop])
        restored.import_(piece)
    assert torch.equal(feed(name, held, ids[50:]), feed(name, restored, ids[50:]))


@pytest.mark.parametrize("name", RECURRENT)
def test_a_recurrent_cache_that_is_being_taken_in_is_used_only_as_far_as_its_state_has_come(name: str) -> None:
    ids, other = random_ids(30), random_ids(9, seed=3)
    origin = dynamic(name, ids[:10])
    origin.keep_state()
    feed(name, origin, ids[10:])
    expected = {
        10: feed(name, dynamic(name, ids[:10]), other),
        30: feed(name, dynamic(name, ids[:10], ids[10:]), other),
    }
    filling = dynamic(name)
    for start, stop, num_usable in ((0, 5, 0), (5, 10, 10), (10, 20, 10), (20, 30, 30)):
        filling.import_(origin.export(start, stop))
        assert filling.nearest_length(stop) == num_usable
        assert {state.num_tokens for state in filling.export(0, stop).states} <= {10, 30}
        copied = filling.fork(stop)
        assert list(copied.token_ids) == ids[:num_usable]
        if num_usable:
            assert torch.equal(feed(name, copied, other), expected[num_usable])
    cut = dynamic(name)
    for start, stop in ((0, 10), (10, 20)):
        cut.import_(origin.export(start, stop))
    assert cut.align([*ids[:20], *other]).num_cached_tokens == 10
    assert torch.equal(feed(name, cut, other), expected[10])


def test_importing_a_range_that_does_not_follow_is_refused() -> None:
    held = dynamic("llama-gqa", random_ids(20))
    with pytest.raises(CacheStateError, match=r"from 5 .* of 20"):
        held.import_(held.export(5, 20))


def test_num_bytes_is_what_the_tensors_take() -> None:
    held = dynamic("llama-gqa", random_ids(10))
    assert held.num_bytes == 4 * 2 * 256 * 2 * 8 * 4
    assert dynamic("llama-gqa").num_bytes == 0


def test_a_cache_of_kind_none_keeps_nothing() -> None:
    held = make_session_cache(tiny_model("llama-gqa"), "none")
    assert not held.keeps_tokens
    held.advance([1, 2, 3])
    assert (held.num_tokens, held.num_bytes, held.repair()) == (0, 0, 0)
    assert held.align([1, 2, 3]) == Alignment(0, 0, MissReason.NO_CACHE)
    assert not held.fork(0).keeps_tokens


def test_auto_means_dynamic() -> None:
    assert resolve_kind(facts_of(tiny_model("mistral").config, "cpu"), "auto") == "dynamic"


@pytest.mark.parametrize("kind", ["offloaded", "static", "paged", ""])
def test_kinds_that_cannot_be_had_are_refused_by_name(kind: str) -> None:
    with pytest.raises(UnsupportedOptionError, match=repr(kind)):
        make_session_cache(tiny_model("llama-gqa"), kind)


def test_every_kind_the_design_names_is_known() -> None:
    assert {"dynamic", "offloaded", "quantized-int8", "quantized-int4", "quantized-fp8", "static", "none"} <= set(KINDS)


@pytest.mark.parametrize(
    ("layer_types", "device_type", "kind", "refusal"),
    [
        (("full_attention",), "cpu", "dynamic", None),
        (("full_attention",), "cpu", "quantized-int8", None),
        (("sliding_attention", "full_attention"), "cpu", "quantized-int4", None),
        (("linear_attention", "full_attention"), "cpu", "quantized-int8", None),
        (("linear_attention",), "cpu", "quantized-int8", "no attention layers"),
        (("full_attention", "indexed_attention"), "cpu", "quantized-int8", "indexed_attention"),
        (("indexed_attention",), "cpu", "dynamic", None),
        (("full_attention",), "cpu", "offloaded", "on a CPU"),
        (("full_attention",), "cpu", "none", None),
        (("full_attention",), "cuda", "offloaded", None),
        (("full_attention",), "mps", "offloaded", "memory of its own"),
        (("full_attention",), "cuda", "offloaded-non-sliding", "choose offloaded"),
        (("full_attention", "sliding_attention"), "cuda", "offloaded", "choose offloaded-non-sliding"),
        (("full_attention", "sliding_attention"), "cuda", "offloaded-non-sliding", None),
        (("full_attention", "linear_attention"), "cuda", "offloaded", "linear_attention"),
        (("sliding_attention",), "cuda", "offloaded-non-sliding", "sliding_attention"),
    ],
)
def test_the_table_of_kinds_says_what_fits_and_why_not(
    layer_types: tuple[str, ...], device_type: str, kind: str, refusal: str | None
) -> None:
    table = {fit.kind: fit.refusal for fit in table_of_kinds(ModelFacts(layer_types, device_type))}
    assert list(table) == list(KINDS)
    if refusal is None:
        assert table[kind] is None
    else:
        assert refusal in table[kind]
