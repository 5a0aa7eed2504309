"""Sentences above the message box: what was refused, what can be undone."""

from __future__ import annotations

import html
from dataclasses import dataclass

from chatcache.ui.texts import Texts


@dataclass(frozen=True, slots=True)
class Notice:
    """One sentence. `undo` names the action and the id that take back what it tells of."""

    text: str
    is_error: bool = False
    undo: tuple[str, str] | None = None


def render_notice(texts: Texts, notice: Notice | None) -> str:
    """The sentence as HTML; an error interrupts a screen reader, anything else waits."""
    if notice is None:
        return ""
    role = "alert" if notice.is_error else "status"
    undo = ""
    if notice.undo is not None:
        action, target = notice.undo
        undo = (
            f'<button type="button" class="control" data-action="{html.escape(action)}" '
            f'data-message="{html.escape(target)}">{texts.UNDO}</button>'
        )
    classes = "notice error" if notice.is_error else "notice"
    return (
        f'<div class="{classes}"><p role="{role}">{html.escape(notice.text)}</p>{undo}'
        f'<button type="button" class="control icon dismiss" data-action="dismiss" title="{texts.DISMISS}">'
        f"<span>{texts.DISMISS}</span></button></div>"
    )


def render_offline(texts: Texts) -> str:
    """What the page itself shows while the server cannot be reached."""
    return f'<div class="notice error"><p role="alert">{html.escape(texts.OFFLINE)}</p></div>'
