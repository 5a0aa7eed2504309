"""Segments

Revision ID: 0002
Revises: 0001
"""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "owner_salts",
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("salt", sa.String(length=64), nullable=False),
        sa.PrimaryKeyConstraint("owner", name="pk_owner_salts"),
    )
    op.create_table(
        "segment_namespaces",
        sa.Column("id", ID, autoincrement=True, nullable=False),
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("root", sa.String(length=64), nullable=False),
        sa.Column("description", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_segment_namespaces"),
        sa.UniqueConstraint("root", name="uq_segment_namespaces_root"),
    )
    op.create_table(
        "segments",
        sa.Column("id", ID, autoincrement=True, nullable=False),
        sa.Column("key", sa.String(length=64), nullable=False),
        sa.Column("namespace_id", ID, nullable=False),
        sa.Column("parent_id", ID, nullable=True),
        sa.Column("start", sa.Integer(), nullable=False),
        sa.Column("token_ids", sa.LargeBinary(), nullable=False),
        sa.Column("last_used_at", sa.DateTime(), nullable=False),
        sa.ForeignKeyConstraint(["namespace_id"], ["segment_namespaces.id"], name="fk_segments_namespace_id"),
        sa.ForeignKeyConstraint(["parent_id"], ["segments.id"], name="fk_segments_parent_id"),
        sa.PrimaryKeyConstraint("id", name="pk_segments"),
        sa.UniqueConstraint("key", name="uq_segments_key"),
    )
    op.create_index("ix_segments_namespace_id_parent_id", "segments", ["namespace_id", "parent_id"])
    op.create_index("ix_segments_parent_id", "segments", ["parent_id"])

    op.create_table(
        "segment_files",
        sa.Column("segment_id", ID, nullable=False),
        sa.Column("kind", sa.String(length=8), nullable=False),
        sa.Column("num_bytes", sa.BigInteger(), nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.ForeignKeyConstraint(
            ["segment_id"], ["segments.id"], name="fk_segment_files_segment_id", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("segment_id", "kind", name="pk_segment_files"),
    )
    op.create_table(
        "segment_heads",
        sa.Column("session_id", sa.String(length=36), nullable=False),
        sa.Column("segment_id", ID, nullable=False),
        sa.Column("owner", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(
            ["segment_id"], ["segments.id"], name="fk_segment_heads_segment_id", ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["session_id"], ["sessions.id"], name="fk_segment_heads_session_id", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("session_id", "segment_id", name="pk_segment_heads"),
    )
    op.create_index("ix_segment_heads_segment_id", "segment_heads", ["segment_id"])
