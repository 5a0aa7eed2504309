"""The data directory: its lock, its modes, its migrations, and what is said when it cannot be used."""

from __future__ import annotations

import os
import resource
import sqlite3
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy.dialects import postgresql
from sqlalchemy.schema import CreateIndex, CreateTable

from storage import migration
from storage.chat_store import ChatStore
from storage.database import DATABASE_NAME, Database
from storage.errors import DatabaseError, DataDirError, DataDirLockedError
from storage.models import Base
from storage.text_index import TABLE

HOLD_LOCK = """
import sys, pathlib
from storage.database import Database
database = Database.open(pathlib.Path(sys.argv[1]))
print("open", flush=True)
sys.stdin.read()
"""


def new_session(store: ChatStore, title: str = "A chat") -> str:
    session = store.create_session("me", title=title, system_prompt=None, sampling={}, settings={}, template_vars={})
    return session.id


def titles(database: Database) -> list[str]:
    return [session.title for session in ChatStore(database).sessions("me")]


def test_what_is_written_is_there_after_opening_again(tmp_path: Path) -> None:
    with Database.open(tmp_path) as database:
        new_session(ChatStore(database), "kept")
    with Database.open(tmp_path) as database:
        assert titles(database) == ["kept"]


def test_the_settings_that_durability_rests_on_are_in_force_on_every_connection(tmp_path: Path) -> None:
    with Database.open(tmp_path) as database, database.read() as one, database.read() as other:
        for db in (one, other):
            pragmas = {
                name: db.execute(sa.text(f"PRAGMA {name}")).scalar()
                for name in ("journal_mode", "synchronous", "foreign_keys", "busy_timeout")
            }
            assert pragmas == {"journal_mode": "wal", "synchronous": 2, "foreign_keys": 1, "busy_timeout": 30_000}


def test_models_and_migrated_schema_are_the_same(tmp_path: Path) -> None:
    Database.open(tmp_path).close()
    engine = sa.create_engine(f"sqlite:///{tmp_path / DATABASE_NAME}")
    with engine.connect() as connection:
        options = {"compare_type": True, "include_name": lambda name, *_: not is_derived(name)}
        context = MigrationContext.configure(connection, opts=options)
        assert compare_metadata(context, Base.metadata) == []
        migrated = schema_facts(connection)
    engine.dispose()
    from_models = sa.create_engine("sqlite://")
    with from_models.connect() as connection:
        Base.metadata.create_all(connection)
        assert schema_facts(connection) == migrated
    from_models.dispose()


def is_derived(name: str | None) -> bool:
    """SQLite's own text index is no part of the models: other databases have none."""
    return (name or "").startswith(TABLE)


def schema_facts(connection: sa.Connection) -> dict[str, object]:
    """What compare_metadata does not look at: checks, deletion rules, unique constraints."""
    inspector = sa.inspect(connection)
    return {
        name: (
            sorted(map(str, inspector.get_check_constraints(name))),
            sorted(map(str, inspector.get_foreign_keys(name))),
            sorted(map(str, inspector.get_unique_constraints(name))),
            sorted(map(str, inspector.get_indexes(name))),
        )
        for name in inspector.get_table_names()
        if name != "alembic_version" and not is_derived(name)
    }


def test_the_tables_can_be_created_on_postgresql() -> None:
    dialect = postgresql.dialect()
    for table in Base.metadata.sorted_tables:
        assert str(CreateTable(table).compile(dialect=dialect))
        for index in table.indexes:
            assert str(CreateIndex(index).compile(dialect=dialect))


def test_files_are_for_their_owner_alone(tmp_path: Path) -> None:
    old_umask = os.umask(0)
    try:
        with Database.open(tmp_path / "new") as database:
            new_session(ChatStore(database))
            files = list((tmp_path / "new").iterdir())
            assert {DATABASE_NAME, DATABASE_NAME + "-wal", DATABASE_NAME + "-shm"} < {file.name for file in files}
            assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}
            assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o700
    finally:
        os.umask(old_umask)


def test_a_database_that_others_may_read_is_made_private(tmp_path: Path) -> None:
    Database.open(tmp_path).close()
    (tmp_path / DATABASE_NAME).chmod(0o644)
    Database.open(tmp_path).close()
    assert stat.S_IMODE((tmp_path / DATABASE_NAME).stat().st_mode) == 0o600


def test_a_second_process_is_refused_and_a_killed_one_leaves_no_lock(tmp_path: Path) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", HOLD_LOCK, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"open\n"
        with pytest.raises(DataDirLockedError, match="--data-dir"):
            Database.open(tmp_path)
        child.kill()
        child.wait()
    Database.open(tmp_path).close()


