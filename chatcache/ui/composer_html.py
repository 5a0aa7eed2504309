"""What stands around the message box and in the chat's head, as HTML."""

from __future__ import annotations

from chatcache.ui.texts import Texts


def render_attach(texts: Texts) -> str:
    """The button that picks text files."""
    return _render_page_button("attach", texts.ATTACH, "attach")


def render_help(texts: Texts) -> str:
    """The button that lists the shortcuts."""
    return _render_page_button("shortcuts", texts.SHORTCUTS, "help")


def render_menu(texts: Texts) -> str:
    """The button that, on a phone, shows what can be done with the chat."""
    return _render_page_button("menu", texts.CHAT_MENU, "menu", 'aria-controls="session-tools" aria-expanded="false"')


def render_tally(texts: Texts, num_typed: int, num_left: int | None) -> str:
    """How many tokens are in the box and how many the context has left for more and for the reply, where known."""
    classes = "tally over" if num_left is not None and num_left < 0 else "tally"
    return f'<p class="{classes}">{texts.typed(num_typed, num_left)}</p>'


def render_skip_link(texts: Texts) -> str:
    """The first thing that Tab reaches."""
    return f'<a class="skip" href="#message" data-page="skip">{texts.SKIP_TO_MESSAGE}</a>'


def _render_page_button(what: str, name: str, icon: str, attributes: str = "") -> str:
    return (
        f'<button type="button" class="control icon {icon}" data-page="{what}" title="{name}" {attributes}>'
        f"<span>{name}</span></button>"
    )
