"""A model's chat template: rendering a chat to text, and what a probe finds out about the template.

Knows Jinja, sentinels and text. Does not know token ids.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import jinja2
import jinja2.meta
from transformers.utils.chat_template_utils import _compile_jinja_template

from chatcache.errors import InvalidInputError, ModelLoadError, Reason
from chatcache.first_sentence import first_sentence
from chatcache.reasoning import ReasoningTags
from chatcache.token_text import SENTINEL_END, SENTINEL_START

DEFAULT_CHAT_TEMPLATE = (
    "{{ bos_token }}"
    "{% for message in messages %}"
    "{% if message['role'] == 'system' %}{{ message['content'] + '\\n\\n' }}"
    "{% elif message['role'] == 'user' %}{{ 'User: ' + message['content'] + '\\n' }}"
    "{% else %}{{ 'Assistant: ' + message['content'] + '\\n' }}{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}"
)
"""For models without a template of their own: plain text that a base model goes on with."""

DEFAULT_TEMPLATE_STOP = ("\nUser:",)
"""What ends a reply under `DEFAULT_CHAT_TEMPLATE`: the model writing the person's next line."""

NOW_VARIABLE = "now"
"""The stored variable that holds the session's frozen time; `strftime_now` reads it."""

TemplateMessage = dict[str, str]


def answer_sentinel(k: int) -> str:
    """Stands for the visible text of reply `k` while the template is rendered."""
    return f"{SENTINEL_START}A{k}{SENTINEL_END}"


def reasoning_sentinel(k: int) -> str:
    """Stands for the reasoning of reply `k` while the template is rendered."""
    return f"{SENTINEL_START}R{k}{SENTINEL_END}"


@dataclass(frozen=True, slots=True)
class TemplateFacts:
    """What the probe found out.

    has_system_role: a system message is shown, and stays where it is as the chat grows.
    after_reply: the text between a reply and the next user message; begins with the terminator.
    before_reply: what history puts between the generation prompt and a reply (whitespace and tags), as in `[/INST] A`.
    """

    has_system_role: bool
    after_reply: str
    before_reply: str


class ChatTemplate:
    """A compiled chat template. Renders always end with the generation prompt."""

    def __init__(self, source: str, special_tokens: Mapping[str, Any], tags: ReasoningTags) -> None:
        """Raises ModelLoadError when the template cannot be read or cannot render a plain chat."""
        self.tags = tags
        self._special_tokens = dict(special_tokens)
        self._loaded_at = datetime.now()
        try:
            self._compiled: Any = _compile_jinja_template(source)
            self.variables = frozenset(jinja2.meta.find_undeclared_variables(self._compiled.environment.parse(source)))
            self.facts = self._probe()
        except (jinja2.TemplateError, InvalidInputError) as error:
            raise ModelLoadError(
                f"The chat template of this model cannot be used: {first_sentence(error)} Choose another model, or "
                "give this one a working chat_template.jinja."
            ) from error

    def render(self, messages: Sequence[TemplateMessage], template_vars: Mapping[str, Any]) -> str:
        """The chat as text, generation prompt included. Raises InvalidInputError with the template's own sentence."""
        now = self._frozen_now(template_vars.get(NOW_VARIABLE))
        try:
            text = self._compiled.render(
                {k: v for k, v in template_vars.items() if k != NOW_VARIABLE}
                | self._special_tokens
                | {
                    "messages": list(messages),
                    "tools": None,
                    "documents": None,
                    "add_generation_prompt": True,
                    "strftime_now": now.strftime,
                }
            )
        except Exception as error:  # a template is foreign code: anything can come out of it
            raise InvalidInputError(
                f"The model's chat template refuses this chat: {first_sentence(error)}", Reason.TEMPLATE_REFUSES
            ) from error
        return str(text)

    def opens_reasoning(self, template_vars: Mapping[str, Any]) -> bool:
        """Whether the generation prompt ends with the opening reasoning tag, so that a reply begins inside it."""
        prompt = self.render([{"role": "user", "content": "?"}], template_vars)
        return prompt.rstrip().endswith(self.tags.opening)

    def is_filler(self, text: str) -> bool:
        """Whether only whitespace, reasoning tags and reasoning sentinels stand in `text`."""
        sentinel = rf"{SENTINEL_START}R\d+{SENTINEL_END}"
        parts = (re.escape(self.tags.opening), re.escape(self.tags.closing), sentinel, r"\s")
        return re.fullmatch(f"(?:{'|'.join(parts)})*", text) is not None

    def _frozen_now(self, stored: Any) -> datetime:
        try:
            return datetime.fromisoformat(stored)
        except (TypeError, ValueError):
            return self._loaded_at

    def _probe(self) -> TemplateFacts:
        user, answer, after = ({"role": "user", "content": f"{SENTINEL_START}{n}{SENTINEL_END}"} for n in "xyz")
        answer["role"] = "assistant"
        prompt = self.render([user], {})
        history = self.render([user, answer, after], {})
        head, *rest = history.split(answer["content"])
        if len(rest) != 1:
            raise InvalidInputError("it does not show every reply exactly once")
        gap = head[len(prompt) :] if head.startswith(prompt) else ""
        return TemplateFacts(
            has_system_role=self._keeps_system([user, answer, after]),
            after_reply=rest[0].partition(after["content"])[0],
            before_reply=gap if self.is_filler(gap) else "",
        )

    def _keeps_system(self, chat: list[TemplateMessage]) -> bool:
        system = {"role": "system", "content": f"{SENTINEL_START}s{SENTINEL_END}"}
        try:
            short, long = (self.render([system, *turns], {}) for turns in (chat[:1], chat))
        except InvalidInputError:
            return False
        place = short.find(system["content"])
        return place >= 0 and place == long.find(system["content"]) and long.count(system["content"]) == 1
