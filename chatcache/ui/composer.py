"""What the message box asks of the server while something is typed: counts, and what was refused."""

from __future__ import annotations

import gradio as gr

from chatcache.errors import NotFoundError
from chatcache.ui.composer_html import render_tally
from chatcache.ui.file_actions import MAX_FILE_BYTES
from chatcache.ui.handlers import Handlers, Updates, said_if_refused, told
from chatcache.ui.place import Place


class Composer(Handlers):
    """The handlers of the events that the message box and its files make."""

    @said_if_refused
    def count(self, sent: object, text: str) -> Updates:
        """How many tokens are in the box, and how many are left after them; nothing where the chat is gone."""
        try:
            return {self._page.tally: self._count(Place.from_json(sent), text) if text.strip() else ""}
        except NotFoundError:
            return {self._page.tally: ""}

    @said_if_refused
    def refuse_file(self, event: gr.EventData) -> Updates:
        """A file that the page's scripts did not take: `event` names it, and in its action says why."""
        texts, name = self._texts, told(event, "message")
        match told(event, "action"):
            case "file-too-large":
                said = texts.text_file_too_large(name)
            case "file-no-chat":
                said = texts.not_imported(name, texts.NO_CHAT_FILE)
            case "file-chat-too-large":
                said = texts.not_imported(name, texts.file_too_large(MAX_FILE_BYTES))
            case _:
                said = texts.text_file_refused(name)
        return self.notify(said, is_error=True)

    def _count(self, place: Place, text: str) -> str:
        num_typed = self._service.count_tokens(text)
        num_left = self._service.model_info.max_context_tokens - self._num_used(place) - num_typed
        return render_tally(self._texts, num_typed, num_left)

    def _num_used(self, place: Place) -> int:
        """What the conversation takes already, as its last turn counted it."""
        if place.session_id is None:
            return 0
        tip_id = self._service.get_session(place.session_id).tip_id
        stats = self._service.turn_stats([tip_id]).get(tip_id) if tip_id else None
        return stats.num_prompt_tokens + stats.num_completion_tokens if stats else 0
