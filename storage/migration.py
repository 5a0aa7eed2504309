"""Brings a database's tables to this version. A copy of an older database is kept beside it.

Alembic is imported only where there is something to bring up: it takes a tenth of a second of every start.
"""

from __future__ import annotations

import os
import sqlite3
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import Connection, inspect

from storage.data_dir import ensure_private_file
from storage.errors import DataDirError

if TYPE_CHECKING:
    from alembic.config import Config

MIGRATIONS = Path(__file__).parent / "migrations"


def migrate(connection: Connection, path: Path) -> None:
    """Bring the database that `connection` leads to, in the file `path`, to the newest revision, in its transaction.

    Raises DataDirError where a newer version wrote it.
    """
    newest = newest_revision()
    current = revision_of(connection)
    if current == newest:
        return
    if current is not None and current not in _revisions():
        raise DataDirError(
            f"The database {path} was written by a newer version of chatcache. It was left as it is. "
            "Update chatcache, or choose another folder with --data-dir."
        )
    if inspect(connection).get_table_names():
        _keep_copy(path, path.with_name(f"{path.stem}-before-{newest}{path.suffix}"))
    from alembic import command

    config = migration_config()
    config.attributes["connection"] = connection
    command.upgrade(config, "head")


def revision_of(connection: Connection) -> str | None:
    """The revision that a database has; None where it has none yet."""
    if not inspect(connection).has_table("alembic_version"):
        return None
    revision: str | None = connection.exec_driver_sql("SELECT version_num FROM alembic_version").scalar()
    return revision


def newest_revision() -> str:
    """The one that all migrations together lead to."""
    return max(_revisions())


def migration_config() -> Config:
    """Alembic's configuration, without a file. `attributes["connection"]` is to be set by the caller."""
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    return config


def _revisions() -> set[str]:
    """The files of the migrations begin with their revisions, which are numbers of four digits."""
    return {file.name.partition("_")[0] for file in (MIGRATIONS / "versions").glob("[0-9]*_*.py")}


def _keep_copy(path: Path, copy: Path) -> None:
    """Copy the database to `copy`, whole or not at all. A copy that is there already is the older one: it stays.

    Raises DataDirError where the copy cannot be written.
    """
    if copy.exists():
        return
    temporary = copy.with_name(copy.name + ".tmp")
    with suppress(FileNotFoundError):
        temporary.unlink()
    ensure_private_file(temporary)
    source, target = sqlite3.connect(path), sqlite3.connect(temporary)
    try:
        source.backup(target)
    except sqlite3.Error as error:
        raise DataDirError(
            f"The database {path} is kept as a copy before it is brought to this version, and that copy cannot be "
            f"written: {error}. The database was left as it is. Free some space and try again."
        ) from error
    finally:
        source.close()
        target.close()
    with temporary.open("rb") as file:
        os.fsync(file.fileno())
    temporary.replace(copy)
