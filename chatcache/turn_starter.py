"""`TurnStarter`: from a branch of messages to a running turn: prompt, room, seed, rows.

It does not know whether the turn is allowed (`chat.py`) nor how it runs (`turn_runner.py`).
"""

from __future__ import annotations

import dataclasses
import functools
import secrets
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

from chatcache.cache_form import CacheForm, CacheForms
from chatcache.chat_settings import drops_oldest, is_thinking, looks_up_prompt
from chatcache.context_window import ContextWindow
from chatcache.errors import ContextFullError, InvalidInputError
from chatcache.events import Reply
from chatcache.model_outline import ModelOutline
from chatcache.prompt import Prompt, PromptBuilder
from chatcache.reports import ContextUse
from chatcache.sampler import alternative_seed
from chatcache.stats import FinishReason, Sampling, TurnStats, checked_sampling
from chatcache.template_chat import PromptMessage
from chatcache.text_input import clean_text
from chatcache.turn import Turn
from chatcache.turn_request import TurnRequest
from chatcache.turn_runner import TurnRunner
from storage.chat_store import ChatStore
from storage.records import ChatSession, ExpectedTip, Message, Role, TurnRecord

_WORD = "word"
"""Stands for a message that is not written yet: a template may refuse an empty one."""

_NUM_USES_KNOWN = 64


