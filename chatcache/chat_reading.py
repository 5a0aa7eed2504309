"""`ChatReading`: what can be seen of chats: lists, pages of a branch, what replies cost, what changes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from chatcache.chat_settings import is_thinking
from chatcache.owned_sessions import OwnedSessions, whole_number
from chatcache.reports import ContextUse, ModelInfo, TurnDetails
from chatcache.reuse_total import ReuseTotal
from chatcache.stats import Sampling, TurnStats
from chatcache.store_errors import translated_store_errors
from chatcache.text_input import clean_query, clean_text, pieces
from chatcache.turn import Turn
from storage.chat_search import FoundSession
from storage.records import ChatSession, Message


class ChatReading(OwnedSessions):
    """Changes nothing."""

    def sessions(
        self, query: str | None = None, deleted: bool = False, limit: int = 50, offset: int = 0
    ) -> tuple[ChatSession, ...]:
        """Chats, pinned ones first, then by last change; `query` looks in titles and messages.

        Raises InvalidInputError for a limit below 1 and an offset below 0.
        """
        page = {"limit": whole_number("limit", limit, 1), "offset": whole_number("offset", offset, 0)}
        with translated_store_errors():
            return tuple(self._store.sessions(self._owner, query=clean_query(query), deleted=deleted, **page))

    def search(self, query: str, deleted: bool = False, limit: int = 50, offset: int = 0) -> tuple[FoundSession, ...]:
        """The chats that `sessions` finds for a query, each with what of its title and messages was looked for."""
        page = {"limit": whole_number("limit", limit, 1), "offset": whole_number("offset", offset, 0)}
        with translated_store_errors():
            return self._store.search(self._owner, clean_query(query) or "", deleted=deleted, **page)

    def is_temporary(self, session_id: str) -> bool:
        """Whether the chat is kept in memory alone."""
        return self._store.is_temporary(self.get_session(session_id).id)

    def messages(self, session_id: str, limit: int | None = None, before: str | None = None) -> tuple[Message, ...]:
        """The current branch, from the first message to the tip; or only the last `limit` messages of it, or of what
        stands above the message `before`. However long the chat is, only those are read.

        Raises InvalidInputError for a limit below 1 and for a message of another chat.
        """
        if limit is not None:
            whole_number("limit", limit, 1)
        with translated_store_errors():
            if limit is None and before is None:
                return self._store.branch(self._owner, session_id)
            return self._store.branch_end(self._owner, session_id, limit, before)

    def num_messages(self, session_id: str) -> int:
        """How many messages the current branch has."""
        with translated_store_errors():
            return self._store.branch_length(self._owner, session_id)

    def num_messages_below(self, session_id: str, message_id: str) -> int | None:
        """How many messages of the current branch come after this one of the chat; None where it is on another branch.

        Raises InvalidInputError for a message of another chat.
        """
        with translated_store_errors():
            return self._store.distance_from_tip(self._owner, session_id, message_id)

    def undone(self, session_id: str) -> Message | None:
        """The reply that going forward leads to: one turn below the tip, on the branch last viewed, as rollbacks left
        it, in whatever window or process; None where nothing is undone.

        `select(undone.id, to_leaf=False)` takes one roll back back, as people know it from undo and redo; what lies
        further down stays undone until the next step.
        """
        with translated_store_errors():
            return self._store.next_reply(self._owner, session_id)

    def context_start(self, session_id: str) -> int:
        """How many messages at the beginning of the current branch the model no longer sees: where its memory starts.

        0 until the context was full once; see the chat setting `context_full`.
        """
        with translated_store_errors():
            return self._starter.context_start(self._store.get_session(self._owner, session_id))

    def context_use(self, session_id: str) -> ContextUse:
        """What the chat takes of the model's context, whatever was counted when its replies were written. The branch is
        read only if the chat has changed since it was last asked for.

        Raises InvalidInputError where the model's template refuses the conversation.
        """
        with translated_store_errors():
            return self._starter.context_use(self._store.get_session(self._owner, session_id))

    def context_use_of_new_chat(
        self, system_prompt: str = "", settings: Mapping[str, Any] = MappingProxyType({})
    ) -> ContextUse:
        """What a chat would take before its first message. Raises InvalidInputError as `context_use`."""
        return self._starter.context_use_of_new_chat(clean_text(system_prompt), is_thinking(settings))

    def alternatives(self, message_id: str) -> tuple[Message, ...]:
        """The message and its siblings, oldest first."""
        with translated_store_errors():
            return self._store.alternatives(self._owner, message_id)

    def turn_stats(self, reply_ids: Sequence[str]) -> dict[str, TurnStats]:
        """What the last turn of each reply cost; replies without a finished turn (edited, imported) are left out."""
        with translated_store_errors():
            turns = self._store.latest_turns(self._owner, reply_ids)
        return {reply_id: TurnStats.from_json(turn.stats) for reply_id, turn in turns.items() if turn.stats}

    def reuse_total(self, session_id: str) -> ReuseTotal:
        """What the cache saved in all turns of the chat together, whatever version of it is shown; of a fork or an
        import, in those, too, that it came with."""
        with translated_store_errors():
            turns = self._store.session_stats(self._owner, session_id)
        return ReuseTotal.of(map(TurnStats.from_json, turns))

    def turn_details(self, reply_ids: Sequence[str]) -> dict[str, TurnDetails]:
        """How each of these replies was made; replies that no turn made (edited, imported) are left out."""
        with translated_store_errors():
            turns = self._store.latest_turns(self._owner, reply_ids)
        return {
            reply_id: TurnDetails(
                sampling=Sampling.from_json({**turn.sampling, "seed": turn.seed}),
                settings=turn.settings,
                stats=TurnStats.from_json(turn.stats),
                started_at=turn.created_at,
                finished_at=turn.finished_at,
            )
            for reply_id, turn in turns.items()
        }

    def active_turn(self, session_id: str) -> Turn | None:
        """The turn that runs or waits in this session, if any."""
        return self._runtime.runner.active(self.get_session(session_id).id)

    def busy_among(self, sessions: Iterable[ChatSession]) -> frozenset[str]:
        """The ids of those in which a turn runs or waits."""
        mine = (session.id for session in sessions if session.owner == self._owner)
        return frozenset(session_id for session_id in mine if self._runtime.runner.active(session_id) is not None)

    def wait_for_change(self, session_id: str, since: int, timeout_s: float | None = None) -> int:
        """Wait until the session's version is above `since` or the time is over; returns the version reached."""
        version = self.get_session(session_id).version
        if version > whole_number("since", since):
            return version
        return self._runtime.changes.wait(self._key(session_id), since=since, timeout_s=timeout_s)

    def count_tokens(self, text: str) -> int:
        """How many tokens a message takes, without what the template puts around it.

        Long ones are counted in pieces, so that no turn waits for the tokenizer; that may differ by a token per piece.
        """
        return sum(map(self._runtime.prompts.count_tokens, pieces(clean_text(text))))

    @property
    def model_info(self) -> ModelInfo:
        """The loaded model."""
        return self._runtime.model_info
