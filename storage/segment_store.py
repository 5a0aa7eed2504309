"""`SegmentStore`: computed KV on disk, in immutable segments that chats, branches and forks of one owner share.

    write:   reserve bytes → temporary file, sync → rename → sync folder → one transaction: rows and head
    remove:  one transaction: rows → files

So the database never names a file that is not complete, and a process that dies leaves files without rows at worst,
which `sweep` removes. Losing any of this loses no word of any chat.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, TypeVar

from storage.database import Database
from storage.errors import DatabaseError, SegmentDamagedError, SegmentRemovedError, SegmentUnavailableError
from storage.eviction import unreachable
from storage.models import pack_token_ids
from storage.segment_chain import IndexedFile, SegmentPart, StoredPrefix, choose_prefix
from storage.segment_check import (
    SweepReport,
    VerifyReport,
    check_file,
    read_checked_into,
    sweep_files,
    verify_files,
)
from storage.segment_files import FileStamp, SegmentFolder
from storage.segment_format import FORMAT, FileKind, StoredTensor, TensorLayout
from storage.segment_heads import read_heads, remove_heads
from storage.segment_index import (
    ensure_namespace,
    ensure_salt,
    find_along,
    find_file,
    find_file_sizes,
    find_files,
    find_known_keys,
    leads_to,
    read_nodes,
    remove_file_row,
    remove_segments,
)
from storage.segment_keys import namespace_root
from storage.segment_models import SegmentFileRow, SegmentRow
from storage.segment_report import SegmentReport, holdings
from storage.segment_room import RefusedError, SegmentRoom
from storage.segment_save import Namespace, NewSegment, ParentSegment, SaveReport, SegmentSave

if TYPE_CHECKING:
    from typing_extensions import Buffer

T = TypeVar("T")

NUM_STATES_OF_A_TURN = 2
"""Before the end of a chat there are the one from which its last reply is written anew and the one from which its last
message is."""


class SegmentStore:
    """See the module. Thread-safe: one save, removal or sweep at a time; lookups and loads at any time."""

    def __init__(self, database: Database, quota_bytes: int) -> None:
        """Sweep the folder and bring it under the quota. Raises DataDirError if the folder cannot be used."""
        self._database = database
        self._folder = SegmentFolder(database.data_dir)
        self._room = SegmentRoom(database, self._folder, quota_bytes)
        self._lock = threading.Lock()
        self.sweep()
        database.on_full = self._give_way

    @property
    def used_bytes(self) -> int:
        """Bytes of all files in the folder, those being written and those set aside included."""
        return self._room.used_bytes

    def namespace(
        self,
        owner: str,
        fingerprint: Mapping[str, Any],
        layout: Sequence[TensorLayout],
        state_layout: Sequence[TensorLayout] = (),
    ) -> Namespace:
        """The owner's namespace for what `fingerprint` (JSON values) and the layouts say. Any difference is another."""
        description = {
            "format": FORMAT,
            "fingerprint": fingerprint,
            "layout": [_plain(tensor) for tensor in layout],
            "state_layout": [_plain(tensor) for tensor in state_layout],
        }
        with self._database.write() as db:
            root = namespace_root({**description, "salt": ensure_salt(db, owner)})
            namespace_id = ensure_namespace(db, owner, root, json.dumps(description, sort_keys=True))
        return Namespace(namespace_id, owner, root, tuple(layout), tuple(state_layout))

    # Reading

    def lookup(self, namespace: Namespace, token_ids: Sequence[int], *, at_end: bool = False) -> StoredPrefix:
        """The longest prefix of `token_ids` that is stored; `at_end`: that ends where a segment does, so that what is
        saved below it builds upon nothing but these tokens. With a state layout, one that ends at a stored state."""
        wanted = pack_token_ids(token_ids)
        with self._database.read() as db:
            found = find_along(db, namespace.id, wanted)
        return choose_prefix(found, wanted, namespace.root, needs_state=bool(namespace.state_layout), at_end=at_end)

    def load(self, namespace: Namespace, key: str, kind: FileKind = FileKind.KV) -> Mapping[str, StoredTensor]:
        """A segment's tensors, verified: size, digest, key, ids, layout.

        Raises SegmentDamagedError where anything differs or the file is missing; the segment counts as not stored
        from then on, and its file is set aside. Raises SegmentRemovedError where it was removed meanwhile, and
        SegmentUnavailableError where the system refuses to read it just now; then it is left where it is.
        """
        with self._database.read() as db:
            file = find_file(db, namespace.id, key, kind)
        if file is None:
            raise SegmentRemovedError
        layout = namespace.layout if kind is FileKind.KV else namespace.state_layout
        return self._read(namespace, file, lambda: check_file(self._folder, file, layout))

    def load_into(
        self,
        namespace: Namespace,
        part: SegmentPart,
        room: Mapping[str, Buffer],
        writing: Callable[[], AbstractContextManager[None]],
    ) -> None:
        """`load` the KV of a segment that was looked up into `room`, which has the right size for each tensor. Each is
        written inside `writing()`, whose error ends the reading. The room holds what was stored if this returns,
        anything if not."""
        self._read(
            namespace, part.file, lambda: read_checked_into(self._folder, part.file, namespace.layout, room, writing)
        )

    def _read(self, namespace: Namespace, file: IndexedFile, read: Callable[[], T]) -> T:
        while True:
            try:
                stamp = self._folder.stamp(self._folder.name(file.key, file.kind))
                return read()
            except OSError as error:
                raise SegmentUnavailableError(f"A stored segment cannot be read now: {error.strerror}.") from error
            except SegmentDamagedError:
                if self._set_aside(namespace, file, stamp):
                    raise

    def _set_aside(self, namespace: Namespace, file: IndexedFile, stamp: FileStamp | None) -> bool:
        """Take a file that was damaged, or missing, out of index and folder. False where another one is in its place by
        now: it was removed and saved again. Raises SegmentRemovedError where it was removed."""
        name = self._folder.name(file.key, file.kind)
        with self._database.write() as db:  # while this is open nobody removes the row, nor writes a file for it
            if find_file(db, namespace.id, file.key, file.kind) != file:
                raise SegmentRemovedError
            if self._folder.stamp(name) != stamp:
                return False
            self._folder.set_aside(name)
            remove_file_row(db, file.segment_id, file.kind)
            return True

    # Writing

    def save(
        self, namespace: Namespace, session_id: str, parent: ParentSegment | None, segments: Iterable[NewSegment]
    ) -> SaveReport:
        """Store segments, each below the one before, the first below `parent`, and let the session hold the last one.

        Without segments the session is given its hold on `parent` alone. What is stored already is not written again.
        What the quota or the disk refuses is left out, with all that follows it, and the report says so; a save that
        could not be committed leaves no file behind. Raises InvalidRecordError where segments do not follow upon each
        other or their buffers do not fit the layout; then nothing is stored.
        """
        with self._lock:
            save = SegmentSave(self._database, self._folder, self._room, namespace, parent)
            try:
                save.find_parent()
                for segment in segments:
                    save.write(segment)
            except RefusedError as refusal:
                save.refused = refusal.sentence
            except DatabaseError as failure:
                save.refused = str(failure)
            except BaseException:
                save.take_back()
                raise
            return save.end(session_id)

    def protect(self, session_id: str) -> None:
        """What this session holds stays until `unprotect`, however full the disk is: its chat is open."""
        self._room.open_sessions.add(session_id)

    def unprotect(self, session_id: str) -> None:
        self._room.open_sessions.discard(session_id)

    # Removing

    def release(self, owner: str, session_ids: Set[str] | None = None) -> int:
        """End the holds of these sessions, also of such as are gone, or of all of the owner's, and remove what nobody
        holds, set aside or not. Returns the bytes freed of what they held."""
        with self._lock:
            set_aside = self._folder.set_aside_sizes()
            keys = {self._folder.key(name) for name in set_aside}
            with self._database.write() as db:
                known = find_known_keys(db, keys)
                remove_heads(db, owner, session_ids)
                nodes = read_nodes(db)
                lost = unreachable(nodes, [head.segment_id for head in read_heads(db)])
                files = find_file_sizes(db, lost)
                remove_segments(db, nodes, lost)
                lost_keys = known - find_known_keys(db, known)
            nobodys = {name: size for name, size in set_aside.items() if self._folder.key(name) not in known}
            theirs = {name: size for name, size in set_aside.items() if self._folder.key(name) in lost_keys}
            self._room.remove_set_aside(nobodys)
            num_bytes = self._room.remove({self._folder.name(key, kind): size for key, kind, size in files})
            return num_bytes + self._room.remove_set_aside(theirs)

    def drop_state(self, key: str, session_id: str) -> None:
        """Remove the recurrent state stored after this segment, for which the session has no use; its KV stays. It
        stays as well where a chat ends there, or another one a turn later."""
        with self._lock:
            state = (SegmentRow.key == key, SegmentFileRow.kind == FileKind.STATE)
            with self._database.write() as db:
                heads = read_heads(db)
                ends = {head.segment_id for head in heads}
                others = {head.segment_id for head in heads if head.session_id != session_id}
                files = [
                    file
                    for file in find_files(db, *state)
                    if file.segment_id not in ends and not leads_to(db, file.segment_id, others, NUM_STATES_OF_A_TURN)
                ]
                for file in files:
                    remove_file_row(db, file.segment_id, file.kind)
            self._room.remove({self._folder.name(file.key, file.kind): file.written.num_bytes for file in files})

    def sweep(self) -> SweepReport:
        """Put folder and index in order, count what is there, and bring it under the quota. See `segment_check`."""
        with self._lock:
            report = sweep_files(self._database, self._folder)
            self._room.recount()
            return report

    def verify(self, owner: str, progress: Callable[[int, int], None]) -> VerifyReport:
        """Read and check all that is stored for the owner's sessions; see `segment_check.verify_files`."""
        return verify_files(self._database, self._folder, owner, progress)

    def report(self, owner: str) -> SegmentReport:
        """What is stored for the owner's sessions."""
        with self._database.read() as db:
            nodes = read_nodes(db)
            heads = [(head.session_id, head.segment_id) for head in read_heads(db) if head.owner == owner]
        session_bytes, held, shared_bytes = holdings(nodes, heads)
        return SegmentReport(
            quota_bytes=self._room.quota_bytes,
            used_bytes=self._room.used_bytes,
            set_aside_bytes=sum(self._folder.set_aside_sizes().values()),
            num_segments=len(held),
            num_bytes=sum(nodes[segment_id].num_bytes for segment_id in held),
            shared_bytes=shared_bytes,
            session_bytes=session_bytes,
        )

    def _give_way(self) -> None:
        """What people write goes before caches. A save that is running makes room by itself, or fails and does not."""
        if self._lock.acquire(blocking=False):
            try:
                self._room.give_way()
            finally:
                self._lock.release()


def _plain(tensor: TensorLayout) -> list[Any]:
    return [tensor.name, tensor.dtype, tensor.shape_for(0), tensor.token_axis]