class TurnStarter:
    """Begins turns. Called under the session's lock."""

    def __init__(
        self,
        store: ChatStore,
        outline: ModelOutline,
        prompts: PromptBuilder,
        runner: TurnRunner,
        forms: CacheForms,
        most_live_tokens: Callable[[CacheForm], int],
    ) -> None:
        """`most_live_tokens`: how many fit into memory in one chat whose cache has this form; it may wait for the
        model."""
        self._store = store
        self._outline = outline
        self._prompts = prompts
        self._runner = runner
        self._forms = forms
        self._most_live_tokens = most_live_tokens
        self._known_use = functools.lru_cache(_NUM_USES_KNOWN)(self._read_use)

    def start(
        self,
        session: ChatSession,
        branch: Sequence[Message],
        sampling: Sampling | None,
        *,
        request_id: str | None,
        user_text: str | None = None,
        alternative_of: Message | None = None,
        continued: Message | None = None,
    ) -> Turn:
        """Begin a turn below the last message of `branch`: all checks first, then one transaction, then the queue.

        With `user_text` the branch ends at a reply (or is empty), else at the user message to answer.
        Raises ContextFullError, and InvalidInputError where the model's template refuses the conversation.
        """
        messages = [self._prompt_message(m) for m in branch]
        if user_text is not None:
            messages.append(PromptMessage(Role.USER, user_text))
        prior_ids = self._ids_of(continued, template_vars_of(session)) if continued is not None else ()
        resolved = self._resolved_sampling(session, sampling, alternative_of, continued)
        assert resolved.seed is not None
        last = continued or alternative_of or (branch[-1] if branch else None)
        before = None if last is None else self._store.last_turn(session.owner, last.id)
        inherited = _start_of(before, len(branch))
        form = self.cache_form(session)
        window = ContextWindow.of(self._limit_after(before, form), resolved.max_new_tokens)
        context_start, prompt = self._fitting_prompt(session, messages, inherited, len(prior_ids), window)
        begun = self._store.begin_turn(
            session.owner,
            session.id,
            user_text=user_text,
            parent_id=branch[-1].id if branch else None,
            expected_tip=ExpectedTip(session.tip_id),
            reply_to_continue=continued.id if continued is not None else None,
            request_id=request_id,
            sampling=resolved.to_json(),
            settings=session.settings,
            seed=resolved.seed,
            context_start=context_start,
            tokenizer_digest=self._outline.tokenizer_digest,
        )
        request = TurnRequest(
            owner=session.owner,
            session_id=session.id,
            prompt_ids=prompt.token_ids,
            prior_reply_ids=prior_ids,
            sampling=resolved,
            rewrite_index=prompt.rewrite_index,
            starts_in_reasoning=prompt.starts_in_reasoning,
            context_start=context_start,
            num_left_out=context_start - inherited,
            prompt_lookup=looks_up_prompt(session.settings),
            form=form,
            num_known_tokens=prompt.num_history_tokens if user_text is not None else len(prompt.token_ids) - 1,
            num_shared_tokens=functools.partial(
                self._prompts.num_shared_tokens,
                prompt.token_ids,
                system_prompt=session.system_prompt,
                template_vars=template_vars_of(session),
            ),
        )
        return self._runner.start(begun, request)

    def fed_ids(self, session: ChatSession, branch: Sequence[Message]) -> tuple[int, ...]:
        """What the model has been fed and has said by the end of `branch`: the last prompt and its reply."""
        if not branch:
            return ()
        *messages, reply = branch
        start = _start_of(self._store.last_turn(session.owner, reply.id), len(messages))
        prompt = self._prompt(session, [self._prompt_message(m) for m in messages[start:]])
        return (*prompt.token_ids, *self._ids_of(reply, template_vars_of(session)))

    def context_use(self, session: ChatSession) -> ContextUse:
        """Of the chat at the end of its current branch, which is read once for each version of the chat."""
        return self._known_use(session.owner, session.id, session.version)

    def _read_use(self, owner: str, session_id: str, _version: int) -> ContextUse:
        session, branch = self._store.get_session(owner, session_id), self._store.branch(owner, session_id)
        turn = self._store.last_turn(owner, branch[-1].id) if branch else None
        told = [self._prompt_message(m) for m in branch[_start_of(turn, len(branch) - 1) :]]
        following = self._prompt(session, [*told, PromptMessage(Role.USER, _WORD)])
        num_fed = len(self.fed_ids(session, branch))
        return ContextUse(num_fed, len(following.token_ids) - self._prompts.count_tokens(_WORD) - num_fed)

    def context_use_of_new_chat(self, system_prompt: str, thinking: bool | None) -> ContextUse:
        """Of a chat that begins today."""
        variables = self._prompts.frozen_template_vars(datetime.now().astimezone())
        first = self._prompts.build(
            [PromptMessage(Role.USER, _WORD)],
            system_prompt=system_prompt,
            template_vars={**variables, **_thinking_vars(thinking)},
        )
        return ContextUse(0, len(first.token_ids) - self._prompts.count_tokens(_WORD))

    def cache_form(self, session: ChatSession) -> CacheForm:
        """How the session's cache is to be held."""
        return self._forms.of(session.settings, is_saved=not self._store.is_temporary(session.id))

    def ids_say(self, reply: Message) -> bool:
        """Whether a reply's ids belong to the loaded model and read exactly as its text."""
        ids = self._stored_ids(reply)
        return ids is not None and self._prompts.ids_say(ids, reply.text, reply.reasoning)

    def context_start(self, session: ChatSession) -> int:
        """The position of the first message of the current branch that a prompt for its end holds, as it is inherited
        from the last turn on it."""
        if session.tip_id is None:
            return 0
        turn = self._store.last_turn(session.owner, session.tip_id)
        return _start_of(turn, self._store.branch_length(session.owner, session.id))

    def _limit_after(self, turn: TurnRecord | None, form: CacheForm) -> int:
        """How many tokens prompt and reply may take. Once memory ended a reply before the context was full, the chat
        goes on within what memory holds."""
        was_full = turn is not None and turn.stats.get("finish_reason") == FinishReason.CONTEXT_FULL
        limit = self._outline.max_context_tokens
        return min(limit, self._most_live_tokens(form)) if was_full else limit

    def earlier(self, session: ChatSession, request_id: str | None) -> Turn | None:
        """The turn that the same request started before: a double click, or a page that asks again."""
        if request_id is None:
            return None
        if clean_text(request_id) != request_id:
            raise InvalidInputError("A request's id must be text without control characters.")
        active = self._runner.active(session.id)
        if active is not None and active.request_id == request_id:
            return active
        record = self._store.find_turn_by_request(session.owner, session.id, request_id)
        if record is None:
            return None
        message = self._store.get_message(session.owner, record.reply_id)
        return Turn.finished(
            Reply(message, TurnStats.from_json(record.stats)), turn_id=record.id, request_id=request_id
        )

    def _fitting_prompt(
        self,
        session: ChatSession,
        messages: Sequence[PromptMessage],
        start: int,
        num_prior: int,
        window: ContextWindow,
    ) -> tuple[int, Prompt]:
        """The prompt, begun at `start` or as much later as it must to fit, and where it begins.

        Raises ContextFullError where it does not fit whatever is left out, or nothing may be.
        """
        prompts: dict[int, Prompt] = {}

        def num_tokens_from(start: int) -> int:
            prompts[start] = self._prompt(session, messages[start:])
            return len(prompts[start].token_ids) + num_prior

        starts = range(start, len(messages) if drops_oldest(session.settings) else start + 1, 2)
        start = window.choose_start(starts, num_tokens_from)
        prompt = prompts.get(start) or self._prompt(session, messages[start:])
        self._refuse_if_full(len(prompt.token_ids) + num_prior)
        return start, prompt

    def _prompt(self, session: ChatSession, messages: Sequence[PromptMessage]) -> Prompt:
        return self._prompts.build(
            messages, system_prompt=session.system_prompt, template_vars=template_vars_of(session)
        )

    def _resolved_sampling(
        self, session: ChatSession, sampling: Sampling | None, alternative_of: Message | None, continued: Message | None
    ) -> Sampling:
        """What was asked for, else the session's, else the model's; every field set."""
        wanted = checked_sampling(sampling).merged(Sampling.from_json(session.sampling))
        if sampling is None or sampling.seed is None:
            wanted = dataclasses.replace(wanted, seed=self._seed(session.owner, wanted.seed, alternative_of, continued))
        return wanted.merged(self._outline.default_sampling)

    def _seed(
        self, owner: str, session_seed: int | None, alternative_of: Message | None, continued: Message | None
    ) -> int:
        """A continued reply keeps its seed; an alternative's is a hash of the first one's and its own number."""
        relative = continued or alternative_of
        if relative is None:
            return session_seed if session_seed is not None else _drawn_seed()
        siblings = self._store.alternatives(owner, relative.id)
        first = relative if continued is not None else siblings[0]
        turns = self._store.turns(owner, first.id)
        base = turns[0].seed if turns else (session_seed if session_seed is not None else _drawn_seed())
        return base if continued is not None else alternative_seed(base, len(siblings))

    def _refuse_if_full(self, num_prompt_tokens: int) -> None:
        limit = self._outline.max_context_tokens
        if num_prompt_tokens >= limit:
            raise ContextFullError(
                f"With this, the chat is {num_prompt_tokens:,} tokens long; the model's context holds {limit:,}, the "
                "reply included. Nothing was changed. Shorten the message, roll back, or start a new chat.",
                num_prompt_tokens=num_prompt_tokens,
                max_context_tokens=limit,
            )

    def _prompt_message(self, message: Message) -> PromptMessage:
        return PromptMessage(message.role, message.text, message.reasoning, self._stored_ids(message))

    def _stored_ids(self, message: Message) -> tuple[int, ...] | None:
        """The message's ids where they belong to the loaded tokenizer, and the model has them all."""
        ids = message.token_ids
        is_ours = ids is not None and message.tokenizer_digest == self._outline.tokenizer_digest
        return ids if is_ours and max(ids or (0,)) < self._outline.num_token_ids else None

    def _ids_of(self, reply: Message, template_vars: Mapping[str, Any]) -> tuple[int, ...]:
        ids = self._stored_ids(reply)
        return ids if ids is not None else self._prompts.encode_reply(reply.text, reply.reasoning, template_vars)


def _start_of(turn: TurnRecord | None, num_messages: int) -> int:
    """Where the turn's prompt began, if a branch of `num_messages` messages has a user message there (users speak first
    and at every second position): an imported number may mean nothing."""
    start = 0 if turn is None else turn.context_start
    return start if 0 <= start < num_messages and start % 2 == 0 else 0


def template_vars_of(session: ChatSession) -> dict[str, Any]:
    """The template's variables: the frozen ones, and the thinking switch as it is set now."""
    return {**session.template_vars, **_thinking_vars(is_thinking(session.settings))}


def _thinking_vars(thinking: bool | None) -> dict[str, Any]:
    return {} if thinking is None else {"enable_thinking": thinking}


def _drawn_seed() -> int:
    return secrets.randbelow(2**63)
