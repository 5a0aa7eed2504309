"""What is answered before there is a page, and that the page takes over."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
from browser import SHORT, box, open_chat, replies, served
from fastapi import FastAPI
from playwright.sync_api import Page, expect
from services import open_service

from chatcache.errors import ChatCacheError
from chatcache.loader import LoadedModel
from chatcache.told import Told
from chatcache.ui import app, waiting_page
from chatcache.ui.app import PageServer
from chatcache.ui.waiting_page import WaitingPage
from storage.sentence import Sentence

WAIT_S = 30


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener


def url_of(listener: socket.socket) -> str:
    return f"http://127.0.0.1:{listener.getsockname()[1]}"


def said(listener: socket.socket, path: str = "/", language: str = "en-US,en;q=0.9") -> str:
    """What a browser reads there, which must be no page yet."""
    with pytest.raises(HTTPError) as answer:
        urlopen(Request(f"{url_of(listener)}{path}", headers={"Accept-Language": language}), timeout=WAIT_S)
    assert answer.value.code == 503
    assert answer.value.headers["Retry-After"] == "1"
    return answer.value.read().decode()


def test_it_says_in_the_browsers_language_that_the_page_will_come_and_what_takes_long(listener: socket.socket) -> None:
    with WaitingPage(listener) as waiting:
        assert "chatcache is starting" in said(listener)
        assert 'http-equiv="refresh"' in said(listener, "/?session=1")
        assert "chatcache başlıyor" in said(listener, language="tr-TR,tr;q=0.9")
        assert 'lang="tr"' in said(listener, "/tr/?session=1")
        waiting.say("Converting <model> …")
        assert '<p lang="en">Converting &lt;model&gt; …</p>' in said(listener)
        assert '<p lang="en">Converting &lt;model&gt; …</p>' in said(listener, language="tr-TR,tr;q=0.9")
        waiting.say(Sentence("Downloading a<b>, once …", Told.DOWNLOADING, name="a<b>"))
        assert '<p lang="en">Downloading a&lt;b&gt;, once …</p>' in said(listener)
        assert '<p lang="tr">a&lt;b&gt; bir kez indiriliyor…</p>' in said(listener, language="tr-TR,tr;q=0.9")


def test_who_says_nothing_or_nonsense_keeps_nobody_waiting(listener: socket.socket) -> None:
    with WaitingPage(listener), socket.create_connection(listener.getsockname()) as silent:
        with socket.create_connection(listener.getsockname()) as babbling:
            babbling.sendall(b"\xff" * 2**17)
            assert "chatcache is starting" in said(listener)
        silent.sendall(b"GET")
        assert "chatcache is starting" in said(listener)


def test_who_comes_after_it_closed_is_left_to_the_page(listener: socket.socket) -> None:
    waiting = WaitingPage(listener)
    waiting.close()
    waiting.close()
    listener.settimeout(WAIT_S)
    with socket.create_connection(listener.getsockname()) as late:
        accepted, address = listener.accept()
        with accepted:
            assert address == late.getsockname()


def test_where_it_cannot_be_served_a_sentence_says_why(listener: socket.socket) -> None:
    listener.close()
    with pytest.raises(ChatCacheError, match=r"Bad file descriptor\. Close other programs"):
        WaitingPage(listener)


def test_a_server_that_does_not_start_is_not_waited_for_for_ever(
    listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_over = threading.Event()

    async def start_too_late(*_given: object, **_options: object) -> None:
        await asyncio.to_thread(is_over.wait, WAIT_S)
        raise OSError

    monkeypatch.setattr(asyncio, "start_server", start_too_late)
    monkeypatch.setattr(waiting_page, "START_TIMEOUT_S", 0.01)
    with pytest.raises(ChatCacheError, match="did not start within"):
        WaitingPage(listener)
    is_over.set()


def test_a_page_whose_server_does_not_start_is_not_waited_for_for_ever(
    listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app, "build_app", lambda _service, _hosts: FastAPI())
    monkeypatch.setattr(app._Server, "run", lambda _server, **_options: None)
    monkeypatch.setattr(app, "START_TIMEOUT_S", 0.01)
    with pytest.raises(ChatCacheError, match="did not start within"):
        PageServer(SimpleNamespace(), listener)


@pytest.mark.browser
def test_a_browser_that_came_too_early_gets_the_page_by_itself(
    page: Page, listener: socket.socket, tiny_llama: LoadedModel, tmp_path: Path
) -> None:
    with WaitingPage(listener) as waiting, open_service(tiny_llama, tmp_path) as service:
        page.goto(url_of(listener))
        expect(page.get_by_role("status")).to_contain_text("chatcache is starting")
        server = PageServer(service, listener)
        waiting.close()
        expect(box(page)).to_be_enabled()
        server.close()


@pytest.mark.browser
def test_a_page_that_was_open_takes_a_server_that_is_starting_for_none(
    page: Page, tiny_llama: LoadedModel, tmp_path: Path
) -> None:
    with open_service(tiny_llama, tmp_path) as service, served(service) as site:
        port = int(site.url.rstrip("/").rpartition(":")[2])
        open_chat(page, site, SHORT, "A question.")
    lost = page.get_by_role("alert").filter(has_text="Connection lost")
    expect(lost).to_be_visible()
    with socket.create_server(("127.0.0.1", port)) as listener, WaitingPage(listener):
        with page.expect_response(lambda response: response.status == 503):
            pass
        expect(lost).to_be_visible()
    with open_service(tiny_llama, tmp_path) as service, served(service, port):
        expect(lost).to_be_hidden()
        expect(replies(page)).to_have_count(1)
