"""`SegmentSave`: one save under way: files are written, then rows, or both are taken back.

It knows the order of the steps. Who may save when is the store's; the caller holds its lock.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from storage.database import Database
from storage.errors import DatabaseError, InvalidRecordError
from storage.models import pack_token_ids
from storage.segment_files import SegmentFolder, WrittenFile
from storage.segment_format import FileKind, SegmentHeader, TensorLayout, encode_segment
from storage.segment_heads import move_head
from storage.segment_index import SegmentNames, find_file_kinds, find_segment_id, insert_segments
from storage.segment_keys import segment_key
from storage.segment_room import RefusedError, SegmentRoom
from storage.sentence import Sentence
from storage.told import SaveTold

if TYPE_CHECKING:
    from typing_extensions import Buffer


@dataclass(frozen=True, slots=True)
class Namespace:
    """What segments of one owner, model and layout have in common. Made by `SegmentStore.namespace`."""

    id: int
    owner: str
    root: str
    layout: tuple[TensorLayout, ...]
    state_layout: tuple[TensorLayout, ...]


@dataclass(frozen=True, slots=True)
class ParentSegment:
    """The stored segment that new ones continue: its key and the tokens `[start, end)` it holds."""

    key: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class NewSegment:
    """KV to be saved for `token_ids`, which begin at token `start`. Buffers are read while `save` runs."""

    start: int
    token_ids: Sequence[int]
    tensors: Mapping[str, Buffer]
    state: Mapping[str, Buffer] | None = None


@dataclass(frozen=True, slots=True)
class SaveReport:
    """What a save did. `num_tokens` is where the stored prefix ends now.

    `refused` says in a sentence why not everything was saved; None if it was.
    """

    num_tokens: int
    last: ParentSegment | None
    num_written_bytes: int
    refused: str | None


class SegmentSave:
    """`find_parent`, `write` for each segment, `end`; or `take_back`. `refused`: why what is missing was left out."""

    def __init__(
        self,
        database: Database,
        folder: SegmentFolder,
        room: SegmentRoom,
        namespace: Namespace,
        parent: ParentSegment | None,
    ) -> None:
        self.refused: str | None = None
        self._database = database
        self._folder = folder
        self._room = room
        self._namespace = namespace
        self._parent = self._last = parent
        self._parent_id: int | None = None
        self._written: list[SegmentNames] = []
        # What is stored already, too: it must not make room for what will hang below it.
        self._keep = {parent.key} if parent else set()

    def find_parent(self) -> None:
        """Raises RefusedError where it is no longer there."""
        if self._parent is None:
            return
        with self._database.read() as db:
            self._parent_id = find_segment_id(db, self._parent.key)
        if self._parent_id is None:
            sentence = "The stored beginning was removed meanwhile; the next save starts over."
            raise RefusedError(Sentence(sentence, SaveTold.BEGINNING_GONE))

    def write(self, segment: NewSegment) -> None:
        """Write what is not stored of a segment below the last one.

        Raises RefusedError, and InvalidRecordError where it does not follow or its buffers do not fit the layout.
        """
        namespace, last, num_tokens = self._namespace, self._last, len(segment.token_ids)
        follows = segment.start == 0 if last is None else last.start < segment.start <= last.end
        if not follows or not num_tokens:
            raise InvalidRecordError(f"A segment of {num_tokens} tokens at {segment.start} does not follow {last}.")
        token_ids = pack_token_ids(segment.token_ids)
        parent_key = namespace.root if last is None else last.key
        key = segment_key(parent_key, segment.start, token_ids)
        self._keep.add(key)
        with self._database.read() as db:
            stored = find_file_kinds(db, key)
        wanted = {
            FileKind.KV: (namespace.layout, segment.tensors),
            FileKind.STATE: (namespace.state_layout, segment.state),
        }
        files: dict[FileKind, WrittenFile] = {}
        names = SegmentNames(key, segment.start, token_ids, files)
        try:
            for kind, (layout, tensors) in wanted.items():
                if tensors is not None and kind not in stored:
                    header = SegmentHeader(kind, namespace.root, parent_key, key, segment.start, token_ids)
                    pieces = encode_segment(header, layout, tensors)
                    files[kind] = self._room.write(self._folder.name(key, kind), pieces, self._keep)
        except BaseException:
            self._remove(names)
            raise
        self._written.append(names)
        self._last = ParentSegment(key, segment.start, segment.start + num_tokens)

    def end(self, session_id: str) -> SaveReport:
        """Let the session hold what was written; where that cannot be committed, it is taken back."""
        if self._last is None or (self.refused is not None and self._last is self._parent):
            return _report(self._parent, 0, self.refused)
        try:
            self._commit(session_id)
        except (RefusedError, OSError, DatabaseError) as error:
            self.take_back()
            return _report(self._parent, 0, str(error))
        num_bytes = sum(file.num_bytes for names in self._written for file in names.files.values())
        return _report(self._last, num_bytes, self.refused)

    def take_back(self) -> None:
        """Remove the files that were written."""
        for names in self._written:
            self._remove(names)

    def _commit(self, session_id: str) -> None:
        if any(names.files for names in self._written):
            self._folder.sync()
        now = datetime.now(UTC)
        with self._database.write() as db:
            last_id = insert_segments(db, self._namespace.id, self._parent_id, self._written, now)
            if last_id is None or not move_head(db, self._namespace.owner, session_id, last_id, now):
                raise RefusedError(Sentence("The chat was removed meanwhile.", SaveTold.CHAT_GONE))

    def _remove(self, names: SegmentNames) -> None:
        self._room.remove({self._folder.name(names.key, kind): f.num_bytes for kind, f in names.files.items()})


def _report(last: ParentSegment | None, num_written_bytes: int, refused: str | None) -> SaveReport:
    return SaveReport(last.end if last else 0, last, num_written_bytes, refused)
