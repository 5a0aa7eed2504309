"""`TemplateChat`: a branch of messages beside what the template is given for them. A value.

Typed control tokens are marked, each reply is a sentinel, the system prompt is a message or part of the first one.
Knows messages and the template's facts. Does not know token ids of prompts, nor what was built before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from chatcache.chat_template import ChatTemplate, TemplateMessage, answer_sentinel, reasoning_sentinel
from chatcache.prefix import common_length
from storage.records import Role


@dataclass(frozen=True, slots=True)
class PromptMessage:
    """One message of a branch. `token_ids` None: a reply known by text only, encoded from `text` and `reasoning`."""

    role: Role
    text: str
    reasoning: str | None = None
    token_ids: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class TemplateChat:
    """`messages` are user, reply, user, …, user; `rendered` is what stands for them, perhaps behind a system message.
    `starts_in_reasoning`: the generation prompt opens the reasoning, so every reply begins inside it."""

    messages: tuple[PromptMessage, ...]
    system_prompt: str
    template_vars: dict[str, Any]
    starts_in_reasoning: bool
    rendered: tuple[TemplateMessage, ...]

    @classmethod
    def of(
        cls,
        messages: Sequence[PromptMessage],
        system_prompt: str | None,
        template_vars: Mapping[str, Any],
        template: ChatTemplate,
        mark: Callable[[str], str],
    ) -> TemplateChat:
        """`mark` keeps control tokens in a text from being taken for such. Raises ValueError for another order."""
        roles = [message.role for message in messages]
        if not roles or roles != [(Role.USER, Role.ASSISTANT)[i % 2] for i in range(len(roles))] or len(roles) % 2 == 0:
            raise ValueError(f"A prompt needs user, reply, user, …, user; got {roles}.")
        tags = template.tags
        marked_vars = {k: mark(v) if isinstance(v, str) else v for k, v in template_vars.items()}
        starts_in_reasoning = template.opens_reasoning(marked_vars)
        rendered: list[TemplateMessage] = []
        for i, message in enumerate(messages):
            if message.role is Role.USER:
                content = mark(message.text)
            else:
                content = answer_sentinel(i // 2)
                if message.reasoning is not None or starts_in_reasoning:
                    content = f"{tags.opening}\n{reasoning_sentinel(i // 2)}\n{tags.closing}\n\n{content}"
            rendered.append({"role": message.role.value, "content": content})
        system: list[TemplateMessage] = []
        if system_prompt and system_prompt.strip():
            if template.facts.has_system_role:
                system = [{"role": "system", "content": mark(system_prompt)}]
            else:
                rendered[0]["content"] = f"{mark(system_prompt)}\n\n{rendered[0]['content']}"
        return cls(tuple(messages), system_prompt or "", marked_vars, starts_in_reasoning, (*system, *rendered))

    @property
    def num_replies(self) -> int:
        return len(self.messages) // 2

    def reply(self, k: int) -> PromptMessage:
        return self.messages[2 * k + 1]

    def before_reply(self, k: int) -> TemplateChat:
        """The chat that reply `k` answers."""
        num_messages = 2 * k + 1
        num_left_out = len(self.messages) - num_messages
        return replace(
            self, messages=self.messages[:num_messages], rendered=self.rendered[: len(self.rendered) - num_left_out]
        )

    def num_shared_messages(self, other: TemplateChat) -> int:
        """How many leading messages the two have in common, rendered under the same circumstances."""
        if (self.system_prompt, self.template_vars) != (other.system_prompt, other.template_vars):
            return 0
        return common_length(self.messages, other.messages)
