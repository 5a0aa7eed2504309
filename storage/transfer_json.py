"""The JSON form of a session: its fields, and how a file is read back into a sound tree."""

from __future__ import annotations

import dataclasses
import json
import re
import uuid
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from storage.errors import FileFault, FileRefusedError
from storage.records import ChatSession, Message, MessageStatus, Role, SessionTree, TurnRecord

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
MAX_DEPTH = 16
"""How deep settings and stats may be nested; what is deeper could not be written as JSON again everywhere."""
MAX_NOTES = 20
MORE_NOTES = "There was more in this file that could not be taken as it was."
_ID = re.compile(r"[0-9A-Za-z-]{1,36}")


def parse_tree(data: str | bytes, owner: str, clean: Callable[[str], str]) -> tuple[SessionTree, tuple[str, ...]]:
    """The tree in an exported file, sound and cleaned, with sentences on what could not be taken as it was.

    Raises FileRefusedError where it is no such file, is a later version's, or where its messages form no tree of
    alternating roles.
    """
    file = _load(data)
    reader = _Reader(clean)
    reader.report_unknown("file", file, ("format", "format_version", "session", "messages", "turns"))
    session = reader.session(_object(file.get("session"), "session"), owner)
    messages = reader.messages(_list(file, "messages"), session)
    turns = reader.turns(_list(file, "turns"), messages, session)
    tip_id = session.tip_id
    replies = [message.id for message in messages if message.role is Role.ASSISTANT]
    if tip_id is not None and tip_id not in replies:
        tip_id = replies[-1] if replies else None
        reader.note("The chat's current end is not among its replies; it now ends at the last one.")
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
            f"This chat was exported by a newer version (format {_shown(version)}). Update chatcache.", FileFault.NEWER
        )
    return file


def _damaged(what: str) -> FileRefusedError:
    return FileRefusedError(
        f"The file is damaged: {what}. Nothing was imported; export the chat anew.", FileFault.DAMAGED
    )


