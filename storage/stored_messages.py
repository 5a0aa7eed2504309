"""`StoredMessages`: the messages of a session as a tree: its branches read, its end moved. Part of `ChatStore`."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import select

from storage.chat_rows import (
    add_child,
    as_ids,
    find_message,
    find_session,
    move_tip,
    read_children,
    read_message,
    read_tree,
    touch,
)
from storage.errors import InvalidRecordError
from storage.message_tree import read_branch, read_distance, read_leaf_id, read_next_reply_id
from storage.models import MessageRow
from storage.records import ChatSession, Message, Role, SessionTree
from storage.session_places import SessionPlaces


class StoredMessages(SessionPlaces):
    """See `ChatStore`."""

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

    def distance_from_tip(self, owner: str, session_id: str, message_id: str) -> int | None:
        """How many messages of the current branch stand below this one; None where it is on another branch."""
        with self._of_session(session_id).read() as db:
            tip_id = find_session(db, owner, session_id).tip_id
            find_message(db, owner, message_id, session_id)
            return read_distance(db, session_id, tip_id, message_id) if tip_id else None

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
