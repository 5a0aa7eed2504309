"""Values that a browser holds and sends back: written as JSON text, read without believing any of it."""

from __future__ import annotations

import json
from typing import Any


def to_json(data: dict[str, Any]) -> str:
    """As text, for Gradio changes dictionaries in place while the page still reads them; without any tag in it."""
    return json.dumps(data).replace("<", "\\u003c")


def from_json(sent: object) -> dict[str, Any]:
    """The object that was sent; an empty one for anything else."""
    try:
        data = json.loads(sent) if isinstance(sent, str) else None
    except (ValueError, RecursionError):
        data = None
    return data if isinstance(data, dict) else {}


def text(value: object) -> str | None:
    """A text that is not empty, or None."""
    return value if isinstance(value, str) and value else None


def count(value: object, *, default: int, least: int = 0, most: int = 2**53) -> int:
    """A whole number within these bounds; `default` for what is none."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        return default
    return min(max(value, least), most)