def _object(value: Any, what: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise _damaged(f"a {what} is not an object")
    return value


def _list(file: Mapping[str, Any], name: str) -> list[Any]:
    value = file.get(name, [])
    if not isinstance(value, list):
        raise _damaged(f"{name} is not a list")
    return value


def _id(record: Mapping[str, Any], name: str, what: str) -> str:
    value = record.get(name)
    if not isinstance(value, str) or not _ID.fullmatch(value):
        raise _damaged(f"{name} of a {what} is {_shown(value)}")
    return value


def _optional_id(record: Mapping[str, Any], name: str) -> str | None:
    value = record.get(name)
    return value if isinstance(value, str) and _ID.fullmatch(value) else None


def _shown(value: Any) -> str:
    """What stands there, short enough for a sentence."""
    return f"{value!r:.60}"


def _is_shallow(value: Any, max_depth: int) -> bool:
    if not isinstance(value, dict | list):
        return True
    inner = value.values() if isinstance(value, dict) else value
    return max_depth > 0 and all(_is_shallow(item, max_depth - 1) for item in inner)


class _Reader:
    """Reads one file and collects notes."""

    def __init__(self, clean: Callable[[str], str]) -> None:
        self._clean = clean
        self._notes: dict[str, None] = {}

    @property
    def notes(self) -> tuple[str, ...]:
        return tuple(self._notes)

    def note(self, sentence: str) -> None:
        """Each sentence once; only so many, however strange the file is."""
        if len(self._notes) < MAX_NOTES:
            self._notes[sentence] = None
        elif sentence not in self._notes:
            self._notes[MORE_NOTES] = None

    def report_unknown(self, what: str, record: Mapping[str, Any], known: tuple[str, ...]) -> None:
        for name in record:
            if name not in known:
                self.note(f"Left out, because this version does not know it: {self._clean(name[:60])} of a {what}.")

    def session(self, record: Mapping[str, Any], owner: str) -> ChatSession:
        self.report_unknown("session", record, SESSION_FIELDS)
        created_at = self._time(record, "created_at", "session", datetime.now(UTC))
        return ChatSession(
            id=_id(record, "id", "session"),
            owner=owner,
            title=self._text(record, "title", "session"),
            system_prompt=self._optional_text(record, "system_prompt", "session"),
            tip_id=_optional_id(record, "tip_id"),
            pinned=record.get("pinned") is True,
            sampling=self._mapping(record, "sampling", "session"),
            settings=self._mapping(record, "settings", "session"),
            template_vars=self._mapping(record, "template_vars", "session"),
            created_at=created_at,
            updated_at=self._time(record, "updated_at", "session", created_at),
            deleted_at=None,
            origin_id=_optional_id(record, "origin_id"),
            version=1,
            selected_child_id=_optional_id(record, "selected_child_id"),
        )

    def messages(self, records: list[Any], session: ChatSession) -> tuple[Message, ...]:
        """All messages, parents first, alternatives in the file's order, every user message with a reply."""
        by_id: dict[str, Message] = {}
        for record in records:
            message = self._message(_object(record, "message"), session)
            if message.id in by_id:
                raise _damaged(f"message {message.id} is there twice")
            by_id[message.id] = message
        positions = _positions(by_id)
        placed = [dataclasses.replace(message, position=positions[message.id]) for message in by_id.values()]
        answered = {message.parent_id for message in placed}
        for message in tuple(placed):
            if message.role is Role.USER and message.id not in answered:
                self.note("A message without a reply was given an empty one, which can be continued.")
                placed.append(_empty_reply(message))
        return tuple(sorted(placed, key=lambda message: message.position))

    def _message(self, record: Mapping[str, Any], session: ChatSession) -> Message:
        self.report_unknown("message", record, MESSAGE_FIELDS)
        if record.get("role") not in list(Role):  # compared, not looked up: it may be anything
            raise _damaged(f"a message has the role {_shown(record.get('role'))}")
        role = Role(record["role"])
        is_complete = role is Role.USER or record.get("status") == MessageStatus.COMPLETE
        text = self._text(record, "text", "message")
        token_ids = self._token_ids(record)
        if text != record.get("text") or role is Role.USER:
            # Ids stand for a reply's text as it was sampled.
            token_ids = None
        return Message(
            id=_id(record, "id", "message"),
            session_id=session.id,
            parent_id=None if record.get("parent_id") is None else _id(record, "parent_id", "message"),
            role=role,
            text=text,
            status=MessageStatus.COMPLETE if is_complete else MessageStatus.INTERRUPTED,
            position=0,
            created_at=self._time(record, "created_at", "message", session.created_at),
            reasoning=self._optional_text(record, "reasoning", "message"),
            token_ids=token_ids,
            tokenizer_digest=_optional_digest(record),
            selected_child_id=_optional_id(record, "selected_child_id"),
            edited=record.get("edited") is True,
            origin_id=_optional_id(record, "origin_id"),
        )

    def turns(self, records: list[Any], messages: tuple[Message, ...], session: ChatSession) -> tuple[TurnRecord, ...]:
        parents = {message.id: message.parent_id for message in messages if message.role is Role.ASSISTANT}
        turns: dict[str, TurnRecord] = {}
        for value in records:
            record = _object(value, "turn")
            turn_id, parent_id, reply_id = (_id(record, name, "turn") for name in ("id", "parent_id", "reply_id"))
            if parents.get(reply_id) != parent_id or turn_id in turns:
                self.note("Left out: a turn that belongs to no reply in the file.")
                continue
            self.report_unknown("turn", record, TURN_FIELDS)
            created_at = self._time(record, "created_at", "turn", session.created_at)
            turns[turn_id] = TurnRecord(
                id=turn_id,
                session_id=session.id,
                parent_id=parent_id,
                reply_id=reply_id,
                request_id=None,
                sampling=self._mapping(record, "sampling", "turn"),
                settings=self._mapping(record, "settings", "turn"),
                seed=self._number(record, "seed", "turn"),
                context_start=self._number(record, "context_start", "turn"),
                created_at=created_at,
                finished_at=self._time(record, "finished_at", "turn", created_at),
                stats=self._mapping(record, "stats", "turn"),
            )
        return tuple(turns.values())

    def _unusable(self, name: str, what: str) -> None:
        self.note(f"Not usable, so the default was taken: {name} of a {what}.")

    def _text(self, record: Mapping[str, Any], name: str, what: str) -> str:
        return self._optional_text(record, name, what) or ""

    def _optional_text(self, record: Mapping[str, Any], name: str, what: str) -> str | None:
        value = record.get(name)
        if value is not None and not isinstance(value, str):
            self._unusable(name, what)
        return self._clean(value) if isinstance(value, str) else None

    def _mapping(self, record: Mapping[str, Any], name: str, what: str) -> Mapping[str, Any]:
        value = record.get(name, {})
        if not isinstance(value, dict) or not _is_shallow(value, MAX_DEPTH):
            self._unusable(name, what)
            return {}
        return value

    def _number(self, record: Mapping[str, Any], name: str, what: str) -> int:
        value = record.get(name, 0)
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**63:
            self._unusable(name, what)
            return 0
        return value

    def _time(self, record: Mapping[str, Any], name: str, what: str, default: datetime) -> datetime:
        try:
            moment = datetime.fromisoformat(record[name])
            return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
        except (KeyError, TypeError, ValueError, OverflowError):
            self._unusable(name, what)
            return default

    def _token_ids(self, record: Mapping[str, Any]) -> tuple[int, ...] | None:
        value = record.get("token_ids")
        if value is None:
            return None
        if not isinstance(value, list) or not all(type(item) is int and 0 <= item < 2**32 for item in value):
            self._unusable("token_ids", "message")
            return None
        return tuple(value)


def _optional_digest(record: Mapping[str, Any]) -> str | None:
    value = record.get("tokenizer_digest")
    return value if isinstance(value, str) and re.fullmatch("[0-9a-f]{1,64}", value) else None


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
                raise _damaged(f"message {message.id} is its own ancestor")
        start = -1 if here is None else positions[here.id]
        positions |= {message.id: start + step for step, message in enumerate(reversed(way), 1)}
    return positions


def _above(message: Message, by_id: Mapping[str, Message]) -> Message | None:
    above = None if message.parent_id is None else by_id.get(message.parent_id)
    if above is None and message.parent_id is None and message.role is Role.USER:
        return None
    if above is None or above.role is message.role:
        raise _damaged(f"message {message.id} has no proper place in the chat")
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
