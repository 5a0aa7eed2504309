"""Messages → token ids: the prompt of a turn, built so that the next turn's prompt extends what this turn fed.

The chat is rendered with the model's own template; the ids of replies are spliced in as they were sampled, never made
from text again. Knows templates and ids. Does not know caches, sessions or sampling.

Each reply enters the template as a sentinel. Where `full` is the rendered chat and `gen` the rendered chat before that
reply, with the generation prompt, one cut per reply says which part of `full` the reply's ids replace:

    full = gen + whitespace, tags, reasoning + sentinel + …   → cut from the end of gen: pure extension
    the template dropped the reasoning                        → the ids after the reasoning, at the sentinel
    anything else                                             → the ids at the sentinel

Text between two cuts is encoded on its own, so what stands before a cut keeps its ids whatever follows.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import takewhile
from types import MappingProxyType
from typing import Any

from transformers import PreTrainedTokenizerBase

from chatcache.chat_template import NOW_VARIABLE, ChatTemplate, answer_sentinel, reasoning_sentinel
from chatcache.errors import InvalidInputError
from chatcache.prefix import common_length
from chatcache.reasoning import ReasoningSplit, find_reasoning_tags, split_reasoning_ids
from chatcache.reply_stream import ReplyStream
from chatcache.template_chat import PromptMessage, TemplateChat
from chatcache.token_text import TokenText
from storage.records import Role

_NUM_REMEMBERED = 16
"""Prompts kept for the next turn of their chats: a few chats at once, each with a few branches."""

_MAX_REMEMBERED_CHARACTERS = 2**20
"""Longer texts are not kept: most of them were pasted by mistake and fit into no model."""

_NOBODYS = PromptMessage(Role.USER, "\ufdef")
"""A message that begins as none does: input loses Unicode's noncharacters."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """What to feed for a reply.

    `rewrite_index` is the index of the first id at which the template rewrote what the previous turn had fed (its
    prompt and its reply); None: pure extension. `starts_in_reasoning`: the reply begins inside its reasoning.
    `num_history_tokens` ids stand before the last reply among the messages: the prompt of the turn that wrote it.
    """

    token_ids: tuple[int, ...]
    rewrite_index: int | None = None
    starts_in_reasoning: bool = False
    num_history_tokens: int = 0


class PromptBuilder:
    """Builds prompts for one model. Safe to use from any thread.

    A prompt is a function of the messages, the system prompt and the template variables alone; the last few prompts
    are remembered only to save work.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, chat_template: str, eos_token_ids: frozenset[int]) -> None:
        """Probes the template. Raises ModelLoadError when it cannot render a plain chat."""
        added = {token.content: i for i, token in tokenizer.added_tokens_decoder.items()}
        tags = find_reasoning_tags(chat_template, added)
        self._template = ChatTemplate(chat_template, tokenizer.special_tokens_map, tags)
        tag_tokens = {tags.opening, tags.closing} & set(added)
        control_tokens = set(tokenizer._get_control_tokens(chat_template)) - tag_tokens
        self._tokens = TokenText(tokenizer, control_tokens | tag_tokens, visible_tokens=tag_tokens)
        self._remembered: list[_Built] = []
        self._lock = threading.Lock()
        # The last user message is encoded for its own reply, and for the next turn once more.
        self._encode_remembered = functools.lru_cache(_NUM_REMEMBERED)(self._encode_piece)
        self.end_token_ids = eos_token_ids | self._terminator({added[token] for token in control_tokens})
        """Ids that end a reply: the model's eos ids and the template's terminator."""

    @property
    def supports_thinking_switch(self) -> bool:
        """Whether the template reads `enable_thinking`, which may then be added to the template variables."""
        return "enable_thinking" in self._template.variables

    def build(
        self, messages: Sequence[PromptMessage], *, system_prompt: str | None, template_vars: Mapping[str, Any]
    ) -> Prompt:
        """The prompt for the reply to the last of `messages` (user, reply, user, …, user).

        An empty system prompt is none. Raises InvalidInputError with the template's sentence when it refuses the chat.
        """
        chat = TemplateChat.of(messages, system_prompt, template_vars, self._template, self._tokens.mark)
        with self._lock:
            before = self._built(chat.before_reply(chat.num_replies - 1)) if chat.num_replies else None
            built = self._built(chat)
        if before is None:
            return Prompt(built.token_ids, None, chat.starts_in_reasoning)
        fed = (*before.token_ids, *self._reply_ids(chat, chat.num_replies - 1))
        num_kept = common_length(fed, built.token_ids)
        rewrite_index = num_kept if num_kept < len(fed) else None
        last = built.cuts[-1]
        return Prompt(built.token_ids, rewrite_index, chat.starts_in_reasoning, last.num_ids - len(last.token_ids))

    def num_shared_tokens(
        self, token_ids: Sequence[int], *, system_prompt: str | None, template_vars: Mapping[str, Any]
    ) -> int:
        """How many leading ids of a prompt are those of every chat that begins with this system prompt and these
        variables, whatever is said first. Renders and encodes such a beginning; 0 where the template refuses it."""
        try:
            other = TemplateChat.of([_NOBODYS], system_prompt, template_vars, self._template, self._tokens.mark)
            return common_length(token_ids, self._derive(other, None).token_ids)
        except InvalidInputError:
            return 0

    def encode_reply(
        self, text: str, reasoning: str | None = None, template_vars: Mapping[str, Any] = MappingProxyType({})
    ) -> tuple[int, ...]:
        """Ids for a reply that a person wrote or edited, as this model would have said it behind its prompt.

        Where the prompt already opens the reasoning, they close it first. `template_vars` are the session's.
        """
        return self._encode_reply(text, reasoning, self._template.opens_reasoning(template_vars))

    def ids_say(self, token_ids: Sequence[int], text: str, reasoning: str | None) -> bool:
        """Whether these ids read exactly as this reply, and hold nothing that a reader does not see."""
        if not all(map(self._tokens.is_visible, token_ids)):
            return False
        streams = (self.reply_stream(prior_ids=token_ids, starts_in_reasoning=begun) for begun in (False, True))
        return any((reply.text, reply.reasoning) == (text, reasoning) for reply in (s.finish() for s in streams))

    def count_tokens(self, text: str) -> int:
        """How many tokens `text` takes as a message, without what the template puts around it."""
        return self._tokens.count_tokens(text)

    def frozen_template_vars(self, now: datetime) -> dict[str, Any]:
        """The variables a session is created with, as plain JSON values: its date never changes afterwards."""
        return {NOW_VARIABLE: now.isoformat()}

    def reply_stream(
        self, *, stop: Sequence[str] = (), prior_ids: Sequence[int] = (), starts_in_reasoning: bool = False
    ) -> ReplyStream:
        """A stream for the reply to a prompt; `starts_in_reasoning` is the prompt's. `prior_ids`: continue a reply."""
        gap = self._template.facts.before_reply
        return ReplyStream(
            self._tokens,
            tags=self._template.tags,
            end_token_ids=self.end_token_ids,
            stop=stop,
            prior_ids=prior_ids,
            starts_in_reasoning=starts_in_reasoning,
            num_leading_spaces=len(gap) - len(gap.lstrip(" ")),
        )

    def _encode(self, text: str, at_start: bool) -> list[int]:
        is_short = len(text) <= _MAX_REMEMBERED_CHARACTERS
        return (self._encode_remembered if is_short else self._encode_piece)(text, at_start)

    def _encode_piece(self, text: str, at_start: bool) -> list[int]:
        return self._tokens.encode(text, at_start=at_start)

    def _encode_reply(self, text: str, reasoning: str | None, starts_in_reasoning: bool) -> tuple[int, ...]:
        body, tags = self._tokens.mark(text), self._template.tags
        if reasoning is not None or starts_in_reasoning:
            opening = "" if starts_in_reasoning else tags.opening + "\n"
            body = f"{opening}{self._tokens.mark(reasoning or '')}\n{tags.closing}\n\n{body}"
        else:
            body = self._template.facts.before_reply + body
        return tuple(self._tokens.encode(body, at_start=False))

    def _terminator(self, control_ids: set[int]) -> frozenset[int]:
        """The first control token that the template writes behind a reply."""
        after = self._tokens.encode(self._template.facts.after_reply, at_start=False)
        return frozenset([i for i in after if i in control_ids][:1])

    def _built(self, chat: TemplateChat) -> _Built:
        """The prompt of `chat`: remembered, or made from the remembered one that shares most messages with it."""
        relative = max(self._remembered, key=lambda b: b.chat.num_shared_messages(chat), default=None)
        built = relative if relative is not None and relative.chat == chat else self._derive(chat, relative)
        if len(built.text) <= _MAX_REMEMBERED_CHARACTERS:
            self._remembered = [built, *(b for b in self._remembered if b is not built)][:_NUM_REMEMBERED]
        return built

    def _derive(self, chat: TemplateChat, relative: _Built | None) -> _Built:
        text = self._text(chat)
        cuts: list[_Cut] = []
        if relative is not None:
            # A decision about a reply looks at nothing behind its sentinel, so it stands where the text is the same.
            num_same = common_length(relative.text, text)
            shared = relative.cuts[: relative.chat.num_shared_messages(chat) // 2]
            cuts = list(takewhile(lambda cut: cut.end <= num_same, shared))
        ids = list(relative.token_ids[: cuts[-1].num_ids]) if relative and cuts else []
        position = cuts[-1].end if cuts else 0
        for k in range(len(cuts), chat.num_replies):
            cut = self._cut(text, self._text(chat.before_reply(k)), k, chat)
            ids += self._encode(text[position : cut.start], position == 0)
            ids += cut.token_ids
            position = cut.end
            cuts.append(replace(cut, num_ids=len(ids)))
        ids += self._encode(text[position:], position == 0)
        return _Built(chat, text, tuple(cuts), tuple(ids))

    def _text(self, chat: TemplateChat) -> str:
        remembered = (built.text for built in self._remembered if built.chat == chat)
        return next(remembered, None) or self._template.render(chat.rendered, chat.template_vars)

    def _cut(self, text: str, gen: str, k: int, chat: TemplateChat) -> _Cut:
        """Which part of `text` the ids of reply `k` replace."""
        sentinel, ids = answer_sentinel(k), self._reply_ids(chat, k)
        at, end = text.find(sentinel), text.find(sentinel) + len(sentinel)
        if at < 0 or text.find(sentinel, end) >= 0:
            raise InvalidInputError("The model's chat template does not show every reply exactly once.")
        has_reasoning = chat.starts_in_reasoning or chat.reply(k).reasoning is not None
        thought_at = text.rfind(reasoning_sentinel(k), 0, at) if has_reasoning else -1
        extends = len(gen) <= at and text.startswith(gen)
        start = at
        if has_reasoning and thought_at < 0:
            ids = self._split(ids, chat).after_reasoning
        elif extends and self._template.is_filler(text[len(gen) : at]):
            return _Cut(len(gen), end, ids)
        elif thought_at >= 0:
            start, ids = thought_at, self._split(ids, chat).from_reasoning
        if extends:
            # Template text that stays: encoded apart from the generation prompt, which was fed as it is.
            kept = self._tokens.encode(text[len(gen) : start], at_start=False)
            return _Cut(len(gen), end, (*kept, *ids))
        return _Cut(start, end, ids)

    def _split(self, reply_ids: tuple[int, ...], chat: TemplateChat) -> ReasoningSplit:
        return split_reasoning_ids(
            self._tokens, self._template.tags, reply_ids, starts_in_reasoning=chat.starts_in_reasoning
        )

    def _reply_ids(self, chat: TemplateChat, k: int) -> tuple[int, ...]:
        reply = chat.reply(k)
        if reply.token_ids is not None:
            return reply.token_ids
        return self._encode_reply(reply.text, reply.reasoning, chat.starts_in_reasoning)


@dataclass(frozen=True, slots=True)
class _Cut:
    """`text[start:end]` is replaced by `token_ids`; `num_ids` ids of the prompt end with them."""

    start: int
    end: int
    token_ids: tuple[int, ...]
    num_ids: int = 0


@dataclass(frozen=True, slots=True)
class _Built:
    """A prompt with what the next turn's is made from: the rendered text and one cut per reply."""

    chat: TemplateChat
    text: str
    cuts: tuple[_Cut, ...]
    token_ids: tuple[int, ...]
