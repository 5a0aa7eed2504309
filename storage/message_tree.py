"""The message tree as SQL: the branch to a message or its end, the leaf below it, siblings with their numbers.

Builds statements and runs none but reads. A message's place among its siblings is counted in the same query that
reads it. Every turn asks several of these, and building one takes longer than running it: each is built once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from sqlalchemy import (
    BindParameter,
    ColumnElement,
    Integer,
    Row,
    Select,
    String,
    bindparam,
    func,
    literal,
    select,
)
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
    if limit is None:
        return _records(db, _branch(), _place(session_id, leaf_id))
    return _records(db, _end_of_branch(), _place(session_id, leaf_id) | {"furthest": limit - 1})


def read_distance(db: DbSession, session_id: str, leaf_id: str, message_id: str) -> int | None:
    """How many steps it is up from `leaf_id` to this message; None where it is on another branch."""
    distance: int | None = db.scalar(_distance(), _place(session_id, leaf_id) | {"above": message_id})
    return distance


def read_selections(db: DbSession, session_id: str, leaf_id: str) -> Sequence[tuple[str, str | None]]:
    """(id, selected child's id) from the root to `leaf_id`."""
    return [(row.id, row.selected_child_id) for row in db.execute(_selections(), _place(session_id, leaf_id))]


def read_last_turn(db: DbSession, session_id: str, leaf_id: str) -> TurnRow | None:
    """The last turn of the nearest reply, from `leaf_id` upwards, that has any."""
    return db.scalar(_last_turn(), _place(session_id, leaf_id))


def read_leaf_id(db: DbSession, session_id: str, message_id: str) -> str:
    """The end of the way down from `message_id`: at each message the selected child, else the newest."""
    leaf_id: str = db.execute(_leaf_id(), _place(session_id, message_id)).scalar_one()
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


_SESSION_ID: BindParameter[str] = bindparam("in_session", type_=String)
_MESSAGE_ID: BindParameter[str] = bindparam("message", type_=String)


def _place(session_id: str, message_id: str) -> dict[str, Any]:
    """The values of the parameters above."""
    return {_SESSION_ID.key: session_id, _MESSAGE_ID.key: message_id}


@cache
def _branch() -> Select[MessageRow, int, int]:
    path = _path_to().subquery()
    return _numbered().join(path, MessageRow.id == path.c.id).order_by(MessageRow.position)


@cache
def _end_of_branch() -> Select[MessageRow, int, int]:
    path = _path_to(bindparam("furthest", type_=Integer)).subquery()
    return _numbered().join(path, MessageRow.id == path.c.id).order_by(MessageRow.position)


@cache
def _distance() -> Select[int]:
    path = _path_to().subquery()
    return select(path.c.distance).where(path.c.id == bindparam("above", type_=String))


@cache
def _selections() -> Select[str, str | None]:
    path = _path_to().subquery()
    return (
        select(MessageRow.id, MessageRow.selected_child_id)
        .join(path, MessageRow.id == path.c.id)
        .order_by(MessageRow.position)
    )


@cache
def _last_turn() -> Select[TurnRow]:
    path = _path_to().subquery()
    return (
        select(TurnRow)
        .join(path, TurnRow.reply_id == path.c.id)
        .where(TurnRow.session_id == _SESSION_ID)
        .order_by(path.c.distance, TurnRow.seq.desc())
        .limit(1)
    )


@cache
def _leaf_id() -> Select[str]:
    walk = (
        select(MessageRow.id, MessageRow.selected_child_id, MessageRow.position)
        .where(MessageRow.session_id == _SESSION_ID, MessageRow.id == _MESSAGE_ID)
        .cte("walk", recursive=True)
    )
    child, sibling = aliased(MessageRow), aliased(MessageRow)
    below = (sibling.session_id == _SESSION_ID, sibling.parent_id == walk.c.id)
    selected = select(sibling.seq).where(*below, sibling.id == walk.c.selected_child_id)
    newest = select(func.max(sibling.seq)).where(*below)
    next_seq = func.coalesce(selected.correlate(walk).scalar_subquery(), newest.correlate(walk).scalar_subquery())
    walk = walk.union_all(select(child.id, child.selected_child_id, child.position).join(walk, child.seq == next_seq))
    return select(walk.c.id).order_by(walk.c.position.desc()).limit(1)


def _path_to(furthest: BindParameter[int] | None = None) -> Select[str, int]:
    """Ids from the message upwards, with their distance from it, which is `furthest` at most."""
    path = (
        select(MessageRow.id, MessageRow.parent_id, literal(0).label("distance"))
        .where(MessageRow.session_id == _SESSION_ID, MessageRow.id == _MESSAGE_ID)
        .cte("path", recursive=True)
    )
    above = aliased(MessageRow)
    step = select(above.id, above.parent_id, path.c.distance + 1).where(
        above.session_id == _SESSION_ID, above.id == path.c.parent_id
    )
    path = path.union_all(step if furthest is None else step.where(path.c.distance < furthest))
    return select(path.c.id, path.c.distance)


@cache
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


def _records(
    db: DbSession, statement: Select[MessageRow, int, int], values: Mapping[str, Any] | None = None
) -> tuple[Message, ...]:
    return tuple(row.to_record(number, num_siblings) for row, number, num_siblings in db.execute(statement, values))
