"""The segment index as SQL: namespaces, segments and their files, inside an open transaction."""

from __future__ import annotations

import functools
import secrets
from collections.abc import Collection, Mapping, Sequence, Set
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import (
    ColumnElement,
    LargeBinary,
    Row,
    Select,
    SQLColumnExpression,
    and_,
    bindparam,
    delete,
    func,
    select,
    update,
)
from sqlalchemy.orm import Session as DbSession
from sqlalchemy.orm import aliased

from storage.batches import in_batches
from storage.eviction import StoredNode, nearest_left
from storage.segment_chain import FoundSegment, IndexedFile, with_true_keys
from storage.segment_files import WrittenFile
from storage.segment_format import FileKind
from storage.segment_heads import read_heads
from storage.segment_models import NamespaceRow, OwnerSaltRow, SegmentFileRow, SegmentHeadRow, SegmentRow

_UNKNOWN = WrittenFile(0, "")


@dataclass(frozen=True, slots=True)
class SegmentNames:
    """A segment to be inserted, with the files that were written for it."""

    key: str
    start: int
    token_ids: bytes
    files: Mapping[FileKind, WrittenFile]


def ensure_salt(db: DbSession, owner: str) -> str:
    """The owner's salt, drawn the first time."""
    row = db.get(OwnerSaltRow, owner)
    if row is None:
        row = OwnerSaltRow(owner=owner, salt=secrets.token_hex(32))
        db.add(row)
        db.flush()
    return row.salt


def ensure_namespace(db: DbSession, owner: str, root: str, description: str) -> int:
    """The id of the namespace with this root."""
    row = db.scalar(select(NamespaceRow).where(NamespaceRow.root == root))
    if row is None:
        row = NamespaceRow(owner=owner, root=root, description=description)
        db.add(row)
        db.flush()
    return row.id


def find_along(db: DbSession, namespace_id: int, wanted: bytes) -> list[FoundSegment]:
    """Every stored segment that begins as `wanted` (ids as u32le) does where it stands, and whose ancestors do so up
    to where it begins. One query, parent to children."""
    rows = db.execute(_along(), {"namespace_id": namespace_id, "wanted": wanted})
    return [
        FoundSegment(id_, parent_id, key, start, token_ids, has_state, WrittenFile(num_bytes, digest))
        for id_, parent_id, key, start, token_ids, has_state, num_bytes, digest in rows
    ]


@functools.cache
def _along() -> Select[int, int | None, str, int, bytes, bool, int, str]:
    """The query of `find_along`. To build it takes longer than to run it, so it is built once."""
    tokens = bindparam("wanted", type_=LargeBinary)
    file, state = aliased(SegmentFileRow), aliased(SegmentFileRow)
    kv_file = (file.segment_id == SegmentRow.id, file.kind == FileKind.KV)
    columns = (
        *(SegmentRow.id, SegmentRow.parent_id, SegmentRow.key, SegmentRow.start, SegmentRow.token_ids),
        *(file.num_bytes, file.digest),
    )
    walk = (
        select(*columns)
        .join(file, and_(*kv_file))
        .where(SegmentRow.namespace_id == bindparam("namespace_id"), SegmentRow.parent_id.is_(None))
        .where(SegmentRow.start == 0, _slice(SegmentRow.token_ids, 0, 1) == _slice(tokens, 0, 1))
        .cte("walk", recursive=True)
    )
    inside = SegmentRow.start - walk.c.start
    walk = walk.union_all(
        select(*columns)
        .join(walk, SegmentRow.parent_id == walk.c.id)
        .join(file, and_(*kv_file))
        .where(SegmentRow.start * 4 < func.length(tokens))
        .where(_slice(SegmentRow.token_ids, 0, 1) == _slice(tokens, SegmentRow.start, 1))
        .where(_slice(walk.c.token_ids, 0, inside) == _slice(tokens, walk.c.start, inside))
    )
    has_state = select(state.segment_id).where(state.segment_id == walk.c.id, state.kind == FileKind.STATE).exists()
    segment = (walk.c.id, walk.c.parent_id, walk.c.key, walk.c.start, walk.c.token_ids)
    return select(*segment, has_state, walk.c.num_bytes, walk.c.digest)


def _slice(
    ids: SQLColumnExpression[bytes], first: SQLColumnExpression[int] | int, count: SQLColumnExpression[int] | int
) -> ColumnElement[bytes]:
    return func.substr(ids, first * 4 + 1, count * 4, type_=LargeBinary)


