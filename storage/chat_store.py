"""`ChatStore`: sessions, messages and turns, read and written.

Every method takes the owner first and sees that owner's rows only: others' are reported as missing. Every method is
one transaction and may be called from any thread. Texts arrive cleaned. A change of a session, or of anything in it,
adds one to its `version`. Messages are added and never removed, short of `purge`; every one of them is reached by
`children` from None downwards. Temporary sessions lie in a database of their own: they are found by their ids alone, in
no list and no count.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypedDict, Unpack

from sqlalchemy import and_, delete, func, select, update
from sqlalchemy.orm import InstrumentedAttribute

from storage.chat_rows import (
    add_child,
    as_ids,
    find_message,
    find_session,
    find_turn_by_request,
    has_any_id_of,
    insert_tree,
    insert_tree_as,
    is_id,
    move_tip,
    new_id,
    read_children,
    read_message,
    read_tree,
    read_turns,
    remove_session,
    reopen_reply,
    touch,
    utc_now,
)
from storage.chat_search import ChatSearch, FoundSession, terms_of
from storage.database import Database
from storage.errors import InvalidRecordError, RowNotFoundError, StaleVersionError
from storage.message_tree import read_branch, read_last_turn, read_leaf_id, read_next_reply_id
from storage.models import MessageRow, SessionRow, TurnRow
from storage.records import (
    BegunTurn,
    ChatSession,
    ExpectedTip,
    Message,
    MessageStatus,
    Role,
    SessionTree,
    StoreCounts,
    TurnRecord,
)
from storage.segment_heads import move_heads
from storage.session_tree import branch_tree, with_new_ids

INTERRUPTED_STATS = {"finish_reason": "interrupted"}


class SessionChanges(TypedDict, total=False):
    """What `update_session` can change."""

    title: str
    pinned: bool
    system_prompt: str | None
    sampling: Mapping[str, Any]
    settings: Mapping[str, Any]


class ChatStore:
    """See the module. Raises RowNotFoundError for unknown ids and others' rows, DatabaseError when the disk fails."""

    def __init__(self, database: Database, temporary: Database | None = None) -> None:
        """`temporary`: where temporary sessions are kept; without it there can be none."""
        self._database = database
        self._search = ChatSearch(database)
        self._temporary = temporary
        self._temporary_ids: set[str] = set()

    # Sessions

    def create_session(
        self,
        owner: str,
        *,
        title: str,
        system_prompt: str | None,
        sampling: Mapping[str, Any],
        settings: Mapping[str, Any],
        template_vars: Mapping[str, Any],
        is_temporary: bool = False,
    ) -> ChatSession:
        """A new session without messages."""
        now = utc_now()
        session = ChatSession(
            id=new_id(),
            owner=owner,
            title=title,
            system_prompt=system_prompt,
            tip_id=None,
            pinned=False,
            sampling=sampling,
            settings=settings,
            template_vars=template_vars,
            created_at=now,
            updated_at=now,
            deleted_at=None,
            origin_id=None,
            version=1,
        )
        with self._note_new(session.id, is_temporary=is_temporary).write() as db:
            insert_tree(db, SessionTree(session, (), ()))
        return session

    def is_temporary(self, session_id: str) -> bool:
        """Whether there is such a session, anybody's, that is gone when the store is closed."""
        return is_id(session_id) and session_id in self._temporary_ids

    def get_session(self, owner: str, session_id: str) -> ChatSession:
        """The session, also when it is in the bin (`deleted_at`)."""
        with self._of_session(session_id).read() as db:
            return find_session(db, owner, session_id).to_record()

    def sessions(
        self, owner: str, query: str | None = None, deleted: bool = False, limit: int = 50, offset: int = 0
    ) -> tuple[ChatSession, ...]:
        """A page of the owner's sessions (or of the bin), pinned ones first, then the most recently changed.

        With a `query`, those that `search` finds.
        """
        if terms_of(query or ""):
            found = self.search(owner, query or "", deleted=deleted, limit=limit, offset=offset)
            return tuple(each.session for each in found)
        in_bin = SessionRow.deleted_at.is_not(None) if deleted else SessionRow.deleted_at.is_(None)
        newest_first = (SessionRow.pinned.desc(), SessionRow.updated_at.desc(), SessionRow.id.desc())
        statement = select(SessionRow).where(SessionRow.owner == owner, in_bin).order_by(*newest_first)
        with self._database.read() as db:
            return tuple(row.to_record() for row in db.scalars(statement.limit(limit).offset(offset)))

    def search(
        self, owner: str, query: str, *, deleted: bool = False, limit: int = 50, offset: int = 0
    ) -> tuple[FoundSession, ...]:
        """A page of the owner's sessions (or of the bin) that have the `query`, see `chat_search`, and where they have
        it: in their titles first, then the most recently changed. Nothing is found by a query without a word."""
        terms = terms_of(query)
        return self._search.find(owner, terms, deleted=deleted, limit=limit, offset=offset) if terms else ()

    def update_session(self, owner: str, session_id: str, **changes: Unpack[SessionChanges]) -> ChatSession:
        """Change what is named, leave the rest."""
        return self._change(owner, session_id, dict(changes))

    def delete(self, owner: str, session_id: str) -> ChatSession:
        """Put the session into the bin."""
        return self._change(owner, session_id, {"deleted_at": utc_now()})

    def undelete(self, owner: str, session_id: str) -> ChatSession:
        """Take the session out of the bin."""
        return self._change(owner, session_id, {"deleted_at": None})

    def purge(self, owner: str, session_id: str) -> None:
        """Remove a session that is in the bin, with all that is in it. Raises InvalidRecordError if it is not there."""
        with self._of_session(session_id).write() as db:
            if find_session(db, owner, session_id).deleted_at is None:
                raise InvalidRecordError("Only a session in the bin can be removed for good: delete it first.")
            remove_session(db, session_id)
        self._temporary_ids.discard(session_id)

    def purge_bin(self, owner: str) -> int:
        """Remove all that is in the owner's bin, at once. Returns how many sessions that were."""
        in_bin = (SessionRow.owner == owner, SessionRow.deleted_at.is_not(None))
        with self._database.write() as db:
            return len(db.scalars(delete(SessionRow).where(*in_bin).returning(SessionRow.id)).all())

    def counts(self, owner: str) -> StoreCounts:
        """How many sessions and messages the owner has, the bin included."""
        sessions = select(func.count(SessionRow.id), func.count(SessionRow.deleted_at)).where(SessionRow.owner == owner)
        # By way of the sessions, whose index is enough: no message is read.
        messages = select(func.count(MessageRow.seq)).join(SessionRow, MessageRow.session_id == SessionRow.id)
        with self._database.read() as db:
            num_sessions, num_deleted = db.execute(sessions).one()
            return StoreCounts(num_sessions, num_deleted, db.scalars(messages.where(SessionRow.owner == owner)).one())

    # The tree, read

    def branch(self, owner: str, session_id: str, leaf_id: str | None = None) -> tuple[Message, ...]:
        """The messages from the root to `leaf_id` (default: the tip; empty without one)."""
        with self._of_session(session_id).read() as db:
            session = find_session(db, owner, session_id)
            if leaf_id is not None:
                find_message(db, owner, leaf_id, session_id)
            leaf_id = leaf_id or session.tip_id
            return read_branch(db, session_id, leaf_id) if leaf_id else ()

    def branch_end(
        self, owner: str, session_id: str, limit: int | None, before_id: str | None = None
    ) -> tuple[Message, ...]:
        """The last `limit` messages (None: all) of the current branch, or of what stands above `before_id`, in order.

        What is above them is not read: it takes as long in a chat of a thousand messages as in a short one.
        """
        with self._of_session(session_id).read() as db:
            leaf_id = find_session(db, owner, session_id).tip_id
            if before_id is not None:
                leaf_id = find_message(db, owner, before_id, session_id).parent_id
            return read_branch(db, session_id, leaf_id, limit) if leaf_id else ()

    def branch_length(self, owner: str, session_id: str) -> int:
        """How many messages the current branch has."""
        with self._of_session(session_id).read() as db:
            tip_id = find_session(db, owner, session_id).tip_id
            position = db.scalar(select(MessageRow.position).where(MessageRow.id == tip_id)) if tip_id else None
            return 0 if position is None else position + 1

    def get_message(self, owner: str, message_id: str) -> Message:
        with self._of_message(message_id).read() as db:
            find_message(db, owner, message_id)
            return read_message(db, message_id)

    def alternatives(self, owner: str, message_id: str) -> tuple[Message, ...]:
        """The message and its siblings, oldest first."""
        with self._of_message(message_id).read() as db:
            row = find_message(db, owner, message_id)
            return read_children(db, row.session_id, row.parent_id)

    def children(self, owner: str, session_id: str, parent_id: str | None) -> tuple[Message, ...]:
        """The messages under `parent_id`, oldest first; under None, the session's first messages."""
        with self._of_session(session_id).read() as db:
            find_session(db, owner, session_id)
            if parent_id is not None:
                find_message(db, owner, parent_id, session_id)
            return read_children(db, session_id, parent_id)

    def leaf_of(self, owner: str, message_id: str) -> Message:
        """The reply at the end of the branch last viewed through this message."""
        with self._of_message(message_id).read() as db:
            row = find_message(db, owner, message_id)
            leaf = read_message(db, read_leaf_id(db, row.session_id, message_id))
            if leaf.role is not Role.ASSISTANT:
                raise InvalidRecordError(f"The branch through message {message_id} does not end with a reply.")
            return leaf

    def next_reply(self, owner: str, session_id: str) -> Message | None:
        """The reply one turn below the tip, on the branch last viewed; None where the tip has no answer."""
        with self._of_session(session_id).read() as db:
            reply_id = read_next_reply_id(db, find_session(db, owner, session_id))
            return None if reply_id is None else read_message(db, reply_id)

    def tree(self, owner: str, session_id: str) -> SessionTree:
        """The whole session, as of one moment."""
        with self._of_session(session_id).read() as db:
            return read_tree(db, find_session(db, owner, session_id))

    # The tree, written

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

    def set_tip(self, owner: str, session_id: str, tip_id: str | None) -> ChatSession:
        """Let the session end at a reply, or before its first message.

        The way down to the tip becomes the one last viewed. What lies below the tip stays selected there, so that
        `leaf_of(tip_id)` and `next_reply` find what a rollback left behind.
        """
        with self._of_session(session_id).write() as db:
            session = find_session(db, owner, session_id)
            if tip_id is not None and find_message(db, owner, tip_id, session_id).role != Role.ASSISTANT:
                raise InvalidRecordError("A session can end at a reply only.")
            move_tip(db, session, tip_id)
            return touch(db, session)

    def add_alternative(
        self, owner: str, message_id: str, *, text: str, token_ids: Sequence[int] | None, tokenizer_digest: str
    ) -> tuple[Message, ChatSession]:
        """A reply written by hand beside the reply `message_id`. It becomes the tip; the old one is kept."""
        with self._of_message(message_id).write() as db:
            original = find_message(db, owner, message_id)
            if original.role != Role.ASSISTANT or original.parent_id is None:
                raise InvalidRecordError("Only a reply can be given an alternative without a model.")
            session = find_session(db, owner, original.session_id)
            edited = add_child(
                db,
                session,
                find_message(db, owner, original.parent_id),
                Role.ASSISTANT,
                text=text,
                token_ids=as_ids(token_ids),
                tokenizer_digest=tokenizer_digest,
                edited=True,
            )
            move_tip(db, session, edited.id)
            changed = touch(db, session)
            return read_message(db, edited.id), changed

    def fork(self, owner: str, message_id: str, *, title_suffix: str) -> ChatSession:
        """A new session with copies of the branch down to this message, or to the reply above a user message.

        Copies have new ids and name their originals in `origin_id`. Turns are copied too, so that what replies cost
        stays visible.
        """
        database = self._of_message(message_id)
        with database.write() as db:
            row = find_message(db, owner, message_id)
            tip_id = row.id if row.role == Role.ASSISTANT else row.parent_id
            branch = read_branch(db, row.session_id, tip_id) if tip_id else ()
            turns = read_turns(db, row.session_id, TurnRow.reply_id.in_([message.id for message in branch]))
            session = find_session(db, owner, row.session_id).to_record()
            copy = with_new_ids(branch_tree(session, branch, turns), new_id)
            now = utc_now()
            session = dataclasses.replace(
                copy.session,
                title=session.title + title_suffix,
                pinned=False,
                created_at=now,
                updated_at=now,
                deleted_at=None,
                version=1,
            )
            insert_tree(db, dataclasses.replace(copy, session=session))
        self._note_new(session.id, is_temporary=database is self._temporary)
        return session

    # Turns

    def turns(self, owner: str, reply_id: str) -> tuple[TurnRecord, ...]:
        """The turns that wrote this reply, oldest first."""
        with self._of_message(reply_id).read() as db:
            row = find_message(db, owner, reply_id)
            return read_turns(db, row.session_id, TurnRow.reply_id == reply_id)

    def latest_turns(self, owner: str, reply_ids: Iterable[str]) -> dict[str, TurnRecord]:
        """The last turn of each of these replies, by reply; replies without one are left out."""
        # By way of the messages: turns are indexed by session and reply.
        newest = (
            select(func.max(TurnRow.seq))
            .join(MessageRow, and_(TurnRow.session_id == MessageRow.session_id, TurnRow.reply_id == MessageRow.id))
            .where(MessageRow.owner == owner, MessageRow.id.in_(list(filter(is_id, reply_ids))))
            .group_by(MessageRow.id)
        )
        found: dict[str, TurnRecord] = {}
        for database in (self._database, *([self._temporary] if self._temporary and self._temporary_ids else [])):
            with database.read() as db:
                rows = db.scalars(select(TurnRow).where(TurnRow.seq.in_(newest)))
                found |= {row.reply_id: row.to_record() for row in rows}
        return found

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

    # Whole sessions

    def insert_tree(self, owner: str, tree: SessionTree) -> ChatSession | None:
        """Store an imported session as the owner's. None, and nothing stored, if the owner has it already, perhaps in
        the bin.

        Ids that are taken by anything else, other owners' chats included, are replaced by new ones.
        """
        with self._database.write() as db:
            existing = db.get(SessionRow, tree.session.id)
            if existing is not None and existing.owner == owner:
                return None
            return insert_tree_as(db, owner, self._beside_temporary(tree))

    def replace_tree(self, owner: str, tree: SessionTree) -> tuple[ChatSession, bool]:
        """As `insert_tree`, but in the place of the stored session, which goes to the bin under new ids. What that held
        of the stored segments the new one holds: most of it is the same chat's.

        Also returns whether there was one.
        """
        with self._database.write() as db:
            existing = db.get(SessionRow, tree.session.id)
            is_there = existing is not None and existing.owner == owner
            if existing is not None and is_there:
                kept = with_new_ids(read_tree(db, existing), new_id)
                in_bin = dataclasses.replace(kept.session, deleted_at=utc_now())
                insert_tree(db, dataclasses.replace(kept, session=in_bin))
                move_heads(db, existing.id, in_bin.id)
                db.expunge(existing)
                remove_session(db, existing.id)
            session = insert_tree_as(db, owner, self._beside_temporary(tree))
            if is_there:
                move_heads(db, in_bin.id, session.id)
            return session, is_there

    # Where a session lies

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

    def _change(self, owner: str, session_id: str, values: Mapping[str, Any]) -> ChatSession:
        with self._of_session(session_id).write() as db:
            session = find_session(db, owner, session_id)
            for name, value in values.items():
                setattr(session, name, value)
            return touch(db, session)
