"""SHA-256 of files, without reading gigabytes again at every start.

Files up to `ALWAYS_READ_BYTES` are read each time. The digest of a larger file is remembered in a small JSON file
together with the file's size, times and inode, and read again when one of them has changed.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from chatcache.checkpoint.json_memory import JsonMemory

ALWAYS_READ_BYTES = 2**20


def sha256_of_file(path: Path) -> str:
    """Hex digest of the whole file. Raises OSError."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class FileDigests:
    """Digests of files, with a memory in `cache_file`. A memory that cannot be read or written costs time, no more."""

    def __init__(self, cache_file: Path, always_read_bytes: int = ALWAYS_READ_BYTES) -> None:
        self._memory = JsonMemory(cache_file)
        self._always_read_bytes = always_read_bytes

    def sha256(self, path: Path) -> str:
        """Hex digest of the whole file, remembered if the file is large. Raises OSError."""
        path = path.resolve()
        status = path.stat()
        if status.st_size <= self._always_read_bytes:
            return sha256_of_file(path)
        stamp = f"{status.st_size}-{status.st_mtime_ns}-{status.st_ctime_ns}-{status.st_ino}"
        known = self._memory.load()
        match known.get(str(path)):
            case {"stamp": str(remembered), "sha256": str(digest)} if remembered == stamp:
                return digest
        digest = sha256_of_file(path)
        present = {path: entry for path, entry in known.items() if Path(path).exists()}
        self._memory.store(present | {str(path): {"stamp": stamp, "sha256": digest}})
        return digest
