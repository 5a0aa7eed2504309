"""The values that cross the border of `storage`: frozen, plain, without a database behind them.

Times are timezone-aware UTC datetimes. Ids are uuid4 strings. `token_ids` is None where a message has only text
(written by a person, edited by hand, imported), and a tuple, perhaps empty, where a model produced it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any


class Role(StrEnum):
    """Who wrote a message. The system prompt is a field of the session, not a message."""

    USER = "user"
    ASSISTANT = "assistant"


class MessageStatus(StrEnum):
    """How far a message is. Only a reply is ever anything but COMPLETE."""

    COMPLETE = "complete"
    GENERATING = "generating"
    INTERRUPTED = "interrupted"
    """The process ended while the reply was being written; what was saved by then is kept."""


@dataclass(frozen=True, slots=True)
class ChatSession:
    """One saved conversation.

    `tip_id` is the reply the session currently ends at, None before the first turn or after all were rolled back.
    `version` grows by one with every change of the session or of anything in it; other windows compare it.
    `template_vars` are the template's variables (dates above all), frozen when the session was made.
    `selected_child_id` is the first message of the branch last viewed.
    """

    id: str
    owner: str
    title: str
    system_prompt: str | None
    tip_id: str | None
    pinned: bool
    sampling: Mapping[str, Any]
    settings: Mapping[str, Any]
    template_vars: Mapping[str, Any]
    created_at: datetime
    updated_at: datetime
    deleted_at: datetime | None
    origin_id: str | None
    version: int
    selected_child_id: str | None = None


@dataclass(frozen=True, slots=True)
class Message:
    """A node in a session's tree. Immutable once it has a child.

    `reasoning` is the part of a reply inside its reasoning tags, `text` what stands outside them; `token_ids` are
    the ids of the whole reply as sampled, without terminator. `selected_child_id` is the child on the branch last
    viewed. `position` is the number of ancestors. `tokenizer_digest` names the tokenizer the ids belong to.
    This is alternative `alternative_number` of `num_alternatives` siblings, counted from 1, oldest first, as they
    were when it was read.
    """

    id: str
    session_id: str
    parent_id: str | None
    role: Role
    text: str
    status: MessageStatus
    position: int
    created_at: datetime
    reasoning: str | None = None
    token_ids: tuple[int, ...] | None = None
    tokenizer_digest: str | None = None
    selected_child_id: str | None = None
    edited: bool = False
    origin_id: str | None = None
    alternative_number: int = 1
    num_alternatives: int = 1


@dataclass(frozen=True, slots=True)
class TurnRecord:
    """One model call: from its parent message to its reply. `stats` is empty while the turn runs.

    `context_start` is the position of the first message the prompt held (0 unless old turns were left out).
    """

    id: str
    session_id: str
    parent_id: str
    reply_id: str
    request_id: str | None
    sampling: Mapping[str, Any]
    settings: Mapping[str, Any]
    seed: int
    context_start: int
    created_at: datetime
    finished_at: datetime | None = None
    stats: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ExpectedTip:
    """What a caller saw as the session's tip (None: no turn). A session that ends elsewhere has moved on since."""

    id: str | None


@dataclass(frozen=True, slots=True)
class BegunTurn:
    """What the transaction at the start of a turn wrote. `user` is None where only a reply was asked for."""

    session: ChatSession
    user: Message | None
    reply: Message
    turn: TurnRecord


@dataclass(frozen=True, slots=True)
class SessionTree:
    """A whole session: every message with its alternatives, and every turn, each in the order they were made."""

    session: ChatSession
    messages: tuple[Message, ...]
    turns: tuple[TurnRecord, ...]


@dataclass(frozen=True, slots=True)
class StoreCounts:
    """How much one owner has stored. `num_deleted_sessions` are among `num_sessions`."""

    num_sessions: int
    num_deleted_sessions: int
    num_messages: int
