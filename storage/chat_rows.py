"""Rows found, read, made and changed inside an open transaction: the steps that `ChatStore`'s methods are made of."""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

from sqlalchemy import ColumnElement, delete, insert, select, update
from sqlalchemy.orm import Session as DbSession

from storage.batches import in_batches
from storage.errors import InvalidRecordError, RowNotFoundError
from storage.message_tree import read_messages, read_selections
from storage.models import MessageRow, SessionRow, TurnRow
from storage.records import ChatSession, Message, MessageStatus, Role, SessionTree, TurnRecord
from storage.session_tree import with_new_ids


def utc_now() -> datetime:
    return datetime.now(UTC)


def new_id() -> str:
    return str(uuid.uuid4())


def is_id(value: object) -> bool:
    """Whether this may be an id at all: ids reach a service from addresses and scripts, so it may be anything."""
    return isinstance(value, str) and value.isascii() and len(value) <= 36


def as_ids(token_ids: Sequence[int] | None) -> tuple[int, ...] | None:
    return None if token_ids is None else tuple(token_ids)


def find_session(db: DbSession, owner: str, session_id: str) -> SessionRow:
    """The owner's session. Raises RowNotFoundError."""
    row = db.get(SessionRow, session_id) if is_id(session_id) else None
    if row is None or row.owner != owner:
        raise RowNotFoundError(f"There is no session {session_id!s:.60}.")
    return row


def find_message(db: DbSession, owner: str, message_id: str, session_id: str | None = None) -> MessageRow:
    """The owner's message. Raises RowNotFoundError, and InvalidRecordError where it is not in `session_id`."""
    row = db.scalar(select(MessageRow).where(MessageRow.id == message_id)) if is_id(message_id) else None
    if row is None or row.owner != owner:
        raise RowNotFoundError(f"There is no message {message_id!s:.60}.")
    if session_id is not None and row.session_id != session_id:
        raise InvalidRecordError(f"Message {message_id} belongs to another session.")
    return row


def read_message(db: DbSession, message_id: str) -> Message:
    return read_messages(db, MessageRow.id == message_id)[0]


def read_children(db: DbSession, session_id: str, parent_id: str | None) -> tuple[Message, ...]:
    under = MessageRow.parent_id.is_(None) if parent_id is None else MessageRow.parent_id == parent_id
    return read_messages(db, MessageRow.session_id == session_id, under)


def read_turns(db: DbSession, session_id: str, *conditions: ColumnElement[bool]) -> tuple[TurnRecord, ...]:
    """The session's turns that meet `conditions`, in the order they were begun."""
    rows = db.scalars(select(TurnRow).where(TurnRow.session_id == session_id, *conditions).order_by(TurnRow.seq))
    return tuple(row.to_record() for row in rows)


def read_tree(db: DbSession, session: SessionRow) -> SessionTree:
    return SessionTree(
        session=session.to_record(),
        messages=read_messages(db, MessageRow.session_id == session.id),
        turns=read_turns(db, session.id),
    )


def find_turn_by_request(db: DbSession, owner: str, session_id: str, request_id: str) -> TurnRow | None:
    return db.scalar(
        select(TurnRow).where(
            TurnRow.owner == owner, TurnRow.session_id == session_id, TurnRow.request_id == request_id
        )
    )


def touch(db: DbSession, session: SessionRow) -> ChatSession:
    """Count a change of the session, or of anything in it."""
    session.version += 1
    session.updated_at = utc_now()
    db.flush()
    return session.to_record()


