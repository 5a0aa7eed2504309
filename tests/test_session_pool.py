"""Which cache a turn gets: its session's own, a copy of what the owner's other sessions hold, or an empty one."""

from __future__ import annotations

import dataclasses
import logging
from functools import partial

import pytest
import torch

from chatcache.acquired import Acquired
from chatcache.cache.kinds import make_session_cache
from chatcache.cache.offloaded_layer import HOME, OffloadedLayer
from chatcache.cache.session_cache import SessionCache
from chatcache.cache_form import CacheForm
from chatcache.live_caches import Spilled
from chatcache.session_key import SessionKey
from chatcache.session_pool import SessionPool
from chatcache.stats import MissReason, Reuse
from tests.tiny_models import random_ids, tiny_model

A = tuple(random_ids(30, seed=1))
B = tuple(random_ids(30, seed=2))


def anns(session_id: str) -> SessionKey:
    return SessionKey("ann", session_id)


def pool_of(model_name: str = "llama-gqa", kind: str = "dynamic") -> SessionPool:
    return SessionPool(partial(make_session_cache, tiny_model(model_name)), CacheForm(kind))


def feed(cache: SessionCache, ids: tuple[int, ...], model_name: str = "llama-gqa") -> None:
    with torch.inference_mode():
        tiny_model(model_name)(input_ids=torch.tensor([ids]), cache=cache.cache, use_cache=True)
    cache.advance(ids)


def run_turn(pool: SessionPool, owner: str, session_id: str, ids: tuple[int, ...], **kwargs: str) -> Acquired:
    """Acquire, compute all of `ids`, release."""
    key = SessionKey(owner, session_id)
    acquired = pool.acquire(key, ids)
    feed(acquired.cache, ids[acquired.cache.num_tokens :], **kwargs)
    pool.release(key)
    return acquired


def test_a_session_gets_its_own_cache_back_aligned() -> None:
    pool = pool_of()
    first = run_turn(pool, "ann", "s", A[:20])
    assert first.reuse == ()
    assert first.alignment.reason is MissReason.NO_CACHE
    second = pool.acquire(anns("s"), A)
    assert second.cache is first.cache
    assert second.reuse == (Reuse("live", 20),)
    assert (second.alignment.num_cached_tokens, second.alignment.reason) == (20, None)


def test_one_wanted_token_is_always_left_to_forward() -> None:
    pool = pool_of()
    run_turn(pool, "ann", "s", A)
    assert pool.acquire(anns("s"), A).cache.num_tokens == len(A) - 1
    assert pool.acquire(anns("fork"), A).cache.num_tokens == len(A) - 1


def test_a_session_without_a_cache_gets_a_copy_of_the_longest_beginning() -> None:
    pool = pool_of()
    run_turn(pool, "ann", "short", A[:10])
    run_turn(pool, "ann", "long", A[:20])
    got = pool.acquire(anns("new"), A)
    assert got.reuse == (Reuse("prefix", 20),)
    assert (got.alignment.mismatch_index, got.alignment.reason) == (20, MissReason.NO_CACHE)
    feed(got.cache, A[20:])
    kept = {live.session_id: live.num_tokens for live in pool.report()}
    assert kept == {"short": 10, "long": 20, "new": 30}


def test_a_copy_computes_on_exactly_like_its_origin() -> None:
    pool, model = pool_of(), tiny_model("llama-gqa")
    origin = run_turn(pool, "ann", "origin", A[:20]).cache
    copy = pool.acquire(anns("new"), A).cache
    with torch.inference_mode():
        logits = [
            model(input_ids=torch.tensor([A[20:]]), cache=cache.cache, use_cache=True).logits
            for cache in (origin, copy)
        ]
    assert torch.equal(*logits)


def test_another_session_that_holds_more_wins_over_the_own_cache() -> None:
    pool = pool_of()
    run_turn(pool, "ann", "own", (*A[:5], *B))
    run_turn(pool, "ann", "other", A[:20])
    got = pool.acquire(anns("own"), A)
    assert got.reuse == (Reuse("prefix", 20),)
    assert got.alignment.reason is MissReason.HISTORY


def test_the_own_cache_wins_when_no_other_holds_more() -> None:
    pool = pool_of()
    own = run_turn(pool, "ann", "own", A[:20]).cache
    run_turn(pool, "ann", "other", (*A[:20], *B))
    got = pool.acquire(anns("own"), A)
    assert got.cache is own
    assert got.reuse == (Reuse("live", 20),)


def test_a_cache_in_use_by_a_turn_can_be_copied_but_not_acquired_twice() -> None:
    pool = pool_of()
    running = pool.acquire(anns("busy"), A[:20])
    feed(running.cache, A[:20])
    assert pool.acquire(anns("new"), A).reuse == (Reuse("prefix", 20),)
    with pytest.raises(RuntimeError, match="in use"):
        pool.acquire(anns("busy"), A)
    pool.release(anns("busy"))
    assert pool.acquire(anns("busy"), A).reuse == (Reuse("live", 20),)


def test_another_owners_caches_are_never_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = pool_of()
    eves = run_turn(pool, "eve", "s", A).cache
    monkeypatch.setattr(type(eves), "fork", lambda *_: pytest.fail("copied"))
    looked_at: list[SessionCache] = []
    original = type(eves).token_ids.fget
    monkeypatch.setattr(type(eves), "token_ids", property(lambda self: (looked_at.append(self), original(self))[1]))
    for session_id in ("s", "new"):
        got = pool.acquire(anns(session_id), A)
        assert got.cache is not eves
        assert (got.reuse, got.cache.num_tokens) == ((), 0)
    assert looked_at, "the spy must see that the second session looks at the first one's cache"
    assert eves not in looked_at


