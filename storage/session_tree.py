"""Copies of sessions, as pure functions on their records: one branch alone, and a tree under new ids."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from storage.records import ChatSession, Message, MessageStatus, SessionTree, TurnRecord


def branch_tree(session: ChatSession, branch: Sequence[Message], turns: Sequence[TurnRecord]) -> SessionTree:
    """A session of this branch alone, ending at its last message. `turns` are those of its replies.

    A reply that is being written counts as interrupted there, and the turn that writes it is left out.
    """
    children = [*(message.id for message in branch[1:]), None]
    messages = tuple(
        dataclasses.replace(
            message,
            selected_child_id=child,
            status=MessageStatus.INTERRUPTED if message.status is MessageStatus.GENERATING else message.status,
        )
        for message, child in zip(branch, children, strict=False)
    )
    first_id, tip_id = (branch[0].id, branch[-1].id) if branch else (None, None)
    session = dataclasses.replace(session, tip_id=tip_id, selected_child_id=first_id)
    finished = tuple(turn for turn in turns if turn.finished_at is not None)
    return SessionTree(session, messages, finished)


def with_new_ids(tree: SessionTree, new_id: Callable[[], str]) -> SessionTree:
    """The same tree under ids from `new_id`; `origin_id` names what each was copied from. Requests stay behind."""
    ids = {message.id: new_id() for message in tree.messages}
    session = dataclasses.replace(
        tree.session,
        id=new_id(),
        tip_id=ids.get(tree.session.tip_id or ""),
        selected_child_id=ids.get(tree.session.selected_child_id or ""),
        origin_id=tree.session.id,
    )
    messages = tuple(
        dataclasses.replace(
            message,
            id=ids[message.id],
            session_id=session.id,
            parent_id=None if message.parent_id is None else ids[message.parent_id],
            selected_child_id=ids.get(message.selected_child_id or ""),
            origin_id=message.id,
        )
        for message in tree.messages
    )
    turns = tuple(
        dataclasses.replace(
            turn,
            id=new_id(),
            session_id=session.id,
            parent_id=ids[turn.parent_id],
            reply_id=ids[turn.reply_id],
            request_id=None,
        )
        for turn in tree.turns
    )
    return SessionTree(session, messages, turns)
