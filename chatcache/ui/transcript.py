"""Messages → the HTML of the conversation.

Everything a person or a model wrote is escaped or rendered by `markdown`; the only elements are ours. Buttons carry
`data-action` and `data-message`; one listener in the page turns them into events.
"""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from chatcache.attached import AttachedFile, parts_of
from chatcache.reports import TurnDetails
from chatcache.stats import TurnStats
from chatcache.ui.code import render_code
from chatcache.ui.markdown import GrowingMarkdown, render_markdown, render_plain
from chatcache.ui.message_controls import (
    CONTINUABLE,
    can_continue,
    finish_reason,
    render_button,
    render_forward,
    render_question_controls,
    render_reply_controls,
)
from chatcache.ui.reply_details import render_details
from chatcache.ui.texts import Texts
from storage.records import Message, Role

LONG_CHARACTERS = 1500
LONG_LINES = 24


def render_transcript(
    texts: Texts,
    messages: Sequence[Message],
    stats: Mapping[str, TurnStats],
    *,
    details: Mapping[str, TurnDetails] = MappingProxyType({}),
    num_hidden: int = 0,
    is_busy: bool = False,
    undone_id: str | None = None,
) -> str:
    """The messages, root first; the last one carries what can be done at the tip, unless a turn is running.

    `num_hidden` messages before the first are not shown yet. `details` add to the figures how a reply was asked for.
    `undone_id`: the reply that the tip can go forward to.
    """
    earlier = render_button("earlier", None, texts.SHOW_EARLIER, "wide") if num_hidden else ""
    tip_id = messages[-1].id if messages and not is_busy else None
    first_read = max((stats[m.id].context_start for m in messages if m.id in stats), default=0)
    left_out = f'<p class="left-out">{texts.LEFT_OUT}</p>'
    parts = [earlier]
    for message in messages:
        if first_read and message.position == first_read:
            parts.append(left_out)
        cost, made = stats.get(message.id), details.get(message.id)
        is_tip = message.id == tip_id
        parts.append(_render_message(texts, message, cost, made, is_tip, is_busy, undone_id if is_tip else None))
    return "".join(parts)


def render_opening(texts: Texts) -> str:
    """What stands there until the chat is known."""
    return f'<p class="status opening" role="status"><span class="pulse"></span>{texts.OPENING}</p>'


def render_welcome(texts: Texts, *, is_temporary: bool = False, undone_id: str | None = None) -> str:
    """A chat without messages; where they were rolled back, the way to the first turn of them."""
    suggestions = "".join(
        f'<li><button type="button" class="suggestion" data-action="suggest" data-message="{number}">'
        f"{html.escape(text)}</button></li>"
        for number, text in enumerate(texts.PROMPT_SUGGESTIONS)
    )
    detail = texts.TEMPORARY_DETAIL if is_temporary else texts.WELCOME_DETAIL
    forward = ""
    if undone_id is not None:
        forward = f'<p class="undone">{texts.ALL_ROLLED_BACK}{render_forward(texts, undone_id)}</p>'
    return (
        f'<div class="welcome"><h2>{texts.WELCOME}</h2><p>{detail}</p>{forward}'
        f'<ul class="suggestions">{suggestions}</ul></div>'
    )


class LiveReply:
    """The reply that is being written, as the values the page's live element takes (see `LIVE_TEMPLATE`)."""

    def __init__(self, texts: Texts) -> None:
        self._texts = texts
        self._markdown = GrowingMarkdown(texts)
        self._thought = ""
        self._status = ""
        self._has_text = False

    def add_text(self, text: str, *, is_reasoning: bool) -> None:
        if is_reasoning:
            self._thought += render_plain(text)
        else:
            self._markdown.push(text)
            self._has_text = True

    def set_status(self, status: str) -> None:
        self._status = html.escape(status)

    def to_json(self) -> list[dict[str, Any]]:
        """One dictionary, in a list: Gradio tells a list from the updates of other kinds that it may alternate with."""
        return [
            {
                "model": self._texts.MODEL,
                "thinking_label": self._texts.THINKING,
                "status": self._status,
                "thought": self._thought,
                "thinking": bool(self._thought) and not self._has_text,
                "closed": list(self._markdown.closed),
                "open": self._markdown.open,
            }
        ]


