"""Copies of a session's tree, as pure functions on its records: cut to one branch, and under new ids."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from storage.records import Message, MessageStatus, SessionTree


def cut_to(tree: SessionTree, branch: Sequence[Message]) -> SessionTree:
    """The tree with this branch alone, ending at its last message. What is being written counts as interrupted."""
    ids = [message.id for message in branch]
    children = [*ids[1:], None]
    messages = tuple(
        dataclasses.replace(
            message,
            selected_child_id=child,
            status=MessageStatus.INTERRUPTED if message.status is MessageStatus.GENERATING else message.status,
        )
        for message, child in zip(branch, children, strict=False)
    )
    turns = tuple(turn for turn in tree.turns if turn.reply_id in set(ids) and turn.finished_at is not None)
    session = dataclasses.replace(tree.session, tip_id=ids[-1] if ids else None)
    return SessionTree(session, messages, turns)


def with_new_ids(tree: SessionTree, new_id: Callable[[], str]) -> SessionTree:
    """The same tree under ids from `new_id`; `origin_id` names what each was copied from. Requests stay behind."""
    ids = {message.id: new_id() for message in tree.messages}
    session = dataclasses.replace(
        tree.session, id=new_id(), tip_id=ids.get(tree.session.tip_id or ""), origin_id=tree.session.id
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