def test_the_report_tells_size_and_use_least_recently_used_first() -> None:
    pool = pool_of()
    for name in ("a", "b", "c"):
        run_turn(pool, "ann", name, A[:10])
    pool.acquire(anns("a"), A)
    report = pool.report()
    assert [(live.session_id, live.is_pinned) for live in report] == [("b", False), ("c", False), ("a", True)]
    assert all(live.owner == "ann" and live.kind == "dynamic" and live.num_tokens == 10 for live in report)
    assert all(live.num_bytes > 0 for live in report)
    pool.acquire(anns("b"), A)
    pool.release(anns("a"))
    assert [live.session_id for live in pool.report()] == ["c", "b", "a"]


def test_a_dropped_cache_is_gone_and_a_turn_that_uses_it_does_not_bring_it_back() -> None:
    pool = pool_of()
    run_turn(pool, "ann", "s", A)
    pool.drop(anns("s"))
    pool.drop(anns("never-there"))
    assert pool.report() == ()
    acquired = pool.acquire(anns("s"), A)
    feed(acquired.cache, A)
    pool.drop(anns("s"))
    assert acquired.cache.num_tokens == len(A)
    pool.release(anns("s"))
    assert pool.report() == ()
    assert pool.acquire(anns("s"), A).reuse == ()


def test_dropping_a_session_leaves_another_owners_session_of_the_same_id() -> None:
    pool = pool_of()
    run_turn(pool, "ann", "s", A)
    run_turn(pool, "bob", "s", A)
    pool.drop(anns("s"))
    assert [live.owner for live in pool.report()] == ["bob"]


def test_without_a_cache_nothing_is_held_and_nothing_is_reported() -> None:
    pool = pool_of(kind="none")
    acquired = pool.acquire(anns("s"), A)
    acquired.cache.advance(A)
    pool.release(anns("s"))
    assert pool.report() == ()
    assert pool.acquire(anns("new"), A).alignment.reason is MissReason.NO_CACHE


def test_a_copy_that_fails_costs_computing_not_the_turn(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pool = pool_of()
    donor = run_turn(pool, "ann", "donor", A[:20]).cache
    monkeypatch.setattr(type(donor), "fork", lambda *_: (_ for _ in ()).throw(MemoryError()))
    with caplog.at_level(logging.ERROR):
        got = pool.acquire(anns("new"), A)
    assert (got.cache.num_tokens, got.reuse) == (0, ())
    assert "could not be copied" in caplog.text


def test_a_cache_that_is_half_in_another_form_is_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = pool_of()
    donor = run_turn(pool, "ann", "donor", A[:20]).cache
    assert donor.cache is not None
    layers = [OffloadedLayer(HOME) for _ in donor.cache.layers]
    monkeypatch.setattr(layers[1], "append", lambda *_: (_ for _ in ()).throw(MemoryError()))
    with pytest.raises(MemoryError):
        donor.convert("offloaded", lambda: layers)
    assert donor.is_pure
    assert pool.acquire(anns("new"), A).cache.num_tokens == 0


def test_a_damaged_cache_is_replaced_by_an_empty_one(caplog: pytest.LogCaptureFixture) -> None:
    pool = pool_of()
    damaged = run_turn(pool, "ann", "s", A[:20]).cache
    assert damaged.cache is not None
    damaged.cache.layers[1].crop_to(5)
    with caplog.at_level(logging.ERROR):
        got = pool.acquire(anns("s"), (*A[:10], *B))
    assert got.cache is not damaged
    assert (got.cache.num_tokens, got.reuse) == (0, ())
    assert "damaged" in caplog.text


def test_a_recurrent_cache_is_reused_and_copied_whole_but_not_where_no_state_is_kept() -> None:
    pool = pool_of("falcon-h1")
    run_turn(pool, "ann", "s", A[:20], model_name="falcon-h1")
    assert pool.acquire(anns("other"), [*A[:10], *B]).reuse == ()
    assert pool.acquire(anns("new"), A).reuse == (Reuse("prefix", 20),)
    assert pool.acquire(anns("s"), A).reuse == (Reuse("live", 20),)


def test_a_session_whose_cache_could_not_be_prepared_can_be_acquired_again(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = pool_of()
    run_turn(pool, "ann", "s", A[:20])
    with monkeypatch.context() as patched:
        patched.setattr(SessionCache, "align", lambda *_: (_ for _ in ()).throw(RuntimeError("injected")))
        with pytest.raises(RuntimeError, match="injected"):
            pool.acquire(anns("s"), A)
    assert pool.acquire(anns("s"), A).reuse == (Reuse("live", 20),)


def test_a_turn_that_waited_is_not_told_again_of_what_left_when_it_began() -> None:
    pool = pool_of()
    acquired = dataclasses.replace(pool.acquire(anns("s"), A), spilled=Spilled(2, 1))
    feed(acquired.cache, A[:-1])
    pool.live.turns.wait(SessionKey("ann", "s"))
    assert pool.go_on(anns("s"), acquired, A).spilled == Spilled()
