"""Statements are compiled once in a test run, not once for each database: that took half the time of most tests."""

from __future__ import annotations

from typing import Any, ClassVar

from sqlalchemy import Engine
from sqlalchemy.dialects import registry
from sqlalchemy.dialects.sqlite.pysqlite import SQLiteDialect_pysqlite


class SharedDialect(SQLiteDialect_pysqlite):
    """SQLite's; each is equal to every other one, for compiled statements are kept by dialect."""

    supports_statement_cache = True
    _statements: ClassVar[dict[Any, Any]] = {}

    @classmethod
    def engine_created(cls, engine: Engine) -> None:
        engine.update_execution_options(compiled_cache=cls._statements)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SharedDialect)

    def __hash__(self) -> int:
        return hash(SharedDialect)


def share_statements() -> None:
    """From now on, in this process."""
    registry.register("sqlite", __name__, SharedDialect.__name__)