def find_segment_id(db: DbSession, key: str) -> int | None:
    return db.scalar(_id_of_key(), {"key": key})


def find_file_kinds(db: DbSession, key: str) -> set[FileKind]:
    """Which files of the segment with this key are stored."""
    return {FileKind(kind) for kind in db.scalars(_kinds_of_key(), {"key": key})}


@functools.cache
def _id_of_key() -> Select[int]:
    return select(SegmentRow.id).where(SegmentRow.key == bindparam("key"))


@functools.cache
def _kinds_of_key() -> Select[str]:
    return (
        select(SegmentFileRow.kind)
        .join(SegmentRow, SegmentRow.id == SegmentFileRow.segment_id)
        .where(SegmentRow.key == bindparam("key"))
    )


def find_segment_ids(db: DbSession, keys: Collection[str]) -> list[int]:
    """The ids of the segments with these keys; unknown keys are left out."""
    return [
        segment_id
        for batch in in_batches(list(keys))
        for segment_id in db.scalars(select(SegmentRow.id).where(SegmentRow.key.in_(batch)))
    ]


def find_known_keys(db: DbSession, keys: Collection[str]) -> set[str]:
    """Those of the keys that are a segment's."""
    statement = select(SegmentRow.key)
    return {key for batch in in_batches(list(keys)) for key in db.scalars(statement.where(SegmentRow.key.in_(batch)))}


def find_file(db: DbSession, namespace_id: int, key: str, kind: FileKind) -> IndexedFile | None:
    """One indexed file of a namespace's segment."""
    row = db.execute(_one_file(), {"namespace_id": namespace_id, "key": key, "kind": kind}).first()
    return None if row is None else _indexed_file(row)


def find_files(db: DbSession, *conditions: ColumnElement[bool]) -> list[IndexedFile]:
    """The indexed files that meet the conditions, by segment."""
    statement = _files().where(*conditions).order_by(SegmentRow.id, SegmentFileRow.kind)
    return [_indexed_file(row) for row in db.execute(statement)]


@functools.cache
def _one_file() -> Select[*tuple[Any, ...]]:
    """The query of `find_file`. To build it takes longer than to run it, so it is built once."""
    return _files().where(
        SegmentRow.namespace_id == bindparam("namespace_id"),
        SegmentRow.key == bindparam("key"),
        SegmentFileRow.kind == bindparam("kind"),
    )


def _files() -> Select[*tuple[Any, ...]]:
    parent = aliased(SegmentRow)
    return (
        select(
            SegmentRow.id,
            SegmentFileRow.kind,
            NamespaceRow.root,
            func.coalesce(parent.key, NamespaceRow.root),
            SegmentRow.key,
            SegmentRow.start,
            SegmentRow.token_ids,
            SegmentFileRow.num_bytes,
            SegmentFileRow.digest,
        )
        .join(SegmentRow, SegmentRow.id == SegmentFileRow.segment_id)
        .join(NamespaceRow, NamespaceRow.id == SegmentRow.namespace_id)
        .outerjoin(parent, parent.id == SegmentRow.parent_id)
    )


def _indexed_file(row: Row[*tuple[Any, ...]]) -> IndexedFile:
    segment_id, kind, root, parent_key, key, start, token_ids, num_bytes, digest = row
    written = WrittenFile(num_bytes, digest)
    return IndexedFile(segment_id, FileKind(kind), root, parent_key, key, start, token_ids, written)


def find_file_sizes(db: DbSession, segment_ids: Sequence[int]) -> list[tuple[str, FileKind, int]]:
    """(key, kind, bytes) of every file of these segments."""
    statement = select(SegmentRow.key, SegmentFileRow.kind, SegmentFileRow.num_bytes).join(
        SegmentRow, SegmentRow.id == SegmentFileRow.segment_id
    )
    return [
        (key, FileKind(kind), num_bytes)
        for ids in in_batches(segment_ids)
        for key, kind, num_bytes in db.execute(statement.where(SegmentRow.id.in_(ids)))
    ]


