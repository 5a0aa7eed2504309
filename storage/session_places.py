"""`SessionPlaces`: in which of two databases a session lies, the lasting one or that of temporary sessions."""

from __future__ import annotations

from sqlalchemy import select
from sqlalchemy.orm import InstrumentedAttribute

from storage.chat_rows import has_any_id_of, is_id, new_id
from storage.database import Database
from storage.errors import InvalidRecordError
from storage.models import MessageRow, TurnRow
from storage.records import SessionTree
from storage.session_tree import with_new_ids


class SessionPlaces:
    """What every part of `ChatStore` rests on."""

    def __init__(self, database: Database, temporary: Database | None = None) -> None:
        """`temporary`: where temporary sessions are kept; without it there can be none."""
        self._database = database
        self._temporary = temporary
        self._temporary_ids: set[str] = set()

    def is_temporary(self, session_id: str) -> bool:
        """Whether there is such a session, anybody's, that is gone when the store is closed."""
        return is_id(session_id) and session_id in self._temporary_ids

    def _note_new(self, session_id: str, *, is_temporary: bool) -> Database:
        if not is_temporary:
            return self._database
        if self._temporary is None:
            raise InvalidRecordError("This store keeps no temporary sessions.")
        self._temporary_ids.add(session_id)
        return self._temporary

    def _of_session(self, session_id: str) -> Database:
        return self._temporary if self._temporary and self.is_temporary(session_id) else self._database

    def _of_message(self, message_id: str) -> Database:
        return self._with(MessageRow.id, message_id)

    def _of_turn(self, turn_id: str) -> Database:
        return self._with(TurnRow.id, turn_id)

    def _with(self, column: InstrumentedAttribute[str], row_id: str) -> Database:
        """Which database has the row; the lasting one where none has."""
        if self._temporary is None or not self._temporary_ids or not is_id(row_id):
            return self._database
        with self._temporary.read() as db:
            is_there = db.scalar(select(column).where(column == row_id)) is not None
        return self._temporary if is_there else self._database

    def _beside_temporary(self, tree: SessionTree) -> SessionTree:
        """The tree under new ids where a temporary session has any of its own: an id means one session, one message."""
        if self._temporary is None or not self._temporary_ids:
            return tree
        with self._temporary.read() as db:
            return with_new_ids(tree, new_id) if has_any_id_of(db, tree) else tree
