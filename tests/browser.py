"""A running page, a real Chromium that looks at it, and what a person does there: for all tests of the page."""

from __future__ import annotations

import re
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, Locator, Page, expect, sync_playwright
from services import open_service

from chatcache.chat import ChatService
from chatcache.loader import LoadedModel
from chatcache.stats import Sampling
from chatcache.ui.app import PageServer
from tools.browser import ensure_browser

SCREENSHOTS = Path(__file__).parent / "output"
CHROMIUM_FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
SHORT = Sampling(temperature=0.0, max_new_tokens=6)
LONG = Sampling(temperature=0.0, max_new_tokens=2000)
STORY = "Write a long story about the sea and the people who live near it."
WAIT_MS = 30_000


@dataclass(frozen=True)
class Site:
    """A running page and the service behind it."""

    service: ChatService
    url: str

    def address(self, session_id: str) -> str:
        return f"{self.url}?session={session_id}"

    def tip_text(self, session_id: str) -> str:
        return self.service.messages(session_id)[-1].text


@contextmanager
def served(service: ChatService, port: int = 0) -> Iterator[Site]:
    """A page over the service, on a free port unless one is named."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GRADIO_ANALYTICS_CACHE_FREQUENCY", str(sys.maxsize))  # as app.py does
        server = PageServer(service, socket.create_server(("127.0.0.1", port)))
        try:
            yield Site(service, f"http://127.0.0.1:{server.port}/")
        finally:
            server.close()


@pytest.fixture(scope="module")
def site(
    request: pytest.FixtureRequest, embedded: LoadedModel, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Site]:
    request.getfixturevalue("browser")  # where no event loop runs yet, Gradio makes some that nobody closes
    with (
        open_service(embedded, tmp_path_factory.mktemp("browser"), max_concurrent_turns=3) as service,
        served(service) as site,
    ):
        yield site


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=ensure_browser(), args=CHROMIUM_FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def context(browser: Browser) -> Iterator[BrowserContext]:
    context = browser.new_context(viewport={"width": 1280, "height": 800}, locale="en-US")
    context.set_default_timeout(WAIT_MS)
    yield context
    context.close()


@pytest.fixture
def page(context: BrowserContext) -> Page:
    return context.new_page()


expect.set_options(timeout=WAIT_MS)


def button(page: Page, name: str) -> Locator:
    return page.get_by_role("button", name=name, exact=True)


def box(page: Page) -> Locator:
    return page.get_by_role("textbox", name="Message")


def replies(page: Page) -> Locator:
    return page.get_by_role("article", name="Model")


def say(page: Page, text: str) -> None:
    box(page).fill(text)
    box(page).press("Enter")


def open_chat(page: Page, site: Site, sampling: Sampling, *messages: str) -> str:
    """A chat with these messages and their replies, shown on the page."""
    session = site.service.create_session(sampling=sampling)
    for message in messages:
        site.service.send(session.id, message).result(60)
    page.goto(site.address(session.id))
    expect(replies(page)).to_have_count(len(messages))
    return session.id


def session_in_address(page: Page) -> str:
    match = re.search(r"[?&]session=([0-9a-f-]{36})", page.url)
    assert match, page.url
    return match[1]


def end_reply(site: Site, session_id: str) -> None:
    """Stop what is being written, if it has not ended by itself: a click on Stop could come too late."""
    if (turn := site.service.active_turn(session_id)) is not None:
        turn.stop()
        turn.result(60)


def shown_text(page: Page) -> str:
    """The last reply as it stands, without what the page adds."""
    return replies(page).last.locator(".prose").inner_text()
