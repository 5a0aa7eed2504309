"""The sessions' holds on segments as SQL, inside an open transaction: what keeps segments from being removed.

A hold is on a segment and all before it; a session has one for the end of each branch that was saved for it.
"""

from __future__ import annotations

import functools
from collections.abc import Set
from datetime import datetime

from sqlalchemy import Select, bindparam, delete, select, update
from sqlalchemy.orm import Session as DbSession
from sqlalchemy.orm import aliased

from storage.batches import in_batches
from storage.models import SessionRow
from storage.segment_models import SegmentHeadRow, SegmentRow


def read_heads(db: DbSession) -> list[SegmentHeadRow]:
    """Every session's holds."""
    return list(db.scalars(select(SegmentHeadRow)))


def find_held_outside_bin(db: DbSession) -> list[int]:
    """The segments on which sessions that are not in the bin have their holds."""
    statement = select(SegmentHeadRow.segment_id).join(SessionRow, SessionRow.id == SegmentHeadRow.session_id)
    return list(db.scalars(statement.where(SessionRow.deleted_at.is_(None))))


def move_head(db: DbSession, owner: str, session_id: str, segment_id: int, now: datetime) -> bool:
    """Let the session hold this segment and all before it, in the place of its holds on any of those.

    All of them count as used now. False, and nothing changed, where the owner has no such session.
    """
    session = db.get(SessionRow, session_id)
    if session is None or session.owner != owner:
        return False
    chain = _chain(db, segment_id)
    db.execute(update(SegmentRow).where(SegmentRow.id.in_(chain)).values(last_used_at=now))
    db.execute(
        delete(SegmentHeadRow).where(SegmentHeadRow.session_id == session_id, SegmentHeadRow.segment_id.in_(chain))
    )
    db.add(SegmentHeadRow(session_id=session_id, segment_id=segment_id, owner=owner))
    db.flush()
    return True


def move_heads(db: DbSession, session_id: str, to_session_id: str) -> None:
    """What one session holds, another one holds instead, which held nothing."""
    held = update(SegmentHeadRow).where(SegmentHeadRow.session_id == session_id)
    db.execute(held.values(session_id=to_session_id))


def remove_heads(db: DbSession, owner: str, session_ids: Set[str] | None) -> None:
    """End the holds of these sessions, or of all of the owner's."""
    statement = delete(SegmentHeadRow).where(SegmentHeadRow.owner == owner)
    if session_ids is None:
        db.execute(statement)
        return
    for ids in in_batches(list(session_ids)):
        db.execute(statement.where(SegmentHeadRow.session_id.in_(ids)))


def _chain(db: DbSession, segment_id: int) -> list[int]:
    return list(db.scalars(_chain_up(), {"segment_id": segment_id}))


@functools.cache
def _chain_up() -> Select[int]:
    chain = (
        select(SegmentRow.id, SegmentRow.parent_id)
        .where(SegmentRow.id == bindparam("segment_id"))
        .cte("chain", recursive=True)
    )
    above = aliased(SegmentRow)
    chain = chain.union(select(above.id, above.parent_id).join(chain, above.id == chain.c.parent_id))
    return select(chain.c.id)
