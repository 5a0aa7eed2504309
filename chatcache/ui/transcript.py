"""Messages → the HTML of the conversation.

Everything a person or a model wrote is escaped or rendered by `markdown`; the only elements are ours. Buttons carry
`data-action` and `data-message`; one listener in the page turns them into events.
"""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import Any

from chatcache.stats import FinishReason, TurnStats
from chatcache.ui.markdown import GrowingMarkdown, render_markdown, render_plain
from chatcache.ui.texts import Texts
from storage.records import Message, MessageStatus, Role

CONTINUABLE = frozenset({FinishReason.LENGTH, FinishReason.CANCELLED, FinishReason.INTERRUPTED})


def render_transcript(
    texts: Texts,
    messages: Sequence[Message],
    stats: Mapping[str, TurnStats],
    *,
    num_hidden: int = 0,
    is_busy: bool = False,
) -> str:
    """The messages, root first; the last one carries what can be done at the tip, unless a turn is running.

    `num_hidden` messages before the first are not shown yet.
    """
    earlier = _button("earlier", None, texts.SHOW_EARLIER, "wide") if num_hidden else ""
    tip_id = messages[-1].id if messages and not is_busy else None
    first_read = max((stats[m.id].context_start for m in messages if m.id in stats), default=0)
    left_out = f'<p class="left-out">{texts.LEFT_OUT}</p>'
    return earlier + "".join(
        (left_out if first_read and message.position == first_read else "")
        + _render_message(texts, message, stats.get(message.id), is_tip=message.id == tip_id, is_busy=is_busy)
        for message in messages
    )


def render_welcome(texts: Texts) -> str:
    suggestions = "".join(
        f'<li><button type="button" class="suggestion" data-action="suggest" data-message="{number}">'
        f"{html.escape(text)}</button></li>"
        for number, text in enumerate(texts.PROMPT_SUGGESTIONS)
    )
    return (
        f'<div class="welcome"><h2>{texts.WELCOME}</h2><p>{texts.WELCOME_DETAIL}</p>'
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
    + '<div class="prose">${value[0].closed.join("")}${value[0].open}` : ""}'
)
"""The open block comes last, for its end tags are left to the browser."""


def _render_message(texts: Texts, message: Message, stats: TurnStats | None, *, is_tip: bool, is_busy: bool) -> str:
    if message.role is Role.USER:
        versions = "" if is_busy else _versions(texts, message, texts.PREVIOUS_QUESTION, texts.NEXT_QUESTION)
        footer = f"<footer>{versions}</footer>" if versions else ""
        return (
            f'<article class="message user" data-testid="user" data-id="{message.id}" aria-label="{texts.YOU}">'
            f'<div class="plain bubble">{render_plain(message.text)}</div>{footer}</article>'
        )
    ending = _ending(texts, message, stats)
    body = render_markdown(message.text, texts)
    if not message.text and not ending:
        body = f'<p class="quiet">{texts.EMPTY_REPLY}</p>'
    return (
        f'<article class="message reply" data-testid="bot" data-id="{message.id}" aria-label="{texts.MODEL}">'
        f'{_thought(texts, message)}<div class="prose">{body}</div>{ending}'
        f"<footer>{_reply_controls(texts, message, stats, is_tip=is_tip, is_busy=is_busy)}</footer></article>"
    )


def _thought(texts: Texts, message: Message) -> str:
    if not message.reasoning:
        return ""
    return (
        f'<details class="thought"><summary>{texts.THOUGHTS}</summary>'
        f'<div class="plain">{render_plain(message.reasoning.strip())}</div></details>'
    )


def _ending(texts: Texts, message: Message, stats: TurnStats | None) -> str:
    reason = _finish_reason(message, stats)
    sentence = texts.FINISHED.get(reason) if reason else None
    return f'<p class="ending">{sentence}</p>' if sentence else ""


def _finish_reason(message: Message, stats: TurnStats | None) -> FinishReason | None:
    if message.status is MessageStatus.INTERRUPTED:
        return FinishReason.INTERRUPTED
    return stats.finish_reason if stats and not message.edited else None


def _reply_controls(texts: Texts, message: Message, stats: TurnStats | None, *, is_tip: bool, is_busy: bool) -> str:
    if is_busy:
        return _button("copy", None, texts.COPY, "icon copy") + _summary(texts, stats)
    names = (texts.PREVIOUS_REPLY, texts.NEXT_REPLY) if is_tip else (texts.PREVIOUS_VERSION, texts.NEXT_VERSION)
    controls = _versions(texts, message, *names) + _button("copy", None, texts.COPY, "icon copy")
    if is_tip:
        controls += _button("regenerate", message.id, texts.REGENERATE, "regenerate")
        if _finish_reason(message, stats) in CONTINUABLE:
            controls += _button("continue", message.id, texts.CONTINUE, "continue")
        controls += _button("rollback", message.id, texts.ROLL_BACK, "rollback")
    controls += _button("fork", message.id, texts.FORK, "icon fork")
    return controls + _summary(texts, stats)


def _versions(texts: Texts, message: Message, previous: str, following: str) -> str:
    number, total = message.alternative_number, message.num_alternatives
    if total < 2:
        return ""
    return (
        '<span class="versions">'
        + _button("previous", message.id, previous, "icon previous", is_disabled=number <= 1)
        + f"<span>{texts.alternative(number, total)}</span>"
        + _button("next", message.id, following, "icon next", is_disabled=number >= total)
        + "</span>"
    )


def _summary(texts: Texts, stats: TurnStats | None) -> str:
    if stats is None or not stats.num_prompt_tokens:
        return ""
    reused, computed = texts.number(stats.num_cached_tokens), texts.number(stats.num_computed_tokens)
    words = f"{reused} {texts.REUSED} · {computed} {texts.COMPUTED}"
    if stats.decode_tokens_per_s:
        words += f" · {texts.speed(stats.decode_tokens_per_s)}"
    return f'<span class="summary">{words}</span>'


def _button(action: str, message_id: str | None, name: str, classes: str, *, is_disabled: bool = False) -> str:
    target = f' data-message="{message_id}"' if message_id else ""
    disabled = " disabled" if is_disabled else ""
    return (
        f'<button type="button" class="control {classes}" data-action="{action}"{target}{disabled} title="{name}">'
        f"<span>{name}</span></button>"
    )
