"""What the segment store tells about itself: plain values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from storage.eviction import StoredNode, with_ancestors


@dataclass(frozen=True, slots=True)
class SegmentReport:
    """What is stored for an owner's sessions, in bytes.

    `session_bytes` counts what each session holds, also what it shares; `shared_bytes` are held by several, once.
    `used_bytes` and `set_aside_bytes` are the whole folder's, all owners together.
    """

    quota_bytes: int
    used_bytes: int
    set_aside_bytes: int
    num_segments: int
    num_bytes: int
    shared_bytes: int
    session_bytes: Mapping[str, int]


def holdings(nodes: Mapping[int, StoredNode], heads: Iterable[tuple[str, int]]) -> tuple[dict[str, int], set[int], int]:
    """From (session, held segment) pairs: bytes by session, all segments held, and bytes held by more than one."""
    ends: dict[str, list[int]] = {}
    for session_id, segment_id in heads:
        ends.setdefault(session_id, []).append(segment_id)
    held = {session_id: with_ancestors(nodes, ids) for session_id, ids in ends.items()}
    counts = Counter(segment_id for ids in held.values() for segment_id in ids)
    by_session = {session_id: sum(nodes[each].num_bytes for each in ids) for session_id, ids in held.items()}
    shared = sum(nodes[segment_id].num_bytes for segment_id, count in counts.items() if count > 1)
    return by_session, set(counts), shared
