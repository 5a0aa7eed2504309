"""`ChatService`: everything a page or a script can do, for one owner.

It decides what may follow what: tips, branches, busy sessions, the bin. Tensors are the model thread's (`scheduler`),
rows are `storage`'s, pixels are `ui`'s. Every method may be called from any thread.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Literal

from chatcache.chat_settings import checked_settings
from chatcache.config import ServiceConfig
from chatcache.errors import InvalidInputError, NotFoundError, SessionBusyError, StaleTipError
from chatcache.events import Reply
from chatcache.imported_chat import admit
from chatcache.memory.outlook import MemoryOutlook, look_ahead
from chatcache.memory.planner import PlanRequest
from chatcache.reports import CacheReport, LiveChat, ModelInfo, Rollback, StorageReport, TurnDetails
from chatcache.runtime import Progress, Runtime, translated_store_errors
from chatcache.stats import Sampling, TurnStats, checked_sampling
from chatcache.text_input import clean_message, clean_query, clean_text, clean_title, title_from
from chatcache.turn import Turn
from chatcache.turn_starter import template_vars_of
from chatcache.verification import Verification
from storage.errors import RowNotFoundError, StoreError
from storage.records import ChatSession, Message, Role
from storage.transfer import ImportReport, export_json, export_markdown, import_chat, read_json

logger = logging.getLogger(__name__)

LOCAL_OWNER = "local"


class ChatService:
    """The product's surface (DESIGN section 5). Open one per process with `open`; `for_owner` gives it to others.

    Raises, besides what each method names: NotFoundError for ids that are unknown or another owner's, StorageError
    when the disk or the database fails.
    """

    def __init__(self, runtime: Runtime, owner: str) -> None:
        self._runtime = runtime
        self._store = runtime.store
        self._starter = runtime.starter
        self._owner = owner

    @classmethod
    def open(cls, config: ServiceConfig, progress: Progress = logger.info) -> ChatService:
        """Lock the data directory, load the model, start the model thread.

        Raises DataDirLockedError, StorageError, ModelLoadError, UnsupportedOptionError; nothing stays open then.
        """
        return cls(Runtime.open(config, progress), LOCAL_OWNER)

    def for_owner(self, owner: str) -> ChatService:
        """The same service for another person: sees and touches only that owner's sessions and caches."""
        if not owner or clean_text(owner) != owner:
            raise InvalidInputError("An owner's name must be non-empty text without control characters.")
        return ChatService(self._runtime, owner)

    def close(self) -> None:
        """Stop running turns, store their replies, let the data directory go. Ends the service of every owner."""
        self._runtime.close()

    @property
    def is_closed(self) -> bool:
        """The service is closing or closed: nothing changes any more, and reports may fail."""
        return self._runtime.changes.is_closed

    # ------------------------------------------------------------------ turns

    def send(
        self,
        session_id: str,
        text: str,
        sampling: Sampling | None = None,
        parent_id: str | None = None,
        request_id: str | None = None,
    ) -> Turn:
        """Add a message at the tip and have it answered. Returns once both rows are stored.

        `parent_id`: the reply the caller believes to be the tip. The same `request_id` gives the same turn.
        Raises InvalidInputError, SessionBusyError, StaleTipError, ContextFullError; nothing is stored then.
        """
        text = clean_message(text)
        with self._exclusive(session_id) as session:
            if (earlier := self._starter.earlier(session, request_id)) is not None:
                return earlier
            self._refuse_if_busy(session)
            if parent_id is not None and parent_id != session.tip_id:
                raise StaleTipError(
                    "This chat has moved on in another window. Nothing was sent; look at it and send again."
                )
            branch = self._store.branch(self._owner, session.id)
            turn = self._starter.start(session, branch, sampling, user_text=text, request_id=request_id)
            if not session.title:
                self._take_title(session, branch[0].text if branch else text)
            return turn

    def regenerate(
        self,
        session_id: str,
        message_id: str | None = None,
        sampling: Sampling | None = None,
        request_id: str | None = None,
    ) -> Turn:
        """Write a new alternative of a reply (default: the tip); the old one and what follows it are kept.

        Raises InvalidInputError when there is no reply to write anew, SessionBusyError, ContextFullError.
        """
        with self._exclusive(session_id) as session:
            if (earlier := self._starter.earlier(session, request_id)) is not None:
                return earlier
            self._refuse_if_busy(session)
            reply = self._reply_of(session, message_id or session.tip_id, "write anew")
            assert reply.parent_id is not None
            branch = self._store.branch(self._owner, session.id, reply.parent_id)
            return self._starter.start(session, branch, sampling, alternative_of=reply, request_id=request_id)

    def continue_reply(self, session_id: str, sampling: Sampling | None = None, request_id: str | None = None) -> Turn:
        """Go on writing the tip reply where it ended, by a second turn.

        Raises InvalidInputError when there is no reply at the tip or it has answers below it, SessionBusyError,
        ContextFullError.
        """
        with self._exclusive(session_id) as session:
            if (earlier := self._starter.earlier(session, request_id)) is not None:
                return earlier
            self._refuse_if_busy(session)
            reply = self._reply_of(session, session.tip_id, "continue")
            assert reply.parent_id is not None
            branch = self._store.branch(self._owner, session.id, reply.parent_id)
            return self._starter.start(session, branch, sampling, continued=reply, request_id=request_id)

    def edit(self, message_id: str, text: str, sampling: Sampling | None = None, request_id: str | None = None) -> Turn:
        """Change what was said, keeping what stood there.

        A user message: a new branch with the new text, and a reply to it. A reply: a new alternative with the given
        text, without a model call; the turn returned has already ended. Stops a running turn first.
        """
        text = clean_message(text)
        message = self._message(message_id)
        with self._exclusive(message.session_id) as session:
            if (earlier := self._starter.earlier(session, request_id)) is not None:
                return earlier
            self._runtime.runner.stop_and_wait(session.id)
            if message.role is Role.ASSISTANT:
                return self._edit_reply(session, message, text)
            above = message.parent_id
            branch = self._store.branch(self._owner, session.id, above) if above is not None else ()
            return self._starter.start(session, branch, sampling, user_text=text, request_id=request_id)

    def rollback(self, session_id: str, turns: int = 1) -> Rollback:
        """Go back by whole turns; what is undone stays stored. Computes nothing. Stops a running turn first.

        Raises InvalidInputError when `turns` is below 1 or more than there are.
        """
        if _whole("turns", turns) < 1:
            raise InvalidInputError("Roll back by at least one turn.")
        with self._exclusive(session_id) as session:
            self._runtime.runner.stop_and_wait(session.id)
            branch = self._store.branch(self._owner, session.id)
            if turns * 2 > len(branch):
                raise InvalidInputError(f"There are only {len(branch) // 2} turns to roll back.")
            prompt, undone = branch[-2 * turns], branch[-1]
            return Rollback(
                self._changed(self._store.set_tip(self._owner, session.id, prompt.parent_id)), undone, prompt
            )

    def select(self, message_id: str) -> ChatSession:
        """Make this message's branch the current one, down to the leaf last viewed. Stops a running turn first."""
        message = self._message(message_id)
        with self._exclusive(message.session_id) as session:
            self._runtime.runner.stop_and_wait(session.id)
            leaf = self._store.leaf_of(self._owner, message.id)
            return self._changed(self._store.set_tip(self._owner, session.id, leaf.id))

    def active_turn(self, session_id: str) -> Turn | None:
        """The turn that runs or waits in this session, if any."""
        return self._runtime.runner.active(self.get_session(session_id).id)

    def busy_among(self, sessions: Iterable[ChatSession]) -> frozenset[str]:
        """The ids of those in which a turn runs or waits."""
        mine = (session.id for session in sessions if session.owner == self._owner)
        return frozenset(session_id for session_id in mine if self._runtime.runner.active(session_id) is not None)

    # --------------------------------------------------------------- sessions

    def create_session(
        self,
        system_prompt: str | None = None,
        title: str | None = None,
        sampling: Sampling | None = None,
        settings: Mapping[str, Any] | None = None,
        temporary: bool = False,
    ) -> ChatSession:
        """A new, empty chat. Without a title it takes one from its first message.

        A temporary one is in no list and on no disk, neither its text nor its cache, and is gone when it is deleted or
        the service closed. Everything else can be done with it.
        """
        if not isinstance(temporary, bool):
            raise InvalidInputError("temporary must be true or false.")
        with translated_store_errors():
            return self._store.create_session(
                self._owner,
                title=clean_title(title or ""),
                system_prompt=_clean_system_prompt(system_prompt),
                sampling=checked_sampling(sampling).to_json(),
                settings=self._checked_settings(settings),
                template_vars=self._runtime.prompts.frozen_template_vars(datetime.now().astimezone()),
                is_temporary=temporary,
            )

    def is_temporary(self, session_id: str) -> bool:
        """Whether the chat is kept in memory alone."""
        return self._store.is_temporary(self.get_session(session_id).id)

    def get_session(self, session_id: str) -> ChatSession:
        """The session, deleted or not."""
        with translated_store_errors():
            return self._store.get_session(self._owner, session_id)

    def sessions(
        self, query: str | None = None, deleted: bool = False, limit: int = 50, offset: int = 0
    ) -> tuple[ChatSession, ...]:
        """Chats, pinned ones first, then by last change; `query` looks in titles and messages."""
        page = {"limit": _whole("limit", limit), "offset": _whole("offset", offset)}
        with translated_store_errors():
            return tuple(self._store.sessions(self._owner, query=clean_query(query), deleted=deleted, **page))

    def update_session(self, session_id: str, **changes: Any) -> ChatSession:
        """Change title, pinned, system_prompt, sampling or settings; what is not named stays.

        Raises InvalidInputError for other names, UnsupportedOptionError for settings this version does not have.
        """
        unknown = changes.keys() - {"title", "pinned", "system_prompt", "sampling", "settings"}
        if unknown:
            raise InvalidInputError(f"A chat has no {', '.join(sorted(unknown))} to change.")
        if "title" in changes:
            changes["title"] = clean_title(changes["title"] or "")
        if not isinstance(changes.get("pinned", False), bool):
            raise InvalidInputError("pinned must be true or false.")
        if "system_prompt" in changes:
            changes["system_prompt"] = _clean_system_prompt(changes["system_prompt"])
        if "sampling" in changes:
            changes["sampling"] = checked_sampling(changes["sampling"]).to_json()
        if "settings" in changes:
            changes["settings"] = self._checked_settings(changes["settings"])
        with self._exclusive(session_id):
            return self._changed(self._store.update_session(self._owner, session_id, **changes))

    def delete(self, session_id: str) -> ChatSession:
        """Put a chat into the bin. Stops a running turn first and drops the live cache; no word is lost.

        A temporary chat is removed for good.
        """
        with self._exclusive(session_id):
            self._runtime.runner.stop_and_wait(session_id)
            session = self._changed(self._store.delete(self._owner, session_id))
        self.drop_cache(session_id)
        if self._store.is_temporary(session_id):
            self.purge(session_id)
        return session

    def undelete(self, session_id: str) -> ChatSession:
        """Take a chat out of the bin."""
        with self._exclusive(session_id, deleted=True):
            return self._changed(self._store.undelete(self._owner, session_id))

    def purge(self, session_id: str) -> None:
        """Remove a chat that is in the bin for good. Raises InvalidInputError when it is not in the bin."""
        with self._exclusive(session_id, deleted=True) as session:
            if session.deleted_at is None:
                raise InvalidInputError("Only a chat in the bin can be removed for good; delete it first.")
            self._store.purge(self._owner, session_id)

    def purge_bin(self) -> int:
        """Remove every chat in the bin for good. Returns how many there were."""
        with translated_store_errors():
            return self._store.purge_bin(self._owner)

    def fork(self, message_id: str) -> ChatSession:
        """A new session with copies of the branch down to this message. Raises SessionBusyError while it is written."""
        message = self._message(message_id)
        with self._exclusive(message.session_id) as session:
            turn = self._runtime.runner.active(session.id)
            if turn is not None and turn.reply_id == message.id:
                raise SessionBusyError("This reply is still being written. Stop it or wait, then fork.")
            return self._store.fork(self._owner, message.id, title_suffix=" (fork)" if session.title else "")

    def export(self, session_id: str, format: Literal["json", "markdown"] = "json") -> str:
        """A chat as text: JSON with the whole tree, settings, times and ids; Markdown with the current branch.

        Raises InvalidInputError for other formats.
        """
        writers = {"json": export_json, "markdown": export_markdown}
        if format not in list(writers):
            raise InvalidInputError(f"A chat is exported as json or markdown, not {format!r:.60}.")
        with translated_store_errors():
            return writers[format](self._store, self._owner, session_id)

    def import_(self, data: str | bytes, replace: bool = False) -> ImportReport:
        """Take in a chat that `export` wrote as JSON. One that is here already is skipped, or replaced if so asked; one
        that is in the bin is taken out of it, as it is there, or replaced.

        Raises InvalidInputError, and stores nothing, when the file is not such a chat.
        """
        if not isinstance(data, str | bytes):
            raise InvalidInputError(f"A chat is imported from text or bytes, not {type(data).__name__}.")
        with translated_store_errors():
            chat = admit(read_json(data, self._owner, clean=clean_text), ids_say=self._starter.ids_say)
            session_id = chat.tree.session.id
            with self._runtime.session_lock(session_id):
                if replace and self._has_session(session_id):
                    self._runtime.runner.stop_and_wait(session_id)
                    self._runtime.runner.save_pending(session_id)
                report = import_chat(self._store, self._owner, chat, replace=replace)
        self._changed(report.session)
        return report

    # ---------------------------------------------------------------- reading

    def messages(self, session_id: str, limit: int | None = None, before: str | None = None) -> tuple[Message, ...]:
        """The current branch, from the first message to the tip; or only the last `limit` messages of it, or of what
        stands above the message `before`. However long the chat is, only those are read.

        Raises InvalidInputError for a limit below 1 and for a message of another chat.
        """
        if limit is not None and _whole("limit", limit) < 1:
            raise InvalidInputError("limit must be at least 1.")
        with translated_store_errors():
            if limit is None and before is None:
                return self._store.branch(self._owner, session_id)
            return self._store.branch_end(self._owner, session_id, limit, before)

    def num_messages(self, session_id: str) -> int:
        """How many messages the current branch has."""
        with translated_store_errors():
            return self._store.branch_length(self._owner, session_id)

    def context_start(self, session_id: str) -> int:
        """How many messages at the beginning of the current branch the model no longer sees: where its memory starts.

        0 until the context was full once; see the chat setting `context_full`.
        """
        with translated_store_errors():
            return self._starter.context_start(self._store.get_session(self._owner, session_id))

    def alternatives(self, message_id: str) -> tuple[Message, ...]:
        """The message and its siblings, oldest first."""
        with translated_store_errors():
            return self._store.alternatives(self._owner, message_id)

    def turn_stats(self, reply_ids: Sequence[str]) -> dict[str, TurnStats]:
        """What the last turn of each reply cost; replies without a finished turn (edited, imported) are left out."""
        with translated_store_errors():
            turns = self._store.latest_turns(self._owner, reply_ids)
        return {reply_id: TurnStats.from_json(turn.stats) for reply_id, turn in turns.items() if turn.stats}

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

    def wait_for_change(self, session_id: str, since: int, timeout_s: float | None = None) -> int:
        """Wait until the session's version is above `since` or the time is over; returns the version reached."""
        version = self.get_session(session_id).version
        if version > _whole("since", since):
            return version
        return self._runtime.changes.wait(session_id, since=since, timeout_s=timeout_s)

    @property
    def model_info(self) -> ModelInfo:
        """The loaded model."""
        return self._runtime.model_info

    def cache_report(self, session_id: str) -> CacheReport:
        """The session's live cache beside all live caches of this owner."""
        runtime = self._runtime
        form = self._starter.cache_form(self.get_session(session_id))
        caches, reserved_bytes = runtime.scheduler.call(
            lambda: (runtime.pool.report(), runtime.pool.budget.reserved_bytes)
        )
        mine = [c for c in caches if c.owner == self._owner]
        live = next((c for c in mine if c.session_id == session_id), None)
        return CacheReport(
            kind=live.kind if live else form.kind,
            is_live=live is not None,
            num_tokens=live.num_tokens if live else 0,
            num_bytes=live.num_bytes if live else 0,
            num_sessions=len(mine),
            total_bytes=sum(c.num_bytes for c in mine),
            budget_bytes=runtime.pool.budget.limit_bytes,
            reserved_bytes=reserved_bytes,
            max_context_tokens=runtime.model_info.max_context_tokens,
            problem=form.problem or runtime.persistence.problem(self._owner, session_id, form.kind),
            chats=tuple(LiveChat(c.session_id, c.kind, c.num_tokens, c.num_bytes) for c in reversed(mine)),
        )

    def memory_plan(
        self, context_tokens: int | None = None, num_sessions: int = 1, kind: str | None = None
    ) -> MemoryOutlook:
        """What `num_sessions` chats of `context_tokens` tokens (default: all that the model supports) would take in
        every cache kind, what fits, and what would help `kind` (default: the service's).

        The memory it is held against is the budget of live caches, and what the weights take beside it. Raises
        InvalidInputError for counts below 1 and unknown kinds, UnsupportedOptionError for a model whose cache cannot be
        planned.
        """
        info = self._runtime.model_info
        most = info.max_context_tokens
        shape = self._runtime.model_shape
        request = PlanRequest(
            most if context_tokens is None else _whole("context_tokens", context_tokens),
            _whole("num_sessions", num_sessions),
            shape.weight_bytes + self._runtime.pool.budget.limit_bytes,
            device_type=info.device.partition(":")[0],
        )
        return look_ahead(shape, request, kind or info.cache_kind, most)

    def storage_report(self) -> StorageReport:
        """What this owner's chats take on disk."""
        runtime = self._runtime
        with translated_store_errors():
            counts = self._store.counts(self._owner)
            return StorageReport(
                num_sessions=counts.num_sessions,
                num_deleted_sessions=counts.num_deleted_sessions,
                num_messages=counts.num_messages,
                database_bytes=runtime.database.num_bytes,
                cache=runtime.segments.report(self._owner),
                hit_rate=runtime.persistence.hit_rate,
            )

    def prefetch(self, session_id: str) -> int:
        """Read the session's cache from disk before it is needed, where it is not live; how many tokens are held.

        Computes nothing. Returns at once while a turn runs; a turn that begins meanwhile takes over.
        """
        runtime = self._runtime
        is_under_way = False
        with self._exclusive(session_id) as session:
            if runtime.runner.active(session_id) is None:
                fed_ids = self._starter.fed_ids(session, self._store.branch(self._owner, session_id))
                form = self._starter.cache_form(session)
                is_under_way = runtime.scheduler.call(
                    lambda: runtime.pool.prefetch(self._owner, session_id, fed_ids, form)
                )
        while is_under_way:
            is_under_way = runtime.scheduler.call(lambda: runtime.pool.prefetch_more(self._owner, session_id))
        return self.cache_report(session_id).num_tokens

    def drop_cache(self, session_id: str) -> int:
        """Free the session's cache in memory and on disk; its text stays. Waits for a running turn.

        Returns how many bytes of the disk became free: what other chats share stays.
        """
        self.get_session(session_id)
        runtime = self._runtime
        with runtime.session_lock(session_id), translated_store_errors():
            turn = runtime.runner.active(session_id)
            if turn is not None:
                turn.result()
            runtime.scheduler.call(lambda: runtime.pool.drop(self._owner, session_id))
            return runtime.persistence.release(self._owner, session_id)

    def drop_all_caches(self) -> int:
        """`drop_cache` for all chats of this owner."""
        runtime = self._runtime
        live = runtime.scheduler.call(runtime.pool.report)
        num_bytes = sum(self.drop_cache(cache.session_id) for cache in live if cache.owner == self._owner)
        with translated_store_errors():
            return num_bytes + runtime.persistence.release(self._owner)

    def verify_caches(self) -> Verification:
        """Read and check all that is stored of this owner's caches, in the background, or join the check that runs."""
        return self._runtime.verify(self._owner)

    # ---------------------------------------------------------------- private

    def _take_title(self, session: ChatSession, first_text: str) -> None:
        """A failure is no failure of the message, which is stored: the next one tries again."""
        try:
            self._changed(self._store.update_session(self._owner, session.id, title=title_from(first_text)))
        except StoreError:
            logger.warning("The title of chat %s could not be stored", session.id, exc_info=True)

    def _edit_reply(self, session: ChatSession, reply: Message, text: str) -> Turn:
        message, session = self._store.add_alternative(
            self._owner,
            reply.id,
            text=text,
            token_ids=self._runtime.prompts.encode_reply(text, template_vars=template_vars_of(session)),
            tokenizer_digest=self._runtime.loaded.tokenizer_digest,
        )
        self._changed(session)
        return Turn.finished(Reply(message, TurnStats()), turn_id=message.id)

    def _reply_of(self, session: ChatSession, message_id: str | None, purpose: str) -> Message:
        if message_id is None:
            raise InvalidInputError(f"There is no reply to {purpose} yet. Send a message first.")
        message = self._message(message_id)
        if message.session_id != session.id:
            raise NotFoundError("That message is not in this chat.")
        if message.role is not Role.ASSISTANT:
            raise InvalidInputError(f"There is nothing to {purpose} in a message of your own; choose a reply.")
        return message

    def _refuse_if_busy(self, session: ChatSession) -> None:
        if self._runtime.runner.active(session.id) is not None:
            raise SessionBusyError("A reply is being written in this chat. Wait for it or stop it first.")

    def _has_session(self, session_id: str) -> bool:
        with contextlib.suppress(RowNotFoundError):
            self._store.get_session(self._owner, session_id)
            return True
        return False

    def _message(self, message_id: str) -> Message:
        with translated_store_errors():
            return self._store.get_message(self._owner, message_id)

    def _checked_settings(self, settings: Mapping[str, Any] | None) -> dict[str, Any]:
        return checked_settings(settings, self._runtime.model_info)

    @contextlib.contextmanager
    def _exclusive(self, session_id: str, *, deleted: bool = False) -> Iterator[ChatSession]:
        """One change of a session at a time; gives the session as it is now. Refuses sessions in the bin."""
        self.get_session(session_id)  # before its lock is taken: others' sessions are not to be held up
        with self._runtime.session_lock(session_id), translated_store_errors():
            self._runtime.runner.save_pending(session_id)
            session = self._store.get_session(self._owner, session_id)
            if session.deleted_at is not None and not deleted:
                raise NotFoundError("This chat is in the bin. Restore it to go on.")
            yield session

    def _changed(self, session: ChatSession) -> ChatSession:
        self._runtime.changes.publish(session.id, session.version)
        return session


def _whole(name: str, value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not -(2**63) <= value < 2**63:
        raise InvalidInputError(f"{name} must be a whole number, not {value!r:.60}.")
    return value


def _clean_system_prompt(text: str | None) -> str | None:
    cleaned = clean_text(text or "")
    return cleaned if cleaned.strip() else None
