"""What may be held together, and who leaves when room is needed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chatcache.memory.budget import Budget, IdleCache, Need, choose_spills


def budget(limit: int, **held: int) -> Budget:
    """Caches without layers to speak of, by name."""
    made = Budget(limit)
    for key, num_bytes in held.items():
        made.hold(key, Need(num_bytes))
    return made


@pytest.mark.parametrize(
    ("held", "need", "fits"),
    [
        ({}, Need(100), True),
        ({}, Need(101), False),
        ({"a": 60}, Need(40), True),
        ({"a": 60}, Need(41), False),
        ({"mine": 60}, Need(100), True),
        ({"mine": 60, "a": 40}, Need(61), False),
        ({}, Need(90, largest_layer_bytes=10), True),
        ({}, Need(90, largest_layer_bytes=11), False),
    ],
)
def test_what_fits_is_what_all_hold_together_with_one_layer_free(held: dict[str, int], need: Need, fits: bool) -> None:
    made = budget(100, **held)
    assert made.fits("mine", need) is fits
    before = made.reserved_bytes
    assert made.reserve("mine", need) is fits
    assert made.reserved_bytes == (before - held.get("mine", 0) + need.num_bytes if fits else before)


def test_another_caches_layer_is_kept_free_too() -> None:
    made = Budget(100)
    assert made.reserve("a", Need(50, largest_layer_bytes=25))
    assert not made.reserve("b", Need(30))
    assert made.reserve("b", Need(25))


def test_what_lies_in_ram_beside_an_accelerator_has_a_limit_of_its_own() -> None:
    made = Budget(100, host_limit_bytes=50)
    assert made.reserve("a", Need(10, host_bytes=30))
    assert not made.reserve("b", Need(10, host_bytes=21))
    idle = [IdleCache("a", made.held("a"))]
    assert choose_spills(made, "b", Need(10, host_bytes=21), idle) == ("a",)
    assert choose_spills(made, "b", Need(10, host_bytes=51), idle) == ()
    assert made.reserve("b", Need(10, host_bytes=20))
    assert made.reserve("a", Need(10, host_bytes=29))


def test_holding_less_always_fits_and_release_gives_all_back() -> None:
    made = budget(100, a=90, b=90)
    assert made.reserve("a", Need(80))
    assert made.reserved_bytes == 170
    made.release("a")
    made.release("never-there")
    assert made.reserved_bytes == 90


@pytest.mark.parametrize(
    ("num_bytes", "expected"),
    [
        (40, ()),
        (41, ("old",)),
        (50, ("old",)),
        (51, ("old", "middle")),
        (80, ("old", "middle", "new")),
        (91, ()),
    ],
)
def test_the_least_recently_used_leave_and_no_more_than_needed(num_bytes: int, expected: tuple[str, ...]) -> None:
    made = budget(100, old=10, middle=20, new=20, pinned=10)
    idle = [IdleCache(key, made.held(key)) for key in ("old", "middle", "new")]
    assert choose_spills(made, "mine", Need(num_bytes), idle) == expected


def test_an_idle_cache_that_holds_nothing_stays() -> None:
    made = budget(100, empty=0, old=100)
    idle = [IdleCache(key, made.held(key)) for key in ("empty", "old")]
    assert choose_spills(made, "mine", Need(50), idle) == ("old",)


@given(
    limit=st.integers(0, 200),
    held=st.dictionaries(st.sampled_from("abcdef"), st.tuples(st.integers(0, 60), st.integers(0, 20)), max_size=6),
    wanted=st.tuples(st.integers(0, 200), st.integers(0, 20)),
)
def test_after_the_chosen_left_it_fits_or_nobody_was_asked_to_leave(
    limit: int, held: dict[str, tuple[int, int]], wanted: tuple[int, int]
) -> None:
    made, need = Budget(limit), Need(*wanted)
    for key, (num_bytes, layer) in held.items():
        made.hold(key, Need(num_bytes, min(layer, num_bytes)))
    chosen = choose_spills(made, "mine", need, [IdleCache(key, made.held(key)) for key in held])
    for key in chosen:
        made.release(key)
    assert made.reserve("mine", need) or not chosen
    if not chosen and not made.fits("mine", need):
        assert not made.fits("mine", need, without=list(held))
    assert made.reserved_bytes <= limit or not chosen
