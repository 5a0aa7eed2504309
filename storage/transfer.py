"""Chats as files: JSON that holds all of a session and is read back, Markdown for people.

The JSON file has the whole tree with every alternative, the token ids, the turns with settings and stats, and all
times. Reading is strict about the tree and lenient about the rest: what cannot be used takes its default, what is
unknown is left out, and either is reported in a sentence.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from storage.chat_store import ChatStore
from storage.records import ChatSession, Message, SessionTree
from storage.sentence import Sentence
from storage.transfer_json import FORMAT, FORMAT_VERSION, MESSAGE_FIELDS, SESSION_FIELDS, TURN_FIELDS, parse_tree
from storage.transfer_markdown import render_markdown


class ImportOutcome(StrEnum):
    """What an import did."""

    ADDED = "added"
    SKIPPED = "skipped"
    """The owner has this chat already; nothing was changed."""
    RESTORED = "restored"
    """The owner had this chat in the bin; it is out of it, as it was."""
    REPLACED = "replaced"
    """The chat that was there is in the bin."""


@dataclass(frozen=True, slots=True)
class ImportedChat:
    """A chat read from a file and not yet stored. `notes` are sentences on what could not be taken as it was."""

    tree: SessionTree
    notes: tuple[Sentence, ...]


@dataclass(frozen=True, slots=True)
class ImportReport:
    """What became of an imported file. `notes` are sentences on what could not be taken as it was."""

    session: ChatSession
    outcome: ImportOutcome
    num_messages: int
    notes: tuple[Sentence, ...]


def export_json(store: ChatStore, owner: str, session_id: str) -> str:
    """The whole session as JSON text. Raises RowNotFoundError."""
    tree = store.tree(owner, session_id)
    data = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "session": _fields(tree.session, SESSION_FIELDS),
        # As an import stores them, so that what is exported from there is the same.
        "messages": [_fields(message, MESSAGE_FIELDS) for message in sorted(tree.messages, key=_position)],
        "turns": [_fields(turn, TURN_FIELDS) for turn in tree.turns],
    }
    return json.dumps(data, ensure_ascii=False, indent=1)


def export_markdown(store: ChatStore, owner: str, session_id: str) -> str:
    """The session's current branch as Markdown. Raises RowNotFoundError."""
    return render_markdown(store.get_session(owner, session_id), store.branch(owner, session_id))


def read_json(data: str | bytes, owner: str, *, clean: Callable[[str], str]) -> ImportedChat:
    """The chat in an exported file, as the owner's. `clean` makes each text fit to be stored.

    Raises InvalidRecordError where the file is not one of ours or its tree is not sound.
    """
    tree, notes = parse_tree(data, owner, clean)
    return ImportedChat(tree, notes)


def import_chat(store: ChatStore, owner: str, chat: ImportedChat, *, replace: bool = False) -> ImportReport:
    """Store what `read_json` read.

    A chat with the same id that the owner has already is kept, out of the bin if it was there, and the file skipped;
    or, with `replace`, put into the bin. Ids that are anybody else's are replaced by new ones.
    """
    tree = chat.tree
    if replace:
        session, replaced = store.replace_tree(owner, tree)
        outcome = ImportOutcome.REPLACED if replaced else ImportOutcome.ADDED
    elif (inserted := store.insert_tree(owner, tree)) is not None:
        session, outcome = inserted, ImportOutcome.ADDED
    else:
        session, outcome = store.get_session(owner, tree.session.id), ImportOutcome.SKIPPED
        if session.deleted_at is not None:
            session, outcome = store.undelete(owner, session.id), ImportOutcome.RESTORED
    return ImportReport(session, outcome, len(tree.messages), chat.notes)


def _fields(record: Any, names: tuple[str, ...]) -> dict[str, Any]:
    return {name: _plain(getattr(record, name)) for name in names}


def _position(message: Message) -> int:
    return message.position


def _plain(value: Any) -> Any:
    return value.isoformat() if isinstance(value, datetime) else value
