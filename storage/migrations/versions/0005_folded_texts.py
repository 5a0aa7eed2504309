"""The text index knows folded texts, and no trigger writes into it: without its triggers it is made anew

Revision ID: 0005
Revises: 0004
"""

from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    if op.get_bind().dialect.name == "sqlite":
        for name in ("added", "removed", "changed", "changed_to"):
            op.execute(f"DROP TRIGGER IF EXISTS message_texts_{name}")