LIVE_TEMPLATE = (
    '${value ? `<article class="message reply live" data-testid="bot" aria-label="${value[0].model}" aria-busy="true">'
    + '<div class="live-status">${value[0].status ? `<p class="status"><span class="pulse"></span>'
    + '${value[0].status}</p>` : ""}</div>'
    + '${value[0].thought ? `<details class="thought" ${value[0].thinking ? "open" : ""}><summary>'
    + '${value[0].thinking_label}</summary><div class="plain">${value[0].thought}</div></details>` : ""}'
    + '<div class="prose" dir="auto">${value[0].closed.join("")}${value[0].open}` : ""}'
)
"""The open block comes last, for its end tags are left to the browser."""


def _render_message(
    texts: Texts,
    message: Message,
    stats: TurnStats | None,
    made: TurnDetails | None,
    is_tip: bool,
    is_busy: bool,
    undone_id: str | None,
) -> str:
    if message.role is Role.USER:
        parts = list(parts_of(message.text))
        said = "\n".join(part for part in parts if isinstance(part, str))
        source = f'data-source="{html.escape(message.text)}" ' if said != message.text else ""
        return (
            f'<article class="message user" data-testid="user" data-id="{message.id}" '
            f'data-position="{message.position}" {source}aria-label="{texts.YOU}">'
            f'<div class="plain bubble">{_render_parts(texts, parts)}</div>{_unfold(texts, said)}'
            f"<footer>{render_question_controls(texts, message, is_busy=is_busy)}</footer></article>"
        )
    ending = _ending(texts, message, stats, is_tip=is_tip, undone_id=undone_id)
    body = render_markdown(message.text, texts)
    if not message.text and not ending:
        body = f'<p class="quiet">{texts.EMPTY_REPLY}</p>'
    controls = render_reply_controls(texts, message, stats, is_tip=is_tip, is_busy=is_busy, undone_id=undone_id)
    return (
        f'<article class="message reply{" tip" if is_tip else ""}" data-testid="bot" data-id="{message.id}" '
        f'data-position="{message.position}" data-source="{html.escape(message.text)}" aria-label="{texts.MODEL}">'
        f'{_thought(texts, message)}<div class="prose" dir="auto">{body}</div>{ending}'
        f"<footer>{controls}{render_details(texts, message, stats, made)}</footer></article>"
    )


def _render_parts(texts: Texts, parts: Sequence[str | AttachedFile]) -> str:
    """What a person wrote, and the files in it, each folded under its name."""
    return "".join(
        render_plain(part)
        if isinstance(part, str)
        else f'<details class="file file-{number}"><summary><span>{html.escape(part.name)}</span>'
        f"<small>{texts.lines(part.text.count(chr(10)))}</small></summary>"
        f"{render_code(texts, part.text, part.kind)}</details>"
        for number, part in enumerate(parts)
    )


def _unfold(texts: Texts, text: str) -> str:
    """What unfolds a long message of the person's own; the style sheet cuts it until then."""
    if len(text) <= LONG_CHARACTERS and text.count("\n") < LONG_LINES:
        return ""
    return (
        f'<details class="unfold"><summary><span class="more">{texts.SHOW_ALL}</span>'
        f'<span class="less">{texts.SHOW_LESS}</span></summary></details>'
    )


def _thought(texts: Texts, message: Message) -> str:
    if not message.reasoning:
        return ""
    return (
        f'<details class="thought"><summary>{texts.THOUGHTS}</summary>'
        f'<div class="plain">{render_plain(message.reasoning.strip())}</div></details>'
    )


def _ending(texts: Texts, message: Message, stats: TurnStats | None, *, is_tip: bool, undone_id: str | None) -> str:
    """Why a reply ended before it was complete, and what can be done about it with the buttons that it has."""
    reason = finish_reason(message, stats)
    if reason is None or reason not in texts.FINISHED:
        return ""
    has_button = can_continue(message, stats, is_tip=is_tip, undone_id=undone_id) if reason in CONTINUABLE else is_tip
    what_next = f" {texts.WHAT_NEXT[reason]}" if has_button else ""
    return f'<p class="ending">{texts.FINISHED[reason]}{what_next}</p>'
