"""What all handlers of a page's events share: how they answer, and that a refusal is a sentence on the page."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar, cast

import gradio as gr

from chatcache.errors import ChatCacheError, InvalidInputError
from chatcache.stats import Sampling
from chatcache.ui.cache_panel import render_cache_panel
from chatcache.ui.chat_figures import ChatFigures
from chatcache.ui.draft import DraftChange
from chatcache.ui.layout import Page
from chatcache.ui.notice import Notice, Offer, render_notice
from chatcache.ui.place import Place, Used
from chatcache.ui.texts import Texts
from storage.records import ChatSession, Message

if TYPE_CHECKING:
    from chatcache.chat import ChatService

logger = logging.getLogger(__name__)
P = ParamSpec("P")
H = TypeVar("H", bound="Handlers")
Updates = dict[Any, Any]


class Refusal(ChatCacheError):
    """The page itself refuses; the message is in its language."""


class Handlers:
    """Handlers of one page's events, for any number of tabs."""

    def __init__(self, service: ChatService, page: Page, texts: Texts) -> None:
        self._service = service
        self._page = page
        self._texts = texts

    def notify(self, text: str, *, is_error: bool = False, offer: Offer | None = None) -> Updates:
        return {self._page.notice: render_notice(self._texts, Notice(text, is_error, offer))}

    def undo(self, action: str, target: str) -> Offer:
        """What a notice offers to take back what it tells of."""
        return Offer(self._texts.UNDO, action, target)

    def go(self, place: Place, session_id: str | None, *, is_temporary: bool = False) -> Updates:
        """To another chat, or to the beginning of a new one, which is temporary or not. Raises NotFoundError."""
        if session_id is not None:
            is_temporary = self._service.is_temporary(session_id)
        return {
            self._page.place: place.at(session_id, is_temporary=is_temporary).to_json(),
            self._page.rename_row: gr.update(visible=False),
            self._page.notice: "",
        }

    def redraft(self, change: DraftChange) -> Updates:
        return {self._page.draft: change.to_json()}

    def say_deleted(self, session: ChatSession, *, is_temporary: bool, hides_found: bool = False) -> Updates:
        """Where a chat is now, and the way back. Whoever says it, the person reads one thing. `hides_found`: what was
        found in it stands in a version that is not shown, and restoring the chat leads there."""
        if is_temporary:
            return self.notify(self._texts.GONE)
        said, offer = self._texts.deleted(session.title), self.undo("undelete", session.id)
        if hides_found:
            said, offer = f"{said} {self._texts.FOUND_IN_THE_BIN}", replace(offer, name=self._texts.RESTORE)
        return self.notify(said, offer=offer)

    def show(self, figures: ChatFigures) -> Updates:
        """All that the page says in figures of a chat."""
        used = figures.num_used_tokens + figures.num_frame_tokens if figures.use is not None else None
        return {
            self._page.cache: render_cache_panel(self._texts, figures),
            self._page.used: Used(used).to_json(),
        }

    def show_new_chat(self, values: Mapping[str, Any]) -> Updates:
        """The figures of a chat that would begin with these settings, as `Changes.values` has them."""
        model, settings = self._service.model_info, values.get("settings") or {}
        try:
            use = self._service.context_use_of_new_chat(values.get("system_prompt") or "", settings)
        except InvalidInputError:
            use = None
        return self.show(ChatFigures.of_new_chat(model, values.get("sampling") or Sampling(), use))

    def refuse(self, error: Exception) -> Updates:
        """What an error means to the person; one that is none of ours is logged as well."""
        if isinstance(error, ChatCacheError):
            return self.notify(self.sentence(error), is_error=True)
        logger.error("The page met an error that it does not know", exc_info=error)
        return self.notify(self._texts.UNEXPECTED, is_error=True)

    def sentence(self, error: ChatCacheError) -> str:
        """A refusal in the page's language."""
        return str(error) if isinstance(error, Refusal) else self._texts.refused(error)

    def session_at(self, place: Place) -> str:
        """The chat a tab is at. Raises Refusal where none has begun."""
        if place.session_id is None:
            raise Refusal(self._texts.NOT_BEGUN)
        return place.session_id

    def undone_question(self, session_id: str) -> Message | None:
        """What was asked in the turn that going forward leads to; None where none was rolled back."""
        reply = self._service.undone(session_id)
        if reply is None or reply.parent_id is None:
            return None
        return next(each for each in self._service.alternatives(reply.parent_id) if each.id == reply.parent_id)

    def nothing(self) -> Updates:
        """Gradio empties the outputs of a handler that names none."""
        return {self._page.notice: gr.skip()}


def said_if_refused(handler: Callable[Concatenate[H, P], Updates]) -> Callable[Concatenate[H, P], Updates]:
    """A handler whose errors become a sentence on the page, with everything else left as it was."""

    @functools.wraps(handler)
    def guarded(self: H, /, *args: P.args, **kwargs: P.kwargs) -> Updates:
        try:
            return handler(self, *args, **kwargs)
        except Exception as error:
            return self.refuse(error)

    return cast("Callable[Concatenate[H, P], Updates]", guarded)


def told(event: gr.EventData, key: str) -> str:
    """What a script of the page sent along with an event; empty where it sent none."""
    value = event._data.get(key) if isinstance(event._data, dict) else None
    return value if isinstance(value, str) else ""
