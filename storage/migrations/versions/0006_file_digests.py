"""A file's digest names its algorithm: until now each one was SHA-256

Revision ID: 0006
Revises: 0005
"""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("segment_files") as table:
        table.alter_column(
            "sha256",
            new_column_name="digest",
            existing_type=sa.String(64),
            existing_nullable=False,
            type_=sa.String(96),
        )
    op.execute("UPDATE segment_files SET digest = 'sha256:' || digest")