def add_child(db: DbSession, session: SessionRow, above: MessageRow | None, role: Role, **values: Any) -> MessageRow:
    """A new message under `above`, or a first one under None.

    Raises InvalidRecordError unless users speak first and after replies, replies after users, and where the reply above
    is still being written.
    """
    role_above = None if above is None else above.role
    if (role is Role.ASSISTANT) != (role_above == Role.USER):
        raise InvalidRecordError(f"A {role} message cannot follow {role_above or 'nothing'}.")
    if above is not None and above.status == MessageStatus.GENERATING:
        raise InvalidRecordError(f"Reply {above.id} is still being written.")
    row = MessageRow(
        **{"text": "", "status": MessageStatus.COMPLETE, "edited": False} | values,
        id=new_id(),
        session_id=session.id,
        owner=session.owner,
        parent_id=None if above is None else above.id,
        role=role,
        position=0 if above is None else above.position + 1,
        created_at=utc_now(),
    )
    db.add(row)
    db.flush()
    return row


def reopen_reply(db: DbSession, reply: MessageRow, tokenizer_digest: str) -> MessageRow:
    """Let a turn go on writing a reply. Raises InvalidRecordError where it was answered, or is being written."""
    if reply.role != Role.ASSISTANT:
        raise InvalidRecordError("Only a reply can be continued.")
    if reply.status == MessageStatus.GENERATING:
        raise InvalidRecordError(f"Reply {reply.id} is still being written.")
    if db.scalar(select(MessageRow.seq).where(MessageRow.parent_id == reply.id).limit(1)) is not None:
        raise InvalidRecordError("A reply that was answered cannot be continued; regenerate it instead.")
    reply.status = MessageStatus.GENERATING
    if reply.tokenizer_digest != tokenizer_digest:
        # Its ids mean nothing to this tokenizer: the text is what will be continued.
        reply.token_ids, reply.tokenizer_digest = None, tokenizer_digest
    return reply


def move_tip(db: DbSession, session: SessionRow, tip_id: str | None) -> None:
    """Let the session end at `tip_id`, and make the way there the one last viewed; where it ends before its first
    message, the way to where it ended."""
    end_id = tip_id or session.tip_id
    path = [] if end_id is None else read_selections(db, session.id, end_id)
    if path:
        session.selected_child_id = path[0][0]
    for (message_id, selected_id), (child_id, _) in pairwise(path):
        if selected_id != child_id:
            db.execute(update(MessageRow).where(MessageRow.id == message_id).values(selected_child_id=child_id))
    session.tip_id = tip_id


def remove_session(db: DbSession, session_id: str) -> None:
    """Remove a session; its messages, turns and holds on segments go with it."""
    db.execute(delete(SessionRow).where(SessionRow.id == session_id))


def has_any_id_of(db: DbSession, tree: SessionTree) -> bool:
    """Whether the session's id, or that of one of its messages or turns, is taken here, by whomever."""
    if db.scalar(select(SessionRow.id).where(SessionRow.id == tree.session.id)) is not None:
        return True
    taken = ((MessageRow.id, [m.id for m in tree.messages]), (TurnRow.id, [t.id for t in tree.turns]))
    return any(
        db.scalar(select(column).where(column.in_(batch)).limit(1)) is not None
        for column, ids in taken
        for batch in in_batches(ids)
    )


def insert_tree_as(db: DbSession, owner: str, tree: SessionTree) -> ChatSession:
    """The rows of a tree as the owner's, under new ids where one of its ids is taken."""
    if has_any_id_of(db, tree):
        tree = with_new_ids(tree, new_id)
    session = dataclasses.replace(tree.session, owner=owner)
    insert_tree(db, dataclasses.replace(tree, session=session))
    return session


def insert_tree(db: DbSession, tree: SessionTree) -> None:
    """The rows of a tree whose ids are free, parents before children."""
    owner = tree.session.owner
    db.execute(insert(SessionRow), [_values(tree.session)])
    for row_type, records in ((MessageRow, tree.messages), (TurnRow, tree.turns)):
        if records:
            db.execute(insert(row_type), [_values(record) | {"owner": owner} for record in records])


def _values(record: ChatSession | Message | TurnRecord) -> dict[str, Any]:
    counted = {"alternative_number", "num_alternatives"}
    return {f.name: getattr(record, f.name) for f in dataclasses.fields(record) if f.name not in counted}
