"""Sessions → the HTML of the list of chats and of a chat's title.

Each entry of the list is a link to its own address, so it also opens in a new tab.
"""

from __future__ import annotations

import html
from collections.abc import Sequence

from chatcache.ui.texts import Texts
from storage.records import ChatSession

NUM_CHATS_LISTED = 50


def render_chat_list(texts: Texts, sessions: Sequence[ChatSession], *, current_id: str | None, query: str) -> str:
    """The list, most recent first as the service gives it, with a sentence where it is empty or cut off."""
    items = "".join(_render_entry(texts, session, is_current=session.id == current_id) for session in sessions)
    note = ""
    if not sessions:
        note = texts.no_match(query) if query else texts.NO_CHATS
    elif len(sessions) >= NUM_CHATS_LISTED:
        note = texts.MORE_CHATS
    return f'<ul class="chats" aria-label="{texts.CHATS}">{items}</ul>' + (
        f'<p class="quiet">{html.escape(note)}</p>' if note else ""
    )


def render_title(texts: Texts, title: str) -> str:
    shown = html.escape(title or texts.UNTITLED)
    return f'<h1 title="{shown}">{shown}</h1>'


def _render_entry(texts: Texts, session: ChatSession, *, is_current: bool) -> str:
    title = html.escape(session.title or texts.UNTITLED)
    current = ' aria-current="page"' if is_current else ""
    pinned = f'<span class="pinned" title="{texts.PINNED}"></span>' if session.pinned else ""
    return (
        f'<li><a href="?session={html.escape(session.id)}" data-session="{html.escape(session.id)}"{current} '
        f'title="{title}"><span>{title}</span>{pinned}</a></li>'
    )
