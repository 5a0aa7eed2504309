"""What Alembic runs. The connection and its transaction belong to the caller (`storage.database`)."""

from alembic import context

from storage import segment_models  # noqa: F401  (its tables belong to the metadata)
from storage.models import Base

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=Base.metadata,
    # SQLite changes a column by copying its table.
    render_as_batch=True,
)
context.run_migrations()
