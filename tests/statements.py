"""What a database is asked, so that a test can say how much that is: a duration would depend on the machine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import sqlalchemy as sa


class Statement(NamedTuple):
    text: str
    parameters: Any


@contextmanager
def noted_statements() -> Iterator[list[Statement]]:
    """A list that gets every statement of the block, whichever thread asks, but not the beginnings of transactions."""
    noted: list[Statement] = []

    def note(_connection: Any, _cursor: Any, text: str, parameters: Any, *_rest: Any) -> None:
        if not text.startswith("BEGIN"):
            noted.append(Statement(text, parameters))

    sa.event.listen(sa.Engine, "before_cursor_execute", note)
    try:
        yield noted
    finally:
        sa.event.remove(sa.Engine, "before_cursor_execute", note)
