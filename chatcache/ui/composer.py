"""What the message box asks of the server while something is typed: counts, and sentences for what scripts did."""

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
    def say(self, event: gr.EventData) -> Updates:
        """What the page's scripts did: moved an edit, or did not take a file, whose name `event` brings."""
        texts, name = self._texts, told(event, "message")
        match told(event, "action"):
            case "edit-moved":
                return self.notify(texts.EDIT_MOVED)
            case "file-too-large":
                return self.notify(texts.text_file_too_large(name), is_error=True)
            case _:
                return self.notify(texts.text_file_refused(name), is_error=True)

    def _count(self, used: Used, text: str) -> str:
        num_typed, whole = self._service.count_tokens(text), self._service.model_info.max_context_tokens
        num_left = None if used.num_tokens is None else whole - used.num_tokens - num_typed
        return render_tally(self._texts, num_typed, num_left)
