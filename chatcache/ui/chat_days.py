"""Chats by the day they were last changed, as the person's own calendar counts days."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, tzinfo
from enum import StrEnum
from itertools import groupby
from zoneinfo import ZoneInfo

from storage.records import ChatSession


class Span(StrEnum):
    """Groups that have a name of their own; older chats stand under their month."""

    PINNED = "pinned"
    TODAY = "today"
    YESTERDAY = "yesterday"
    WEEK = "week"


@dataclass(frozen=True, slots=True)
class Month:
    """A calendar month. `year` is None where it is this year's."""

    number: int
    year: int | None


@dataclass(frozen=True, slots=True)
class ChatGroup:
    """Chats that stand under one heading."""

    span: Span | Month
    sessions: tuple[ChatSession, ...]


def grouped_by_day(sessions: Sequence[ChatSession], now: datetime, zone: tzinfo | None) -> tuple[ChatGroup, ...]:
    """The sessions under their headings, in the order they come in: pinned ones first, then by last change.

    Days begin at midnight in `zone` (None: this machine's).
    """
    today = now.astimezone(zone).date()

    def span_of(session: ChatSession) -> Span | Month:
        day = session.updated_at.astimezone(zone).date()
        age = (today - day).days
        if session.pinned:
            return Span.PINNED
        if age <= 1:
            return Span.YESTERDAY if age == 1 else Span.TODAY
        if age <= 7:
            return Span.WEEK
        return Month(day.month, day.year if day.year != today.year else None)

    return tuple(ChatGroup(span, tuple(chats)) for span, chats in groupby(sessions, span_of))


def zone_named(name: str | None) -> tzinfo | None:
    """The time zone a browser says it is in; None for one that is not known here."""
    try:
        return ZoneInfo(name) if name else None
    except (KeyError, ValueError, OSError):
        return None
