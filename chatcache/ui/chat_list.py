"""Sessions → the HTML of the list of chats, of the bin, and of a chat's title.

Each entry is a link to its own address, so it also opens in a new tab; one that shows an excerpt leads to the message
that it is from, and names the words that it was found by. Buttons carry `data-action` and `data-message`.
"""

from __future__ import annotations

import html
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import urlencode

from chatcache.ui.chat_days import ChatGroup, Month
from chatcache.ui.shelf import EVERYTHING
from chatcache.ui.texts import Texts
from storage.chat_search import FoundSession
from storage.copy_titles import split_number
from storage.excerpt import Excerpt
from storage.records import ChatSession


@dataclass(frozen=True, slots=True)
class Listed:
    """How a list is shown: which chat the tab is at, which are being answered, whether there are more, and in a search
    what was found of each chat, by its id."""

    busy_ids: Collection[str] = field(default_factory=frozenset)
    query: str = ""
    found: Mapping[str, FoundSession] = field(default_factory=dict)
    has_more: bool = False


def render_chat_list(texts: Texts, groups: Sequence[ChatGroup], listed: Listed) -> str:
    """The chats under the headings of their groups."""
    items = "".join(
        f'<li><h3 id="chats-{number}">{html.escape(_heading(texts, group))}</h3>'
        f'<ul aria-labelledby="chats-{number}">{_entries(texts, group.sessions, listed)}</ul></li>'
        for number, group in enumerate(groups)
    )
    return _list(texts.CHATS, items) + _end(texts, listed, texts.NO_CHATS, is_empty=not groups)


def render_found(texts: Texts, sessions: Sequence[ChatSession], listed: Listed) -> str:
    """The chats that a search found, the best first."""
    return _list(texts.CHATS, _entries(texts, sessions, listed)) + _end(texts, listed, "", is_empty=not sessions)


def render_bin(texts: Texts, sessions: Sequence[ChatSession], listed: Listed, *, doubted: str | None) -> str:
    """The chats in the bin, and what can be done about them; `doubted` is what is asked about, as `Shelf` has it."""
    head = ""
    if sessions and not listed.query:
        asked = _question(texts, texts.EMPTY_BIN_QUESTION, EVERYTHING) if doubted == EVERYTHING else ""
        head = asked or _button(texts.EMPTY_BIN, "doubt", EVERYTHING, "wide empty-bin")
    items = "".join(
        f'<li class="in-bin">{_link(texts, session, listed)}'
        + (
            _question(texts, texts.purge_question(session.title), session.id)
            if session.id == doubted
            else _button(texts.RESTORE, "restore", session.id, "icon restore", of=session.title or texts.UNTITLED)
            + _button(texts.PURGE, "doubt", session.id, "icon purge", of=session.title or texts.UNTITLED)
        )
        + "</li>"
        for session in sessions
    )
    return (
        f"<h2>{texts.BIN}</h2>{head}"
        + _list(texts.BIN, items)
        + _end(texts, listed, texts.BIN_EMPTY, is_empty=not sessions)
    )


def render_title(texts: Texts, title: str, *, is_temporary: bool = False) -> str:
    shown = html.escape(title or texts.UNTITLED)
    sign = f'<p class="temporary">{texts.NOT_STORED}</p>' if is_temporary else ""
    return f'<h1 title="{shown}">{_with_number_apart(shown, title)}</h1>{sign}'


def _list(name: str, items: str) -> str:
    return f'<ul class="chats" aria-label="{name}">{items}</ul>'


def _end(texts: Texts, listed: Listed, nothing: str, *, is_empty: bool) -> str:
    if listed.has_more:
        return _button(texts.SHOW_MORE, "more", "", "wide")
    if is_empty:
        return f'<p class="quiet">{html.escape(texts.no_match(listed.query) if listed.query else nothing)}</p>'
    return ""


def _heading(texts: Texts, group: ChatGroup) -> str:
    if isinstance(group.span, Month):
        return texts.month(group.span.number, group.span.year)
    return texts.SPANS[group.span]


def _entries(texts: Texts, sessions: Sequence[ChatSession], listed: Listed) -> str:
    return "".join(f"<li>{_link(texts, session, listed)}</li>" for session in sessions)


def _link(texts: Texts, session: ChatSession, listed: Listed) -> str:
    title, session_id = html.escape(session.title or texts.UNTITLED), html.escape(session.id)
    marks = ""
    if session.id in listed.busy_ids:
        marks += f'<span class="pulse" role="img" aria-label="{texts.IS_ANSWERED}" title="{texts.IS_ANSWERED}"></span>'
    shown, excerpt, address, message = title, "", f"?session={session_id}", ""
    if (found := listed.found.get(session.id)) is not None:
        shown = _marked(found.title) or title
        if found.message_id is not None:
            excerpt = f'<span class="excerpt">{_marked(found.excerpt)}</span>'
            words = [("word", piece.text) for piece in dict.fromkeys(found.excerpt) if piece.is_hit]
            address += html.escape("&" + urlencode([("message", found.message_id), *words]))
            message = f' data-message="{found.message_id}"'
    return (
        f'<a href="{address}" data-session="{session_id}"{message} title="{title}">'
        f'<span class="name">{_with_number_apart(shown, session.title)}</span>{marks}{excerpt}</a>'
    )


def _with_number_apart(shown: str, title: str) -> str:
    """What is shown of a title, the number of a copy apart: it is seen however long the title is."""
    _, number = split_number(title)
    name = shown.removesuffix(f" ({number})")
    return shown if name == shown else f"<span>{name}</span> <span>({number})</span>"


def _marked(excerpt: Excerpt) -> str:
    pieces = ((html.escape(piece.text), piece.is_hit) for piece in excerpt)
    return "".join(f"<mark>{text}</mark>" if is_hit else text for text, is_hit in pieces)


def _question(texts: Texts, question: str, target: str) -> str:
    return (
        f'<div class="question" role="group" aria-label="{texts.PURGE}"><p>{html.escape(question)}</p>'
        + _button(texts.PURGE, "purge", target, "danger")
        + _button(texts.KEEP, "keep", target, "keep")
        + "</div>"
    )


def _button(name: str, action: str, target: str, classes: str, *, of: str = "") -> str:
    about = f"{name}: {html.escape(of)}" if of else name
    return (
        f'<button type="button" class="control {classes}" data-action="{action}" data-message="{html.escape(target)}" '
        f'title="{about}" aria-label="{about}"><span>{name}</span></button>'
    )
