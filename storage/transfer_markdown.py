"""A branch as Markdown: roles, times, and every text as it is, kept within its own part (`markdown_text`)."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from storage.markdown_text import contained, one_line
from storage.records import ChatSession, Message, MessageStatus, Role

_NAMES = {Role.USER: "User", Role.ASSISTANT: "Assistant"}


def render_markdown(session: ChatSession, branch: Sequence[Message]) -> str:
    """The session's title, system prompt and the messages of `branch`, each below a heading with role and time."""
    parts = [f"# {one_line(session.title) or 'Chat'}", f"Created {_time(session.created_at)}"]
    if session.system_prompt:
        parts += ["## System prompt", contained(session.system_prompt)]
    for message in branch:
        parts.append(f"## {_heading(message)}")
        if message.reasoning:
            lines = ["*Reasoning*", "", *contained(message.reasoning).split("\n")]
            parts.append("\n".join(f"> {line}".rstrip() for line in lines))
        parts.append(contained(message.text))
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
