"""What happens in the panels for storage and for the memory plan."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import gradio as gr

from chatcache.errors import NotFoundError
from chatcache.first_sentence import first_sentence
from chatcache.ui.handlers import Handlers, Updates, said_if_refused, told
from chatcache.ui.place import Place
from chatcache.ui.plan_panel import render_plan, render_plan_waiting
from chatcache.ui.storage_panel import (
    NUM_CHATS_SHOWN,
    StoredChat,
    render_storage,
    render_waiting,
    say_progress,
    say_verified,
)
from chatcache.verification import Verification

PROGRESS_INTERVAL_S = 0.5


class PanelHandlers(Handlers):
    """`sent` is the tab's place as its browser sent it."""

    @said_if_refused
    def show_storage(self, sent: object) -> Updates:
        """What is stored now."""
        return self._storage(sent)

    @said_if_refused
    def act_on_storage(self, sent: object, event: gr.EventData) -> Updates:
        """A button of the panel: drop one cache, ask whether to drop all, drop all."""
        match told(event, "action"):
            case "drop":
                return self._drop(sent, told(event, "message"))
            case "ask":
                return self._storage(sent, is_asking=True)
            case "drop-all":
                dropped = self._service.drop_all_caches()
                return self._storage(sent, said=self._texts.dropped(dropped.num_bytes, dropped.num_running))
            case _:
                return self._storage(sent)

    async def verify(self, sent: object) -> AsyncIterator[Updates]:
        """Check what is stored, in the background; how far it is, then what was found. Joins a check that runs."""
        try:
            check = self._service.verify_caches()
            while not check.done:
                said = say_progress(self._texts, check.progress)
                yield await asyncio.to_thread(self._storage, sent, said=said, is_busy=True)
                await asyncio.sleep(PROGRESS_INTERVAL_S)
            yield await asyncio.to_thread(self._storage, sent, said=self._found(check))
        except Exception as error:
            # The panel is read anew then: it is not left saying that a check runs.
            waits = {self._page.side.storage.content: render_waiting(self._texts)}
            yield self.nothing() if self._service.is_closed else self.refuse(error) | waits

    async def show_plan(self, context_tokens: float, num_chats: float | None, kind: str) -> AsyncIterator[Updates]:
        """The plan for what the fields say; until the model is loaded, that it waits for that."""
        content = self._page.side.plan.content
        try:
            if self._service.loading is not None:
                yield {content: render_plan_waiting(self._texts)} | self.nothing()
            while self._service.loading is not None:
                await asyncio.sleep(PROGRESS_INTERVAL_S)
            asked = (int(context_tokens), int(num_chats or 1), kind)
            outlook = await asyncio.to_thread(self._service.memory_plan, *asked)
            yield {content: render_plan(self._texts, outlook)} | self.nothing()
        except Exception as error:
            yield {content: ""} | (self.nothing() if self._service.is_closed else self.refuse(error))

    def _drop(self, sent: object, session_id: str) -> Updates:
        if self._service.active_turn(session_id) is not None:
            return self._storage(sent, said=self._texts.DROP_BUSY)
        return self._storage(sent, said=self._texts.dropped(self._service.drop_cache(session_id)))

    def _found(self, check: Verification) -> str:
        try:
            return say_verified(self._texts, check.result(0))
        except Exception as error:
            return self._texts.verify_failed(first_sentence(error))

    def _storage(self, sent: object, said: str = "", *, is_asking: bool = False, is_busy: bool = False) -> Updates:
        report = self._service.storage_report()
        by_size = sorted(report.cache.session_bytes.items(), key=lambda item: (-item[1], item[0]))
        chats = [chat for chat in map(self._stored_chat, by_size[:NUM_CHATS_SHOWN]) if chat is not None]
        others = by_size[NUM_CHATS_SHOWN:]
        markup = render_storage(
            self._texts,
            report,
            chats,
            num_others=len(others),
            other_bytes=sum(num_bytes for _, num_bytes in others),
            current_id=Place.from_json(sent).session_id,
            said=said,
            is_asking=is_asking,
            is_busy=is_busy,
        )
        return {self._page.side.storage.content: markup}

    def _stored_chat(self, item: tuple[str, int]) -> StoredChat | None:
        session_id, num_bytes = item
        try:
            session = self._service.get_session(session_id)
        except NotFoundError:
            return None  # removed for good meanwhile
        return StoredChat(session.id, session.title, num_bytes, is_deleted=session.deleted_at is not None)
