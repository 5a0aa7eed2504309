"""`JsonMemory`: what was found out once and need not be again, by a key, in a small JSON file."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any


class JsonMemory:
    """One that cannot be read or written costs time, no more. What it gives may be anything that JSON has."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def load(self) -> dict[str, Any]:
        """All of it; nothing where it cannot be read."""
        try:
            known = json.loads(self._file.read_text("utf-8"))
        except (OSError, ValueError):
            return {}
        return known if isinstance(known, dict) else {}

    def store(self, known: Mapping[str, Any]) -> None:
        """Put `known` in place of all that was there."""
        temporary = self._file.with_name(f"{self._file.name}.{os.getpid()}")
        with contextlib.suppress(OSError):
            self._file.parent.mkdir(parents=True, exist_ok=True)
            temporary.write_text(json.dumps(known, indent=1), "utf-8")
            temporary.replace(self._file)

    def put(self, key: str, value: Any) -> None:
        """Add or replace one entry."""
        self.store(self.load() | {key: value})
