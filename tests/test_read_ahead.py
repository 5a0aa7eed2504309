"""What a follower does so that the cache of a chat that is opened is in memory before anything is sent."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import gradio as gr
import pytest
from markup import Elements
from services import GREEDY, open_service
from slow_disk import SlowDisk

from chatcache.chat import ChatService
from chatcache.errors import NotFoundError, Reason, StorageError
from chatcache.loader import LoadedModel
from chatcache.stats import Reuse
from chatcache.ui import follow
from chatcache.ui.cache_panel import describe
from chatcache.ui.follow import Follower
from chatcache.ui.handlers import Updates
from chatcache.ui.layout import Page, lay_out
from chatcache.ui.place import Place
from chatcache.ui.texts import ENGLISH as texts

TAB = cast(gr.Request, SimpleNamespace(session_hash="tab"))
TIMEOUT_S = 30


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who waits for a follower's threads, or for it to begin to read, does not wait long."""
    monkeypatch.setattr(follow, "CHANGE_TIMEOUT_S", 0.05)
    monkeypatch.setattr(follow, "READ_AHEAD_AFTER_S", 0.02)


@pytest.fixture
def service(tiny_llama: LoadedModel, tmp_path: Path) -> Iterator[ChatService]:
    """Begun anew, with one chat that is stored with its cache, too long to be read at once, which is not in memory."""
    with open_service(tiny_llama, tmp_path) as service:
        session = service.create_session(sampling=GREEDY)
        service.send(session.id, "Hello " * 200).result(60)
        service.send(session.id, "And you?").result(60)
    with open_service(tiny_llama, tmp_path) as service:
        yield service


@pytest.fixture
def session_id(service: ChatService) -> str:
    (stored,) = service.sessions()
    return stored.id


@pytest.fixture
def page(service: ChatService) -> Page:
    async def laid_out() -> Page:
        with gr.Blocks():
            return lay_out(texts, service.model_info)

    return asyncio.run(laid_out())  # where no event loop runs, Gradio makes one that nobody closes


class Tab:
    """A tab that has been at a chat since the `async with` began. `updates`: all that it was shown."""

    def __init__(self, service: ChatService, page: Page, session_id: str) -> None:
        self.follower = Follower(service, page, texts)
        self.updates: list[Updates] = []
        self._page = page
        self._place = Place().at(session_id).to_json()

    async def __aenter__(self) -> Tab:
        self._following = asyncio.create_task(self._follow())
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.follower.leave(TAB)
        await self._following

    async def sees(self, is_it: Callable[[Updates], bool]) -> None:
        while not self.updates or not is_it(self.updates[-1]):
            await asyncio.sleep(0.01)

    async def sees_in(self, region: str, text: str) -> None:
        component = getattr(self._page, region)
        await self.sees(lambda update: text in Elements(str(update.get(component, ""))).text)

    async def _follow(self) -> None:
        async for update in self.follower.follow(self._place, TAB):
            self.updates.append(update)


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def in_time() -> None:
        await asyncio.wait_for(test(), TIMEOUT_S)

    asyncio.run(in_time())


def test_a_chat_that_is_opened_is_in_memory_before_anything_is_sent(
    service: ChatService, page: Page, session_id: str
) -> None:
    assert not service.cache_report(session_id).is_live

    async def opened() -> None:
        async with Tab(service, page, session_id) as tab:
            await tab.sees(lambda update: texts.ON_DISK in Elements(update[page.cache]).text)
            await tab.sees(lambda update: texts.ON_DISK not in Elements(update[page.cache]).text)
            num_tokens = service.cache_report(session_id).num_tokens
            assert f"{texts.IN_MEMORY}{texts.tokens(num_tokens)}" in Elements(tab.updates[-1][page.cache]).text

    run(opened)
    report = service.cache_report(session_id)
    assert report.num_tokens >= service.context_use(session_id).num_fed_tokens - 1
    stats = service.send(session_id, "And now?").result(60).stats
    assert stats.num_cached_tokens >= report.num_tokens


