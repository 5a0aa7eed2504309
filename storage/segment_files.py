"""The folder of segment files: written whole or not at all, removed, set aside. Knows names and bytes, no rows.

A file is written under a temporary name, synced, renamed, and the folder synced: a name that ends in `.safetensors`
is always a complete file. Everything in the folder is counted against the quota by whoever owns it.
"""

from __future__ import annotations

import os
import shutil
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from io import FileIO
from pathlib import Path

from storage.data_dir import ensure_private_dir
from storage.errors import DataDirError, SegmentDamagedError
from storage.file_digest import FileDigest
from storage.segment_format import FileKind

FOLDER_NAME = "segments"
SET_ASIDE_NAME = "damaged"
SUFFIX = ".safetensors"
TEMPORARY_SUFFIX = ".tmp"
BATCH_BYTES = 2**20
"""Read with one call: so long whoever owns the memory waits for it."""
_MAX_PIECES = 1024
"""What a call takes, where systems set a limit (IOV_MAX)."""


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """What a file must be when it is read again."""

    num_bytes: int
    digest: str


@dataclass(frozen=True, slots=True)
class FileStamp:
    """Tells a file from any that takes its place, and from itself once it was written to."""

    inode: int
    num_bytes: int
    changed_ns: int


class SegmentFolder:
    """The segment files of one data directory. One writer at a time; readers at any time."""

    def __init__(self, data_dir: Path) -> None:
        self.path = data_dir / FOLDER_NAME
        self.set_aside_path = self.path / SET_ASIDE_NAME
        try:
            self._ensure()
        except OSError as error:
            raise DataDirError(
                f"The folder {self.path} for caches cannot be used: {error.strerror}. "
                "Move away what is in its place, or choose another data folder with --data-dir."
            ) from error

    def name(self, key: str, kind: FileKind) -> str:
        return f"{key}.{kind}{SUFFIX}"

    def key(self, name: str) -> str:
        """Of the segment that a file with this name belongs to."""
        return name.partition(".")[0]

    def stamp(self, name: str) -> FileStamp | None:
        """Of the file that has this name now; None where none is to be seen."""
        try:
            stat = (self.path / name).stat()
        except OSError:
            return None
        return FileStamp(stat.st_ino, stat.st_size, stat.st_mtime_ns)

    def write(self, name: str, pieces: Sequence[memoryview]) -> WrittenFile:
        """Write a complete file, or on an OSError nothing. Only after `sync` is it sure to outlast a power cut."""
        temporary = self.path / (name + TEMPORARY_SUFFIX)
        digest = FileDigest()
        try:
            self._ensure()
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with open(descriptor, "wb", buffering=0) as file:
                for piece in pieces:
                    digest.update(piece)
                    _write(file.fileno(), piece)
                _sync(file.fileno())
            _rename(temporary, self.path / name)
        except OSError:
            with suppress(OSError):
                temporary.unlink()
            raise
        return WrittenFile(sum(len(piece) for piece in pieces), str(digest))

    def sync(self) -> None:
        """Make the names of the files written so far outlast a power cut."""
        descriptor = os.open(self.path, os.O_RDONLY)
        try:
            _sync_folder(descriptor)
        finally:
            os.close(descriptor)

    def read(self, name: str, written: WrittenFile) -> bytearray:
        """The whole file. Raises SegmentDamagedError where it is not as it was written or not there, other OSErrors."""
        with self._open(name, written) as file:
            data = bytearray(written.num_bytes)
            _fill(file, [memoryview(data)])
        digest = FileDigest(like=written.digest)
        digest.update(data)
        _compare(name, digest, written)
        return data

    def read_into(
        self,
        name: str,
        written: WrittenFile,
        pieces: Sequence[memoryview],
        writing: Callable[[], AbstractContextManager[None]],
    ) -> None:
        """Read a file that consists of `pieces` into those of them that can be written to, a few at a time, inside
        `writing()`.

        Raises as `read`, also where the file holds anything else in the place of the other pieces; what `writing`
        raises.
        """
        digest = FileDigest(like=written.digest)
        with self._open(name, written) as file:
            if (expected := sum(map(len, pieces))) != written.num_bytes:
                raise SegmentDamagedError(f"{name} has {written.num_bytes} bytes instead of {expected}.")
            for batch in _batches(pieces):
                targets = [memoryview(bytearray(len(piece))) if piece.readonly else piece for piece in batch]
                with writing():
                    _fill(file, targets)
                    for target in targets:
                        digest.update(target)  # before anybody else may write to it
                if any(piece.readonly and piece != target for piece, target in zip(batch, targets, strict=True)):
                    raise SegmentDamagedError(f"{name} was changed: it does not hold the tokens it should.")
        _compare(name, digest, written)

    def remove(self, name: str) -> None:
        """Remove a file; one that is not there is fine."""
        with suppress(FileNotFoundError):
            (self.path / name).unlink()

    def set_aside(self, name: str) -> None:
        """Move a damaged file out of the way, for people to look at; one that is not there is fine."""
        with suppress(FileNotFoundError):
            self._ensure()
            (self.path / name).replace(self.set_aside_path / name)

    def sizes(self) -> dict[str, int]:
        """The size of every file that is not set aside, temporary ones included, by name."""
        return dict(_sizes(self.path))

    def set_aside_sizes(self) -> dict[str, int]:
        """The size of every file that was set aside."""
        return dict(_sizes(self.set_aside_path))

    def disk_room(self) -> tuple[int, int]:
        """Bytes of the disk that are free for this process, and all of its bytes."""
        usage = shutil.disk_usage(self.path)
        return usage.free, usage.total

    def remove_set_aside(self, name: str) -> None:
        with suppress(FileNotFoundError):
            (self.set_aside_path / name).unlink()

    def _open(self, name: str, written: WrittenFile) -> FileIO:
        try:
            file = open(self.path / name, "rb", buffering=0)  # noqa: SIM115 (the caller's `with`)
        except FileNotFoundError as error:
            raise SegmentDamagedError(f"{name} is missing.") from error
        if (found := os.fstat(file.fileno()).st_size) != written.num_bytes:
            file.close()
            raise SegmentDamagedError(f"{name} has {found} bytes instead of {written.num_bytes}.")
        return file

    def _ensure(self) -> None:
        """Somebody may have removed the folders to free the disk, while this process uses them."""
        ensure_private_dir(self.path)
        ensure_private_dir(self.set_aside_path)


