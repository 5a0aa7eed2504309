"""The tables of the segment index. Namespaces and heads have an owner; segments belong to their namespace.

A segment's row says that these tokens stand there; that their KV is on disk, complete, is said by its row in
`segment_files`. So a segment whose file was lost keeps its place, and what hangs below it is of use again as soon as
it is saved again.
"""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import BigInteger, ForeignKey, Index, Integer, LargeBinary, String, Text, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from storage.models import ID, SEQUENCE, Base, UtcDateTime

HASH = String(64)


class OwnerSaltRow(Base):
    """A random number that goes into an owner's keys, so that no two owners have a key in common."""

    __tablename__ = "owner_salts"

    owner: Mapped[str] = mapped_column(Text, primary_key=True)
    salt: Mapped[str] = mapped_column(HASH)


class NamespaceRow(Base):
    """Everything a segment depends on besides its tokens. `description` is for people."""

    __tablename__ = "segment_namespaces"
    __table_args__ = (UniqueConstraint("root"),)

    id: Mapped[int] = mapped_column(SEQUENCE, primary_key=True, autoincrement=True)
    owner: Mapped[str] = mapped_column(Text)
    root: Mapped[str] = mapped_column(HASH)
    description: Mapped[str] = mapped_column(Text)


class SegmentRow(Base):
    """Tokens `[start, start + number of ids)`. `parent_id` None: at the beginning of a prompt."""

    __tablename__ = "segments"
    __table_args__ = (UniqueConstraint("key"), Index(None, "namespace_id", "parent_id"), Index(None, "parent_id"))

    id: Mapped[int] = mapped_column(SEQUENCE, primary_key=True, autoincrement=True)
    key: Mapped[str] = mapped_column(HASH)
    namespace_id: Mapped[int] = mapped_column(ForeignKey("segment_namespaces.id"))
    parent_id: Mapped[int | None] = mapped_column(ForeignKey("segments.id"))
    start: Mapped[int] = mapped_column(Integer)
    token_ids: Mapped[bytes] = mapped_column(LargeBinary)
    last_used_at: Mapped[datetime] = mapped_column(UtcDateTime)


class SegmentFileRow(Base):
    """A complete file on disk."""

    __tablename__ = "segment_files"

    segment_id: Mapped[int] = mapped_column(ForeignKey("segments.id", ondelete="CASCADE"), primary_key=True)
    kind: Mapped[str] = mapped_column(String(8), primary_key=True)
    num_bytes: Mapped[int] = mapped_column(BigInteger)
    digest: Mapped[str] = mapped_column(String(96))


class SegmentHeadRow(Base):
    """A session's hold on a segment and all before it: the ends of the branches that were saved for it."""

    __tablename__ = "segment_heads"
    __table_args__ = (Index(None, "segment_id"),)

    session_id: Mapped[str] = mapped_column(ID, ForeignKey("sessions.id", ondelete="CASCADE"), primary_key=True)
    segment_id: Mapped[int] = mapped_column(ForeignKey("segments.id", ondelete="CASCADE"), primary_key=True)
    owner: Mapped[str] = mapped_column(Text)
