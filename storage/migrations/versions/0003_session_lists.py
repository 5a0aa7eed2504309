"""An index in which a list of sessions stands as it is shown

Revision ID: 0003
Revises: 0002
"""

from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.drop_index("ix_sessions_owner_pinned_updated_at", "sessions")
    op.create_index(
        "ix_sessions_owner_deleted_at_pinned_updated_at_id",
        "sessions",
        ["owner", "deleted_at", "pinned", "updated_at", "id"],
    )
