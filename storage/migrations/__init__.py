"""Alembic's environment and revisions. `storage.database` runs them when a data directory is opened."""
