"""What can go wrong in `storage`.

StoreError
├── RowNotFoundError      no such session or message for this owner
├── StaleVersionError     the row changed since the caller read it
├── InvalidRecordError    a record that would break the tree (parent of another session, wrong role, …)
│   └── FileRefusedError      a file that is not, or not entirely, an exported chat
├── SegmentUnavailableError   a stored segment cannot be had just now
│   ├── SegmentRemovedError   it was removed meanwhile, on purpose
│   └── SegmentDamagedError   it is not what was written
├── DatabaseError         the database failed (damaged file, …); the transaction was rolled back
│   ├── DiskFullError         there was no space for it
│   └── DatabaseClosedError   it was closed before
└── DataDirError          the data directory cannot be used
    └── DataDirLockedError    another process has it open
"""

from __future__ import annotations

from enum import StrEnum

from storage.sentence import Fact


class StoreError(Exception):
    """Base of every error that `storage` raises on purpose."""


class RowNotFoundError(StoreError):
    """No such row for this owner. Other owners' rows are reported the same way."""


class StaleVersionError(StoreError):
    """The row was changed by somebody else since the caller read it."""


class InvalidRecordError(StoreError):
    """The record would break an invariant of the message tree."""


class FileFault(StrEnum):
    """What is wrong with a file that should be an exported chat."""

    NOT_JSON = "not-json"
    FOREIGN = "foreign-file"
    NEWER = "newer-file"
    DAMAGED = "damaged-file"


class FileRefusedError(InvalidRecordError):
    """The file cannot be imported; nothing of it was stored. `facts`: for DAMAGED, `detail`."""

    def __init__(self, message: str, fault: FileFault, **facts: Fact) -> None:
        super().__init__(message)
        self.fault = fault
        self.facts = facts


class SegmentUnavailableError(StoreError):
    """A stored segment cannot be had just now: the system refuses to read it, or what the kinds below say."""


class SegmentRemovedError(SegmentUnavailableError):
    """A stored segment was removed meanwhile, on purpose: its cache was dropped, or others needed the place."""

    def __init__(self) -> None:
        super().__init__("The segment was removed meanwhile.")


class SegmentDamagedError(SegmentUnavailableError):
    """A stored segment is not what was written. It counts as missing from now on; its file was set aside."""


class DatabaseError(StoreError):
    """The database failed. The transaction was rolled back."""


class DiskFullError(DatabaseError):
    """There was no space to write it. Caches have been asked to give way: the next try may succeed."""


class DatabaseClosedError(DatabaseError):
    """The database was closed before; nothing was read or changed."""


class DataDirError(StoreError):
    """The data directory cannot be created, read or written."""


class DataDirLockedError(DataDirError):
    """Another process holds the data directory."""
