"""The list of keyboard shortcuts, as a dialog. `assets/keys.js` and `assets/composer.js` are what does them."""

from __future__ import annotations

from chatcache.ui.texts import Texts


def render_shortcuts(texts: Texts) -> str:
    rows = "".join(
        f"<div><dt>{name}</dt><dd>{' '.join(f'<kbd>{key}</kbd>' for key in keys)}</dd></div>"
        for name, keys in _shortcuts(texts)
    )
    return (
        '<dialog id="shortcuts-dialog" aria-labelledby="shortcuts-heading">'
        f'<h2 id="shortcuts-heading">{texts.SHORTCUTS}</h2><dl>{rows}</dl>'
        f'<button type="button" class="control strong-button" data-page="close">{texts.CLOSE}</button></dialog>'
    )


def _shortcuts(texts: Texts) -> tuple[tuple[str, tuple[str, ...]], ...]:
    chord = ("Alt", "Shift")
    return (
        (texts.KEY_SEND, ("Enter",)),
        (texts.KEY_NEW_LINE, ("Shift", "Enter")),
        (texts.KEY_EDIT_LAST_HERE, ("↑",)),
        (texts.KEY_STOP, ("Esc",)),
        (texts.KEY_EDIT_LAST, (*chord, "E")),
        (texts.REGENERATE, (*chord, "R")),
        (texts.PREVIOUS_REPLY, (*chord, "J")),
        (texts.NEXT_REPLY, (*chord, "L")),
        (texts.KEY_FOCUS, (*chord, "M")),
        (texts.NEW_CHAT, (*chord, "N")),
        (texts.SEARCH_CHATS, (*chord, "K")),
        (texts.KEY_SAVE_EDIT, ("Ctrl", "Enter")),
        (texts.KEY_LIST, ("?",)),
    )
