"""Fields of an imported file's records: read as what they must be, refused or noted where they are not.

It knows JSON values and sentences. What the records are is `transfer_json`'s.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from storage.errors import FileFault, FileRefusedError
from storage.sentence import Sentence
from storage.told import FileTold

MAX_DEPTH = 16
"""How deep settings and stats may be nested; what is deeper could not be written as JSON again everywhere."""
MAX_NOTES = 20
MORE_NOTES = Sentence("There was more in this file that could not be taken as it was.", FileTold.MORE)
_ID = re.compile(r"[0-9A-Za-z-]{1,36}")


def damaged(detail: Sentence) -> FileRefusedError:
    """The refusal of a file that is damaged in this way."""
    sentence = f"The file is damaged: {detail}. Nothing was imported; export the chat anew."
    return FileRefusedError(sentence, FileFault.DAMAGED, detail=detail)


def read_object(value: Any, what: str) -> Mapping[str, Any]:
    """Raises FileRefusedError where it is something else, as `read_list` and `read_id` do."""
    if not isinstance(value, dict):
        raise damaged(Sentence(f"a {what} is not an object", FileTold.NOT_AN_OBJECT, what=what))
    return value


def read_list(file: Mapping[str, Any], name: str) -> list[Any]:
    """Empty where it is missing."""
    value = file.get(name, [])
    if not isinstance(value, list):
        raise damaged(Sentence(f"{name} is not a list", FileTold.NOT_A_LIST, name=name))
    return value


def read_id(record: Mapping[str, Any], name: str, what: str) -> str:
    """An id that a database takes and a page can name."""
    value = record.get(name)
    if not isinstance(value, str) or not _ID.fullmatch(value):
        there = shown(value)
        detail = Sentence(f"{name} of a {what} is {there}", FileTold.BAD_ID, name=name, what=what, value=there)
        raise damaged(detail)
    return value


def read_optional_id(record: Mapping[str, Any], name: str) -> str | None:
    """None where it is missing or no id."""
    value = record.get(name)
    return value if isinstance(value, str) and _ID.fullmatch(value) else None


def shown(value: Any) -> str:
    """What stands there, short enough for a sentence."""
    return f"{value!r:.60}"


def _is_shallow(value: Any, max_depth: int) -> bool:
    if not isinstance(value, dict | list):
        return True
    inner = value.values() if isinstance(value, dict) else value
    return max_depth > 0 and all(_is_shallow(item, max_depth - 1) for item in inner)


def read_optional_digest(record: Mapping[str, Any]) -> str | None:
    """A tokenizer's; None where it is missing or none."""
    value = record.get("tokenizer_digest")
    return value if isinstance(value, str) and re.fullmatch("[0-9a-f]{1,64}", value) else None


class FieldReader:
    """Reads fields leniently: what cannot be used takes its default and is noted."""

    def __init__(self, clean: Callable[[str], str]) -> None:
        self._clean = clean
        self._notes: dict[Sentence, None] = {}

    @property
    def notes(self) -> tuple[Sentence, ...]:
        return tuple(self._notes)

    def note(self, sentence: Sentence) -> None:
        """Each sentence once; only so many, however strange the file is."""
        if len(self._notes) < MAX_NOTES:
            self._notes[sentence] = None
        elif sentence not in self._notes:
            self._notes[MORE_NOTES] = None

    def report_unknown(self, what: str, record: Mapping[str, Any], known: tuple[str, ...]) -> None:
        for name in record:
            if name not in known:
                name = self._clean(name[:60])
                sentence = f"Left out, because this version does not know it: {name} of a {what}."
                self.note(Sentence(sentence, FileTold.UNKNOWN, name=name, what=what))

    def _unusable(self, name: str, what: str) -> None:
        sentence = f"Not usable, so the default was taken: {name} of a {what}."
        self.note(Sentence(sentence, FileTold.UNUSABLE, name=name, what=what))

    def text(self, record: Mapping[str, Any], name: str, what: str) -> str:
        return self.optional_text(record, name, what) or ""

    def optional_text(self, record: Mapping[str, Any], name: str, what: str) -> str | None:
        value = record.get(name)
        if value is not None and not isinstance(value, str):
            self._unusable(name, what)
        return self._clean(value) if isinstance(value, str) else None

    def mapping(self, record: Mapping[str, Any], name: str, what: str) -> Mapping[str, Any]:
        value = record.get(name, {})
        if not isinstance(value, dict) or not _is_shallow(value, MAX_DEPTH):
            self._unusable(name, what)
            return {}
        return value

    def number(self, record: Mapping[str, Any], name: str, what: str) -> int:
        value = record.get(name, 0)
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**63:
            self._unusable(name, what)
            return 0
        return value

    def time(self, record: Mapping[str, Any], name: str, what: str, default: datetime) -> datetime:
        try:
            moment = datetime.fromisoformat(record[name])
            return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
        except (KeyError, TypeError, ValueError, OverflowError):
            self._unusable(name, what)
            return default

    def token_ids(self, record: Mapping[str, Any]) -> tuple[int, ...] | None:
        value = record.get("token_ids")
        if value is None:
            return None
        if not isinstance(value, list) or not all(type(item) is int and 0 <= item < 2**32 for item in value):
            self._unusable("token_ids", "message")
            return None
        return tuple(value)
