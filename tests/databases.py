"""Data directories with an empty database."""

from __future__ import annotations

import functools
from pathlib import Path
from tempfile import TemporaryDirectory

from storage.database import DATABASE_NAME, Database


def open_database(data_dir: Path) -> Database:
    """Open a data directory. An empty database is copied into a new one: that is quicker than to run all migrations."""
    path = data_dir / DATABASE_NAME
    if not path.exists():
        data_dir.mkdir(parents=True, exist_ok=True)
        path.write_bytes(_empty_database())
    return Database.open(data_dir)


@functools.cache
def _empty_database() -> bytes:
    with TemporaryDirectory() as folder:
        Database.open(Path(folder)).close()
        return (Path(folder) / DATABASE_NAME).read_bytes()
