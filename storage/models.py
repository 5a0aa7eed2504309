"""The tables: sessions, their messages as a tree, and the turns that made the replies.

Rows never leave `storage`; `to_record` turns them into the values that do. Reading is lenient: a NULL or broken
optional value reads as its default, so that one bad field never makes a chat unopenable. Nothing here is specific
to one database.
"""

from __future__ import annotations

import json
import sys
from array import array
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    DateTime,
    Dialect,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Text,
    UniqueConstraint,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from sqlalchemy.types import TypeDecorator

from storage.records import ChatSession, Message, MessageStatus, Role, TurnRecord

EPOCH = datetime.fromtimestamp(0, UTC)
ID = String(36)
SEQUENCE = BigInteger().with_variant(Integer(), "sqlite")
"""Rows are ordered by the number they got when they were inserted: clocks go back, and ties are common."""


class JsonObject(TypeDecorator[Mapping[str, Any]]):
    """A JSON object as text. What is not one reads as an empty mapping."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: Mapping[str, Any] | None, dialect: Dialect) -> str:  # noqa: ARG002
        return json.dumps(dict(value or {}), sort_keys=True)

    def process_result_value(self, value: Any, dialect: Dialect) -> Mapping[str, Any]:  # noqa: ARG002
        try:
            parsed = json.loads(value)
        except (TypeError, ValueError):
            return {}
        return parsed if isinstance(parsed, dict) else {}


class UtcDateTime(TypeDecorator[datetime]):
    """A point in time: aware UTC outside, naive UTC in the table. What is not one reads as None."""

    impl = DateTime
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:  # noqa: ARG002
        return None if value is None else value.astimezone(UTC).replace(tzinfo=None)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:  # noqa: ARG002
        return None if value is None else value.replace(tzinfo=UTC)

    def result_processor(self, dialect: Dialect, coltype: object) -> Callable[[Any], datetime | None]:
        strict = super().result_processor(dialect, coltype)

        def lenient(value: Any) -> datetime | None:
            try:
                return strict(value) if strict else value
            except (TypeError, ValueError, AttributeError):
                return None

        return lenient


class TokenIds(TypeDecorator[tuple[int, ...]]):
    """Token ids as little-endian 32-bit numbers. A blob that is not whole numbers reads as None: text is used."""

    impl = LargeBinary
    cache_ok = True

    def process_bind_param(self, value: Sequence[int] | None, dialect: Dialect) -> bytes | None:  # noqa: ARG002
        return None if value is None else pack_token_ids(value)

    def process_result_value(self, value: Any, dialect: Dialect) -> tuple[int, ...] | None:  # noqa: ARG002
        if not isinstance(value, bytes | memoryview) or len(value) % 4:
            return None
        return unpack_token_ids(bytes(value))


def pack_token_ids(token_ids: Sequence[int]) -> bytes:
    """Token ids as u32le. Raises OverflowError on ids outside 0 … 2**32 - 1."""
    packed = array("I", token_ids)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def unpack_token_ids(blob: bytes) -> tuple[int, ...]:
    """The inverse of `pack_token_ids`. The length of `blob` must be a multiple of 4."""
    packed = array("I")
    packed.frombytes(blob)
    if sys.byteorder == "big":
        packed.byteswap()
    return tuple(packed)


class Base(DeclarativeBase):
    """The metadata of all tables; constraints get names, which migrations need."""

    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "ck": "ck_%(table_name)s_%(constraint_name)s",
            "fk": "fk_%(table_name)s_%(column_0_N_name)s",
            "pk": "pk_%(table_name)s",
        }
    )


class SessionRow(Base):
    """`tip_id` names a message without a foreign key: the tables would need each other to be created."""

    __tablename__ = "sessions"
    __table_args__ = (Index(None, "owner", "deleted_at", "pinned", "updated_at", "id"),)

    id: Mapped[str] = mapped_column(ID, primary_key=True)
    owner: Mapped[str] = mapped_column(Text)
    title: Mapped[str] = mapped_column(Text)
    system_prompt: Mapped[str | None] = mapped_column(Text)
    tip_id: Mapped[str | None] = mapped_column(ID)
    pinned: Mapped[bool] = mapped_column(Boolean)
    sampling: Mapped[Mapping[str, Any] | None] = mapped_column(JsonObject)
    settings: Mapped[Mapping[str, Any] | None] = mapped_column(JsonObject)
    template_vars: Mapped[Mapping[str, Any] | None] = mapped_column(JsonObject)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
    updated_at: Mapped[datetime] = mapped_column(UtcDateTime)
    deleted_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    origin_id: Mapped[str | None] = mapped_column(ID)
    selected_child_id: Mapped[str | None] = mapped_column(ID)
    version: Mapped[int] = mapped_column(Integer)

    def to_record(self) -> ChatSession:
        return ChatSession(
            id=self.id,
            owner=self.owner,
            title=self.title,
            system_prompt=self.system_prompt,
            tip_id=self.tip_id,
            pinned=self.pinned,
            sampling=self.sampling or {},
            settings=self.settings or {},
            template_vars=self.template_vars or {},
            created_at=self.created_at or EPOCH,
            updated_at=self.updated_at or EPOCH,
            deleted_at=self.deleted_at,
            origin_id=self.origin_id,
            version=self.version,
            selected_child_id=self.selected_child_id,
        )


class MessageRow(Base):
    """`selected_child_id` is a view's memory, not structure, as in `SessionRow`: where it names no child, the newest
    child counts."""

    __tablename__ = "messages"
    __table_args__ = (
        UniqueConstraint("id"),
        UniqueConstraint("session_id", "id"),
        # A parent is in the same session, or the row is refused.
        ForeignKeyConstraint(["session_id", "parent_id"], ["messages.session_id", "messages.id"]),
        CheckConstraint("role IN ('user', 'assistant')", name="role"),
        Index(None, "session_id", "parent_id", "seq"),
        Index(None, "status"),
    )

    seq: Mapped[int] = mapped_column(SEQUENCE, primary_key=True, autoincrement=True)
    id: Mapped[str] = mapped_column(ID)
    session_id: Mapped[str] = mapped_column(ID, ForeignKey("sessions.id", ondelete="CASCADE"))
    owner: Mapped[str] = mapped_column(Text)
    parent_id: Mapped[str | None] = mapped_column(ID)
    role: Mapped[str] = mapped_column(String(16))
    text: Mapped[str] = mapped_column(Text)
    reasoning: Mapped[str | None] = mapped_column(Text)
    status: Mapped[str] = mapped_column(String(16))
    position: Mapped[int] = mapped_column(Integer)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
    token_ids: Mapped[tuple[int, ...] | None] = mapped_column(TokenIds)
    tokenizer_digest: Mapped[str | None] = mapped_column(String(64))
    selected_child_id: Mapped[str | None] = mapped_column(ID)
    edited: Mapped[bool] = mapped_column(Boolean)
    origin_id: Mapped[str | None] = mapped_column(ID)

    def to_record(self, alternative_number: int, num_alternatives: int) -> Message:
        known = self.status in set(MessageStatus)
        return Message(
            id=self.id,
            session_id=self.session_id,
            parent_id=self.parent_id,
            role=Role(self.role),
            text=self.text,
            status=MessageStatus(self.status) if known else MessageStatus.COMPLETE,
            position=self.position,
            created_at=self.created_at or EPOCH,
            reasoning=self.reasoning,
            token_ids=self.token_ids,
            tokenizer_digest=self.tokenizer_digest,
            selected_child_id=self.selected_child_id,
            edited=self.edited,
            origin_id=self.origin_id,
            alternative_number=alternative_number,
            num_alternatives=num_alternatives,
        )


class TurnRow(Base):
    """One model call. A reply that was continued has several."""

    __tablename__ = "turns"
    __table_args__ = (
        UniqueConstraint("id"),
        UniqueConstraint("owner", "session_id", "request_id"),
        ForeignKeyConstraint(["session_id", "parent_id"], ["messages.session_id", "messages.id"], ondelete="CASCADE"),
        ForeignKeyConstraint(["session_id", "reply_id"], ["messages.session_id", "messages.id"], ondelete="CASCADE"),
        Index(None, "session_id", "reply_id", "seq"),
        Index(None, "session_id", "parent_id"),
    )

    seq: Mapped[int] = mapped_column(SEQUENCE, primary_key=True, autoincrement=True)
    id: Mapped[str] = mapped_column(ID)
    session_id: Mapped[str] = mapped_column(ID, ForeignKey("sessions.id", ondelete="CASCADE"))
    owner: Mapped[str] = mapped_column(Text)
    parent_id: Mapped[str] = mapped_column(ID)
    reply_id: Mapped[str] = mapped_column(ID)
    request_id: Mapped[str | None] = mapped_column(Text)
    sampling: Mapped[Mapping[str, Any] | None] = mapped_column(JsonObject)
    settings: Mapped[Mapping[str, Any] | None] = mapped_column(JsonObject)
    seed: Mapped[int] = mapped_column(BigInteger)
    context_start: Mapped[int] = mapped_column(Integer)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
    finished_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    stats: Mapped[Mapping[str, Any] | None] = mapped_column(JsonObject)

    def to_record(self) -> TurnRecord:
        return TurnRecord(
            id=self.id,
            session_id=self.session_id,
            parent_id=self.parent_id,
            reply_id=self.reply_id,
            request_id=self.request_id,
            sampling=self.sampling or {},
            settings=self.settings or {},
            seed=self.seed,
            context_start=self.context_start,
            created_at=self.created_at or EPOCH,
            finished_at=self.finished_at,
            stats=self.stats or {},
        )
