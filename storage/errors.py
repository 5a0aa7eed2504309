"""What can go wrong in `storage`.

StoreError
├── RowNotFoundError      no such session or message for this owner
├── StaleVersionError     the row changed since the caller read it
├── InvalidRecordError    a record that would break the tree (parent of another session, wrong role, …)
├── SegmentUnavailableError   a stored segment cannot be had just now
│   └── SegmentDamagedError   it is not what was written
├── DatabaseError         the database failed (damaged file, …); the transaction was rolled back
│   └── DiskFullError         there was no space for it
└── DataDirError          the data directory cannot be used
    └── DataDirLockedError    another process has it open
"""

from __future__ import annotations


class StoreError(Exception):
    """Base of every error that `storage` raises on purpose."""


class RowNotFoundError(StoreError):
    """No such row for this owner. Other owners' rows are reported the same way."""


class StaleVersionError(StoreError):
    """The row was changed by somebody else since the caller read it."""


class InvalidRecordError(StoreError):
    """The record would break an invariant of the message tree."""


class SegmentUnavailableError(StoreError):
    """A stored segment was removed meanwhile, or the system refuses to read it just now."""


class SegmentDamagedError(SegmentUnavailableError):
    """A stored segment is not what was written. It counts as missing from now on; its file was set aside."""


class DatabaseError(StoreError):
    """The database failed. The transaction was rolled back."""


class DiskFullError(DatabaseError):
    """There was no space to write it. Caches have been asked to give way: the next try may succeed."""


class DataDirError(StoreError):
    """The data directory cannot be created, read or written."""


class DataDirLockedError(DataDirError):
    """Another process holds the data directory."""
