"""Whether what is in the segment folder is what the index says: checked file by file, and put in order."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sqlalchemy import ColumnElement, select
from sqlalchemy.orm import Session as DbSession

from storage.database import Database
from storage.errors import SegmentDamagedError
from storage.eviction import unreachable, without_files
from storage.segment_chain import IndexedFile
from storage.segment_files import TEMPORARY_SUFFIX, SegmentFolder
from storage.segment_format import (
    SegmentHeader,
    StoredTensor,
    TensorLayout,
    check_layout,
    decode_segment,
    encode_segment,
)
from storage.segment_heads import read_heads
from storage.segment_index import (
    find_files,
    read_nodes,
    remove_file_row,
    remove_segments,
    remove_untrue_segments,
)
from storage.segment_keys import segment_key
from storage.segment_models import NamespaceRow, SegmentRow

if TYPE_CHECKING:
    from typing_extensions import Buffer


@dataclass(frozen=True, slots=True)
class SweepReport:
    """What a sweep found and put in order. `num_kept_bytes` are in complete files that the index knows."""

    num_temporary: int
    num_orphans: int
    num_damaged: int
    num_unreachable: int
    num_kept_files: int
    num_kept_bytes: int


@dataclass(frozen=True, slots=True)
class Damage:
    """A file that is not what the index says, and why."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """What reading everything found. `orphans` are files that the index does not know: a sweep removes them, and a
    server that runs has some while it writes."""

    num_files: int
    num_bytes: int
    damage: tuple[Damage, ...]
    orphans: tuple[str, ...]


def check_file(
    folder: SegmentFolder, indexed: IndexedFile, layout: Sequence[TensorLayout] | None
) -> dict[str, StoredTensor]:
    """Read a file and compare all that is known of it: size, digest, header, ids, key and, if given, the layout.

    Raises SegmentDamagedError with what differs, OSError where the file is there and cannot be read.
    """
    name = folder.name(indexed.key, indexed.kind)
    header, tensors = decode_segment(folder.read(name, indexed.written))
    if header != _expected_header(name, indexed):
        raise SegmentDamagedError(f"{name} holds other tokens than the index says.")
    if layout is not None:
        check_layout(tensors, layout, header.num_tokens)
    return tensors


def read_checked_into(
    folder: SegmentFolder,
    indexed: IndexedFile,
    layout: Sequence[TensorLayout],
    room: Mapping[str, Buffer],
    writing: Callable[[], AbstractContextManager[None]],
) -> None:
    """`check_file`, with the tensors read into `room`, a few at a time inside `writing()`, and nothing copied. What it
    holds is worth something only if this returns.

    Raises as `check_file`, and what `writing` raises.
    """
    name = folder.name(indexed.key, indexed.kind)
    pieces = encode_segment(_expected_header(name, indexed), layout, room)
    folder.read_into(name, indexed.written, pieces, writing)


def _expected_header(name: str, indexed: IndexedFile) -> SegmentHeader:
    if indexed.key != segment_key(indexed.parent_key, indexed.start, indexed.token_ids):
        raise SegmentDamagedError(f"{name} holds other tokens than the index says.")
    return SegmentHeader(indexed.kind, indexed.root, indexed.parent_key, indexed.key, indexed.start, indexed.token_ids)


def verify_files(
    database: Database,
    folder: SegmentFolder,
    owner: str | None = None,
    progress: Callable[[int, int], None] = lambda _num_checked, _num_files: None,
) -> VerifyReport:
    """Read every file, or those of one owner, and compare. Changes nothing; what a running server removes meanwhile is
    no damage.

    `progress` is told before each file, and at the end, how many of all are checked; what it raises ends the check.
    Orphans are nobody's: none are told where an owner is named.
    """
    with database.read() as db:
        indexed = find_files(db, *(() if owner is None else (_belongs_to(owner),)))
    damage = []
    for num_checked, file in enumerate(indexed):
        progress(num_checked, len(indexed))
        name = folder.name(file.key, file.kind)
        stamp = folder.stamp(name)
        try:
            check_file(folder, file, layout=None)
        except (SegmentDamagedError, OSError) as error:
            if _is_indexed(database, file) and folder.stamp(name) == stamp:
                damage.append(Damage(name, str(error)))
    progress(len(indexed), len(indexed))
    known = {folder.name(file.key, file.kind) for file in indexed}
    strangers = set(folder.sizes()) - known if owner is None else set()
    return VerifyReport(
        num_files=len(indexed),
        num_bytes=sum(file.written.num_bytes for file in indexed),
        damage=tuple(damage),
        orphans=tuple(sorted(strangers)),
    )


def _belongs_to(owner: str) -> ColumnElement[bool]:
    return SegmentRow.namespace_id.in_(select(NamespaceRow.id).where(NamespaceRow.owner == owner))


def _is_indexed(database: Database, file: IndexedFile) -> bool:
    with database.read() as db:
        return file in find_files(db, SegmentRow.key == file.key)


def sweep_files(database: Database, folder: SegmentFolder) -> SweepReport:
    """Make index and folder agree: remove files without rows, rows without files, and what no session holds.

    Looks at names and sizes only, so that it is quick. Nobody may write meanwhile.
    """
    sizes = folder.sizes()
    with database.write() as db:
        num_unreachable = _remove_lost_rows(db)
        indexed = {folder.name(file.key, file.kind): file for file in find_files(db)}
        broken = [name for name, file in indexed.items() if sizes.get(name) != file.written.num_bytes]
        for name in broken:
            remove_file_row(db, indexed[name].segment_id, indexed[name].kind)
        nodes = read_nodes(db)
        remove_segments(db, nodes, without_files(nodes))
    kept = set(indexed) - set(broken)
    for name in broken:
        folder.set_aside(name)
    strangers = set(sizes) - set(indexed)
    for name in strangers:
        folder.remove(name)
    num_temporary = sum(name.endswith(TEMPORARY_SUFFIX) for name in strangers)
    return SweepReport(
        num_temporary=num_temporary,
        num_orphans=len(strangers) - num_temporary,
        num_damaged=len(broken),
        num_unreachable=num_unreachable,
        num_kept_files=len(kept),
        num_kept_bytes=sum(sizes[name] for name in kept),
    )


def _remove_lost_rows(db: DbSession) -> int:
    num_untrue = remove_untrue_segments(db)
    if num_untrue:
        # Holds may have been lost with them: what seems to be held by nobody waits for the next sweep.
        return num_untrue
    nodes = read_nodes(db)
    lost = unreachable(nodes, [head.segment_id for head in read_heads(db)])
    remove_segments(db, nodes, lost)
    return len(lost)
