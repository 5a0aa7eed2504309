"""The segment folder under a quota: bytes are reserved before they are written, and room is made by eviction.

Knows how many bytes there are and what may go; does not know what a save is. Bytes are reserved in memory: the data
directory has one process, and `recount` takes what is really there.
"""

from __future__ import annotations

import errno
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress

from storage.byte_sizes import format_size
from storage.database import Database
from storage.errors import DatabaseError
from storage.eviction import choose_victims
from storage.segment_files import SegmentFolder, WrittenFile
from storage.segment_heads import find_held_outside_bin, read_heads
from storage.segment_index import find_file_sizes, find_segment_ids, read_nodes, remove_segments
from storage.sentence import Sentence
from storage.told import SaveTold

KEPT_FREE_BYTES = 64 * 2**20
KEPT_FREE_PART = 4
"""So much of the disk, or of a small one this part, is left to what people write: caches never fill it up."""
EVICTED_AHEAD_PART = 64
"""To choose what goes, the whole index is read: so this part of the quota goes beyond what is needed, and many writes
follow for which nothing has to go."""


class RefusedError(Exception):
    """Why something is not saved, in a sentence. Ends a save and becomes part of its report."""

    def __init__(self, sentence: Sentence) -> None:
        super().__init__(sentence)
        self.sentence = sentence


class SegmentRoom:
    """See the module. One caller at a time, but for the sessions that are open and `used_bytes`."""

    def __init__(self, database: Database, folder: SegmentFolder, quota_bytes: int) -> None:
        self.quota_bytes = quota_bytes
        self.used_bytes = 0
        self.open_sessions: set[str] = set()
        self._database = database
        self._folder = folder

    def recount(self) -> None:
        """Take the bytes in the folder as those used, and come under the quota, and leave the disk room, as far as open
        sessions allow."""
        self.used_bytes = sum(self._folder.sizes().values()) + sum(self._folder.set_aside_sizes().values())
        excess = max(self.used_bytes - self.quota_bytes, min(self._disk_shortage(), self.used_bytes))
        if excess > 0:
            self._evict(excess, keep=(), even_if_too_little=True)

    def write(self, name: str, pieces: Sequence[memoryview], keep: Collection[str]) -> WrittenFile:
        """Write a file within the quota, making room if need be, but not of the segments with the keys `keep`.

        A disk that is full gets one more try after as much was removed. Raises RefusedError.
        """
        num_bytes = sum(len(piece) for piece in pieces)
        if num_bytes > self.quota_bytes:
            raise _too_large(num_bytes, self.quota_bytes)
        excess, shortage = self.used_bytes + num_bytes - self.quota_bytes, num_bytes + self._disk_shortage()
        if (excess > 0 or shortage > 0) and not self._evict(max(excess, shortage), keep):
            raise _disk_almost_full() if shortage > excess else _used_up(self.quota_bytes)
        try:
            return self._write_reserved(name, pieces, num_bytes)
        except OSError as error:
            is_full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            if not is_full or not self._evict(num_bytes, keep):
                raise _not_written(error) from error
        try:
            return self._write_reserved(name, pieces, num_bytes)
        except OSError as error:
            raise _not_written(error) from error

    def give_way(self) -> None:
        """The database cannot be written for lack of space: remove caches, even of open chats, until there is some.

        Files first, for removing rows takes space, too; a row without its file is a miss.
        """
        self.remove_set_aside(self._folder.set_aside_sizes())
        with self._database.read() as db:
            nodes = read_nodes(db)
            victims = choose_victims(nodes, (), self._disk_shortage(), wanted=find_held_outside_bin(db))
            sizes = find_file_sizes(db, victims)
        self.remove({self._folder.name(key, kind): num_bytes for key, kind, num_bytes in sizes})
        with suppress(DatabaseError), self._database.write() as db:
            remove_segments(db, nodes, victims)

    def remove(self, sizes: Mapping[str, int]) -> int:
        """Remove these files, given with their sizes. Returns the bytes freed."""
        for name, num_bytes in sizes.items():
            self._folder.remove(name)
            self.used_bytes -= num_bytes
        return sum(sizes.values())

    def remove_set_aside(self, sizes: Mapping[str, int]) -> int:
        """`remove` for files that were set aside."""
        for name, num_bytes in sizes.items():
            self._folder.remove_set_aside(name)
            self.used_bytes -= num_bytes
        return sum(sizes.values())

    def _write_reserved(self, name: str, pieces: Sequence[memoryview], num_bytes: int) -> WrittenFile:
        self.used_bytes += num_bytes
        try:
            return self._folder.write(name, pieces)
        except BaseException:
            self.used_bytes -= num_bytes
            raise

    def _disk_shortage(self) -> int:
        """By how many bytes the disk has less room than it should be left."""
        free, total = self._folder.disk_room()
        return min(KEPT_FREE_BYTES, total // KEPT_FREE_PART) - free

    def _evict(self, num_bytes: int, keep: Collection[str], even_if_too_little: bool = False) -> bool:
        """Make `num_bytes` free, and a little more where it can be: files set aside first, then leaves by last use,
        those of chats in the bin before all others, never `keep` nor what is open.

        Where `num_bytes` cannot be had, nothing is removed unless `even_if_too_little`, and the answer is False.
        """
        set_aside = self._folder.set_aside_sizes()
        needed = num_bytes - sum(set_aside.values())
        more = self.quota_bytes // EVICTED_AHEAD_PART
        with self._database.write() as db:
            nodes = read_nodes(db)
            is_open = set(self.open_sessions)
            protected = [head.segment_id for head in read_heads(db) if head.session_id in is_open]
            kept, wanted = [*protected, *find_segment_ids(db, keep)], find_held_outside_bin(db)
            victims = choose_victims(nodes, kept, needed, more, wanted=wanted)
            is_enough = sum(nodes[victim].num_bytes for victim in victims) >= needed
            if not is_enough and not even_if_too_little:
                return False
            sizes = {self._folder.name(key, kind): num_bytes for key, kind, num_bytes in find_file_sizes(db, victims)}
            remove_segments(db, nodes, victims)
        self.remove_set_aside(set_aside)
        self.remove(sizes)
        return is_enough


def _too_large(num_bytes: int, quota_bytes: int) -> RefusedError:
    piece, quota = format_size(num_bytes), format_size(quota_bytes)
    sentence = f"A piece of the cache takes {piece}, more than the whole disk quota of {quota}. Raise the quota."
    return RefusedError(Sentence(sentence, SaveTold.QUOTA_TOO_SMALL, num_bytes=num_bytes, quota_bytes=quota_bytes))


def _used_up(quota_bytes: int) -> RefusedError:
    quota = format_size(quota_bytes)
    sentence = f"The disk quota of {quota} is used up by open chats. Raise it, or drop caches."
    return RefusedError(Sentence(sentence, SaveTold.QUOTA_USED_UP, num_bytes=quota_bytes))


def _disk_almost_full() -> RefusedError:
    sentence = "The disk is almost full; what is left is kept for messages. Free some space."
    return RefusedError(Sentence(sentence, SaveTold.DISK_ALMOST_FULL))


def _not_written(error: OSError) -> RefusedError:
    failure = error.strerror or str(error)
    sentence = f"The cache could not be written to disk: {failure}."
    return RefusedError(Sentence(sentence, SaveTold.NOT_WRITTEN, failure=failure))
