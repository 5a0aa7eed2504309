"""`Finder`: leads a tab to the message that a search found in a chat."""

from __future__ import annotations

from chatcache.errors import ChatCacheError
from chatcache.ui.draft import DraftChange, without_message
from chatcache.ui.handlers import Handlers, Updates
from chatcache.ui.place import Place


class Finder(Handlers):
    """Of one page's handlers."""

    def lead(self, place: Place, message_id: str, text: str = "") -> Updates:
        """Into the chat at `place`, to this message. Where its branch is not the one shown, it becomes that, as by the
        arrows between versions, and the page says so and offers the way back; a reply that is being written is not
        ended for it. In the bin nothing changes: the place names the message all the same, and the follower says what
        can be done. A message that is not there, or no longer, leads to the chat's end. `text`: what is in the chat's
        message box; a message that was put there by rolling back leaves it where the chat shows it again."""
        service, session_id = self._service, self.session_at(place)
        try:
            num_below = service.num_messages_below(session_id, message_id)
            if num_below is not None:
                return self._show(place, message_id, num_below)
            session = service.get_session(session_id)
            if session.deleted_at is not None:
                return self._show(place, message_id, 0)
            if service.active_turn(session_id) is not None:
                return self.notify(self._texts.FOUND_BESIDE_A_REPLY)
            undone = self.undone_question(session_id)
            service.select(message_id)
            shown = self._show(place, message_id, service.num_messages_below(session_id, message_id) or 0)
            if undone is not None and service.num_messages_below(session_id, undone.id) is not None:
                typed = without_message(undone.text, text)
                shown |= self.redraft(DraftChange(place, text, typed)) if typed is not None else {}
        except ChatCacheError:
            return {}
        offer = self.undo("return", session.tip_id) if session.tip_id is not None else None
        return shown | self.notify(self._texts.FOUND_IN_ANOTHER_VERSION, offer=offer)

    def _show(self, place: Place, message_id: str, num_below: int) -> Updates:
        return {self._page.place: place.showing(message_id, num_below).to_json()}
