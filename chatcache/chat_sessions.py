"""`ChatSessions`: chats as wholes: made, changed, deleted and restored, copied, taken out and in as files."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Literal

from chatcache.chat_caches import ChatCaches
from chatcache.chat_settings import checked_settings, problems_of
from chatcache.errors import ChatCacheError, InvalidInputError, Reason, SessionBusyError
from chatcache.imported_chat import admit
from chatcache.stats import Sampling, checked_sampling
from chatcache.store_errors import translated_store_errors
from chatcache.text_input import clean_text, clean_title
from storage.errors import RowNotFoundError
from storage.records import ChatSession, Message, Role
from storage.transfer import (
    ImportedChat,
    ImportOutcome,
    ImportReport,
    export_json,
    export_markdown,
    import_chat,
    read_json,
)


class ChatSessions(ChatCaches):
    """A chat that is deleted lies in the bin, where it can be read and no more."""

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
        """Put a chat into the bin. Stops a running turn first; no word is lost, and its cache stays until `purge`, as
        far as the room that it takes is not needed.

        A temporary chat is removed for good.
        """
        with self._exclusive(session_id):
            self._runtime.runner.stop_and_wait(session_id)
            session = self._changed(self._store.delete(self._owner, session_id))
        if self._store.is_temporary(session_id):
            self.purge(session_id)
        return session

    def undelete(self, session_id: str) -> ChatSession:
        """Take a chat out of the bin."""
        with self._exclusive(session_id, deleted=True):
            return self._changed(self._store.undelete(self._owner, session_id))

    def purge(self, session_id: str) -> None:
        """Remove a chat that is in the bin, and its cache, for good. Raises InvalidInputError when it is not there."""
        with self._exclusive(session_id, deleted=True) as session:
            if session.deleted_at is None:
                raise InvalidInputError(
                    "Only a chat in the bin can be removed for good; delete it first.", Reason.NOT_IN_BIN
                )
            self._store.purge(self._owner, session_id)
            self._forget({session_id})

    def purge_bin(self) -> int:
        """Remove every chat in the bin, and its cache, for good. Returns how many there were."""
        with translated_store_errors():
            removed_ids = self._store.purge_bin(self._owner)
            self._forget(removed_ids)
        return len(removed_ids)

    def fork(self, message_id: str) -> ChatSession:
        """A new session with copies of the branch down to this message. Raises SessionBusyError while it is written."""
        message = self._message(message_id)
        with self._exclusive(message.session_id) as session:
            turn = self._runtime.runner.active(session.id)
            if turn is not None and turn.reply_id == message.id:
                raise SessionBusyError(
                    "This reply is still being written. Stop it or wait, then fork.", Reason.BUSY_TO_FORK
                )
            fork = self._store.fork(self._owner, message.id)
            self._hold_stored(fork)
            return fork

    def _hold_stored(self, copy: ChatSession) -> None:
        """What is stored of a copy's branches stays for it, whatever becomes of the chat that it was stored for, from
        when the model is there."""
        form = self._starter.cache_form(copy)
        if not form.is_saved:
            return

        def hold(failure: BaseException | None) -> None:
            # What cannot be had by now (the copy is gone, its template refuses it) the next turn says, if there is one.
            with contextlib.suppress(ChatCacheError), self._exclusive(copy.id, deleted=True) as session:
                if failure is None:
                    fed_ids = [self._starter.fed_ids(session, branch) for branch in self._branches(session)]
                    self._runtime.call(
                        lambda parts: parts.persistence.hold_stored(self._key(session.id), form.kind, fed_ids)
                    )

        self._runtime.loading.when_over(hold)

    def _branches(self, session: ChatSession) -> Iterator[Sequence[Message]]:
        """Down to each reply that nothing follows."""
        messages = self._store.tree(self._owner, session.id).messages
        followed = {message.parent_id for message in messages}
        for end in messages:
            if end.role is Role.ASSISTANT and end.id not in followed:
                yield self._store.branch(self._owner, session.id, end.id)

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
            chat = admit(
                read_json(data, self._owner, clean=clean_text),
                ids_say=self._starter.ids_say,
                problems_of=lambda settings: problems_of(settings, self._runtime.model_info),
            )
            session_id = chat.tree.session.id
            with self._runtime.locks.of(self._key(session_id)):
                if replace and self._has_session(session_id):
                    self._runtime.runner.stop_and_wait(session_id)
                    self._runtime.runner.save_pending(session_id)
                    if not self._store.is_temporary(session_id):
                        self._leave_memory(session_id)  # from where it would be saved again, for what takes its place
                report = import_chat(self._store, self._owner, self._renewed(chat), replace=replace)
            if report.outcome is ImportOutcome.REPLACED:
                self._hold_stored(report.session)
        self._changed(report.session)
        return report

    def _renewed(self, chat: ImportedChat) -> ImportedChat:
        """The chat at a version above all that windows have seen under its id, whatever was here before it."""
        session = chat.tree.session
        version = self._runtime.changes.newest(self._key(session.id))
        with contextlib.suppress(RowNotFoundError):
            version = max(version, self._store.get_session(self._owner, session.id).version)
        session = dataclasses.replace(session, version=version + 1)
        return dataclasses.replace(chat, tree=dataclasses.replace(chat.tree, session=session))

    def _has_session(self, session_id: str) -> bool:
        with contextlib.suppress(RowNotFoundError):
            self._store.get_session(self._owner, session_id)
            return True
        return False

    def _checked_settings(self, settings: Mapping[str, Any] | None) -> dict[str, Any]:
        return checked_settings(settings, self._runtime.model_info)


def _clean_system_prompt(text: str | None) -> str | None:
    cleaned = clean_text(text or "")
    return cleaned if cleaned.strip() else None