def _compare(name: str, digest: FileDigest, written: WrittenFile) -> None:
    if str(digest) != written.digest:
        raise SegmentDamagedError(f"{name} was changed: its digest differs.")


def _sizes(folder: Path) -> Iterator[tuple[str, int]]:
    with suppress(FileNotFoundError), os.scandir(folder) as entries:
        for entry in entries:
            with suppress(FileNotFoundError):
                if entry.is_file(follow_symlinks=False):
                    yield entry.name, entry.stat(follow_symlinks=False).st_size


def _batches(pieces: Iterable[memoryview]) -> Iterator[list[memoryview]]:
    """Runs of pieces that are read with one call."""
    batch: list[memoryview] = []
    num_bytes = 0
    for piece in pieces:
        if batch and (len(batch) == _MAX_PIECES or num_bytes + len(piece) > BATCH_BYTES):
            yield batch
            batch, num_bytes = [], 0
        batch.append(piece)
        num_bytes += len(piece)
    if batch:
        yield batch


def _fill(file: FileIO, targets: Sequence[memoryview]) -> None:
    """Read until all are full or the file ends."""
    left = deque(target for target in targets if target)
    while left and (num_read := _read(file, left)):
        while left and num_read >= len(left[0]):
            num_read -= len(left.popleft())
        if num_read:
            left[0] = left[0][num_read:]


def _read(file: FileIO, targets: Sequence[memoryview]) -> int:
    """Windows reads into one only."""
    return os.readv(file.fileno(), targets) if hasattr(os, "readv") else file.readinto(targets[0])


# The steps of a write, one by one: the seams at which tests let the disk fail or the process die.


def _write(descriptor: int, piece: memoryview) -> None:
    while piece:
        piece = piece[os.write(descriptor, piece) :]


def _sync(descriptor: int) -> None:
    os.fsync(descriptor)


def _rename(source: Path, target: Path) -> None:
    source.replace(target)


def _sync_folder(descriptor: int) -> None:
    os.fsync(descriptor)
