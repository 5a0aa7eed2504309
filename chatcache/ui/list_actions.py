"""What happens in the list of chats and in the bin: reading them, and what a click there does.

A click changes the tab's `Shelf` and nothing else that is shown; the page then has the list read anew. So there is one
way only in which the list comes about, and the last state of the shelf is always the one shown.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import gradio as gr

from chatcache.ui.chat_days import grouped_by_day, zone_named
from chatcache.ui.chat_list import Listed, render_bin, render_chat_list, render_found
from chatcache.ui.handlers import Handlers, Updates, said_if_refused, told
from chatcache.ui.layout import Page
from chatcache.ui.place import Place
from chatcache.ui.shelf import EVERYTHING, Shelf
from chatcache.ui.texts import Texts

if TYPE_CHECKING:
    from chatcache.chat import ChatService

MOST_COUNTED = 99


class ListActions(Handlers):
    """The handlers of one page's list of chats. `sent_shelf` is the tab's shelf as its browser sent it."""

    def __init__(self, service: ChatService, page: Page, texts: Texts) -> None:
        super().__init__(service, page, texts)
        self._on_click: dict[str, Callable[[Place, Shelf, str], Updates]] = {
            "more": lambda _place, shelf, _target: self._show(shelf.showing_more()),
            "doubt": lambda _place, shelf, target: self._show(shelf.asking(target)),
            "keep": lambda _place, shelf, _target: self._show(shelf.asking(None)),
            "restore": self._restore,
            "purge": self._purge,
        }

    @said_if_refused
    def read(self, sent_shelf: object, query: str | None) -> Updates:
        """The list as the shelf and the search box want it."""
        shelf, query = Shelf.from_json(sent_shelf), (query or "").strip()
        most = shelf.num_shown + 1
        if query:
            found = self._service.search(query, deleted=shelf.is_bin, limit=most)
            listable = tuple(each.session for each in found)
        else:
            found, listable = (), self._service.sessions(deleted=shelf.is_bin, limit=most)
        sessions = listable[: shelf.num_shown]
        listed = Listed(
            busy_ids=self._service.busy_among(sessions),
            query=query,
            found={each.session.id: each for each in found},
            has_more=len(listable) > len(sessions),
        )
        if shelf.is_bin:
            markup = render_bin(self._texts, sessions, listed, doubted=shelf.doubted)
        elif query:
            markup = render_found(self._texts, sessions, listed)
        else:
            groups = grouped_by_day(sessions, datetime.now(UTC), zone_named(shelf.zone))
            markup = render_chat_list(self._texts, groups, listed)
        return {self._page.chats: markup, self._page.bin: self._bin_name(shelf)}

    @said_if_refused
    def turn(self, sent_shelf: object) -> Updates:
        """To the bin, or back to the chats."""
        return self._show(Shelf.from_json(sent_shelf).turned())

    @said_if_refused
    def act(self, sent: object, sent_shelf: object, event: gr.EventData) -> Updates:
        """A button inside the list: `event` names the action and what it is about."""
        handler = self._on_click.get(told(event, "action"))
        if handler is None:
            return self.nothing()
        return handler(Place.from_json(sent), Shelf.from_json(sent_shelf), told(event, "message"))

    def _restore(self, place: Place, shelf: Shelf, session_id: str) -> Updates:
        self._service.undelete(session_id)
        left = self.go(place, session_id) if place.session_id == session_id else {}
        return self._show(shelf.turned()) | {self._page.notice: ""} | left

    def _purge(self, place: Place, shelf: Shelf, target: str) -> Updates:
        """What the person was asked about, and only that, is removed."""
        if target != shelf.doubted:
            return self._show(shelf.asking(None))
        here = self._service.get_session(place.session_id) if place.session_id else None
        if target == EVERYTHING:
            num_removed = self._service.purge_bin()
        else:
            self._service.purge(target)
            num_removed = 1
        is_gone = here is not None and here.deleted_at is not None and target in (EVERYTHING, here.id)
        left = self.go(place, None) if is_gone else {}
        return self._show(shelf.asking(None)) | left | self.notify(self._texts.purged(num_removed))

    def _show(self, shelf: Shelf) -> Updates:
        return {self._page.shelf: shelf.to_json()}

    def _bin_name(self, shelf: Shelf) -> Updates:
        if shelf.is_bin:
            return gr.update(value=self._texts.BACK_TO_CHATS)
        num_chats = len(self._service.sessions(deleted=True, limit=MOST_COUNTED + 1))
        name = self._texts.bin(min(num_chats, MOST_COUNTED), are_more=num_chats > MOST_COUNTED)
        return gr.update(value=name)
