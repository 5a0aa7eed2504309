"""`OwnedSessions`: one owner's sessions, found, and held while they are changed. What the service's parts share."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from chatcache.errors import InvalidInputError, NotFoundError, Reason, ServiceClosedError
from chatcache.runtime import Runtime
from chatcache.session_key import SessionKey
from chatcache.store_errors import translated_store_errors
from chatcache.turn_starter import TurnStarter
from storage.chat_store import ChatStore
from storage.records import ChatSession, Message


class OwnedSessions:
    """Every method may be called from any thread. Raises NotFoundError for ids that are unknown or another owner's,
    ServiceClosedError once the service is being closed."""

    def __init__(self, runtime: Runtime, owner: str) -> None:
        self._opened = runtime
        self._owner = owner

    @property
    def _runtime(self) -> Runtime:
        if self._opened.changes.is_closed:
            raise ServiceClosedError
        return self._opened

    @property
    def _store(self) -> ChatStore:
        return self._runtime.store

    @property
    def _starter(self) -> TurnStarter:
        return self._runtime.starter

    def get_session(self, session_id: str) -> ChatSession:
        """The session, deleted or not."""
        with translated_store_errors():
            return self._store.get_session(self._owner, session_id)

    def _key(self, session_id: str) -> SessionKey:
        return SessionKey(self._owner, session_id)

    def _message(self, message_id: str) -> Message:
        with translated_store_errors():
            return self._store.get_message(self._owner, message_id)

    @contextlib.contextmanager
    def _exclusive(self, session_id: str, *, deleted: bool = False) -> Iterator[ChatSession]:
        """One change of a session at a time; gives the session as it is now. Refuses sessions in the bin."""
        self.get_session(session_id)  # before its lock is taken: an id may be anything
        with self._runtime.locks.of(self._key(session_id)), translated_store_errors():
            self._runtime.runner.save_pending(session_id)
            session = self._store.get_session(self._owner, session_id)
            if session.deleted_at is not None and not deleted:
                raise NotFoundError("This chat is in the bin. Restore it to go on.", Reason.IN_BIN)
            yield session

    def _changed(self, session: ChatSession) -> ChatSession:
        self._runtime.changes.publish(SessionKey.of(session), session.version)
        return session


def whole_number(name: str, value: object, least: int = -(2**63)) -> int:
    """Raises InvalidInputError for what is none, is below `least`, or none that a database takes."""
    if not isinstance(value, int) or isinstance(value, bool) or not -(2**63) <= value < 2**63:
        raise InvalidInputError(f"{name} must be a whole number, not {value!r:.60}.")
    if value < least:
        raise InvalidInputError(f"{name} must be at least {least}, not {value}.", Reason.NOT_A_COUNT, low=least)
    return value
