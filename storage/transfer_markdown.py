"""A branch as Markdown: roles, times, and every text as it is."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime

from storage.records import ChatSession, Message, MessageStatus, Role

_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})(.*)")
_NAMES = {Role.USER: "User", Role.ASSISTANT: "Assistant"}


def render_markdown(session: ChatSession, branch: Sequence[Message]) -> str:
    """The session's title, system prompt and the messages of `branch`, each below a heading with role and time."""
    parts = [f"# {' '.join(session.title.split()) or 'Chat'}", f"Created {_time(session.created_at)}"]
    if session.system_prompt:
        parts += ["## System prompt", _with_fences_closed(session.system_prompt)]
    for message in branch:
        parts.append(f"## {_heading(message)}")
        if message.reasoning:
            parts.append(
                "\n".join(f"> {line}".rstrip() for line in ["*Reasoning*", "", *message.reasoning.split("\n")])
            )
        parts.append(_with_fences_closed(message.text))
    return "\n\n".join(parts) + "\n"


def _heading(message: Message) -> str:
    facts = [_NAMES[message.role], _time(message.created_at)]
    if message.num_alternatives > 1:
        facts.append(f"alternative {message.alternative_number} of {message.num_alternatives}")
    if message.edited:
        facts.append("edited")
    if message.status is not MessageStatus.COMPLETE:
        facts.append("not complete")
    return " · ".join(facts)


def _time(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%d %H:%M:%S UTC")


def _with_fences_closed(text: str) -> str:
    """A reply that was stopped inside a code block would otherwise swallow all that follows it."""
    opened = ""
    for line in text.split("\n"):
        match = _FENCE.fullmatch(line)
        if match is None:
            continue
        fence, rest = match.groups()
        if not opened:
            opened = fence if fence[0] == "~" or "`" not in rest else ""
        elif fence.startswith(opened) and not rest.strip():
            opened = ""
    return f"{text}\n{opened}" if opened else text
