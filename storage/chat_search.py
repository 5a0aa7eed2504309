"""What a person typed into the search box, as conditions on sessions.

Every word must stand in the title or in some message of the chat, whatever its branch, perhaps inside other words and
without case. Words in double quotes stand together. No character means anything else, so nothing can be typed wrong.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import ColumnElement, and_, or_, select, true

from storage.models import MessageRow, SessionRow
from storage.text_index import FEWEST_CHARACTERS, rows_with

MOST_TERMS = 8
"""More words find no less."""
_TERM = re.compile(r'"([^"]*)"?|([^\s"]+)')


def terms_of(query: str) -> tuple[str, ...]:
    """The words and quoted phrases of a query, each once. A quotation mark that is not closed reaches to the end."""
    found = (" ".join((phrase or word).split()) for phrase, word in _TERM.findall(query))
    return tuple({term.casefold(): term for term in found if term}.values())[:MOST_TERMS]


@dataclass(frozen=True, slots=True)
class SessionMatch:
    """`found`: whether a session has all that is looked for; `in_title`: whether its title alone has."""

    found: ColumnElement[bool]
    in_title: ColumnElement[bool]


def match_sessions(owner: str, terms: Sequence[str], *, has_text_index: bool) -> SessionMatch:
    """The owner's sessions that have `terms`. With a text index, messages are looked up in it."""
    in_titles = [SessionRow.title.icontains(term, autoescape=True) for term in terms]
    in_texts = [_is_said(owner, term, has_text_index=has_text_index) for term in terms]
    found = (or_(title, text) for title, text in zip(in_titles, in_texts, strict=True))
    return SessionMatch(and_(true(), *found), and_(true(), *in_titles))


def _is_said(owner: str, term: str, *, has_text_index: bool) -> ColumnElement[bool]:
    if has_text_index and len(term) >= FEWEST_CHARACTERS:
        rows = MessageRow.seq.in_(rows_with(term))
        return SessionRow.id.in_(select(MessageRow.session_id).where(MessageRow.owner == owner, rows))
    # Of many chats most have a short term in one of their first messages: each is read up to there.
    said = MessageRow.text.icontains(term, autoescape=True)
    return select(MessageRow.seq).where(MessageRow.session_id == SessionRow.id, said).exists()
