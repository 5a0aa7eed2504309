"""The JSON form of a session: its fields, and how a file is read back into a sound tree."""

from __future__ import annotations

import dataclasses
import json
import uuid
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from storage.errors import FileFault, FileRefusedError
from storage.records import ChatSession, Message, MessageStatus, Role, SessionTree, TurnRecord
from storage.sentence import Sentence
from storage.told import FileTold
from storage.transfer_fields import (
    FieldReader,
    damaged,
    read_id,
    read_list,
    read_object,
    read_optional_digest,
    read_optional_id,
    shown,
)

FORMAT = "chatcache.chat"
FORMAT_VERSION = 1

SESSION_FIELDS = (
    "id",
    "title",
    "system_prompt",
    "tip_id",
    "selected_child_id",
    "pinned",
    "sampling",
    "settings",
    "template_vars",
    "created_at",
    "updated_at",
    "origin_id",
)
MESSAGE_FIELDS = (
    "id",
    "parent_id",
    "role",
    "text",
    "reasoning",
    "status",
    "created_at",
    "token_ids",
    "tokenizer_digest",
    "selected_child_id",
    "edited",
    "origin_id",
)
TURN_FIELDS = (
    "id",
    "parent_id",
    "reply_id",
    "sampling",
    "settings",
    "seed",
    "context_start",
    "created_at",
    "finished_at",
    "stats",
)


def parse_tree(data: str | bytes, owner: str, clean: Callable[[str], str]) -> tuple[SessionTree, tuple[Sentence, ...]]:
    """The tree in an exported file, sound and cleaned, with sentences on what could not be taken as it was.

    Raises FileRefusedError where it is no such file, is a later version's, or where its messages form no tree of
    alternating roles.
    """
    file = _load(data)
    reader = _Reader(clean)
    reader.report_unknown("file", file, ("format", "format_version", "session", "messages", "turns"))
    session = reader.session(read_object(file.get("session"), "session"), owner)
    messages = reader.messages(read_list(file, "messages"), session)
    turns = reader.turns(read_list(file, "turns"), messages, session)
    tip_id = session.tip_id
    replies = [message.id for message in messages if message.role is Role.ASSISTANT]
    if tip_id is not None and tip_id not in replies:
        tip_id = replies[-1] if replies else None
        sentence = "The chat's current end is not among its replies; it now ends at the last one."
        reader.note(Sentence(sentence, FileTold.OTHER_END))
    session = dataclasses.replace(session, tip_id=tip_id)
    return SessionTree(session, messages, turns), reader.notes


def _load(data: str | bytes) -> Mapping[str, Any]:
    try:
        file = json.loads(data.decode("utf-8-sig") if isinstance(data, bytes) else data)
    except (ValueError, RecursionError) as error:
        raise FileRefusedError(
            "This file is not JSON. Choose a file that was exported as JSON.", FileFault.NOT_JSON
        ) from error
    if not isinstance(file, dict) or file.get("format") != FORMAT:
        raise FileRefusedError(
            "This is not a chat that was exported from chatcache. Choose one that was, as JSON.", FileFault.FOREIGN
        )
    version = file.get("format_version")
    if not isinstance(version, int) or not 1 <= version <= FORMAT_VERSION:
        raise FileRefusedError(
            f"This chat was exported by a newer version (format {shown(version)}). Update chatcache.", FileFault.NEWER
        )
    return file


