"""`SessionKey`: whose session; what caches are known by. Two owners never share one."""

from __future__ import annotations

from dataclasses import dataclass

from storage.records import ChatSession


@dataclass(frozen=True, slots=True)
class SessionKey:
    """A session of an owner."""

    owner: str
    session_id: str

    @classmethod
    def of(cls, session: ChatSession) -> SessionKey:
        return cls(session.owner, session.id)
