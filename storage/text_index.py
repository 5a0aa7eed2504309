"""SQLite's own full text index of messages: which messages contain a term, wherever it stands and in any script.

It is derived from the table `messages` and can be made anew at any time; triggers keep it right, so whoever writes
messages need not know it. It knows three letters at a time (FTS5's `trigram`), so that a word is found while it is
typed, inside other words, and in scripts that write no spaces. A reply enters it when it is no longer being written.

SQLite can be compiled without it, and other databases have none: then there is no index, and searching reads the texts.
"""

from __future__ import annotations

import sqlite3

from sqlalchemy import ColumnClause, Connection, Select, column, select, table, text

TABLE = "message_texts"
FEWEST_CHARACTERS = 3
"""Shorter terms cannot be looked up."""

_IS_SETTLED = "{row}.status <> 'generating'"
_REMOVE = f"INSERT INTO {TABLE}({TABLE}, rowid, text) VALUES ('delete', old.seq, old.text);"
_ADD = f"INSERT INTO {TABLE}(rowid, text) VALUES (new.seq, new.text);"
_TRIGGERS = {
    "added": ("AFTER INSERT", "new", _ADD),
    "removed": ("AFTER DELETE", "old", _REMOVE),
    "changed": ("BEFORE UPDATE OF text, status", "old", _REMOVE),
    "changed_to": ("AFTER UPDATE OF text, status", "new", _ADD),
}


def ensure_text_index(connection: Connection) -> bool:
    """Have the index in this database, if its SQLite can; whether it has it. Does nothing where it is there already.

    A database that was written by a SQLite without it (its triggers are off then) is indexed anew.
    """
    if connection.dialect.name != "sqlite":
        return False
    names = set(connection.scalars(text("SELECT name FROM sqlite_master WHERE type IN ('table', 'trigger')")))
    triggers = {f"{TABLE}_{name}" for name in _TRIGGERS}
    if not is_possible():
        for trigger in triggers & names:
            connection.exec_driver_sql(f"DROP TRIGGER {trigger}")
        return False
    if TABLE in names and triggers <= names:
        return True
    for trigger in triggers & names:
        connection.exec_driver_sql(f"DROP TRIGGER {trigger}")
    if TABLE in names:
        connection.exec_driver_sql(f"DROP TABLE {TABLE}")
    connection.exec_driver_sql(
        f"CREATE VIRTUAL TABLE {TABLE} USING fts5(text, content='messages', content_rowid='seq', tokenize='trigram')"
    )
    settled = _IS_SETTLED.format(row="messages")
    connection.exec_driver_sql(f"INSERT INTO {TABLE}(rowid, text) SELECT seq, text FROM messages WHERE {settled}")
    for name, (when, row, action) in _TRIGGERS.items():
        settled = _IS_SETTLED.format(row=row)
        connection.exec_driver_sql(
            f"CREATE TRIGGER {TABLE}_{name} {when} ON messages WHEN {settled} BEGIN {action} END"
        )
    return True


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


def rows_with(term: str) -> Select[int]:
    """The `seq` of every message whose text contains `term`, of all owners, without case. For terms of
    `FEWEST_CHARACTERS` or more."""
    phrase = '"' + term.replace('"', '""') + '"'
    rowid: ColumnClause[int] = column("rowid")
    return select(rowid).select_from(table(TABLE)).where(column(TABLE).op("MATCH")(phrase))
