"""The text index knows folded texts, and no trigger writes into it: without its triggers it is made anew

Revision ID: 0004
Revises: 0003
"""

from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    if op.get_bind().dialect.name == "sqlite":
        for name in ("added", "removed", "changed", "changed_to"):
            op.execute(f"DROP TRIGGER IF EXISTS message_texts_{name}")
