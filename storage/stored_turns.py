"""`StoredTurns`: turns as they begin, go on and end, with the replies they write. Part of `ChatStore`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import and_, func, select, update

from storage.batches import in_batches
from storage.chat_rows import (
    add_child,
    as_ids,
    find_message,
    find_session,
    find_turn_by_request,
    is_id,
    move_tip,
    new_id,
    read_message,
    read_turns,
    reopen_reply,
    touch,
    utc_now,
)
from storage.errors import InvalidRecordError, RowNotFoundError, StaleVersionError
from storage.message_tree import read_last_turn
from storage.models import MessageRow, SessionRow, TurnRow
from storage.records import BegunTurn, ChatSession, ExpectedTip, Message, MessageStatus, Role, TurnRecord
from storage.session_places import SessionPlaces

INTERRUPTED_STATS = {"finish_reason": "interrupted"}


class StoredTurns(SessionPlaces):
    """See `ChatStore`."""

    def begin_turn(
        self,
        owner: str,
        session_id: str,
        *,
        user_text: str | None,
        parent_id: str | None,
        expected_tip: ExpectedTip | None,
        reply_to_continue: str | None,
        request_id: str | None,
        sampling: Mapping[str, Any],
        settings: Mapping[str, Any],
        seed: int,
        context_start: int,
        tokenizer_digest: str,
    ) -> BegunTurn:
        """Write all that a turn starts with, at once, and make its reply the tip.

        With `user_text`, `parent_id` is the reply above the new user message, or None. Without it, `parent_id` is the
        user message to answer (again). `reply_to_continue` re-opens a reply without children; it needs neither.
        `expected_tip` None means that any will do. Raises StaleVersionError if the tip is not the expected one,
        InvalidRecordError where roles would not alternate, where the message above is still being written, where the
        continued reply has a child, and where `request_id` has been used in this session.
        """
        with self._of_session(session_id).write() as db:
            session = find_session(db, owner, session_id)
            if expected_tip is not None and expected_tip.id != session.tip_id:
                raise StaleVersionError(f"Session {session_id} moved on: its tip is not {expected_tip.id} any more.")
            if request_id is not None and find_turn_by_request(db, owner, session_id, request_id) is not None:
                raise InvalidRecordError(f"Request {request_id} has its turn already.")
            user: MessageRow | None = None
            if reply_to_continue is not None:
                if user_text is not None:
                    raise InvalidRecordError("A reply is continued without a new user message.")
                reply = reopen_reply(db, find_message(db, owner, reply_to_continue, session_id), tokenizer_digest)
            else:
                above = None if parent_id is None else find_message(db, owner, parent_id, session_id)
                if user_text is not None:
                    above = user = add_child(db, session, above, Role.USER, text=user_text)
                reply = add_child(
                    db,
                    session,
                    above,
                    Role.ASSISTANT,
                    status=MessageStatus.GENERATING,
                    token_ids=(),
                    tokenizer_digest=tokenizer_digest,
                )
            turn = TurnRow(
                id=new_id(),
                session_id=session_id,
                owner=owner,
                parent_id=reply.parent_id,
                reply_id=reply.id,
                request_id=request_id,
                sampling=sampling,
                settings=settings,
                seed=seed,
                context_start=context_start,
                created_at=utc_now(),
            )
            db.add(turn)
            move_tip(db, session, reply.id)
            return BegunTurn(
                session=touch(db, session),
                user=None if user is None else read_message(db, user.id),
                reply=read_message(db, reply.id),
                turn=turn.to_record(),
            )

    def save_partial(
        self, owner: str, reply_id: str, *, text: str, reasoning: str | None, token_ids: Sequence[int] | None
    ) -> None:
        """Save what there is of a reply so far. Raises InvalidRecordError if it is not being written."""
        with self._of_message(reply_id).write() as db:
            row = find_message(db, owner, reply_id)
            if row.status != MessageStatus.GENERATING:
                raise InvalidRecordError(f"Reply {reply_id} is not being written.")
            row.text, row.reasoning, row.token_ids = text, reasoning, as_ids(token_ids)

    def finish_turn(
        self,
        owner: str,
        turn_id: str,
        *,
        text: str,
        reasoning: str | None,
        token_ids: Sequence[int] | None,
        stats: Mapping[str, Any],
    ) -> tuple[Message, ChatSession]:
        """Complete the turn's reply and store what the turn cost. Raises InvalidRecordError the second time."""
        with self._of_turn(turn_id).write() as db:
            turn = db.scalar(select(TurnRow).where(TurnRow.id == turn_id, TurnRow.owner == owner))
            if turn is None:
                raise RowNotFoundError(f"There is no turn {turn_id}.")
            if turn.finished_at is not None:
                raise InvalidRecordError(f"Turn {turn_id} is finished already.")
            reply = find_message(db, owner, turn.reply_id)
            reply.text, reply.reasoning, reply.token_ids = text, reasoning, as_ids(token_ids)
            reply.status = MessageStatus.COMPLETE
            turn.stats, turn.finished_at = stats, utc_now()
            session = touch(db, find_session(db, owner, turn.session_id))
            return read_message(db, reply.id), session

    def mark_interrupted(self) -> int:
        """End what a process that is gone left unfinished, in all sessions of all owners; the caller knows that no turn
        runs. Returns how many replies that were.
        """
        generating = MessageRow.status == MessageStatus.GENERATING
        unfinished = TurnRow.finished_at.is_(None)
        with self._database.write() as db:
            db.execute(
                update(SessionRow)
                .where(SessionRow.id.in_(select(MessageRow.session_id).where(generating)))
                .values(version=SessionRow.version + 1)
            )
            db.execute(update(TurnRow).where(unfinished).values(finished_at=utc_now(), stats=INTERRUPTED_STATS))
            replies = db.scalars(
                update(MessageRow).where(generating).values(status=MessageStatus.INTERRUPTED).returning(MessageRow.id)
            )
            return len(replies.all())

    def turns(self, owner: str, reply_id: str) -> tuple[TurnRecord, ...]:
        """The turns that wrote this reply, oldest first."""
        with self._of_message(reply_id).read() as db:
            row = find_message(db, owner, reply_id)
            return read_turns(db, row.session_id, TurnRow.reply_id == reply_id)

    def latest_turns(self, owner: str, reply_ids: Iterable[str]) -> dict[str, TurnRecord]:
        """The last turn of each of these replies, by reply; replies without one are left out."""
        # By way of the messages: turns are indexed by session and reply.
        of_owners_replies = (
            select(func.max(TurnRow.seq))
            .join(MessageRow, and_(TurnRow.session_id == MessageRow.session_id, TurnRow.reply_id == MessageRow.id))
            .where(MessageRow.owner == owner)
            .group_by(MessageRow.id)
        )
        batches = list(in_batches(list(filter(is_id, reply_ids))))
        found: dict[str, TurnRecord] = {}
        for database in (self._database, *([self._temporary] if self._temporary and self._temporary_ids else [])):
            with database.read() as db:
                for ids in batches:
                    newest = of_owners_replies.where(MessageRow.id.in_(ids))
                    rows = db.scalars(select(TurnRow).where(TurnRow.seq.in_(newest)))
                    found |= {row.reply_id: row.to_record() for row in rows}
        return found

    def session_stats(self, owner: str, session_id: str) -> tuple[Mapping[str, Any], ...]:
        """What every turn of the session cost, whatever branch it is on, as it was stored; empty where nothing was."""
        with self._of_session(session_id).read() as db:
            find_session(db, owner, session_id)
            found = db.scalars(select(TurnRow.stats).where(TurnRow.session_id == session_id))
            return tuple(stats or {} for stats in found)

    def last_turn(self, owner: str, message_id: str) -> TurnRecord | None:
        """The turn that last wrote this message, or else the nearest reply above it that a turn wrote."""
        with self._of_message(message_id).read() as db:
            row = find_message(db, owner, message_id)
            turn = read_last_turn(db, row.session_id, message_id)
            return None if turn is None else turn.to_record()

    def find_turn_by_request(self, owner: str, session_id: str, request_id: str) -> TurnRecord | None:
        """The turn that this request began, if it did."""
        with self._of_session(session_id).read() as db:
            turn = find_turn_by_request(db, owner, session_id, request_id)
            return None if turn is None else turn.to_record()
