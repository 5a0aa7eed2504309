"""What goes when room is needed: leaves, by last use, never what is open."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from storage.eviction import StoredNode, choose_victims, nearest_left, unreachable, with_ancestors, without_files

START = datetime(2025, 1, 1, tzinfo=UTC)


def tree(*rows: tuple[int, int | None, int, int]) -> dict[int, StoredNode]:
    """From (id, parent, bytes, minute of last use)."""
    return {row[0]: StoredNode(row[0], row[1], row[2], START + timedelta(minutes=row[3])) for row in rows}


#   1 ── 2 ── 4
#   │    └─── 5
#   └─── 3        6
FOREST = tree((1, None, 10, 9), (2, 1, 10, 9), (3, 1, 10, 1), (4, 2, 10, 5), (5, 2, 10, 9), (6, None, 10, 3))


@pytest.mark.parametrize(
    ("protected", "num_bytes", "victims"),
    [
        ([], 0, []),
        ([], 1, [3]),
        ([], 10, [3]),
        ([], 11, [3, 6]),
        ([], 30, [3, 6, 4]),
        ([], 50, [3, 6, 4, 5, 2]),
        ([], 1000, [3, 6, 4, 5, 2, 1]),
        ([4], 1000, [3, 6, 5]),
        ([3, 6], 20, [4, 5]),
        ([1], 1000, [3, 6, 4, 5, 2]),
        ([4, 5, 3, 6], 10, []),
    ],
)
def test_leaves_go_by_last_use_and_what_is_protected_stays(
    protected: list[int], num_bytes: int, victims: list[int]
) -> None:
    assert list(choose_victims(FOREST, protected, num_bytes)) == victims


@pytest.mark.parametrize(
    ("wanted", "num_bytes", "victims"),
    [
        ([3], 20, [6, 4]),
        ([3, 6], 20, [4, 5]),
        ([3, 6], 40, [4, 5, 2, 3]),
        ([2, 3, 4, 6], 1, [5]),
        ([4, 5, 3, 6], 20, [3, 6]),
    ],
)
def test_what_is_wanted_and_all_above_it_goes_last(wanted: list[int], num_bytes: int, victims: list[int]) -> None:
    assert list(choose_victims(FOREST, [], num_bytes, wanted=wanted)) == victims


@pytest.mark.parametrize(
    ("num_bytes", "num_more_bytes", "victims"),
    [(10, 9, [3]), (10, 10, [3, 6]), (5, 14, [3]), (5, 15, [3, 6]), (0, 100, []), (10, 1000, [3, 6, 4, 5, 2, 1])],
)
def test_more_goes_than_is_needed_as_far_as_that_was_allowed(
    num_bytes: int, num_more_bytes: int, victims: list[int]
) -> None:
    assert list(choose_victims(FOREST, [], num_bytes, num_more_bytes)) == victims


@pytest.mark.parametrize(
    ("heads", "lost"),
    [([4, 5, 3, 6], []), ([4], [3, 6, 5]), ([], [3, 6, 4, 5, 2, 1]), ([2], [3, 6, 4, 5]), ([99], [3, 6, 4, 5, 2, 1])],
)
def test_what_no_head_reaches_is_lost_children_first(heads: list[int], lost: list[int]) -> None:
    assert list(unreachable(FOREST, heads)) == lost


def test_segments_without_files_go_where_nothing_is_stored_below_them() -> None:
    nodes = tree((1, None, 0, 1), (2, 1, 5, 1), (3, 1, 0, 1), (4, 3, 0, 1), (5, None, 0, 1))
    assert sorted(without_files(nodes)) == [3, 4, 5]


@st.composite
def forests(draw: st.DrawFn) -> dict[int, StoredNode]:
    count = draw(st.integers(0, 12))
    rows = []
    for node_id in range(1, count + 1):
        parent = draw(st.sampled_from([None, *range(1, node_id)]))
        rows.append((node_id, parent, draw(st.integers(0, 20)), draw(st.integers(0, 5))))
    return tree(*rows)


@example(tree((1, None, 1, 0), (2, None, 0, 0)), set(), 1)
@given(forests(), st.sets(st.integers(1, 12), max_size=3), st.integers(0, 100))
def test_what_is_left_is_always_whole_chains_and_enough_is_freed_where_it_can_be(
    nodes: dict[int, StoredNode], protected: set[int], num_bytes: int
) -> None:
    victims = choose_victims(nodes, protected, num_bytes)
    left = set(nodes) - set(victims)
    assert len(set(victims)) == len(victims)
    assert all(nodes[node_id].parent_id in (left | {None}) for node_id in left)
    assert with_ancestors(nodes, protected & set(nodes)) <= left
    for index, victim in enumerate(victims):
        assert nodes[victim].parent_id not in victims[:index]
    freed = sum(nodes[victim].num_bytes for victim in victims)
    assert freed >= num_bytes or left == with_ancestors(nodes, protected & set(nodes))
    if victims:
        assert freed - nodes[victims[-1]].num_bytes < num_bytes


@pytest.mark.parametrize(
    ("node_id", "gone", "left"),
    [(4, {4}, 2), (4, {4, 2}, 1), (4, {4, 2, 1}, None), (6, {6}, None), (4, set(), 2)],
)
def test_a_hold_moves_up_to_the_nearest_segment_that_is_left(node_id: int, gone: set[int], left: int | None) -> None:
    assert nearest_left(FOREST, node_id, gone) == left


def test_a_circle_of_parents_in_a_damaged_index_ends_nowhere() -> None:
    circle = tree((1, 2, 1, 1), (2, 1, 1, 1))
    assert nearest_left(circle, 1, {1, 2}) is None
    assert with_ancestors(circle, [1]) == {1, 2}