def test_the_same_process_cannot_open_a_directory_twice_until_it_is_closed(tmp_path: Path) -> None:
    database = Database.open(tmp_path)
    with pytest.raises(DataDirLockedError):
        Database.open(tmp_path)
    closer = threading.Thread(target=database.close)
    closer.start()
    closer.join()
    Database.open(tmp_path).close()


def test_a_file_where_the_folder_should_be_is_refused_with_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(DataDirError, match="--data-dir") as caught:
            Database.open(path)
        assert not isinstance(caught.value, DataDirLockedError)
    assert (tmp_path / "file").read_text() == "not a folder"


@pytest.mark.skipif(os.geteuid() != 0, reason="without root, file modes are tried instead")
def test_a_folder_on_a_read_only_file_system_is_refused_with_the_remedy() -> None:
    with pytest.raises(DataDirError, match="--data-dir"):
        Database.open(Path("/proc/chatcache"))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_write_permission_is_refused_with_the_remedy(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(DataDirError, match="--data-dir"):
            Database.open(tmp_path)
    finally:
        tmp_path.chmod(0o700)


def test_a_file_that_is_no_database_is_left_as_it_is_and_the_lock_is_free_again(tmp_path: Path) -> None:
    (tmp_path / DATABASE_NAME).write_bytes(b"holiday pictures" * 100)
    for _ in range(2):
        with pytest.raises(DataDirError, match="left as it is") as caught:
            Database.open(tmp_path)
        assert not isinstance(caught.value, DataDirLockedError)
    assert (tmp_path / DATABASE_NAME).read_bytes() == b"holiday pictures" * 100


def test_a_database_of_a_newer_version_is_left_as_it_is(tmp_path: Path) -> None:
    Database.open(tmp_path).close()
    set_revision(tmp_path / DATABASE_NAME, "9999")
    with pytest.raises(DataDirError, match="newer version"):
        Database.open(tmp_path)
    assert revision(tmp_path / DATABASE_NAME) == "9999"


def set_revision(path: Path, revision: str) -> None:
    connection = sqlite3.connect(path)
    with connection:
        connection.execute("UPDATE alembic_version SET version_num = ?", (revision,))
    connection.close()


def revision(path: Path) -> str:
    connection = sqlite3.connect(path)
    (value,) = connection.execute("SELECT version_num FROM alembic_version").fetchone()
    connection.close()
    return str(value)


@pytest.fixture
def next_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The migrations as a later version of chatcache might ship them: one more revision. Returns its file."""
    migrations = tmp_path / "migrations"
    versions = migrations / "versions"
    versions.mkdir(parents=True)
    for file in migration.MIGRATIONS.rglob("*.py"):
        (migrations / file.relative_to(migration.MIGRATIONS)).write_text(file.read_text())
    head = revision_of_head()
    later = versions / "9000_later.py"
    later.write_text(
        "import sqlalchemy as sa\nfrom alembic import op\n"
        f"revision, down_revision = '9000', {head!r}\n"
        "def upgrade() -> None:\n"
        "    op.add_column('sessions', sa.Column('colour', sa.Text()))\n"
    )
    monkeypatch.setattr(migration, "MIGRATIONS", migrations)
    return later


def revision_of_head() -> str:
    head = ScriptDirectory.from_config(migration.migration_config()).get_current_head()
    assert head is not None
    return head


def test_the_newest_revision_is_the_one_that_all_migrations_lead_to(next_version: Path) -> None:
    assert migration.newest_revision() == revision_of_head() == "9000"
    next_version.unlink()
    assert migration.newest_revision() == revision_of_head()


def test_a_database_of_this_version_is_opened_without_alembic(tmp_path: Path) -> None:
    Database.open(tmp_path).close()
    code = (
        "import sys, pathlib\nfrom storage.database import Database\n"
        "Database.open(pathlib.Path(sys.argv[1])).close()\nassert 'alembic' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], cwd=Path(__file__).parent.parent, check=True)


def test_a_database_of_which_no_copy_can_be_kept_is_left_as_it_is(tmp_path: Path, next_version: Path) -> None:
    later = next_version.read_text()
    next_version.unlink()
    with Database.open(tmp_path) as database:
        new_session(ChatStore(database), "from before")
    old_head = revision(tmp_path / DATABASE_NAME)
    next_version.write_text(later)

    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**16, limits[1]))
    try:
        with pytest.raises(DataDirError, match=r"copy cannot be written: .* left as it is"):
            Database.open(tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert revision(tmp_path / DATABASE_NAME) == old_head
    with Database.open(tmp_path) as database:
        assert titles(database) == ["from before"]


def test_a_copy_of_the_old_database_is_kept_before_a_migration(tmp_path: Path, next_version: Path) -> None:
    later = next_version.read_text()
    next_version.unlink()
    with Database.open(tmp_path / "data") as database:
        new_session(ChatStore(database), "from before")
    old_head = revision(tmp_path / "data" / DATABASE_NAME)
    assert [path.name for path in (tmp_path / "data").iterdir() if "before" in path.name] == []

    next_version.write_text(later)
    with Database.open(tmp_path / "data") as database:
        assert titles(database) == ["from before"]
        assert revision(tmp_path / "data" / DATABASE_NAME) == "9000"
    copy = tmp_path / "data" / "chats-before-9000.db"
    assert stat.S_IMODE(copy.stat().st_mode) == 0o600
    assert revision(copy) == old_head
    connection = sqlite3.connect(copy)
    assert connection.execute("SELECT title FROM sessions").fetchall() == [("from before",)]
    connection.close()


def test_a_migration_that_fails_changes_nothing_and_can_be_tried_again(tmp_path: Path, next_version: Path) -> None:
    later = next_version.read_text()
    next_version.unlink()
    with Database.open(tmp_path / "data") as database:
        new_session(ChatStore(database), "from before")
    old_head = revision(tmp_path / "data" / DATABASE_NAME)

    next_version.write_text(later + "    op.execute('SELECT nonsense FROM nowhere')\n")
    with pytest.raises(DataDirError, match="nowhere"):
        Database.open(tmp_path / "data")
    assert revision(tmp_path / "data" / DATABASE_NAME) == old_head

    next_version.write_text(later)
    with Database.open(tmp_path / "data") as database:
        assert titles(database) == ["from before"]


def test_a_database_of_the_first_version_is_brought_up_to_date_with_its_chats(tmp_path: Path) -> None:
    engine = sa.create_engine(f"sqlite:///{tmp_path / DATABASE_NAME}")
    config = migration.migration_config()
    with engine.begin() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, "0001")
        connection.execute(
            sa.text(
                "INSERT INTO sessions (id, owner, title, pinned, created_at, updated_at, version)"
                " VALUES ('s', 'me', 'old', 0, '2025-01-01 00:00:00', '2025-01-01 00:00:00', 1)"
            )
        )
    engine.dispose()
    with Database.open(tmp_path) as database:
        assert titles(database) == ["old"]
    assert revision(tmp_path / DATABASE_NAME) == revision_of_head()
    assert revision(tmp_path / f"chats-before-{revision_of_head()}.db") == "0001"


def test_a_write_that_raises_leaves_nothing_behind(tmp_path: Path) -> None:
    with Database.open(tmp_path) as database:
        store = ChatStore(database)
        session_id = new_session(store)

        def rename_then_fail() -> None:
            with database.write() as db:
                db.execute(sa.text("UPDATE sessions SET title = 'changed'"))
                raise RuntimeError("in the middle")

        with pytest.raises(RuntimeError, match="in the middle"):
            rename_then_fail()
        assert store.get_session("me", session_id).title == "A chat"
        assert store.update_session("me", session_id, title="after all").title == "after all"


def test_a_full_disk_is_reported_as_ours_and_writing_goes_on_when_there_is_room(tmp_path: Path) -> None:
    with Database.open(tmp_path) as database:
        store = ChatStore(database)
        session_id = new_session(store)

        def limit_pages(limit: int) -> None:
            with database.read() as db:
                db.execute(sa.text(f"PRAGMA max_page_count = {limit}"))

        limit_pages(1)
        with pytest.raises(DatabaseError, match="full"):
            store.update_session("me", session_id, title="x" * 1_000_000)
        assert store.get_session("me", session_id).title == "A chat"
        limit_pages(1_000_000)
        assert len(store.update_session("me", session_id, title="x" * 1_000_000).title) == 1_000_000


def test_many_threads_can_write_at_once(tmp_path: Path) -> None:
    with Database.open(tmp_path) as database:
        store = ChatStore(database)
        session_id = new_session(store)
        failures: list[BaseException] = []

        def rename() -> None:
            try:
                for number in range(10):
                    store.update_session("me", session_id, title=str(number))
                    store.sessions("me")
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=rename) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failures == []
        assert store.get_session("me", session_id).version == 81


def test_after_closing_nothing_is_read_or_written_any_more(tmp_path: Path) -> None:
    database = Database.open(tmp_path)
    database.close()
    with Database.open(tmp_path), pytest.raises(DatabaseError, match="closed"), database.write():
        pass
    with pytest.raises(DatabaseError, match="closed"), database.read():
        pass
