"""The message tree as SQL: the branch to a message or its end, the leaf below it, siblings with their numbers.

Builds statements and runs none but reads. A message's place among its siblings is counted in the same query that
reads it.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import ColumnElement, Row, Select, func, literal, select
from sqlalchemy.orm import Session as DbSession
from sqlalchemy.orm import aliased

from storage.models import MessageRow, SessionRow, TurnRow
from storage.records import Message


def read_messages(db: DbSession, *conditions: ColumnElement[bool]) -> tuple[Message, ...]:
    """The messages that meet `conditions`, in the order they were made, each with its place among its siblings."""
    return _records(db, _numbered().where(*conditions).order_by(MessageRow.seq))


def read_branch(db: DbSession, session_id: str, leaf_id: str, limit: int | None = None) -> tuple[Message, ...]:
    """The messages from the root to `leaf_id`, or the last `limit` of them, without reading what is above; empty if the
    session has no such message."""
    path = _path_to(session_id, leaf_id, limit).subquery()
    return _records(db, _numbered().join(path, MessageRow.id == path.c.id).order_by(MessageRow.position))


def read_selections(db: DbSession, session_id: str, leaf_id: str) -> Sequence[tuple[str, str | None]]:
    """(id, selected child's id) from the root to `leaf_id`."""
    path = _path_to(session_id, leaf_id).subquery()
    statement = (
        select(MessageRow.id, MessageRow.selected_child_id)
        .join(path, MessageRow.id == path.c.id)
        .order_by(MessageRow.position)
    )
    return [(row.id, row.selected_child_id) for row in db.execute(statement)]


def read_last_turn(db: DbSession, session_id: str, leaf_id: str) -> TurnRow | None:
    """The last turn of the nearest reply, from `leaf_id` upwards, that has any."""
    path = _path_to(session_id, leaf_id).subquery()
    statement = (
        select(TurnRow)
        .join(path, TurnRow.reply_id == path.c.id)
        .where(TurnRow.session_id == session_id)
        .order_by(path.c.distance, TurnRow.seq.desc())
        .limit(1)
    )
    return db.scalar(statement)


def read_leaf_id(db: DbSession, session_id: str, message_id: str) -> str:
    """The end of the way down from `message_id`: at each message the selected child, else the newest."""
    walk = (
        select(MessageRow.id, MessageRow.selected_child_id, MessageRow.position)
        .where(MessageRow.session_id == session_id, MessageRow.id == message_id)
        .cte("walk", recursive=True)
    )
    child, sibling = aliased(MessageRow), aliased(MessageRow)
    below = (sibling.session_id == session_id, sibling.parent_id == walk.c.id)
    selected = select(sibling.seq).where(*below, sibling.id == walk.c.selected_child_id)
    newest = select(func.max(sibling.seq)).where(*below)
    next_seq = func.coalesce(selected.correlate(walk).scalar_subquery(), newest.correlate(walk).scalar_subquery())
    walk = walk.union_all(select(child.id, child.selected_child_id, child.position).join(walk, child.seq == next_seq))
    leaf_id: str = db.execute(select(walk.c.id).order_by(walk.c.position.desc()).limit(1)).scalar_one()
    return leaf_id


def read_next_reply_id(db: DbSession, session: SessionRow) -> str | None:
    """The reply one turn below the session's tip: at each message the selected child, else the newest."""
    selected_id: str | None = session.selected_child_id
    if session.tip_id is not None:
        selected_id = db.scalar(select(MessageRow.selected_child_id).where(MessageRow.id == session.tip_id))
    user = _read_child(db, session.id, session.tip_id, selected_id)
    reply = None if user is None else _read_child(db, session.id, user.id, user.selected_child_id)
    return None if reply is None else reply.id


def _read_child(
    db: DbSession, session_id: str, parent_id: str | None, selected_id: str | None
) -> Row[str, str | None] | None:
    """(id, selected child's id) of the child `selected_id`, else of the newest, if there is any."""
    selected_first = ((MessageRow.id == selected_id).desc(), MessageRow.seq.desc())
    children = select(MessageRow.id, MessageRow.selected_child_id).where(
        MessageRow.session_id == session_id, MessageRow.parent_id.is_not_distinct_from(parent_id)
    )
    return db.execute(children.order_by(*selected_first).limit(1)).one_or_none()


def _path_to(session_id: str, leaf_id: str, limit: int | None = None) -> Select[str, int]:
    """Ids from `leaf_id` upwards, `limit` at most, with their distance from it."""
    path = (
        select(MessageRow.id, MessageRow.parent_id, literal(0).label("distance"))
        .where(MessageRow.session_id == session_id, MessageRow.id == leaf_id)
        .cte("path", recursive=True)
    )
    above = aliased(MessageRow)
    step = select(above.id, above.parent_id, path.c.distance + 1).where(
        above.session_id == session_id, above.id == path.c.parent_id
    )
    path = path.union_all(step if limit is None else step.where(path.c.distance < limit - 1))
    return select(path.c.id, path.c.distance)


def _numbered() -> Select[MessageRow, int, int]:
    sibling = aliased(MessageRow)
    count = (
        select(func.count())
        .select_from(sibling)
        .where(
            sibling.session_id == MessageRow.session_id,
            sibling.parent_id.is_not_distinct_from(MessageRow.parent_id),
        )
        .correlate(MessageRow)
    )
    return select(MessageRow, count.where(sibling.seq <= MessageRow.seq).scalar_subquery(), count.scalar_subquery())


def _records(db: DbSession, statement: Select[MessageRow, int, int]) -> tuple[Message, ...]:
    return tuple(row.to_record(number, num_siblings) for row, number, num_siblings in db.execute(statement))
