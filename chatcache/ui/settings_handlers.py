"""What happens in the settings of a chat: they are saved when a field is left, and loaded when the stored ones changed.

A field that was changed since it was filled is never overwritten by what is stored, and only such fields are stored:
so nothing typed is lost, and tabs that change different fields do not undo each other.
"""

from __future__ import annotations

import hashlib
from typing import Any

import gradio as gr

from chatcache.errors import ChatCacheError
from chatcache.reports import ModelInfo
from chatcache.ui.handlers import Handlers, Updates, said_if_refused
from chatcache.ui.place import Place
from chatcache.ui.settings_form import FIELDS, NOTHING_SET, Changes, Form, Loaded, read_changes
from chatcache.ui.settings_panel import render_status, show_problems, show_values
from storage.records import ChatSession


def stored_mark(session: ChatSession | None, model: ModelInfo) -> str:
    """Differs where the chat or its settings differ. Short, for it goes to the page with every repaint."""
    stored = Loaded(session.id if session else None, Form.of(session, model)).to_json()
    return hashlib.sha256(stored.encode()).hexdigest()[:16]


class SettingsHandlers(Handlers):
    """Handlers of the settings. `sent_loaded` and `values` are what the browser sent of `SettingsPanel`."""

    @said_if_refused
    def load(self, sent: object, sent_loaded: object, *values: Any) -> Updates:
        """Fill the fields with what is stored; those that were changed and not saved yet keep what they hold."""
        panel, session = self._page.settings, self._session(sent)
        stored, loaded, typed = self._form(session), Loaded.from_json(sent_loaded), Form.from_values(values)
        now = Loaded(session.id if session else None, stored)
        updates: Updates = {panel.loaded: now.to_json()}
        kept = loaded.typed(now.session_id, typed)
        if kept is not None and loaded.form is not None:
            names = [name for name in stored.differing(loaded.form) if name not in kept]
        else:
            names = list(FIELDS)
            updates |= show_problems(self._texts, panel, {}) | {panel.status: ""}
        return updates | show_values(panel, {name: getattr(stored, name) for name in names})

    @said_if_refused
    def save(self, sent: object, sent_loaded: object, *values: Any) -> Updates:
        """Store the fields that were changed; what is wrong is said where it stands, and the rest is stored."""
        panel, session = self._page.settings, self._session(sent)
        loaded, typed = Loaded.from_json(sent_loaded), Form.from_values(values)
        names = loaded.typed(session.id if session else None, typed)
        if names is None:
            return self.nothing()  # the fields are those of another chat still
        changes = read_changes(self._texts, self._service.model_info, typed, names, session)
        updates = show_problems(self._texts, panel, changes.problems)
        if session is not None and changes.values:
            session = self._service.update_session(session.id, **changes.values)
            updates[panel.loaded] = Loaded(session.id, self._form(session)).to_json()
        said = self._account(session, names, changes)
        updates[panel.status] = render_status(said, is_error=bool(changes.problems))
        return updates | (self.show_new_chat(changes.values) if session is None else {})

    @said_if_refused
    def reset(self, sent: object, _sent_loaded: object, *values: Any) -> Updates:
        """Let the model's defaults count again. The system prompt stays, what was typed of it too."""
        panel, session = self._page.settings, self._session(sent)
        updates: Updates = {}
        if session is not None:
            session = self._service.update_session(session.id, sampling=None, settings=None)
            updates[panel.loaded] = Loaded(session.id, self._form(session)).to_json()
        cleared = {name: getattr(NOTHING_SET, name) for name in FIELDS if name != "system_prompt"}
        shown = show_problems(self._texts, panel, {}) | show_values(panel, cleared)
        if session is None:
            updates |= self.show_new_chat({"system_prompt": Form.from_values(values).system_prompt})
        return updates | shown | {panel.status: render_status(self._texts.SETTINGS_RESET)}

    def keep(self, place: Place, session_id: str, sent_loaded: object, *values: Any) -> None:
        """Store what was changed before a message is sent to `session_id`, perhaps the beginning of the chat that the
        fields are for. What is wrong stays in its field, and the turn goes without it."""
        loaded, typed = Loaded.from_json(sent_loaded), Form.from_values(values)
        names = loaded.typed(place.session_id, typed)
        if names:
            session = self._service.get_session(session_id)
            changes = read_changes(self._texts, self._service.model_info, typed, names, session)
            if changes.values:
                self._service.update_session(session_id, **changes.values)

    def _session(self, sent: object) -> ChatSession | None:
        session_id = Place.from_json(sent).session_id
        try:
            return None if session_id is None else self._service.get_session(session_id)
        except ChatCacheError:
            return None  # the page says so itself

    def _form(self, session: ChatSession | None) -> Form:
        return Form.of(session, self._service.model_info)

    def _account(self, session: ChatSession | None, names: tuple[str, ...], changes: Changes) -> str:
        """What a change means, as a sentence; empty where nothing was changed."""
        texts = self._texts
        if changes.problems:
            return texts.SETTINGS_REFUSED
        if not names:
            return ""
        if session is None:
            return texts.SETTINGS_KEPT
        if session.tip_id is not None and "system_prompt" in names:
            return texts.SETTINGS_REREAD
        if session.tip_id is not None and "cache" in names:
            return texts.SETTINGS_NEW_FORM
        return texts.SETTINGS_SAVED


def field_events(panel: Any) -> list[Any]:
    """When a field is left or its choice is made."""
    events: list[Any] = []
    for field in panel.fields:
        if isinstance(field, gr.Dropdown | gr.Checkbox):
            events.append(field.input)
        else:
            events += [field.blur, field.submit]
    return events
