"""A browser for the rows that measure what a person sees."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from bench.subjects import BenchError
from chatcache.chat import ChatService
from chatcache.ui.app import PageServer
from tools.browser import find_browser

if TYPE_CHECKING:
    from playwright.sync_api import Page

WAIT_MS = 120_000


@contextmanager
def browser_tab() -> Iterator[Page]:
    """A tab of the installed Chromium or Chrome. Raises BenchError where there is none."""
    try:
        from playwright.sync_api import sync_playwright
    except ImportError as error:
        raise BenchError("The page needs Playwright: pip install -r requirements-dev.txt.") from error
    browser_path = find_browser()
    if browser_path is None:
        raise BenchError("No Chromium or Chrome is installed; python -m tools.browser gets one.")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=browser_path, args=["--no-sandbox", "--disable-gpu"])
        try:
            page = browser.new_page()
            page.set_default_timeout(WAIT_MS)
            yield page
        finally:
            browser.close()


@contextmanager
def served(service: ChatService) -> Iterator[str]:
    """The address of a page over the service."""
    os.environ.setdefault("GRADIO_ANALYTICS_CACHE_FREQUENCY", str(sys.maxsize))  # as app.py does
    server = PageServer(service, socket.create_server(("127.0.0.1", 0)))
    try:
        yield f"http://127.0.0.1:{server.port}/"
    finally:
        server.close()
