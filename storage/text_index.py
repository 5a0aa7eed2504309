"""SQLite's own full text index of messages: which messages contain a term, wherever it stands and in any script.

It is derived from the table `messages` and can be made anew at any time. It knows folded texts (see `searched_text`),
three letters at a time (FTS5's `trigram`), so that a word is found while it is typed, inside other words, and in
scripts that write no spaces. A reply enters it when it is no longer being written.

Whoever writes messages need not know it: triggers note in an ordinary table which messages changed, and the index is
brought up to date before it is asked. So a damaged index can refuse no message.

SQLite can be compiled without FTS5, and other databases have none: there is no index then, and searching reads texts.
"""

from __future__ import annotations

import sqlite3

from sqlalchemy import ColumnClause, Connection, Select, column, select, table, text
from sqlalchemy.exc import DBAPIError

from storage.folding import fold
from storage.plain_words import searched
from storage.records import Role

TABLE = "message_texts"
DUE = f"{TABLE}_due"
"""The `seq` of every message that changed since the index was brought up to date."""
VERSION = 1
"""Of what `searched_text` gives. SQLite keeps the one that the index was made with in the database's `user_version`."""
FEWEST_CHARACTERS = 3
"""Shorter terms cannot be looked up."""
NUM_INDEXED_AT_ONCE = 500

_SHADOWS = ("data", "idx", "content", "docsize", "config")
"""The tables in which FTS5 keeps the index, after its name."""
_NOTE = f"INSERT OR IGNORE INTO {DUE}(seq) VALUES ({{row}}.seq);"
_TRIGGERS = {
    "added": ("INSERT", "new.status <> 'generating'", _NOTE.format(row="new")),
    "removed": ("DELETE", "old.status <> 'generating'", _NOTE.format(row="old")),
    "changed": (
        "UPDATE OF text, status",
        "old.status <> 'generating' OR new.status <> 'generating'",
        _NOTE.format(row="new"),
    ),
}


def ensure_text_index(connection: Connection) -> bool:
    """Have the index in this database, if its SQLite can; whether it has it. Does nothing where it is there already.

    A database that was written by a SQLite without it (its triggers are off then) is indexed anew.
    """
    if connection.dialect.name != "sqlite":
        return False
    names = set(connection.scalars(text("SELECT name FROM sqlite_master WHERE type IN ('table', 'trigger')")))
    if not is_possible():
        _drop_triggers(connection)
        return False
    if not {TABLE, DUE, *map(_trigger_name, _TRIGGERS)} <= names:
        remake_text_index(connection)
        while are_texts_due(connection):
            index_due_texts(connection)
    return True


def renew_text_index(connection: Connection) -> None:
    """Have an index that is there lose what was removed. Of one of another version all messages are due."""
    forget_removed_texts(connection)
    if connection.scalar(text("PRAGMA user_version")) != VERSION:
        _have_all_due(connection)


def remake_text_index(connection: Connection) -> None:
    """An empty index in the place of the one that is there, whatever state that is in. All messages are due then."""
    _drop_triggers(connection)
    _drop_index(connection)
    connection.exec_driver_sql(f"CREATE VIRTUAL TABLE {TABLE} USING fts5(text, tokenize='trigram')")
    connection.exec_driver_sql(f"DROP TABLE IF EXISTS {DUE}")
    connection.exec_driver_sql(f"CREATE TABLE {DUE} (seq INTEGER PRIMARY KEY)")
    _have_all_due(connection)
    for name, (event, condition, action) in _TRIGGERS.items():
        connection.exec_driver_sql(
            f"CREATE TRIGGER {_trigger_name(name)} AFTER {event} ON messages WHEN {condition} BEGIN {action} END"
        )


def are_texts_due(connection: Connection) -> bool:
    """Whether messages changed since the index was last brought up to date."""
    return connection.scalar(text(f"SELECT 1 FROM {DUE} LIMIT 1")) is not None


