"""Sentences above the message box: what was refused, what can be undone, what is waited for."""

from __future__ import annotations

import html
from dataclasses import dataclass

from chatcache.reports import LoadingReport
from chatcache.ui.texts import Texts


@dataclass(frozen=True, slots=True)
class Offer:
    """A button beside a sentence: its name, the action it asks for, and the id that is about."""

    name: str
    action: str
    target: str


@dataclass(frozen=True, slots=True)
class Notice:
    """One sentence, or one a line, and what can be done about it. `while_busy`: it is seen only as long as a reply is
    being written."""

    text: str
    is_error: bool = False
    offer: Offer | None = None
    while_busy: bool = False


def render_notice(texts: Texts, notice: Notice | None) -> str:
    """The sentence as HTML; an error interrupts a screen reader, anything else waits."""
    if notice is None:
        return ""
    role = "alert" if notice.is_error else "status"
    offered = ""
    if (offer := notice.offer) is not None:
        offered = (
            f'<button type="button" class="control" data-action="{html.escape(offer.action)}" '
            f'data-message="{html.escape(offer.target)}">{html.escape(offer.name)}</button>'
        )
    classes = "notice" + " error" * notice.is_error + " while-busy" * notice.while_busy
    return (
        f'<div class="{classes}"><p role="{role}">{html.escape(notice.text)}</p>{offered}'
        f'<button type="button" class="control icon dismiss" data-action="dismiss" title="{texts.DISMISS}">'
        f"<span>{texts.DISMISS}</span></button></div>"
    )


def render_loading(texts: Texts, loading: LoadingReport | None) -> str:
    """That the model is being loaded, for how long already, and what it is that takes long. The seconds are for the
    eye: a screen reader would say them again and again."""
    if loading is None:
        return ""
    step = f"<p>{html.escape(texts.said(loading.step))}</p>" if loading.step is not None else ""
    return (
        f'<div class="notice loading"><p role="status">{texts.LOADING}</p>{step}'
        f'<span aria-hidden="true">{texts.whole_seconds(loading.seconds)}</span></div>'
    )


def render_offline(texts: Texts) -> str:
    """What the page itself shows while the server cannot be reached."""
    return f'<div class="notice error"><p role="alert">{html.escape(texts.OFFLINE)}</p></div>'
