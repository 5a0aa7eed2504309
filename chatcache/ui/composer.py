"""What the message box asks of the server while something is typed: counts, and what was refused."""

from __future__ import annotations

import gradio as gr

from chatcache.ui.composer_html import render_tally
from chatcache.ui.handlers import Handlers, Updates, said_if_refused, told
from chatcache.ui.place import Used


class Composer(Handlers):
    """The handlers of the events that the message box and its files make."""

    @said_if_refused
    def count(self, sent_used: object, text: str) -> Updates:
        """How many tokens are in the box, and how many are left after them, by what the page shows as used."""
        return {self._page.tally: self._count(Used.from_json(sent_used), text) if text.strip() else ""}

    @said_if_refused
    def refuse_file(self, event: gr.EventData) -> Updates:
        """A file that the page's scripts did not take: `event` names it, and in its action says why."""
        texts, name = self._texts, told(event, "message")
        match told(event, "action"):
            case "file-too-large":
                said = texts.text_file_too_large(name)
            case _:
                said = texts.text_file_refused(name)
        return self.notify(said, is_error=True)

    def _count(self, used: Used, text: str) -> str:
        num_typed, whole = self._service.count_tokens(text), self._service.model_info.max_context_tokens
        num_left = None if used.num_tokens is None else whole - used.num_tokens - num_typed
        return render_tally(self._texts, num_typed, num_left)