class _Reader(FieldReader):
    """Reads one file's records."""

    def session(self, record: Mapping[str, Any], owner: str) -> ChatSession:
        self.report_unknown("session", record, SESSION_FIELDS)
        created_at = self.time(record, "created_at", "session", datetime.now(UTC))
        return ChatSession(
            id=read_id(record, "id", "session"),
            owner=owner,
            title=self.text(record, "title", "session"),
            system_prompt=self.optional_text(record, "system_prompt", "session"),
            tip_id=read_optional_id(record, "tip_id"),
            pinned=record.get("pinned") is True,
            sampling=self.mapping(record, "sampling", "session"),
            settings=self.mapping(record, "settings", "session"),
            template_vars=self.mapping(record, "template_vars", "session"),
            created_at=created_at,
            updated_at=self.time(record, "updated_at", "session", created_at),
            deleted_at=None,
            origin_id=read_optional_id(record, "origin_id"),
            version=1,
            selected_child_id=read_optional_id(record, "selected_child_id"),
        )

    def messages(self, records: list[Any], session: ChatSession) -> tuple[Message, ...]:
        """All messages, parents first, alternatives in the file's order, every user message with a reply."""
        by_id: dict[str, Message] = {}
        for record in records:
            message = self._message(read_object(record, "message"), session)
            if message.id in by_id:
                detail = f"message {message.id} is there twice"
                raise damaged(Sentence(detail, FileTold.TWICE, message=message.id))
            by_id[message.id] = message
        positions = _positions(by_id)
        placed = [dataclasses.replace(message, position=positions[message.id]) for message in by_id.values()]
        answered = {message.parent_id for message in placed}
        for message in tuple(placed):
            if message.role is Role.USER and message.id not in answered:
                sentence = "A message without a reply was given an empty one, which can be continued."
                self.note(Sentence(sentence, FileTold.REPLY_ADDED))
                placed.append(_empty_reply(message))
        return tuple(sorted(placed, key=lambda message: message.position))

    def _message(self, record: Mapping[str, Any], session: ChatSession) -> Message:
        self.report_unknown("message", record, MESSAGE_FIELDS)
        if record.get("role") not in list(Role):  # compared, not looked up: it may be anything
            there = shown(record.get("role"))
            raise damaged(Sentence(f"a message has the role {there}", FileTold.BAD_ROLE, value=there))
        role = Role(record["role"])
        is_complete = role is Role.USER or record.get("status") == MessageStatus.COMPLETE
        text = self.text(record, "text", "message")
        token_ids = self.token_ids(record)
        if text != record.get("text") or role is Role.USER:
            # Ids stand for a reply's text as it was sampled.
            token_ids = None
        return Message(
            id=read_id(record, "id", "message"),
            session_id=session.id,
            parent_id=None if record.get("parent_id") is None else read_id(record, "parent_id", "message"),
            role=role,
            text=text,
            status=MessageStatus.COMPLETE if is_complete else MessageStatus.INTERRUPTED,
            position=0,
            created_at=self.time(record, "created_at", "message", session.created_at),
            reasoning=self.optional_text(record, "reasoning", "message"),
            token_ids=token_ids,
            tokenizer_digest=read_optional_digest(record),
            selected_child_id=read_optional_id(record, "selected_child_id"),
            edited=record.get("edited") is True,
            origin_id=read_optional_id(record, "origin_id"),
        )

    def turns(self, records: list[Any], messages: tuple[Message, ...], session: ChatSession) -> tuple[TurnRecord, ...]:
        parents = {message.id: message.parent_id for message in messages if message.role is Role.ASSISTANT}
        turns: dict[str, TurnRecord] = {}
        for value in records:
            record = read_object(value, "turn")
            turn_id, parent_id, reply_id = (read_id(record, name, "turn") for name in ("id", "parent_id", "reply_id"))
            if parents.get(reply_id) != parent_id or turn_id in turns:
                sentence = "Left out: a turn that belongs to no reply in the file."
                self.note(Sentence(sentence, FileTold.TURN_LEFT_OUT))
                continue
            self.report_unknown("turn", record, TURN_FIELDS)
            created_at = self.time(record, "created_at", "turn", session.created_at)
            turns[turn_id] = TurnRecord(
                id=turn_id,
                session_id=session.id,
                parent_id=parent_id,
                reply_id=reply_id,
                request_id=None,
                sampling=self.mapping(record, "sampling", "turn"),
                settings=self.mapping(record, "settings", "turn"),
                seed=self.number(record, "seed", "turn"),
                context_start=self.number(record, "context_start", "turn"),
                created_at=created_at,
                finished_at=self.time(record, "finished_at", "turn", created_at),
                stats=self.mapping(record, "stats", "turn"),
            )
        return tuple(turns.values())


def _positions(by_id: Mapping[str, Message]) -> dict[str, int]:
    """Each message's number of ancestors. Raises FileRefusedError unless every way up is whole and alternates."""
    positions: dict[str, int] = {}
    for message in by_id.values():
        way: list[Message] = []
        here: Message | None = message
        while here is not None and here.id not in positions:
            way.append(here)
            here = _above(here, by_id)
            if len(way) > len(by_id):
                detail = f"message {message.id} is its own ancestor"
                raise damaged(Sentence(detail, FileTold.OWN_ANCESTOR, message=message.id))
        start = -1 if here is None else positions[here.id]
        positions |= {message.id: start + step for step, message in enumerate(reversed(way), 1)}
    return positions


def _above(message: Message, by_id: Mapping[str, Message]) -> Message | None:
    above = None if message.parent_id is None else by_id.get(message.parent_id)
    if above is None and message.parent_id is None and message.role is Role.USER:
        return None
    if above is None or above.role is message.role:
        detail = f"message {message.id} has no proper place in the chat"
        raise damaged(Sentence(detail, FileTold.NO_PLACE, message=message.id))
    return above


def _empty_reply(user: Message) -> Message:
    return dataclasses.replace(
        user,
        id=str(uuid.uuid4()),
        parent_id=user.id,
        role=Role.ASSISTANT,
        text="",
        status=MessageStatus.INTERRUPTED,
        position=user.position + 1,
        token_ids=(),
        tokenizer_digest=None,
        selected_child_id=None,
        edited=False,
        origin_id=None,
    )