def test_what_came_from_disk_is_told_in_words_until_the_next_reply_tells_it(
    service: ChatService, page: Page, session_id: str
) -> None:
    async def opened() -> None:
        async with Tab(service, page, session_id) as tab:
            await tab.sees_in("cache", texts.PREFETCHED)
            report, said = service.cache_report(session_id), Elements(tab.updates[-1][page.cache]).text
            assert f"{texts.PREFETCHED}{texts.prefetched(report.num_prefetched_tokens, report.prefetch_s)}" in said
            assert report.num_prefetched_tokens == report.num_tokens
        async with Tab(service, page, session_id) as tab:
            await tab.sees_in("cache", texts.PREFETCHED)
            reply = await asyncio.to_thread(lambda: service.send(session_id, "And now?").result(60))
            await tab.sees_in("cache", next(iter(describe(texts, reply.stats, is_first=False))))
            assert texts.PREFETCHED not in Elements(tab.updates[-1][page.cache]).text
            assert reply.stats.reuse == (Reuse("disk", report.num_prefetched_tokens),)

    run(opened)
    service.drop_cache(session_id)
    assert service.cache_report(session_id).num_prefetched_tokens == 0


def test_reading_ahead_has_the_cache_looked_at_and_not_the_chat(
    service: ChatService, page: Page, session_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    really_prefetch = service.prefetch

    def prefetch(session_id: str, is_wanted: Callable[[], bool]) -> int:
        service.update_session(session_id, title="Renamed")
        return really_prefetch(session_id, is_wanted)

    def hear_nothing(_session_id: str, since: int, _timeout_s: float) -> int:
        time.sleep(0.01)
        return since

    monkeypatch.setattr(service, "prefetch", prefetch)
    monkeypatch.setattr(service, "wait_for_change", hear_nothing)

    async def opened() -> None:
        async with Tab(service, page, session_id) as tab:
            await tab.sees(lambda update: texts.ON_DISK in Elements(update[page.cache]).text)
            await tab.sees(lambda update: texts.ON_DISK not in Elements(update[page.cache]).text)
            assert "Renamed" not in tab.updates[-1][page.title]

    run(opened)
    assert service.get_session(session_id).title == "Renamed"


class Reading:
    """Stands in for `prefetch`: it reads until it is `ended`, then raises `error`, where there is one."""

    def __init__(self, error: Exception | None = None) -> None:
        self.has_begun, self.ended = threading.Event(), threading.Event()
        self._error = error

    def __call__(self, _session_id: str, is_wanted: Callable[[], bool]) -> int:
        self.is_wanted = is_wanted
        self.has_begun.set()
        assert self.ended.wait(TIMEOUT_S)
        if self._error is not None:
            raise self._error
        return 0

    async def begins(self) -> None:
        assert await asyncio.to_thread(self.has_begun.wait, TIMEOUT_S)


def test_what_is_sent_while_a_chat_is_read_is_shown_at_once(
    service: ChatService, page: Page, session_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading = Reading()
    monkeypatch.setattr(service, "prefetch", reading)

    async def sent() -> None:
        async with Tab(service, page, session_id) as tab:
            await reading.begins()
            turn = await asyncio.to_thread(service.send, session_id, "Sent meanwhile.")
            await tab.sees_in("transcript", "Sent meanwhile.")
            reading.ended.set()
            await asyncio.to_thread(turn.result, 60)

    run(sent)


def test_a_chat_in_the_bin_is_read_once_it_is_taken_out(
    service: ChatService, page: Page, session_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follow, "READ_AHEAD_AFTER_S", 0)
    reading = Reading()
    monkeypatch.setattr(service, "prefetch", reading)
    service.delete(session_id)

    async def looked_at() -> None:
        async with Tab(service, page, session_id) as tab:
            await tab.sees_in("cache", texts.IN_MEMORY)
            await asyncio.sleep(0.1)
            assert not reading.has_begun.is_set()
            await asyncio.to_thread(service.undelete, session_id)
            await reading.begins()
            reading.ended.set()

    run(looked_at)


@pytest.mark.parametrize("error", [NotFoundError("In the bin.", Reason.IN_BIN), StorageError("The disk is gone.")])
def test_reading_ahead_that_fails_is_no_failure_of_the_chat(
    service: ChatService, page: Page, session_id: str, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    reading = Reading(error)
    monkeypatch.setattr(service, "prefetch", reading)

    async def failed() -> None:
        async with Tab(service, page, session_id) as tab:
            await reading.begins()
            num_before = len(tab.updates)
            reading.ended.set()
            await tab.sees(lambda _update: len(tab.updates) > num_before)
            await asyncio.to_thread(service.update_session, session_id, pinned=True)
            await tab.sees(lambda update: update[page.pin]["value"] == texts.UNPIN)
            assert not any(page.notice in update for update in tab.updates)

    run(failed)


def test_a_chat_that_is_only_passed_by_is_not_read(
    service: ChatService, page: Page, session_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follow, "READ_AHEAD_AFTER_S", 2 * TIMEOUT_S)
    asked: list[str] = []
    monkeypatch.setattr(service, "prefetch", lambda session_id, _is_wanted: asked.append(session_id))

    async def passed_by() -> None:
        async with Tab(service, page, session_id) as tab:
            await tab.sees_in("cache", texts.ON_DISK)
            (followed,) = tab.follower._tabs.values()
            while (reading := followed.watch.reading) is None:
                await asyncio.sleep(0.01)
        await reading
        assert asked == []
        monkeypatch.setattr(follow, "READ_AHEAD_AFTER_S", 0)
        async with Tab(service, page, session_id):
            while not asked:
                await asyncio.sleep(0.01)

    run(passed_by)
    assert asked == [session_id]


def test_a_chat_is_read_for_as_long_as_its_tab_is_there(
    service: ChatService, page: Page, session_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading = Reading()
    monkeypatch.setattr(service, "prefetch", reading)

    async def left() -> None:
        async with Tab(service, page, session_id):
            await reading.begins()
            assert reading.is_wanted()
        assert not reading.is_wanted()
        reading.ended.set()

    run(left)


def test_a_chat_left_while_it_was_read_is_read_on_when_it_is_opened_again(
    service: ChatService, page: Page, session_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = SlowDisk(monkeypatch)

    async def opened_twice() -> None:
        async with Tab(service, page, session_id):
            await asyncio.to_thread(disk.allow_first, 2)
            while not service.cache_report(session_id).is_live:
                await asyncio.sleep(0.01)
        num_fed = service.context_use(session_id).num_fed_tokens
        assert service.cache_report(session_id).num_tokens < num_fed - 1
        disk.allow_all()
        async with Tab(service, page, session_id):
            while service.cache_report(session_id).num_tokens < num_fed - 1:
                await asyncio.sleep(0.01)

    run(opened_twice)


def test_what_fails_once_its_tab_has_left_is_told_nobody(
    service: ChatService,
    page: Page,
    session_id: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    reading = Reading(StorageError("The disk is gone."))
    monkeypatch.setattr(service, "prefetch", reading)

    async def left() -> None:
        async with Tab(service, page, session_id) as tab:
            await reading.begins()
        reading.ended.set()
        await asyncio.to_thread(tab.follower._watchers.shutdown)
        await asyncio.sleep(0)
        gc.collect()

    run(left)
    assert [record.message for record in caplog.records] == []


def test_a_chat_that_is_in_memory_is_not_read(
    service: ChatService, page: Page, session_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follow, "READ_AHEAD_AFTER_S", 0)
    num_tokens = service.prefetch(session_id)
    reading = Reading()
    monkeypatch.setattr(service, "prefetch", reading)

    async def opened() -> None:
        async with Tab(service, page, session_id) as tab:
            await tab.sees_in("cache", f"{texts.IN_MEMORY}{texts.tokens(num_tokens)}")
            await asyncio.to_thread(service.update_session, session_id, pinned=True)
            await tab.sees(lambda update: update[page.pin]["value"] == texts.UNPIN)
        await asyncio.to_thread(tab.follower._watchers.shutdown)

    run(opened)
    assert not reading.has_begun.is_set()
