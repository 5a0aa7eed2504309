"""`StoredSessions`: sessions as wholes: made, listed, searched, changed, deleted, copied. Part of `ChatStore`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, TypedDict, Unpack

from sqlalchemy import delete, func, select

from storage.chat_rows import (
    find_message,
    find_session,
    insert_tree,
    insert_tree_as,
    new_id,
    read_tree,
    read_turns,
    remove_session,
    touch,
    utc_now,
)
from storage.chat_search import ChatSearch, FoundSession, terms_of
from storage.copy_titles import next_title, split_number
from storage.database import Database
from storage.errors import InvalidRecordError
from storage.message_tree import read_branch
from storage.models import MessageRow, SessionRow
from storage.records import ChatSession, Role, SessionTree, StoreCounts
from storage.segment_heads import move_heads
from storage.session_places import SessionPlaces
from storage.session_tree import branch_tree, with_new_ids


class SessionChanges(TypedDict, total=False):
    """What `update_session` can change."""

    title: str
    pinned: bool
    system_prompt: str | None
    sampling: Mapping[str, Any]
    settings: Mapping[str, Any]


class StoredSessions(SessionPlaces):
    """See `ChatStore`."""

    def __init__(self, database: Database, temporary: Database | None = None) -> None:
        super().__init__(database, temporary)
        self._search = ChatSearch(database)

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
        self._search.forget_removed()

    def purge_bin(self, owner: str) -> frozenset[str]:
        """Remove all that is in the owner's bin, at once. Returns the ids of the sessions that were."""
        in_bin = (SessionRow.owner == owner, SessionRow.deleted_at.is_not(None))
        with self._database.write() as db:
            removed_ids = frozenset(db.scalars(delete(SessionRow).where(*in_bin).returning(SessionRow.id)))
        self._search.forget_removed()
        return removed_ids

    def counts(self, owner: str) -> StoreCounts:
        """How many sessions and messages the owner has, the bin included."""
        sessions = select(func.count(SessionRow.id), func.count(SessionRow.deleted_at)).where(SessionRow.owner == owner)
        # By way of the sessions, whose index is enough: no message is read.
        messages = select(func.count(MessageRow.seq)).join(SessionRow, MessageRow.session_id == SessionRow.id)
        with self._database.read() as db:
            num_sessions, num_deleted = db.execute(sessions).one()
            return StoreCounts(num_sessions, num_deleted, db.scalars(messages.where(SessionRow.owner == owner)).one())

    def fork(self, owner: str, message_id: str) -> ChatSession:
        """A new session with copies of the branch down to this message, or to the reply above a user message. Its title
        is the original's with the next number that no copy has had.

        Copies have new ids and name their originals in `origin_id`. Turns are copied too, so that what replies cost
        stays visible.
        """
        database = self._of_message(message_id)
        with database.write() as db:
            row = find_message(db, owner, message_id)
            tip_id = row.id if row.role == Role.ASSISTANT else row.parent_id
            branch = read_branch(db, row.session_id, tip_id) if tip_id else ()
            copied = {message.id for message in branch}
            turns = tuple(turn for turn in read_turns(db, row.session_id) if turn.reply_id in copied)
            session = find_session(db, owner, row.session_id).to_record()
            copy = with_new_ids(branch_tree(session, branch, turns), new_id)
            name, _ = split_number(session.title)
            alike = (SessionRow.owner == owner, SessionRow.title.startswith(name, autoescape=True))
            now = utc_now()
            session = dataclasses.replace(
                copy.session,
                title=next_title(session.title, db.scalars(select(SessionRow.title).where(*alike))),
                pinned=False,
                created_at=now,
                updated_at=now,
                deleted_at=None,
                version=1,
            )
            insert_tree(db, dataclasses.replace(copy, session=session))
        self._note_new(session.id, is_temporary=database is self._temporary)
        return session

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
        """As `insert_tree`, but in the place of the stored session, which goes to the bin under new ids, with its holds
        on stored segments.

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
            return insert_tree_as(db, owner, self._beside_temporary(tree)), is_there

    def _change(self, owner: str, session_id: str, values: Mapping[str, Any]) -> ChatSession:
        with self._of_session(session_id).write() as db:
            session = find_session(db, owner, session_id)
            for name, value in values.items():
                setattr(session, name, value)
            return touch(db, session)
