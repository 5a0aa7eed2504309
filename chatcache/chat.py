"""`ChatService`: everything a page or a script can do, for one owner. Turns are here; what can be seen of chats is in
`chat_reading`, chats as wholes are in `chat_sessions`, their caches in `chat_caches`.

It decides what may follow what: tips, branches, busy sessions, the bin. Tensors are the model thread's (`scheduler`),
rows are `storage`'s, pixels are `ui`'s. Every method may be called from any thread.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from chatcache.chat_reading import ChatReading
from chatcache.chat_sessions import ChatSessions
from chatcache.config import ServiceConfig
from chatcache.errors import InvalidInputError, NotFoundError, Reason, SessionBusyError, StaleTipError
from chatcache.events import Reply
from chatcache.owned_sessions import whole_number
from chatcache.reports import LoadingReport, Rollback
from chatcache.runtime import Runtime, Say
from chatcache.stats import Sampling, TurnStats
from chatcache.text_input import clean_message, clean_text, title_from
from chatcache.turn import Turn
from chatcache.turn_starter import template_vars_of
from storage.errors import StoreError
from storage.records import ChatSession, Message, Role

logger = logging.getLogger(__name__)

LOCAL_OWNER = "local"


class ChatService(ChatReading, ChatSessions):
    """The product's surface (DESIGN section 5). Open one per process with `open`; `for_owner` gives it to others.

    Raises, besides what each method names: NotFoundError for ids that are unknown or another owner's, StorageError
    when the disk or the database fails, ServiceClosedError after `close`.
    """

    @classmethod
    def open(cls, config: ServiceConfig, progress: Say = logger.info, *, loads: bool = True) -> ChatService:
        """Lock the data directory, load the model, start the model thread.

        Raises DataDirLockedError, StorageError, ModelLoadError, UnsupportedOptionError; nothing stays open then. Unless
        it `loads`, the model's weights are left for `load`: chats can be read and changed before, and messages sent,
        which are answered once the weights are there.
        """
        service = cls(Runtime.open(config, progress), LOCAL_OWNER)
        if loads:
            try:
                service.load()
                service._opened.loading.result()
            except BaseException:
                service.close()
                raise
        return service

    def load(self, tell: Callable[[BaseException | None], object] = lambda _failure: None) -> None:
        """Begin to load the weights of a service that was opened without them. Once, at most; does not wait.

        `tell` is called on another thread: with None when they are there, or with what went wrong, which everything
        that needs them raises from then on. It is not called where the service is closed before.
        """
        self._opened.loading.when_over(tell)
        self._opened.loading.begin()

    def for_owner(self, owner: str) -> ChatService:
        """The same service for another person: sees and touches only that owner's sessions and caches."""
        if not owner or clean_text(owner) != owner:
            raise InvalidInputError("An owner's name must be non-empty text without control characters.")
        return ChatService(self._runtime, owner)

    def close(self) -> None:
        """Stop running turns, store their replies, let the data directory go. Ends the service of every owner."""
        self._opened.close()

    @property
    def is_closed(self) -> bool:
        """The service is closing or closed: nothing changes any more, and every call raises ServiceClosedError."""
        return self._opened.changes.is_closed

    @property
    def loading(self) -> LoadingReport | None:
        """How far loading the model's weights is, also before it begins; None when they are there, or cannot be had."""
        loading = self._opened.loading
        return None if loading.is_over else LoadingReport(loading.seconds, loading.step)

    # ------------------------------------------------------------------ turns

    def send(
        self,
        session_id: str,
        text: str,
        sampling: Sampling | None = None,
        parent_id: str | None = None,
        request_id: str | None = None,
        is_first: bool = False,
    ) -> Turn:
        """Add a message at the tip and have it answered. Returns once both rows are stored.

        `parent_id`: the reply the caller believes to be the tip; `is_first`: the caller believes that there is none.
        With neither, any will do. The same `request_id` gives the same turn.
        Raises InvalidInputError, SessionBusyError, StaleTipError, ContextFullError; nothing is stored then.
        """
        text = clean_message(text)
        with self._exclusive(session_id) as session:
            if (earlier := self._starter.earlier(session, request_id)) is not None:
                return earlier
            self._refuse_if_busy(session)
            if (is_first or parent_id is not None) and parent_id != session.tip_id:
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
        whole_number("turns", turns, 1)
        with self._exclusive(session_id) as session:
            self._runtime.runner.stop_and_wait(session.id)
            branch = self._store.branch(self._owner, session.id)
            if turns * 2 > len(branch):
                raise InvalidInputError(
                    f"There are only {len(branch) // 2} turns to roll back.",
                    Reason.TOO_FEW_TURNS,
                    num_turns=len(branch) // 2,
                )
            prompt, undone = branch[-2 * turns], branch[-1]
            num_undone = self._store.leaf_of(self._owner, undone.id).position + 1 - prompt.position
            changed = self._changed(self._store.set_tip(self._owner, session.id, prompt.parent_id))
            return Rollback(changed, undone, prompt, num_undone // 2)

    def select(self, message_id: str, to_leaf: bool = True) -> ChatSession:
        """Make this message's branch the current one, down to the leaf last viewed, or else no further than this reply.
        Computes nothing. Stops a running turn first.

        Raises InvalidInputError for a message of the person's own that is to be the end.
        """
        message = self._message(message_id)
        with self._exclusive(message.session_id) as session:
            self._runtime.runner.stop_and_wait(session.id)
            end = self._store.leaf_of(self._owner, message.id) if to_leaf else message
            return self._changed(self._store.set_tip(self._owner, session.id, end.id))

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
            tokenizer_digest=self._runtime.outline.tokenizer_digest,
        )
        self._changed(session)
        return Turn.finished(Reply(message, TurnStats()), turn_id=message.id)

    def _reply_of(self, session: ChatSession, message_id: str | None, purpose: str) -> Message:
        if message_id is None:
            raise InvalidInputError(f"There is no reply to {purpose} yet. Send a message first.", Reason.NO_REPLY_YET)
        message = self._message(message_id)
        if message.session_id != session.id:
            raise NotFoundError("That message is not in this chat.", Reason.OTHER_CHAT)
        if message.role is not Role.ASSISTANT:
            raise InvalidInputError(
                f"There is nothing to {purpose} in a message of your own; choose a reply.", Reason.NOT_A_REPLY
            )
        return message

    def _refuse_if_busy(self, session: ChatSession) -> None:
        if self._runtime.runner.active(session.id) is not None:
            raise SessionBusyError("A reply is being written in this chat. Wait for it or stop it first.")
