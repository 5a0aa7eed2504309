"""How far stored segments reach along given tokens: a pure choice among what the index found."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from storage.segment_files import WrittenFile
from storage.segment_format import FileKind
from storage.segment_keys import segment_key


@dataclass(frozen=True, slots=True)
class IndexedFile:
    """A file as the index knows it, with the segment it belongs to. `parent_key` is the root at the beginning."""

    segment_id: int
    kind: FileKind
    root: str
    parent_key: str
    key: str
    start: int
    token_ids: bytes
    written: WrittenFile


@dataclass(frozen=True, slots=True)
class FoundSegment:
    """A segment whose KV is stored, as the index has it. Ids are u32le; `parent_id` None: at the beginning."""

    id: int
    parent_id: int | None
    key: str
    start: int
    token_ids: bytes
    has_state: bool
    written: WrittenFile

    @property
    def end(self) -> int:
        return self.start + len(self.token_ids) // 4


@dataclass(frozen=True, slots=True)
class SegmentPart:
    """The first `num_tokens` tokens of a stored segment, whose KV is in `file`; they stand at `start` of the prompt.
    `has_state`: the recurrent state behind the last of them is stored too."""

    file: IndexedFile
    num_tokens: int
    is_whole: bool
    has_state: bool = False

    @property
    def key(self) -> str:
        return self.file.key

    @property
    def start(self) -> int:
        return self.file.start


@dataclass(frozen=True, slots=True)
class StoredPrefix:
    """Stored segments that, part after part, hold the KV of the first `num_tokens` tokens. `has_state`: the recurrent
    state after the last of them is stored too."""

    num_tokens: int
    parts: tuple[SegmentPart, ...]
    has_state: bool


EMPTY_PREFIX = StoredPrefix(0, (), False)


def num_common_tokens(one: bytes, other: bytes) -> int:
    """How many leading ids (u32le) two runs have in common."""
    low, high = 0, min(len(one), len(other)) // 4
    if one[: high * 4] == other[: high * 4]:
        return high
    while high - low > 1:
        middle = (low + high) // 2
        if one[low * 4 : middle * 4] == other[low * 4 : middle * 4]:
            low = middle
        else:
            high = middle
    return low


def choose_prefix(
    found: Iterable[FoundSegment], wanted: bytes, root: str, *, needs_state: bool, at_end: bool = False
) -> StoredPrefix:
    """The longest prefix of `wanted` (ids as u32le) that the found segments hold.

    A segment may be used in part, and a child continue from inside it. With `at_end` the prefix ends where a segment
    does. With `needs_state` only whole segments count, and the prefix ends where a state is stored. A segment whose key
    does not follow from its ids and its parent's key is passed over, with all below it.
    """
    sound = with_true_keys(found, root)
    best, best_end = None, 0
    for segment in sound.values():
        common = num_common_tokens(segment.token_ids, wanted[segment.start * 4 :])
        end = segment.start + common
        if end <= best_end or (at_end and end < segment.end):
            continue
        if not needs_state or (segment.has_state and _is_whole_to(segment, end, sound)):
            best, best_end = segment, end
    return EMPTY_PREFIX if best is None else _prefix(best, best_end, sound, root)


def with_true_keys(found: Iterable[FoundSegment], root: str) -> Mapping[int, FoundSegment]:
    """By id, the segments whose key follows from their ids, their place and an unbroken line of such parents."""
    sound: dict[int, FoundSegment] = {}
    # A damaged row may hold anything: SQLite's columns take values of every type.
    whole = (each for each in found if isinstance(each.token_ids, bytes) and isinstance(each.start, int))
    for segment in sorted(whole, key=lambda each: each.start):
        parent = None if segment.parent_id is None else sound.get(segment.parent_id)
        if segment.parent_id is None or (parent is not None and parent.start < segment.start <= parent.end):
            parent_key = root if parent is None else parent.key
            if segment.key == segment_key(parent_key, segment.start, segment.token_ids):
                sound[segment.id] = segment
    return sound


def _is_whole_to(segment: FoundSegment, end: int, sound: Mapping[int, FoundSegment]) -> bool:
    here: FoundSegment | None = segment
    while here is not None:
        if here.end != end:
            return False
        end = here.start
        here = None if here.parent_id is None else sound[here.parent_id]
    return True


def _prefix(last: FoundSegment, end: int, sound: Mapping[int, FoundSegment], root: str) -> StoredPrefix:
    parts: list[SegmentPart] = []
    here: FoundSegment | None = last
    part_end = end
    while here is not None:
        parent = None if here.parent_id is None else sound[here.parent_id]
        parent_key = root if parent is None else parent.key
        file = IndexedFile(here.id, FileKind.KV, root, parent_key, here.key, here.start, here.token_ids, here.written)
        is_whole = part_end == here.end
        parts.append(SegmentPart(file, part_end - here.start, is_whole, is_whole and here.has_state))
        part_end = here.start
        here = parent
    return StoredPrefix(end, tuple(reversed(parts)), last.has_state and end == last.end)
