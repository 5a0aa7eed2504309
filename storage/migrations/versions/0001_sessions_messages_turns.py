"""Sessions, messages, turns

Revision ID: 0001
Revises:
"""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "sessions",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("title", sa.Text(), nullable=False),
        sa.Column("system_prompt", sa.Text(), nullable=True),
        sa.Column("tip_id", sa.String(length=36), nullable=True),
        sa.Column("pinned", sa.Boolean(), nullable=False),
        sa.Column("sampling", sa.Text(), nullable=True),
        sa.Column("settings", sa.Text(), nullable=True),
        sa.Column("template_vars", sa.Text(), nullable=True),
        sa.Column("created_at", sa.DateTime(), nullable=False),
        sa.Column("updated_at", sa.DateTime(), nullable=False),
        sa.Column("deleted_at", sa.DateTime(), nullable=True),
        sa.Column("origin_id", sa.String(length=36), nullable=True),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_sessions"),
    )
    op.create_index("ix_sessions_owner_pinned_updated_at", "sessions", ["owner", "pinned", "updated_at"])

    op.create_table(
        "messages",
        sa.Column("seq", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("session_id", sa.String(length=36), nullable=False),
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("parent_id", sa.String(length=36), nullable=True),
        sa.Column("role", sa.String(length=16), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("reasoning", sa.Text(), nullable=True),
        sa.Column("status", sa.String(length=16), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.DateTime(), nullable=False),
        sa.Column("token_ids", sa.LargeBinary(), nullable=True),
        sa.Column("tokenizer_digest", sa.String(length=64), nullable=True),
        sa.Column("selected_child_id", sa.String(length=36), nullable=True),
        sa.Column("edited", sa.Boolean(), nullable=False),
        sa.Column("origin_id", sa.String(length=36), nullable=True),
        sa.CheckConstraint("role IN ('user', 'assistant')", name=op.f("ck_messages_role")),
        sa.ForeignKeyConstraint(
            ["session_id", "parent_id"], ["messages.session_id", "messages.id"], name="fk_messages_session_id_parent_id"
        ),
        sa.ForeignKeyConstraint(["session_id"], ["sessions.id"], name="fk_messages_session_id", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("seq", name="pk_messages"),
        sa.UniqueConstraint("id", name="uq_messages_id"),
        sa.UniqueConstraint("session_id", "id", name="uq_messages_session_id_id"),
    )
    op.create_index("ix_messages_session_id_parent_id_seq", "messages", ["session_id", "parent_id", "seq"])
    op.create_index("ix_messages_status", "messages", ["status"])

    op.create_table(
        "turns",
        sa.Column("seq", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("session_id", sa.String(length=36), nullable=False),
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("parent_id", sa.String(length=36), nullable=False),
        sa.Column("reply_id", sa.String(length=36), nullable=False),
        sa.Column("request_id", sa.Text(), nullable=True),
        sa.Column("sampling", sa.Text(), nullable=True),
        sa.Column("settings", sa.Text(), nullable=True),
        sa.Column("seed", sa.BigInteger(), nullable=False),
        sa.Column("context_start", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.DateTime(), nullable=False),
        sa.Column("finished_at", sa.DateTime(), nullable=True),
        sa.Column("stats", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(
            ["session_id", "parent_id"],
            ["messages.session_id", "messages.id"],
            name="fk_turns_session_id_parent_id",
            ondelete="CASCADE",
        ),
        sa.ForeignKeyConstraint(
            ["session_id", "reply_id"],
            ["messages.session_id", "messages.id"],
            name="fk_turns_session_id_reply_id",
            ondelete="CASCADE",
        ),
        sa.ForeignKeyConstraint(["session_id"], ["sessions.id"], name="fk_turns_session_id", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("seq", name="pk_turns"),
        sa.UniqueConstraint("id", name="uq_turns_id"),
        sa.UniqueConstraint("owner", "session_id", "request_id", name="uq_turns_owner_session_id_request_id"),
    )
    op.create_index("ix_turns_session_id_parent_id", "turns", ["session_id", "parent_id"])
    op.create_index("ix_turns_session_id_reply_id_seq", "turns", ["session_id", "reply_id", "seq"])
