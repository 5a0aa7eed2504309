"""`ChatSearch`: what a person typed into the search box, and the sessions that have it.

Every word must stand in the title or in some message of the chat, whatever its branch, perhaps inside other words, and
in any spelling that `folding` takes for the same. Words in double quotes stand together. No character means anything
else, so nothing can be typed wrong.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from sqlalchemy import ColumnElement, Row, Select, Text, and_, func, or_, select, true
from sqlalchemy.orm import InstrumentedAttribute

from storage.database import Database
from storage.errors import DatabaseClosedError, DatabaseError, DiskFullError
from storage.excerpt import Excerpt, excerpt_of, marked
from storage.folding import fold
from storage.models import MessageRow, SessionRow
from storage.plain_words import plain_words
from storage.records import ChatSession, Role
from storage.text_index import (
    FEWEST_CHARACTERS,
    are_texts_due,
    forget_removed_texts,
    index_due_texts,
    remake_text_index,
    rows_with,
)

MOST_TERMS = 8
"""More words find no less."""
_TERM = re.compile(r'"([^"]*)"?|([^\s"]+)')

logger = logging.getLogger(__name__)


def terms_of(query: str) -> tuple[str, ...]:
    """The words and quoted phrases of a query, folded, each once. A quotation mark that is not closed reaches to the
    end."""
    found = (" ".join(fold(phrase or word).split()) for phrase, word in _TERM.findall(query))
    return tuple(dict.fromkeys(term for term in found if term))[:MOST_TERMS]


@dataclass(frozen=True, slots=True)
class FoundSession:
    """A session that has what was looked for. `excerpt` is from the message `message_id`, which has some of it; empty
    and None where none has."""

    session: ChatSession
    title: Excerpt
    excerpt: Excerpt
    message_id: str | None = None


@dataclass(frozen=True, slots=True)
class _Search:
    """One search, as statements. Messages are looked up in the text index where there is one."""

    owner: str
    terms: tuple[str, ...]
    deleted: bool
    limit: int
    offset: int

    def sessions(self, *, has_text_index: bool) -> Select[SessionRow]:
        titled = [_has(SessionRow.title, term) for term in self.terms]
        said = [self._is_said(term, has_text_index=has_text_index) for term in self.terms]
        found = (or_(title, text) for title, text in zip(titled, said, strict=True))
        in_bin = SessionRow.deleted_at.is_not(None) if self.deleted else SessionRow.deleted_at.is_(None)
        return (
            select(SessionRow)
            .where(SessionRow.owner == self.owner, in_bin, *found)
            .order_by(and_(true(), *titled).desc(), SessionRow.updated_at.desc(), SessionRow.id.desc())
            .limit(self.limit)
            .offset(self.offset)
        )

    def messages(self, session_ids: Sequence[str], *, has_text_index: bool) -> Select[str, str, str, str]:
        """Of each of these sessions the newest message that has all terms, or else the newest that has one of them."""
        having = [_has_message(term, has_text_index=has_text_index) for term in self.terms]
        newest = (
            select(func.max(MessageRow.seq)).where(MessageRow.session_id == SessionRow.id, condition).scalar_subquery()
            for condition in ([and_(*having), or_(*having)] if len(having) > 1 else having)
        )
        chosen = select(func.coalesce(*newest, None)).where(SessionRow.id.in_(session_ids))
        columns = (MessageRow.session_id, MessageRow.id, MessageRow.role, MessageRow.text)
        return select(*columns).where(MessageRow.seq.in_(chosen))

    def _is_said(self, term: str, *, has_text_index: bool) -> ColumnElement[bool]:
        having = _has_message(term, has_text_index=has_text_index)
        if has_text_index and len(term) >= FEWEST_CHARACTERS:
            return SessionRow.id.in_(select(MessageRow.session_id).where(MessageRow.owner == self.owner, having))
        # Of many chats most have a short term in one of their first messages: each is read up to there.
        return select(MessageRow.seq).where(MessageRow.session_id == SessionRow.id, having).exists()


def _has(column: InstrumentedAttribute[str], term: str) -> ColumnElement[bool]:
    return func.fold(column, type_=Text).contains(term, autoescape=True)


def _has_message(term: str, *, has_text_index: bool) -> ColumnElement[bool]:
    if has_text_index and len(term) >= FEWEST_CHARACTERS:
        return MessageRow.seq.in_(rows_with(term))
    return func.searched_text(MessageRow.text, MessageRow.role, type_=Text).contains(term, autoescape=True)


class ChatSearch:
    """Sessions of one database, searched. A text index that fails is made anew; one that fails again is not used."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def find(
        self, owner: str, terms: Sequence[str], *, deleted: bool, limit: int, offset: int
    ) -> tuple[FoundSession, ...]:
        """The owner's sessions (or those in the bin) that have `terms`, those that have all in their titles first, then
        the most recently changed."""
        search = _Search(owner, tuple(terms), deleted=deleted, limit=limit, offset=offset)
        if self._database.has_text_index:
            try:
                return self._find_with_index_made_anew(search)
            except DatabaseClosedError:
                raise
            except DiskFullError:
                logger.warning("The disk is too full to bring the text index up to date")
            except DatabaseError:
                logger.warning("The text index cannot be made anew; searching reads the texts", exc_info=True)
                self._database.has_text_index = False
        return self._find(search, has_text_index=False)

    def bring_index_up_to_date(self) -> None:
        """Index the messages that changed. Raises DatabaseError where the index is damaged."""
        while True:
            with self._database.read() as db:
                if not are_texts_due(db.connection()):
                    return
            with self._database.write() as db:
                index_due_texts(db.connection())

    def forget_removed(self) -> None:
        """Have the index lose what messages said that were removed. Where that fails it is done at the next start."""
        if not self._database.has_text_index:
            return
        try:
            with self._database.write() as db:
                forget_removed_texts(db.connection())
        except (DatabaseClosedError, DiskFullError):
            logger.warning("What removed messages said leaves the text index at the next start")
        except DatabaseError as error:
            logger.warning("The text index is damaged and made anew: %s", error)
            with suppress(DatabaseError):  # then whoever searches next says so
                self.remake_index()

    def remake_index(self) -> None:
        """An index in the place of the one that is there. Messages enter it later, some at a time, so that nobody who
        writes one waits for all of them."""
        with self._database.write() as db:
            remake_text_index(db.connection())

    def _find_with_index_made_anew(self, search: _Search) -> tuple[FoundSession, ...]:
        """With the index as it is, or else with a new one."""
        try:
            return self._find_with_index(search)
        except (DatabaseClosedError, DiskFullError):
            raise
        except DatabaseError as error:
            logger.warning("The text index is damaged and made anew: %s", error)
            self.remake_index()
            return self._find_with_index(search)

    def _find_with_index(self, search: _Search) -> tuple[FoundSession, ...]:
        self.bring_index_up_to_date()
        return self._find(search, has_text_index=True)

    def _find(self, search: _Search, *, has_text_index: bool) -> tuple[FoundSession, ...]:
        with self._database.read() as db:
            sessions = db.scalars(search.sessions(has_text_index=has_text_index)).all()
            messages = {
                row.session_id: row
                for row in db.execute(search.messages([s.id for s in sessions], has_text_index=has_text_index))
            }
            return tuple(_found(session.to_record(), messages.get(session.id), search.terms) for session in sessions)


def _found(session: ChatSession, message: Row[str, str, str, str] | None, terms: Sequence[str]) -> FoundSession:
    title = marked(session.title, terms)
    if message is None:
        return FoundSession(session, title, ())
    text = plain_words(message.text, terms) if message.role == Role.ASSISTANT else message.text
    return FoundSession(session, title, excerpt_of(text, terms), message.id)
