"""The database in a data directory: engine, transactions, and that its tables are those of this version.

Knows SQLite's settings. Does not know what the tables mean. What is specific to SQLite stands in this module,
in `migration` and in `text_index` alone, so that another engine needs another `open` and little else.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import filelock
from sqlalchemy import URL, Connection, Engine, create_engine, event
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session as DbSession

from storage.data_dir import ensure_private_file, lock_data_dir, unusable
from storage.errors import DatabaseClosedError, DatabaseError, DataDirError, DiskFullError
from storage.folding import fold
from storage.migration import migrate, newest_revision, revision_of
from storage.text_index import ensure_text_index, remake_text_index, renew_text_index, searched_text

logger = logging.getLogger(__name__)

DATABASE_NAME = "chats.db"
BUSY_TIMEOUT_S = 30.0


class Database:
    """One open data directory. Thread-safe. Holds the directory's lock until `close`.

    `read()` gives a session on one consistent snapshot. `write()` gives the only write transaction there is: it
    commits when the block ends and rolls back when it raises.
    """

    def __init__(self, data_dir: Path, engine: Engine, lock: filelock.BaseFileLock | None) -> None:
        self.data_dir = data_dir
        self._engine = engine
        self._writing_engine = engine.execution_options(begin_immediate=True)
        self._lock = lock
        # SQLite's own busy handler polls; a lock of ours hands over at once between the threads of this process.
        self._write_lock = threading.Lock()
        self._is_closed = False
        self.has_text_index = False
        """Whether messages can be looked up by what they say; see `text_index`."""
        self.on_full: Callable[[], None] | None = None
        """Called when something could not be written for lack of space, so that what can be spared is removed."""

    @classmethod
    def open(cls, data_dir: Path) -> Database:
        """Create or open `data_dir`, lock it, and bring the database in it to this version.

        A copy of an older database is kept beside it. Raises DataDirLockedError where another process has the
        directory open, DataDirError where the directory or the database cannot be used.
        """
        data_dir = Path(data_dir).absolute()
        lock = lock_data_dir(data_dir)
        path = data_dir / DATABASE_NAME
        with ExitStack() as on_error:
            on_error.callback(lock.release)
            try:
                ensure_private_file(path)
                engine = _make_engine(path)
                on_error.callback(engine.dispose)
                writing = engine.execution_options(begin_immediate=True)
                with writing.begin() as connection:
                    migrate(connection, path)
                with writing.begin() as connection:
                    has_text_index = ensure_text_index(connection)
                if has_text_index:
                    _renew_text_index(writing)
            except OSError as error:
                raise unusable(data_dir, error) from error
            except DBAPIError as error:
                raise DataDirError(
                    f"The database {path} cannot be used: {error.orig}. It was left as it is. "
                    "Put a copy of it in its place, or choose another folder with --data-dir."
                ) from error
            on_error.pop_all()
        database = cls(data_dir, engine, lock)
        database.has_text_index = has_text_index
        return database

    @classmethod
    def open_to_read(cls, data_dir: Path) -> Database:
        """Look at the database while another process has the directory open: without its lock, and `write` fails.

        Raises DataDirError where there is no database of this version.
        """
        data_dir = Path(data_dir).absolute()
        path = data_dir / DATABASE_NAME
        if not path.is_file():
            raise DataDirError(f"There is no database {path}. Name the right folder with --data-dir.")
        engine = _make_engine(path, reads_only=True)
        try:
            with engine.connect() as connection:
                current = revision_of(connection)
            if current != newest_revision():
                raise DataDirError(f"The database {path} is of another version of chatcache than this command.")
        except DBAPIError as error:
            engine.dispose()
            raise DataDirError(f"The database {path} cannot be read: {error.orig}.") from error
        except DataDirError:
            engine.dispose()
            raise
        return cls(data_dir, engine, None)

    @contextmanager
    def read(self) -> Iterator[DbSession]:
        """A session that sees the database as it is now, and writes nothing. Raises DatabaseClosedError after
        `close`."""
        self._check_open()
        with _translated("read"), DbSession(self._engine) as db:
            yield db

    @contextmanager
    def write(self) -> Iterator[DbSession]:
        """A session whose changes are all committed at the end of the block, or none of them.

        Raises DatabaseClosedError after `close`.
        """
        try:
            with _translated("written"), self._write_lock:
                self._check_open()
                with DbSession(self._writing_engine, expire_on_commit=False) as db, db.begin():
                    yield db
        except DiskFullError:
            if self.on_full is not None:
                self.on_full()
            raise

    @property
    def num_bytes(self) -> int:
        """What the database takes on disk, its write-ahead log included."""
        return sum(path.stat().st_size for path in self.data_dir.glob(f"{DATABASE_NAME}*"))

    def close(self) -> None:
        """Close all connections and give the directory back, after the write under way. May be called twice."""
        with self._write_lock:
            self._is_closed = True
        self._engine.dispose()
        if self._lock is not None:
            self._lock.release()

    def _check_open(self) -> None:
        # The engine would connect anew, to a directory that may be another process's by now.
        if self._is_closed:
            raise DatabaseClosedError("The database has been closed; nothing was read or changed.")

    def __enter__(self) -> Database:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


def _renew_text_index(engine: Engine) -> None:
    """A damaged index is made anew. A full disk keeps nobody out: the index stays as it is until the next start."""
    try:
        with engine.begin() as connection:
            renew_text_index(connection)
    except DBAPIError as error:
        if _is_disk_full(error):
            logger.warning("The disk is too full to bring the text index up to date")
            return
        with engine.begin() as connection:
            remake_text_index(connection)


def _make_engine(path: Path, *, reads_only: bool = False) -> Engine:
    engine = create_engine(
        URL.create("sqlite", database=str(path)), connect_args={"timeout": BUSY_TIMEOUT_S}, pool_size=8, max_overflow=-1
    )
    configure(engine, "journal_mode=WAL", "synchronous=FULL", f"query_only={reads_only:d}")
    return engine


def configure(engine: Engine, *pragmas: str) -> None:
    """Have the engine's connections work as this module means them to, with `pragmas` besides."""

    @event.listens_for(engine, "connect")
    def _configure(connection: sqlite3.Connection, _record: Any) -> None:
        # Transactions are begun below, by us: the driver would begin them late and not at all for DDL.
        connection.isolation_level = None
        # One damaged byte in a text must not make the whole chat unreadable.
        connection.text_factory = lambda data: data.decode("utf-8", "replace")
        connection.create_function("fold", 1, _of_text(fold), deterministic=True)
        connection.create_function("searched_text", 2, _of_text(searched_text), deterministic=True)
        # What is removed is overwritten, however SQLite was compiled; for the text index see `forget_removed_texts`.
        for pragma in ("foreign_keys=ON", "secure_delete=ON", *pragmas):
            connection.execute(f"PRAGMA {pragma}")

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        # A transaction that starts as a reader cannot wait for its turn to write, it fails: say at once what it is.
        immediate = connection.get_execution_options().get("begin_immediate", False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if immediate else "BEGIN")


def _of_text(function: Callable[..., str]) -> Callable[..., Any]:
    """The function for SQL, where a text may be none."""
    return lambda value, *others: function(value, *others) if isinstance(value, str) else value


@contextmanager
def _translated(verb: str) -> Iterator[None]:
    try:
        yield
    except DBAPIError as error:
        if _is_disk_full(error):
            raise DiskFullError(
                "The disk is full; nothing was changed. Saved caches give way where there are any: "
                "try again, or free some space."
            ) from error
        raise DatabaseError(f"The database could not be {verb}: {error.orig}. Nothing was changed.") from error


def _is_disk_full(error: DBAPIError) -> bool:
    return getattr(error.orig, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL
