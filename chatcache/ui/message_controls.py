"""What can be done to a message: the buttons below it, as HTML.

At the tip everything stands open, with the names of DESIGN section 11. Further up the same waits until the message is
pointed at, touched or reached by Tab, under names of its own.
"""

from __future__ import annotations

from chatcache.stats import FinishReason, TurnStats
from chatcache.ui.texts import Texts
from storage.records import Message, MessageStatus

CONTINUABLE = frozenset({FinishReason.LENGTH, FinishReason.CANCELLED, FinishReason.INTERRUPTED})


def render_button(
    action: str,
    message_id: str | None,
    name: str,
    classes: str,
    *,
    word: str = "",
    is_disabled: bool = False,
    keys: str = "",
) -> str:
    """A button that the page's script turns into an event. `word`: what stands beside an icon where nothing can be
    pointed at; the name has it. `keys`: the keyboard shortcut that does the same."""
    target = f' data-message="{message_id}"' if message_id else ""
    disabled = " disabled" if is_disabled else ""
    shortcut = f' aria-keyshortcuts="{keys}"' if keys else ""
    caption = f' data-word="{word}"' if word else ""
    is_icon = "icon" in classes.split()
    label, shown = (f' aria-label="{name}"', "") if is_icon else ("", f"<span>{name}</span>")
    return (
        f'<button type="button" class="control {classes}" data-action="{action}"{target}{caption}{disabled}{shortcut}'
        f'{label} title="{name}">{shown}</button>'
    )


def render_question_controls(texts: Texts, message: Message, *, is_busy: bool) -> str:
    """Below a message of the person's own."""
    copy = render_button("copy", None, texts.COPY, "icon copy", word=texts.COPY)
    if is_busy:
        return f'<span class="tools">{copy}</span>'
    tools = copy + render_button("edit", message.id, texts.EDIT_QUESTION, "icon edit", word=texts.EDIT)
    versions = _render_versions(texts, message, texts.PREVIOUS_QUESTION, texts.NEXT_QUESTION)
    return f'<span class="tools">{tools}</span>{versions}'


def render_reply_controls(
    texts: Texts,
    message: Message,
    stats: TurnStats | None,
    *,
    is_tip: bool,
    is_busy: bool,
    undone_id: str | None = None,
) -> str:
    """Below a reply. `undone_id`: what the tip can go forward to."""
    tools = render_button("copy", None, texts.COPY, "icon copy", word=texts.COPY)
    if is_busy:
        return f'<span class="tools">{tools}</span>'
    names = (texts.PREVIOUS_REPLY, texts.NEXT_REPLY) if is_tip else (texts.PREVIOUS_VERSION, texts.NEXT_VERSION)
    tools += render_button("edit", message.id, texts.EDIT_REPLY, "icon edit", word=texts.EDIT)
    tools += render_button("fork", message.id, texts.FORK, "icon fork", word=texts.FORK_BRIEFLY)
    if not is_tip:
        tools += render_button(
            "regenerate", message.id, texts.REGENERATE_THIS, "icon regenerate", word=texts.REGENERATE
        )
        return f'{_render_versions(texts, message, *names)}<span class="tools">{tools}</span>'
    steps = render_button("regenerate", message.id, texts.REGENERATE, "regenerate", keys="Alt+Shift+R")
    steps += render_button("rollback", message.id, texts.ROLL_BACK, "rollback")  # before what comes and goes with turns
    if can_continue(message, stats, is_tip=is_tip, undone_id=undone_id):
        steps += render_button("continue", message.id, texts.CONTINUE, "continue")
    steps += render_forward(texts, undone_id)
    return f'{_render_versions(texts, message, *names)}{steps}<span class="tools">{tools}</span>'


def can_continue(message: Message, stats: TurnStats | None, *, is_tip: bool, undone_id: str | None) -> bool:
    """Whether a reply can be written on: it ended before it was complete, and nothing answers it."""
    return is_tip and undone_id is None and finish_reason(message, stats) in CONTINUABLE


def render_forward(texts: Texts, undone_id: str | None) -> str:
    """The way back to the turn that was rolled back last; nothing where none was."""
    return "" if undone_id is None else render_button("forward", undone_id, texts.FORWARD, "forward")


def finish_reason(message: Message, stats: TurnStats | None) -> FinishReason | None:
    """Why the reply ended; None where it was written by hand."""
    if message.status is MessageStatus.INTERRUPTED:
        return FinishReason.INTERRUPTED
    return stats.finish_reason if stats and not message.edited else None


def _render_versions(texts: Texts, message: Message, previous: str, following: str) -> str:
    number, total = message.alternative_number, message.num_alternatives
    if total < 2:
        return ""
    return (
        '<span class="versions">'
        + render_button("previous", message.id, previous, "icon previous", is_disabled=number <= 1)
        + f"<span>{texts.alternative(number, total)}</span>"
        + render_button("next", message.id, following, "icon next", is_disabled=number >= total)
        + "</span>"
    )
