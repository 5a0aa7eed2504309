"""Tabs that have not seen yet what another one did, and the one stream of events of each, in a real Chromium."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
from browser import SHORT, Site, box, button, open_chat, replies, say
from playwright.sync_api import BrowserContext, Page, expect

pytestmark = pytest.mark.browser

MOVED_ON = "moved on in another window"


@pytest.fixture
def hear(site: Site, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Until it is called, no tab hears of any change after it was opened."""
    wait_for_change, hears = site.service.wait_for_change, threading.Event()

    def deaf(session_id: str, since: int, timeout_s: float) -> int:
        return wait_for_change(session_id, since, timeout_s) if hears.wait(0.2) else since

    monkeypatch.setattr(site.service, "wait_for_change", deaf)
    return hears.set


def wait_for_the_reply(page: Page, site: Site, session_id: str) -> None:
    while site.service.active_turn(session_id) is not None:
        page.wait_for_timeout(50)


# ----------------------------------------------------------------- two windows


def test_what_is_sent_into_a_chat_that_looked_empty_is_refused_where_another_tab_has_sent(
    page: Page, context: BrowserContext, site: Site, hear: Callable[[], None]
) -> None:
    session_id, other = open_chat(page, site, SHORT), context.new_page()
    other.goto(site.address(session_id))
    expect(other.get_by_text("What would you like to talk about?")).to_be_visible()
    say(page, "One.")
    expect(box(page)).to_have_value("")
    wait_for_the_reply(page, site, session_id)
    say(other, "Two.")
    expect(other.get_by_role("alert")).to_contain_text(MOVED_ON)
    expect(box(other)).to_have_value("Two.")
    assert [message.text for message in site.service.messages(session_id)[::2]] == ["One."]
    hear()
    expect(replies(other)).to_have_count(1)
    box(other).press("Enter")
    expect(replies(page)).to_have_count(2)
    assert [message.text for message in site.service.messages(session_id)[::2]] == ["One.", "Two."]


@pytest.mark.parametrize(("edited", "moved"), [("Edit message", "Roll back"), ("Edit reply", "Regenerate")])
def test_an_edit_of_what_another_tab_has_moved_away_from_is_refused_and_its_text_kept(
    page: Page, context: BrowserContext, site: Site, hear: Callable[[], None], edited: str, moved: str
) -> None:
    session_id, other = open_chat(page, site, SHORT, "One.", "Two."), context.new_page()
    other.goto(site.address(session_id))
    button(other, edited).last.click()
    editor = other.get_by_role("textbox", name=edited)
    editor.fill("Written anew")
    tip_id = site.service.get_session(session_id).tip_id
    button(page, moved).click()
    while site.service.get_session(session_id).tip_id == tip_id or site.service.active_turn(session_id) is not None:
        page.wait_for_timeout(50)
    before = site.service.get_session(session_id)
    editor.press("Control+Enter")
    expect(other.get_by_role("alert")).to_contain_text(MOVED_ON)
    expect(editor).to_have_value("Written anew")
    assert site.service.get_session(session_id) == before
    hear()
    expect(editor).to_have_count(0)
    expect(box(other)).to_have_value("Written anew")


def test_an_edit_that_was_refused_is_saved_once_the_tab_shows_what_the_other_one_did(
    page: Page, context: BrowserContext, site: Site, hear: Callable[[], None]
) -> None:
    session_id, other = open_chat(page, site, SHORT, "One."), context.new_page()
    other.goto(site.address(session_id))
    button(other, "Edit message").click()
    editor = other.get_by_role("textbox", name="Edit message")
    editor.fill("Uno.")
    say(page, "Two.")
    expect(box(page)).to_have_value("")
    wait_for_the_reply(page, site, session_id)
    button(other, "Save and send").click()
    expect(other.get_by_role("alert")).to_contain_text(MOVED_ON)
    hear()
    expect(replies(other)).to_have_count(2)
    expect(editor).to_have_value("Uno.")
    button(other, "Save and send").click()
    expect(replies(page)).to_have_count(1)
    assert site.service.messages(session_id)[0].text == "Uno."


# ------------------------------------------------------------------- the stream


def test_a_tab_has_one_stream_of_events_from_the_beginning_on(page: Page, site: Site) -> None:
    """Gradio's server ends the stream of a tab that waits for nothing, and what the tab asks in that moment is lost to
    it until it asks again: its message box stayed closed."""
    streams: list[str] = []
    page.on("request", lambda request: streams.append(request.url) if "/queue/data" in request.url else None)
    open_chat(page, site, SHORT, "One.")
    expect(box(page)).to_be_enabled()
    button(page, "New chat").click()
    expect(page.get_by_role("heading", name="New chat", level=1)).to_be_visible()
    box(page).fill("Some words.")
    expect(page.locator("#tally")).to_contain_text("typed")
    box(page).press("Enter")
    expect(replies(page)).to_have_count(1)
    assert len(streams) == 1
