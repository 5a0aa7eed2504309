"""Following a session: what is painted now, and again whenever something changes, for as long as the tab is there.

Generation belongs to the service; this only looks. Every tab runs one follower, so tabs stay in step without knowing of
each other, and a tab that goes away stops nothing. The follower goes with its tab from chat to chat, for Gradio's page
shows in their order the updates of one event, but not those of two.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any, TypeVar

import gradio as gr

from chatcache.errors import ChatCacheError, NotFoundError
from chatcache.events import Phase, StatusEvent
from chatcache.reports import LoadingReport
from chatcache.ui.chat_figures import ChatFigures, Progress
from chatcache.ui.chat_list import render_title
from chatcache.ui.gauge import Gauge
from chatcache.ui.handlers import Handlers, Updates
from chatcache.ui.layout import Page
from chatcache.ui.notice import render_loading
from chatcache.ui.place import Place, Seen
from chatcache.ui.settings_form import typed_values
from chatcache.ui.settings_handlers import stored_mark
from chatcache.ui.texts import Texts
from chatcache.ui.transcript import LiveReply, render_transcript, render_welcome
from chatcache.ui.view import CacheLook, View, load_view, look_at_cache
from chatcache.ui.watch import Tab, Watch, tail

if TYPE_CHECKING:
    from chatcache.chat import ChatService

CHANGE_TIMEOUT_S = 2.0
"""How long a look for changes may hold its thread: so long, at most, does a server that ends wait for it."""

LOADING_INTERVAL_S = 0.5
"""How often the page says how long the model has been loading."""

READ_AHEAD_AFTER_S = 0.3
"""Who passes by a chat on the way to another does not have its cache read from disk."""

NUM_WATCHERS = 64

T = TypeVar("T")


class Follower(Handlers):
    """Makes the updates of one page's components for any number of tabs, each known by its Gradio session hash."""

    def __init__(self, service: ChatService, page: Page, texts: Texts) -> None:
        super().__init__(service, page, texts)
        self._watchers = ThreadPoolExecutor(NUM_WATCHERS, thread_name_prefix="chatcache-ui")
        self._tabs: dict[str, Tab] = {}

    async def resume(self, sent_place: object, request: gr.Request, *form: Any) -> AsyncIterator[Updates]:
        """Follow again if this tab's follower has ended, or is not where the tab is; else nothing."""
        tab = self._tabs.get(request.session_hash or "")
        if tab is not None and not tab.watch.is_over and tab.watch.place == Place.from_json(sent_place):
            tab.watch.hear()
            yield self.nothing()
            return
        async for updates in self.follow(sent_place, request, *form):
            yield updates

    async def leave(self, request: gr.Request) -> None:
        """End this tab's follower: nobody looks, and a browser has only six connections for all its tabs."""
        if (tab := self._tabs.get(request.session_hash or "")) is not None:
            tab.watch.leave()

    async def follow(self, sent_place: object, request: gr.Request, *form: Any) -> AsyncIterator[Updates]:
        """Show what is at the place, and then at each place where the tab is, for as long as it is there. `form`: the
        settings' fields, which hold what a chat not yet begun would begin with.

        Where the tab has a follower already, that one goes to the place, and this is nothing.
        """
        key, watch = request.session_hash or "", Watch(Place.from_json(sent_place), form)
        tab = self._tabs.get(key)
        if tab is not None and await tab.go(watch, 2 * CHANGE_TIMEOUT_S):
            yield self.nothing()
            return
        tab = self._tabs[key] = Tab(watch)
        try:
            async for watch in tab.watches():
                async for updates in self._look(watch):
                    yield updates
        finally:
            if self._tabs.get(key) is tab:
                del self._tabs[key]
        # Gradio sends the last updates once more when a handler ends, whenever that is: let them be none.
        yield self.nothing()

    async def _look(self, watch: Watch) -> AsyncIterator[Updates]:
        """Paint, tail the running turn, wait for the next change, and so on, until the tab leaves.

        Where there is no chat it stays as well: something is under way then at every moment. Gradio's server ends the
        stream of a tab for which nothing is, and what the tab asks before it has heard of that is answered only with
        what it asks next.

        Every update names every component it ever named: Gradio sends differences, and its page applies them to values
        it has not shown yet, so what one update sets and the next leaves out can be lost.
        """
        place, form = watch.place, watch.form
        figures: Updates = {}
        painted: Updates = {}
        look: CacheLook | None = None
        progress: Progress | None = None
        seen: View | None = None
        while place.has_arrived and not self._is_over(watch):
            try:
                loading = self._service.loading
                view = await self._run(load_view, self._service, place)
                if self._is_over(watch):
                    break
                if view is None:
                    yield self._paint_nothing(form, loading, is_temporary=place.is_temporary)
                    if loading is None:
                        break
                    await watch.pause(LOADING_INTERVAL_S)
                    continue
                if loading is not None and view.busy_id is not None:
                    progress = Progress(view.busy_id, StatusEvent(Phase.LOADING))
                figures = self._show_chat(view, look, progress)
                painted, seen = self._paint(view, place, loading), view
                yield painted | figures
                if loading is not None:
                    await self._wait_for_change(view, watch, LOADING_INTERVAL_S)
                elif view.turn is not None:
                    ask = partial(self._run, self._service.cache_report, view.session.id)
                    gauge = Gauge(view.turn, ask)
                    async for reply in tail(view.turn, watch, self._texts):
                        if (now := gauge.look()) is not progress:
                            progress = now
                            figures = self._show_chat(view, look, progress)
                        yield painted | figures | {self._page.live: reply.to_json()}
                    progress = gauge.look()
                    look = progress.seen_from(look)
                else:
                    async for look in self._looks_until_change(view, watch):
                        figures = self._show_chat(view, look, progress)
                        yield painted | figures
            except NotFoundError:
                yield self._paint_nothing(form, self._service.loading) | self._say_gone(seen)
                break
            except Exception as error:
                if self._service.is_closed:
                    return  # it ended while this looked
                yield painted | figures | self.refuse(error)
                if not isinstance(error, ChatCacheError):
                    return  # the page looks again in a while
                await watch.pause(CHANGE_TIMEOUT_S)
        while not self._is_over(watch):
            await watch.pause(CHANGE_TIMEOUT_S)

    def _paint(self, view: View, place: Place, loading: LoadingReport | None) -> Updates:
        page, session, is_busy = self._page, view.session, view.is_busy
        is_empty = not view.messages and not is_busy
        transcript = render_transcript(
            self._texts,
            view.messages,
            view.stats,
            details=view.details,
            num_hidden=view.num_hidden,
            is_busy=is_busy,
            undone_id=view.undone_id,
        )
        if is_empty:
            transcript = render_welcome(self._texts, is_temporary=view.is_temporary, undone_id=view.undone_id)
        updates: Updates = {
            page.seen: Seen.of(session).to_json(),
            page.title: render_title(self._texts, session.title, is_temporary=view.is_temporary),
            page.session_tools: gr.update(visible=session.deleted_at is None),
            page.pin: gr.update(
                value=self._texts.UNPIN if session.pinned else self._texts.PIN,
                visible=not view.is_temporary,  # it would stand first in a list that it is not in
            ),
            page.transcript: transcript,
            page.live: self._live(loading) if view.turn is not None else None,
            page.loading: render_loading(self._texts, loading),
            page.message: gr.update(interactive=True),
            page.send: gr.update(visible=not is_busy),
            page.stop: gr.update(visible=is_busy),
            page.stored_settings: stored_mark(session, self._service.model_info),
        }
        if session.deleted_at is not None:
            hides_found = place.message_id not in (None, *(message.id for message in view.messages))
            updates |= self.say_deleted(session, is_temporary=view.is_temporary, hides_found=hides_found)
        return updates

    def _paint_nothing(
        self, form: Sequence[Any], loading: LoadingReport | None, *, is_temporary: bool = False
    ) -> Updates:
        page, model = self._page, self._service.model_info
        return self.show_new_chat(typed_values(self._texts, model, form)) | {
            page.seen: Seen().to_json(),
            page.title: render_title(self._texts, self._texts.NEW_CHAT, is_temporary=is_temporary),
            page.session_tools: gr.update(visible=False),
            page.transcript: render_welcome(self._texts, is_temporary=is_temporary),
            page.live: None,
            page.loading: render_loading(self._texts, loading),
            page.message: gr.update(interactive=True),
            page.send: gr.update(visible=True),
            page.stop: gr.update(visible=False),
            page.stored_settings: stored_mark(None, model),
        }

    def _live(self, loading: LoadingReport | None) -> list[dict[str, Any]]:
        """A reply of which nothing has been looked at yet."""
        reply = LiveReply(self._texts)
        if loading is not None:
            reply.set_status(self._texts.status(StatusEvent(Phase.LOADING)))
        return reply.to_json()

    def _say_gone(self, seen: View | None) -> Updates:
        """What has become of the chat that was last seen as `seen`: the same as the action says that removed it."""
        if seen is not None and seen.is_temporary:
            return self.notify(self._texts.GONE)
        if seen is not None and seen.session.deleted_at is not None:
            return self.notify(self._texts.purged(1))
        return self.notify(self._texts.UNKNOWN_SESSION, is_error=True)

    def _show_chat(self, view: View, look: CacheLook | None, progress: Progress | None) -> Updates:
        return self.show(ChatFigures.of(self._service.model_info, view, look, progress))

    def _is_over(self, watch: Watch) -> bool:
        return watch.is_over or self._service.is_closed

    async def _looks_until_change(self, view: View, watch: Watch) -> AsyncIterator[CacheLook]:
        """What is known of the chat's cache now, and once more when it has been read from disk ahead of a message."""
        changed: asyncio.Future[None] = asyncio.ensure_future(self._wait_for_change(view, watch))
        try:
            while not changed.done():
                look = await self._run(look_at_cache, self._service, view.session.id)
                if changed.done():
                    break
                yield look
                if watch.reading is None and look.lacks_tokens and view.session.deleted_at is None:
                    watch.reading = asyncio.ensure_future(self._read_ahead(view.session.id, watch))
                waited = {changed}
                if watch.reading is not None and not watch.reading.done():
                    waited.add(watch.reading)
                await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
            await changed
        finally:
            changed.cancel()

    async def _read_ahead(self, session_id: str, watch: Watch) -> None:
        await watch.pause(READ_AHEAD_AFTER_S)
        if not self._is_over(watch):
            with contextlib.suppress(ChatCacheError):  # the next turn reads what is missing, and says what is wrong
                await self._run(self._service.prefetch, session_id, lambda: not self._is_over(watch))

    async def _wait_for_change(self, view: View, watch: Watch, most_s: float = math.inf) -> None:
        session, version = view.session, view.session.version
        ends_s = monotonic() + most_s
        while not self._is_over(watch) and (left_s := ends_s - monotonic()) > 0:
            timeout_s = min(left_s, CHANGE_TIMEOUT_S)
            now = await self._run_unless_left(watch, self._service.wait_for_change, session.id, version, timeout_s)
            if now is not None and now > version:
                return

    async def _run_unless_left(self, watch: Watch, function: Callable[..., T], *args: Any) -> T | None:
        """What `function` returns; None where the tab leaves before. Then nobody hears of what it raises either."""
        running, left = self._run(function, *args), asyncio.ensure_future(watch.left.wait())
        running.add_done_callback(lambda done: done.cancelled() or done.exception())  # else asyncio logs it as missed
        waited: set[asyncio.Future[Any]] = {left, running}
        try:
            await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
        finally:
            left.cancel()
        return running.result() if running.done() else None

    def _run(self, function: Callable[..., T], *args: Any) -> asyncio.Future[T]:
        try:
            return asyncio.get_running_loop().run_in_executor(self._watchers, function, *args)
        except RuntimeError as error:  # no thread may begin any more: the process is ending
            raise asyncio.CancelledError from error
