"""The database of chats that are not to be kept: the same tables, in memory alone, gone when it is closed.

One connection, used by one thread at a time: memory is quick, and nothing of it can reach a file.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import StaticPool, create_engine
from sqlalchemy.orm import Session as DbSession

from storage.database import Database, configure
from storage.models import Base


class TemporaryDatabase(Database):
    """See the module, and `Database` for the rest. It has no files, and no text index: nobody searches in it."""

    def __init__(self) -> None:
        engine = create_engine("sqlite://", poolclass=StaticPool, connect_args={"check_same_thread": False})
        configure(engine, "temp_store=MEMORY")
        Base.metadata.create_all(engine)
        super().__init__(Path(), engine, None)

    @contextmanager
    def read(self) -> Iterator[DbSession]:
        with self._write_lock, super().read() as db:
            yield db

    @property
    def num_bytes(self) -> int:
        return 0
