"""The form in which a message is edited where it stands. The page's script puts it there and keeps what is typed."""

from __future__ import annotations

from chatcache.ui.texts import Texts


def render_editors(texts: Texts) -> str:
    """One form for a message of the person's own, one for a reply; both hidden until they are copied into a message."""
    return _render_form(
        texts, "user", texts.EDIT_QUESTION, texts.SAVE_AND_SEND, texts.EDIT_QUESTION_HINT
    ) + _render_form(texts, "reply", texts.EDIT_REPLY, texts.SAVE, texts.EDIT_REPLY_HINT)


def _render_form(texts: Texts, role: str, name: str, save: str, hint: str) -> str:
    return (
        f'<form class="editor" data-role="{role}" hidden><textarea aria-label="{name}" dir="auto" rows="3"></textarea>'
        f'<div class="editor-end"><p class="quiet">{hint}</p>'
        f'<button type="button" class="control plain-button" data-edit="cancel">{texts.CANCEL}</button>'
        f'<button type="submit" class="control strong-button">{save}</button></div></form>'
    )
