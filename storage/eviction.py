"""Which segments go when room is needed, and which nothing reaches: pure decisions on the tree of segments."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True)
class StoredNode:
    """A segment as the decisions see it; `num_bytes` of all its files, 0 where it has none."""

    id: int
    parent_id: int | None
    num_bytes: int
    last_used_at: datetime


def with_ancestors(nodes: Mapping[int, StoredNode], ids: Iterable[int]) -> set[int]:
    """These nodes and all above them."""
    reached: set[int] = set()
    for node_id in ids:
        here: int | None = node_id
        while here is not None and here not in reached and here in nodes:
            reached.add(here)
            here = nodes[here].parent_id
    return reached


def choose_victims(
    nodes: Mapping[int, StoredNode],
    protected: Iterable[int],
    num_bytes: int,
    num_more_bytes: int = 0,
    *,
    wanted: Iterable[int] = (),
) -> Sequence[int]:
    """Segments to remove, children before parents, so that `num_bytes` become free, or as many as can; of the next ones
    as many as take no more than `num_more_bytes` beyond that.

    Only leaves go, those longest unused first; a parent becomes a leaf when its last child has gone. `protected`
    segments and their ancestors stay. `wanted` ones and their ancestors go only when all others have gone.
    """
    kept, later = with_ancestors(nodes, protected), with_ancestors(nodes, wanted)
    num_children = Counter(node.parent_id for node in nodes.values() if node.parent_id is not None)
    leaves = [
        (node.id in later, node.last_used_at, node.id)
        for node in nodes.values()
        if not num_children[node.id] and node.id not in kept
    ]
    heapq.heapify(leaves)
    victims: list[int] = []
    freed = 0
    while leaves:
        *_, node_id = heapq.heappop(leaves)
        node = nodes[node_id]
        # the row of a segment without bytes counts as one, else it would always be among the ones that cost nothing
        taken = freed + max(1, node.num_bytes)
        if freed >= num_bytes and (num_bytes <= 0 or taken > num_bytes + num_more_bytes):
            break
        victims.append(node_id)
        freed += node.num_bytes
        parent_id = node.parent_id
        if parent_id is not None and parent_id in nodes:
            num_children[parent_id] -= 1
            if not num_children[parent_id] and parent_id not in kept:
                heapq.heappush(leaves, (parent_id in later, nodes[parent_id].last_used_at, parent_id))
    return victims


def unreachable(nodes: Mapping[int, StoredNode], heads: Iterable[int]) -> Sequence[int]:
    """The segments that are neither a head nor above one, children before parents."""
    reached = with_ancestors(nodes, heads)
    lost = {node_id: node for node_id, node in nodes.items() if node_id not in reached}
    return choose_victims(lost, (), sum(node.num_bytes for node in lost.values()) + 1)


def nearest_left(nodes: Mapping[int, StoredNode], node_id: int, gone: Collection[int]) -> int | None:
    """The nearest ancestor that is not `gone`, if there is one."""
    seen: set[int] = set()
    here = nodes[node_id].parent_id
    while here is not None and here in gone and here in nodes and here not in seen:
        seen.add(here)
        here = nodes[here].parent_id
    return None if here is None or here in gone or here not in nodes else here


def without_files(nodes: Mapping[int, StoredNode]) -> Sequence[int]:
    """The segments that have no bytes on disk, nor has anything below them; children before parents."""
    useful = with_ancestors(nodes, [node.id for node in nodes.values() if node.num_bytes])
    return choose_victims({node_id: node for node_id, node in nodes.items() if node_id not in useful}, (), 1)
