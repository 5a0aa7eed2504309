"""`FileDigest`: what tells that a file has changed since it was written.

XXH3 with 128 bits (https://xxhash.com) is no cryptographic hash, and need not be: a disk's faults do not aim, and who
can write to the files can write to the database beside them. It reads faster than memory does, where SHA-256 took half
of the time of a restore. What a segment is called by is still SHA-256: that is a question of identity, not of damage.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Protocol

import xxhash

if TYPE_CHECKING:
    from typing_extensions import Buffer


class _Hash(Protocol):
    def update(self, data: Buffer, /) -> None: ...
    def hexdigest(self) -> str: ...


_ALGORITHMS: Mapping[str, Callable[[], _Hash]] = {"xxh3-128": xxhash.xxh3_128, "sha256": hashlib.sha256}
"""By the name that stands before a digest."""
_NEWEST = "xxh3-128"
"""That of new files."""


class FileDigest:
    """A digest in the making. Its text, `algorithm:hexadecimal`, is what is stored."""

    def __init__(self, like: str | None = None) -> None:
        """Of the algorithm that `like`, the text of another digest, names; of that of new files where none is named."""
        name = (like or "").partition(":")[0]
        self._name = name if name in _ALGORITHMS else _NEWEST
        self._hash = _ALGORITHMS[self._name]()

    def update(self, data: Buffer) -> None:
        self._hash.update(data)

    def __str__(self) -> str:
        return f"{self._name}:{self._hash.hexdigest()}"