def index_due_texts(connection: Connection) -> None:
    """Bring the index up to date with some of the messages that changed, few enough that no other writer waits long."""
    due = connection.execute(
        text(
            f"SELECT due.seq, messages.text, role, messages.status FROM {DUE} due LEFT JOIN messages USING (seq)"
            " ORDER BY due.seq LIMIT :at_most"
        ),
        {"at_most": NUM_INDEXED_AT_ONCE},
    ).all()
    if not due:
        return
    for derived, key in ((TABLE, "rowid"), (DUE, "seq")):
        connection.execute(text(f"DELETE FROM {derived} WHERE {key} = :seq"), [{"seq": row.seq} for row in due])
    settled = [row for row in due if row.text is not None and row.status != "generating"]
    if settled:
        connection.execute(
            text(f"INSERT INTO {TABLE}(rowid, text) VALUES (:seq, :folded)"),
            [{"seq": row.seq, "folded": searched_text(row.text, row.role)} for row in settled],
        )


def forget_removed_texts(connection: Connection) -> None:
    """Have the index lose the messages that are there no more; the others that changed can wait until it is asked.

    Their texts are overwritten. Of their letters, three at a time, FTS5 only notes that they count no more; what it
    wrote of them stays until it merges that with the rest.
    """
    removed = f"SELECT seq FROM {DUE} WHERE seq NOT IN (SELECT seq FROM messages)"
    connection.exec_driver_sql(f"DELETE FROM {TABLE} WHERE rowid IN ({removed})")
    connection.exec_driver_sql(f"DELETE FROM {DUE} WHERE seq NOT IN (SELECT seq FROM messages)")


def searched_text(message: str, role: str) -> str:
    """In what a message is searched: folded, and where it is Markdown, its words as a reader sees them, too."""
    return searched(message) if role == Role.ASSISTANT else fold(message)


def is_possible() -> bool:
    """Whether this process's SQLite has what the index needs."""
    connection = sqlite3.connect(":memory:")
    try:
        connection.execute("CREATE VIRTUAL TABLE trial USING fts5(text, tokenize='trigram')")
    except sqlite3.OperationalError:
        return False
    finally:
        connection.close()
    return True


def rows_with(folded_term: str) -> Select[int]:
    """The `seq` of every message whose folded text contains the term, of all owners. For terms of
    `FEWEST_CHARACTERS` or more."""
    phrase = '"' + folded_term.replace('"', '""') + '"'
    rowid: ColumnClause[int] = column("rowid")
    return select(rowid).select_from(table(TABLE)).where(column(TABLE).op("MATCH")(phrase))


def _have_all_due(connection: Connection) -> None:
    connection.exec_driver_sql(f"INSERT OR IGNORE INTO {DUE} SELECT seq FROM messages")
    connection.exec_driver_sql(f"PRAGMA user_version = {VERSION}")


def _trigger_name(name: str) -> str:
    return f"{TABLE}_{name}"


def _drop_triggers(connection: Connection) -> None:
    for name in _TRIGGERS:
        connection.exec_driver_sql(f"DROP TRIGGER IF EXISTS {_trigger_name(name)}")


def _drop_index(connection: Connection) -> None:
    try:
        with connection.begin_nested():
            connection.exec_driver_sql(f"DROP TABLE IF EXISTS {TABLE}")
    except DBAPIError:
        # FTS5 refuses to open what is damaged, and so to drop it: it is forgotten, and what it lay in is dropped.
        connection.exec_driver_sql("PRAGMA writable_schema = ON")
        try:
            connection.execute(text("DELETE FROM sqlite_master WHERE name = :name"), {"name": TABLE})
        finally:
            connection.exec_driver_sql("PRAGMA writable_schema = RESET")
    for shadow in _SHADOWS:
        connection.exec_driver_sql(f"DROP TABLE IF EXISTS {TABLE}_{shadow}")
