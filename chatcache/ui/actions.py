"""What a click does: one call of `ChatService`, and what the page must know at once. The rest is seen by `follow`.

Every action either happens or says in a sentence why not; what was typed stays in the box then.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import gradio as gr

from chatcache.errors import ChatCacheError, NotFoundError, SessionBusyError
from chatcache.ui.draft import DraftChange, with_message, without_message
from chatcache.ui.file_actions import FileActions
from chatcache.ui.finder import Finder
from chatcache.ui.handlers import Handlers, Refusal, Updates, said_if_refused, told
from chatcache.ui.layout import Page
from chatcache.ui.notice import Notice, render_notice
from chatcache.ui.place import Destination, Place, Seen
from chatcache.ui.settings_handlers import SettingsHandlers
from chatcache.ui.shelf import Shelf
from chatcache.ui.texts import Texts

if TYPE_CHECKING:
    from chatcache.chat import ChatService


class Actions(Handlers):
    """The handlers of one page's events, for any number of tabs. `sent` is the tab's place as its browser sent it."""

    def __init__(self, service: ChatService, page: Page, texts: Texts) -> None:
        super().__init__(service, page, texts)
        self.files = FileActions(service, page, texts)
        self._settings = SettingsHandlers(service, page, texts)
        self._finder = Finder(service, page, texts)
        self._on_transcript: dict[str, Callable[[_Click], Updates]] = {
            "regenerate": self._regenerate,
            "continue": self._continue,
            "rollback": self._roll_back,
            "edit": self._edit,
            "previous": lambda click: self._select_neighbour(click, -1),
            "next": lambda click: self._select_neighbour(click, 1),
            "select": lambda click: self._select(click, click.target),
            "return": lambda click: self._select(click, click.target, to_leaf=False),
            "redo": self._redo,
            "forward": self._forward,
            "fork": self._fork,
            "undelete": self._undelete,
            "replace": lambda click: self.files.replace(click.place, click.target),
            "earlier": lambda click: {page.place: click.place.showing_more().to_json()},
            "suggest": self._suggest,
            "dismiss": lambda _click: {page.notice: ""},
        }

    # ------------------------------------------------------------ where the tab is

    def go_to(self, sent: object, sent_destination: object, sent_shelf: object) -> Updates:
        """Another chat: one that was clicked, perhaps at a message that was found, the one in the address, or a new
        one. Where that fails the tab moves to where it is: it has taken leave already, and waits."""
        place, destination = Place.from_json(sent), Destination.from_json(sent_destination)
        try:
            return self._go_to(place, destination, sent_shelf)
        except NotFoundError:
            unknown = self.notify(self._texts.UNKNOWN_SESSION, is_error=True)
            return self.go(place, None) | unknown | {self._page.ticket: _new_ticket()}
        except Exception as error:
            stays = place.at(place.session_id, is_temporary=place.is_temporary)
            return {self._page.place: stays.to_json()} | self.refuse(error)

    def _go_to(self, place: Place, destination: Destination, sent_shelf: object) -> Updates:
        moved = self.go(place, destination.session_id, is_temporary=destination.is_temporary)
        if destination.session_id is None:
            moved |= self._back_to_chats(sent_shelf)
        elif destination.message_id is not None:
            there = Place.from_json(moved[self._page.place])
            moved |= self._finder.lead(there, destination.message_id, destination.draft)
        return moved | {self._page.ticket: _new_ticket()}

    # ------------------------------------------------------------------ the chat

    @said_if_refused
    def send(self, sent: object, sent_seen: object, ticket: str, text: str, *form: Any) -> Updates:
        """Send what is in the box; the box is emptied once the message is stored. While a reply is being written, it
        waits there. `form`: the settings' fields."""
        if not text.strip():
            raise Refusal(self._texts.EMPTY_MESSAGE)
        place, seen = Place.from_json(sent), Seen.from_json(sent_seen)
        done = {self._page.ticket: _new_ticket(), self._page.notice: ""}
        if place.session_id is None:
            return done | self._begin(place, ticket, text, *form)
        self._settings.keep(place, place.session_id, *form)
        has_seen = seen.session_id == place.session_id
        try:
            self._service.send(
                place.session_id,
                text,
                parent_id=seen.tip_id if has_seen else None,
                request_id=ticket or None,
                is_first=has_seen and seen.tip_id is None,
            )
        except SessionBusyError:
            return {self._page.notice: render_notice(self._texts, Notice(self._texts.MESSAGE_WAITS, while_busy=True))}
        return done | self.redraft(DraftChange(place, before=text))

    def _begin(self, place: Place, ticket: str, text: str, *form: Any) -> Updates:
        """A new chat with its first message; where that is refused, no chat is left."""
        session = self._service.create_session(temporary=place.is_temporary)
        try:
            self._settings.keep(place, session.id, *form)
            self._service.send(session.id, text, request_id=ticket or None)
        except ChatCacheError:
            self._service.delete(session.id)
            if not place.is_temporary:
                self._service.purge(session.id)
            raise
        moved = {self._page.place: place.at(session.id, is_temporary=place.is_temporary).to_json()}
        return moved | self.redraft(DraftChange(place, before=text, begun_id=session.id))

    @said_if_refused
    def stop(self, sent: object) -> Updates:
        turn = self._service.active_turn(self.session_at(Place.from_json(sent)))
        if turn is None:
            return self.notify(self._texts.NOTHING_TO_STOP)
        turn.stop()
        return {self._page.notice: ""}

    @said_if_refused
    def act(self, sent: object, sent_seen: object, ticket: str, text: str, event: gr.EventData) -> Updates:
        """A button inside the conversation or a notice: `event` names the action and the id it is about."""
        handler = self._on_transcript.get(told(event, "action"))
        if handler is None:
            return self.nothing()
        place, seen = Place.from_json(sent), Seen.from_json(sent_seen)
        return handler(_Click(place, seen, told(event, "message"), ticket, text, told(event, "text")))

    def _regenerate(self, click: _Click) -> Updates:
        session = self._service.get_session(self.session_at(click.place))
        self._service.regenerate(session.id, click.target, request_id=click.ticket or None)
        is_tip = session.tip_id == click.target
        said = {self._page.notice: ""} if is_tip else self.notify(self._texts.REGENERATED_FURTHER_UP)
        return {self._page.ticket: _new_ticket()} | said

    def _continue(self, click: _Click) -> Updates:
        self._service.continue_reply(self._session_as_seen(click), request_id=click.ticket or None)
        return {self._page.ticket: _new_ticket(), self._page.notice: ""}

    def _roll_back(self, click: _Click) -> Updates:
        """Go back one turn; its text takes the place of the one that was put into the box by going back before, and
        comes before whatever was being typed."""
        session_id = self._session_as_seen(click)
        below = self.undone_question(session_id)
        typed = click.text if below is None else without_message(below.text, click.text)
        typed = click.text if typed is None else typed
        rollback = self._service.rollback(session_id)
        said = self._texts.rolled_back(rollback.num_undone_turns, is_before_typed=bool(typed.strip()))
        change = DraftChange(click.place, click.text, with_message(rollback.prompt.text, typed))
        return self.redraft(change) | self.notify(said, offer=self.undo("redo", rollback.undone.id))

    def _edit(self, click: _Click) -> Updates:
        """A message as it was written anew where it stands; what stood there stays as an alternative."""
        self._refuse_if_busy(self._session_as_seen(click))
        self._service.edit(click.target, click.written, request_id=click.ticket or None)
        return {self._page.ticket: _new_ticket(), self._page.notice: ""}

    def _select_neighbour(self, click: _Click, step: int) -> Updates:
        alternatives = [message.id for message in self._service.alternatives(click.target)]
        wanted = alternatives.index(click.target) + step
        return self._select(click, alternatives[wanted]) if 0 <= wanted < len(alternatives) else self.nothing()

    def _select(self, click: _Click, message_id: str, *, to_leaf: bool = True) -> Updates:
        self._refuse_if_busy(self.session_at(click.place))
        self._service.select(message_id, to_leaf)
        return {self._page.notice: ""}

    def _forward(self, click: _Click) -> Updates:
        """One turn forward again, from where the person saw the chat end."""
        self._session_as_seen(click)
        return self._redo(click)

    def _redo(self, click: _Click) -> Updates:
        """Take a roll back back: the turn's text leaves the box to that of the next turn that was rolled back, if there
        is one; what was typed after it stays."""
        session_id = self.session_at(click.place)
        self._refuse_if_busy(session_id)
        self._service.select(click.target, to_leaf=False)
        typed = without_message(self._service.messages(session_id, limit=2)[0].text, click.text)
        if typed is None:
            return {self._page.notice: ""}
        below = self.undone_question(session_id)
        after = typed if below is None else with_message(below.text, typed)
        return self.redraft(DraftChange(click.place, click.text, after)) | {self._page.notice: ""}

    def _fork(self, click: _Click) -> Updates:
        """A new chat that goes on from the reply that was clicked, its cache made ready from what there is; the one it
        comes from stays as it is."""
        fork_id = self._service.fork(click.target).id
        num_ready, num_tokens = self._service.prefetch(fork_id), self._service.context_use(fork_id).num_fed_tokens
        return self.go(click.place, fork_id) | self.notify(self._texts.forked(num_ready, num_tokens))

    def _suggest(self, click: _Click) -> Updates:
        """A suggestion goes into the box, before whatever was being typed."""
        suggestion = dict(enumerate(self._texts.PROMPT_SUGGESTIONS))[int(click.target)]
        return self.redraft(DraftChange(click.place, click.text, with_message(suggestion, click.text)))

    # -------------------------------------------------------------- the session

    @said_if_refused
    def begin_rename(self, sent: object) -> Updates:
        session = self._service.get_session(self.session_at(Place.from_json(sent)))
        return {self._page.rename_row: gr.update(visible=True), self._page.new_title: session.title}

    @said_if_refused
    def rename(self, sent: object, title: str) -> Updates:
        self._service.update_session(self.session_at(Place.from_json(sent)), title=title)
        return self.cancel_rename()

    def cancel_rename(self) -> Updates:
        return {self._page.rename_row: gr.update(visible=False)}

    @said_if_refused
    def toggle_pin(self, sent: object) -> Updates:
        session = self._service.get_session(self.session_at(Place.from_json(sent)))
        self._service.update_session(session.id, pinned=not session.pinned)
        return self.nothing()

    @said_if_refused
    def delete(self, sent: object) -> Updates:
        place = Place.from_json(sent)
        is_temporary = self._service.is_temporary(self.session_at(place))
        session = self._service.delete(self.session_at(place))
        return self.go(place, None) | self.say_deleted(session, is_temporary=is_temporary)

    def _undelete(self, click: _Click) -> Updates:
        """Back from the bin, and to what was found in the chat, where a search led there."""
        moved, found_id = self.go(click.place, self._service.undelete(click.target).id), click.place.message_id
        if found_id is not None:
            moved |= self._finder.lead(Place.from_json(moved[self._page.place]), found_id)
        return moved

    # ------------------------------------------------------------------ private

    def _back_to_chats(self, sent_shelf: object) -> Updates:
        """Whoever begins a chat is done with the bin."""
        shelf = Shelf.from_json(sent_shelf)
        return {self._page.shelf: shelf.turned().to_json()} if shelf.is_bin else {}

    def _refuse_if_busy(self, session_id: str) -> None:
        """What is asked of a page that has not seen the reply begin ends no reply."""
        if self._service.active_turn(session_id) is not None:
            raise Refusal(self._texts.BUSY)

    def _session_as_seen(self, click: _Click) -> str:
        """The session, if its tip is still the one the person looked at when clicking: one click, one step."""
        session = self._service.get_session(self.session_at(click.place))
        if (session.id, session.tip_id) != (click.seen.session_id, click.seen.tip_id):
            raise Refusal(self._texts.STALE_PAGE)
        return session.id


@dataclass(frozen=True, slots=True)
class _Click:
    """A button inside rendered HTML was clicked: where, on what (`target`), what was in the box, and what was
    `written` in a form of the message's own.
    """

    place: Place
    seen: Seen
    target: str
    ticket: str
    text: str
    written: str


def _new_ticket() -> str:
    """A mark for the next turn: the same click, however often it arrives, starts it once."""
    return uuid.uuid4().hex