def insert_segments(
    db: DbSession, namespace_id: int, parent_id: int | None, segments: Sequence[SegmentNames], now: datetime
) -> int | None:
    """The rows of a chain below `parent_id`; those that are there already are put right where they were changed.
    Returns the last one's id."""
    for segment in segments:
        segment_id = find_segment_id(db, segment.key)
        values = {
            "namespace_id": namespace_id,
            "parent_id": parent_id,
            "start": segment.start,
            "token_ids": segment.token_ids,
        }
        if segment_id is None:
            row = SegmentRow(key=segment.key, **values, last_used_at=now)
            db.add(row)
            db.flush()
            segment_id = row.id
        else:
            db.execute(update(SegmentRow).where(SegmentRow.id == segment_id).values(values))
        for kind, written in segment.files.items():
            db.add(SegmentFileRow(segment_id=segment_id, kind=kind, num_bytes=written.num_bytes, digest=written.digest))
        parent_id = segment_id
    return parent_id


def leads_to(db: DbSession, segment_id: int, ends: Set[int], num_states: int) -> bool:
    """Whether one of `ends` lies below the segment, with fewer than `num_states` stored recurrent states between."""
    state = and_(SegmentFileRow.segment_id == SegmentRow.id, SegmentFileRow.kind == FileKind.STATE)
    children = select(SegmentRow.id, SegmentRow.parent_id, SegmentFileRow.segment_id).outerjoin(SegmentFileRow, state)
    num_passed: dict[int | None, int] = {segment_id: 0}
    here = [segment_id]
    while here:
        below: list[int] = []
        for ids in in_batches(here):
            for child_id, parent_id, state_of in db.execute(children.where(SegmentRow.parent_id.in_(ids))):
                if child_id in ends:
                    return True
                num = num_passed[parent_id] + (state_of is not None)
                if num < num_states and child_id not in num_passed:
                    num_passed[child_id] = num
                    below.append(child_id)
        here = below
    return False


def remove_file_row(db: DbSession, segment_id: int, kind: FileKind) -> None:
    db.execute(delete(SegmentFileRow).where(SegmentFileRow.segment_id == segment_id, SegmentFileRow.kind == kind))


def read_nodes(db: DbSession) -> dict[int, StoredNode]:
    """Every segment with the bytes of its files."""
    num_bytes = func.coalesce(func.sum(SegmentFileRow.num_bytes), 0)
    statement = (
        select(SegmentRow.id, SegmentRow.parent_id, num_bytes, SegmentRow.last_used_at)
        .outerjoin(SegmentFileRow, SegmentFileRow.segment_id == SegmentRow.id)
        .group_by(SegmentRow.id)
    )
    return {row[0]: StoredNode(*row) for row in db.execute(statement)}


def remove_segments(db: DbSession, nodes: Mapping[int, StoredNode], segment_ids: Sequence[int]) -> None:
    """Remove rows, children before parents. Holds on them move up to what is left, so that it stays held."""
    gone = set(segment_ids)
    for head in read_heads(db):
        if head.segment_id not in gone:
            continue
        above = nearest_left(nodes, head.segment_id, gone)
        db.delete(head)
        if above is not None and db.get(SegmentHeadRow, (head.session_id, above)) is None:
            db.add(SegmentHeadRow(session_id=head.session_id, segment_id=above, owner=head.owner))
        db.flush()
    for ids in in_batches(segment_ids):
        db.execute(delete(SegmentRow).where(SegmentRow.id.in_(ids)))


def remove_untrue_segments(db: DbSession) -> int:
    """Remove segments whose row was changed, or whose parent's row is gone, with all below them.

    Only a damaged database has any. Saved again they get their rows anew, which rows with wrong ids would prevent.
    """
    for row_type in (SegmentFileRow, SegmentHeadRow):
        # An id is given out again; what was left under it must not come with it.
        db.execute(delete(row_type).where(row_type.segment_id.not_in(select(SegmentRow.id))))
    true: set[int] = set()
    for namespace_id, root in db.execute(select(NamespaceRow.id, NamespaceRow.root)).all():
        columns = (SegmentRow.id, SegmentRow.parent_id, SegmentRow.key, SegmentRow.start, SegmentRow.token_ids)
        rows = db.execute(select(*columns).where(SegmentRow.namespace_id == namespace_id))
        found = [FoundSegment(*row, has_state=False, written=_UNKNOWN) for row in rows]
        true.update(with_true_keys(found, root))
    nodes = read_nodes(db)
    untrue = sorted(set(nodes) - true)
    for ids in in_batches(untrue):
        db.execute(update(SegmentRow).where(SegmentRow.id.in_(ids)).values(parent_id=None))
    remove_segments(db, nodes, untrue)
    return len(untrue)
