"""The page in a real Chromium: every test clicks and reads what a person would, over the real service."""

from __future__ import annotations

import json
import time
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from browser import (
    LONG,
    SHORT,
    STORY,
    WAIT_MS,
    Site,
    box,
    button,
    end_reply,
    open_chat,
    replies,
    say,
    session_in_address,
    shown_text,
)
from playwright.sync_api import Browser, BrowserContext, Page, expect

from chatcache.stats import Sampling

pytestmark = pytest.mark.browser


def test_a_first_message_is_streamed_answered_and_gets_an_address(page: Page, site: Site) -> None:
    page.goto(site.url)
    expect(page.get_by_text("What would you like to talk about?")).to_be_visible()
    expect(button(page, "Stop")).to_be_hidden()
    box(page).fill("Say hello.")
    box(page).press("Shift+Enter")
    box(page).press_sequentially("In two lines.")
    button(page, "Send").click()
    expect(button(page, "Stop")).to_be_visible()
    expect(button(page, "Send")).to_be_hidden()
    expect(box(page)).to_have_value("")
    expect(page.get_by_role("article", name="You")).to_contain_text("In two lines.")
    expect(replies(page).locator(".prose")).not_to_be_empty()
    page.wait_for_url("**?session=*")
    session_id = session_in_address(page)
    end_reply(site, session_id)
    expect(button(page, "Regenerate")).to_be_visible()
    assert site.service.messages(session_id)[0].text == "Say hello.\nIn two lines."
    chats = page.get_by_role("list", name="Chats")
    expect(chats.get_by_role("link", name="Say hello.")).to_have_attribute("aria-current", "page")


def test_text_arrives_while_it_is_written_and_stop_keeps_it(page: Page, site: Site) -> None:
    session_id = open_chat(page, site, LONG)
    say(page, STORY)
    expect(replies(page).locator(".prose")).not_to_be_empty()
    seen = {len(shown_text(page))}
    deadline = time.monotonic() + 20
    while len(seen) < 5 and time.monotonic() < deadline:
        seen.add(len(shown_text(page)))
    assert len(seen) >= 5, "the text did not grow on the page"
    button(page, "Stop").click()
    expect(button(page, "Continue")).to_be_visible()
    expect(page.get_by_text("Stopped.")).to_be_visible()
    kept = site.tip_text(session_id)
    assert len(kept) >= max(seen) - 5
    button(page, "Continue").click()
    expect(button(page, "Stop")).to_be_visible()
    page.wait_for_function(
        "n => document.querySelector('.message.live .prose')?.innerText.length > n", arg=len(kept) + 20
    )
    assert shown_text(page).split()[:5] == kept.split()[:5]
    button(page, "Stop").click()
    expect(button(page, "Regenerate")).to_be_visible()
    assert site.tip_text(session_id).startswith(kept)
    assert len(site.service.messages(session_id)) == 2


def test_regenerate_keeps_the_old_reply_within_reach(page: Page, site: Site) -> None:
    session_id = open_chat(page, site, Sampling(temperature=1.0, max_new_tokens=6), "Name a colour.")
    first = site.service.messages(session_id)[-1]
    expect(button(page, "Previous reply")).to_have_count(0)
    button(page, "Regenerate").click()
    expect(page.get_by_text("2 of 2")).to_be_visible()
    expect(page.get_by_role("region", name="Cache")).to_contain_text("1 computed")
    expect(button(page, "Next reply")).to_be_disabled()
    button(page, "Previous reply").click()
    expect(page.get_by_text("1 of 2")).to_be_visible()
    assert site.service.get_session(session_id).tip_id == first.id
    expect(button(page, "Previous reply")).to_be_disabled()
    button(page, "Next reply").click()
    expect(page.get_by_text("2 of 2")).to_be_visible()
    assert len(site.service.alternatives(first.id)) == 2


def test_roll_back_puts_the_text_into_the_box_and_undo_brings_the_turn_back(page: Page, site: Site) -> None:
    session_id = open_chat(page, site, SHORT, "First question.", "Second question.")
    tip = site.service.get_session(session_id).tip_id
    button(page, "Roll back").click()
    expect(box(page)).to_have_value("Second question.")
    expect(box(page)).to_be_focused()
    expect(replies(page)).to_have_count(1)
    button(page, "Undo").click()
    expect(replies(page)).to_have_count(2)
    expect(box(page)).to_have_value("")
    assert site.service.get_session(session_id).tip_id == tip


def test_what_was_rolled_back_is_one_step_forward_each_also_after_a_reload_and_in_another_tab(
    page: Page, context: BrowserContext, site: Site
) -> None:
    session_id = open_chat(page, site, SHORT, "First question.", "Second question.")
    forward = button(page, "Forward")
    expect(forward).to_have_count(0)
    button(page, "Roll back").click()
    expect(replies(page)).to_have_count(1)
    button(page, "Roll back").click()
    expect(page.get_by_text("before the first message")).to_be_visible()
    button(page, "Dismiss").click()
    page.reload()
    expect(box(page)).to_have_value("First question.")
    forward.focus()
    page.keyboard.press("Enter")
    expect(replies(page)).to_have_count(1)
    expect(box(page)).to_have_value("Second question.")
    expect(forward).to_be_focused()
    other = context.new_page()
    other.goto(site.address(session_id))
    button(other, "Forward").click()
    expect(replies(page)).to_have_count(2)
    expect(forward).to_have_count(0)
    assert site.service.undone(session_id) is None


def test_a_chat_opens_at_its_end(page: Page, site: Site) -> None:
    failures: list[str] = []
    page.on("pageerror", lambda error: failures.append(str(error)))
    open_chat(page, site, SHORT, *(f"Question {number}." for number in range(8)))
    page.wait_for_function(
        "() => { const talk = document.getElementById('conversation');"
        " const below = talk.scrollHeight - talk.scrollTop - talk.clientHeight;"
        " return talk.scrollTop > 100 && below < 80 }"
    )
    assert not failures


def test_roll_back_does_not_overwrite_what_is_being_typed(page: Page, site: Site) -> None:
    open_chat(page, site, SHORT, "First question.")
    box(page).fill("my draft")
    button(page, "Roll back").click()
    expect(box(page)).to_have_value("First question.\n\nmy draft")
    expect(page.get_by_text("What would you like to talk about?")).to_be_visible()


def test_a_double_click_is_one_step(page: Page, site: Site) -> None:
    session_id = open_chat(page, site, SHORT, "One.", "Two.", "Three.")
    button(page, "Roll back").dblclick()
    expect(replies(page)).to_have_count(2)
    time.sleep(0.5)
    assert len(site.service.messages(session_id)) == 4
    box(page).fill("Four.")
    button(page, "Send").dblclick()
    expect(page.get_by_role("article", name="You")).to_have_count(3)
    expect(button(page, "Regenerate")).to_be_visible()
    expect(replies(page)).to_have_count(3)
    tip = site.service.messages(session_id)[-1]
    assert site.service.turn_stats([tip.id])[tip.id].finish_reason != "cancelled", "the second click stopped the reply"


def test_new_chat_leaves_the_old_one_in_the_list(page: Page, site: Site) -> None:
    session_id = open_chat(page, site, SHORT, "About turtles, please.")
    button(page, "New chat").click()
    expect(replies(page)).to_have_count(0)
    expect(page.get_by_role("heading", name="New chat", level=1)).to_be_visible()
    assert "session=" not in page.url
    say(page, "About whales, please.")
    expect(replies(page).first).to_be_visible()
    page.wait_for_url("**?session=*")
    assert session_in_address(page) != session_id
    chats = page.get_by_role("list", name="Chats")
    expect(chats.get_by_role("link", name="About whales, please.")).to_be_visible()  # the list moves until it is there
    chats.get_by_role("link", name="About turtles, please.").click()
    expect(page.get_by_role("article", name="You")).to_have_text("About turtles, please.")
    assert session_in_address(page) == session_id
    page.go_back()
    expect(page.get_by_role("article", name="You")).to_have_text("About whales, please.")
    end_reply(site, session_in_address(page))


def test_reloading_in_mid_reply_shows_the_text_so_far_and_goes_on(page: Page, site: Site) -> None:
    session_id = open_chat(page, site, LONG)
    say(page, STORY)
    page.wait_for_function("document.querySelector('.message.live .prose')?.innerText.length > 60")
    before = shown_text(page)
    page.reload()
    page.wait_for_function("n => document.querySelector('.message.live .prose')?.innerText.length > n", arg=len(before))
    assert shown_text(page).startswith(before[:40])
    expect(button(page, "Stop")).to_be_visible()
    turn = site.service.active_turn(session_id)
    assert turn is not None
    assert not turn.stop_requested
    button(page, "Stop").click()
    expect(button(page, "Continue")).to_be_visible()


def test_a_tab_that_is_closed_stops_nothing(page: Page, context: BrowserContext, site: Site) -> None:
    session_id = open_chat(page, site, Sampling(temperature=0.0, max_new_tokens=60))
    say(page, STORY)
    expect(replies(page).locator(".prose")).not_to_be_empty()
    page.close()
    turn = site.service.active_turn(session_id)
    assert turn is not None
    reply = turn.result(60)
    assert reply.stats.finish_reason == "length"
    again = context.new_page()
    again.goto(site.address(session_id))
    expect(replies(again)).to_have_count(1)
    expect(button(again, "Regenerate")).to_be_visible()


def test_a_lost_connection_is_said_and_heals(page: Page, context: BrowserContext, site: Site) -> None:
    session_id = open_chat(page, site, LONG)
    say(page, STORY)
    expect(button(page, "Stop")).to_be_visible()
    lost = page.get_by_role("alert").filter(has_text="Connection lost")
    expect(lost).to_be_hidden()
    context.set_offline(True)
    expect(lost).to_be_visible()
    expect(button(page, "Stop")).to_be_hidden()
    context.set_offline(False)
    expect(lost).to_be_hidden()
    page.route("**/favicon.ico", lambda _never_answered: None)
    expect(lost).to_be_visible()
    page.unroute("**/favicon.ico")
    expect(lost).to_be_hidden()
    expect(page.locator(".toast-body")).to_be_hidden()
    expect(button(page, "Stop")).to_be_visible()
    turn = site.service.active_turn(session_id)
    assert turn is not None
    button(page, "Stop").click()
    expect(button(page, "Continue")).to_be_visible()


def test_what_does_not_reach_the_server_is_said_at_once_and_stays_in_the_box(
    page: Page, context: BrowserContext, site: Site
) -> None:
    page.add_init_script(
        "const again = setInterval; setInterval = (call, ms, ...rest) => (ms === 3000 ? 0 : again(call, ms, ...rest));"
    )
    open_chat(page, site, SHORT, "One.")
    lost = page.get_by_role("alert").filter(has_text="Connection lost")
    box(page).fill("Two.")
    page.wait_for_timeout(1000)
    context.set_offline(True)
    expect(lost).to_be_hidden()
    box(page).press("Enter")
    expect(lost).to_be_visible()
    expect(box(page)).to_have_value("Two.")
    context.set_offline(False)
    page.reload()
    expect(lost).to_be_hidden()
    expect(box(page)).to_have_value("Two.")
    expect(replies(page)).to_have_count(1)


def test_two_tabs_on_one_session_stay_in_step(page: Page, context: BrowserContext, site: Site) -> None:
    session_id = open_chat(page, site, LONG)
    other = context.new_page()
    other.goto(site.address(session_id))
    expect(other.get_by_text("What would you like to talk about?")).to_be_visible()
    say(page, STORY)
    expect(button(other, "Stop")).to_be_visible()
    expect(replies(other).locator(".prose")).not_to_be_empty()
    say(other, "Me too!")
    waits = other.get_by_role("status").get_by_text("Your message stays in the box")
    expect(waits).to_be_visible()
    expect(other.get_by_role("alert")).to_have_count(0)
    expect(box(other)).to_have_value("Me too!")
    button(other, "Stop").click()
    expect(button(page, "Regenerate")).to_be_visible()
    expect(waits).to_be_hidden()
    expect(box(other)).to_have_value("Me too!")
    button(page, "Roll back").click()
    expect(replies(other)).to_have_count(0)


def test_three_tabs_stream_at_once(context: BrowserContext, site: Site) -> None:
    tabs = [context.new_page() for _ in range(3)]
    sessions = [open_chat(tab, site, LONG) for tab in tabs]
    for tab in tabs:
        say(tab, STORY)
    for tab in tabs:
        expect(replies(tab).locator(".prose")).not_to_be_empty()
    assert all(site.service.active_turn(session_id) for session_id in sessions)
    before = [len(shown_text(tab)) for tab in tabs]
    for tab, length in zip(tabs, before, strict=True):
        tab.wait_for_function("n => document.querySelector('.message.live .prose').innerText.length > n", arg=length)
    assert all(site.service.active_turn(session_id) for session_id in sessions), "one tab had to wait for another"
    for tab in tabs:
        button(tab, "Stop").click()
        expect(button(tab, "Continue")).to_be_visible()


def test_moving_to_another_chat_takes_no_text_along(page: Page, site: Site) -> None:
    quiet = open_chat(page, site, SHORT, "A quiet chat.")
    busy = open_chat(page, site, LONG)
    say(page, STORY)
    expect(replies(page).locator(".prose")).not_to_be_empty()
    chats = page.get_by_role("list", name="Chats")
    for _ in range(3):
        chats.get_by_role("link", name="A quiet chat.").first.click()
        expect(page.get_by_role("article", name="You")).to_have_text("A quiet chat.")
        expect(replies(page)).to_have_count(1)
        time.sleep(0.3)
        assert shown_text(page).strip() == site.tip_text(quiet).strip()
        assert session_in_address(page) == quiet
        chats.get_by_role("link", name="Write a long story").first.click()
        expect(button(page, "Stop")).to_be_visible()
        expect(page.get_by_role("article", name="You")).to_have_text(STORY)
    assert session_in_address(page) == busy
    button(page, "Stop").click()
    expect(button(page, "Continue")).to_be_visible()


def test_an_unknown_address_is_a_sentence_and_a_fresh_start(page: Page, site: Site) -> None:
    for unknown in ("00000000-0000-4000-8000-000000000000", "nonsense", "%3Cscript%3E"):
        page.goto(f"{site.url}?session={unknown}")
        expect(page.get_by_role("alert")).to_contain_text("no chat at this address")
        expect(box(page)).to_be_editable()
        assert "session=" not in page.url


def test_a_tab_that_begins_without_a_chat_lists_the_chats_there_are(page: Page, site: Site) -> None:
    session = site.service.create_session(title="An older chat about lamps")
    listed = page.get_by_role("list", name="Chats").get_by_role("link", name="An older chat about lamps")
    for address in (site.url, f"{site.url}?session=nonsense"):
        page.goto(address)
        expect(listed).to_be_visible(timeout=10_000)  # less than the list's own interval
        page.reload()
        expect(listed).to_be_visible(timeout=10_000)
    site.service.delete(session.id)


def test_the_address_leads_to_a_chat_while_its_first_reply_is_written(page: Page, site: Site) -> None:
    page.goto(site.url)
    say(page, STORY)
    page.wait_for_function("document.querySelector('.message.live .prose')?.innerText.length > 20")
    session_id = session_in_address(page)
    assert site.service.active_turn(session_id) is not None
    page.reload()
    expect(page.get_by_role("article", name="You")).to_have_text(STORY)
    end_reply(site, session_id)
    expect(button(page, "Roll back")).to_be_visible()


def test_a_chat_begun_here_and_deleted_is_named_and_comes_back(page: Page, site: Site) -> None:
    page.goto(site.url)
    say(page, "Say hello to the lighthouse keeper.")
    page.wait_for_url("**?session=*")
    session_id = session_in_address(page)
    end_reply(site, session_id)
    expect(button(page, "Regenerate")).to_be_visible()
    button(page, "Delete").click()
    expect(page.get_by_role("heading", name="New chat", level=1)).to_be_visible()
    time.sleep(1)  # whatever still looked at the deleted chat has said so
    expect(page.get_by_role("status").filter(has_text="is in the bin")).to_contain_text("lighthouse keeper")
    button(page, "Undo").click()
    expect(page.get_by_role("article", name="You")).to_have_text("Say hello to the lighthouse keeper.")
    expect(page.get_by_text("is in the bin")).to_have_count(0)
    assert session_in_address(page) == session_id
    assert site.service.get_session(session_id).deleted_at is None


def test_what_cannot_be_sent_stays_in_the_box(page: Page, site: Site) -> None:
    session_id = open_chat(page, site, SHORT)
    say(page, "   ")
    expect(page.get_by_role("alert")).to_contain_text("nothing to send")
    too_long = "many words " * 20_000
    say(page, too_long)
    expect(page.get_by_role("alert")).to_contain_text("context")
    expect(box(page)).to_have_value(too_long)
    assert site.service.messages(session_id) == ()
    page.goto(site.url)
    expect(box(page)).to_be_visible()
    before = len(site.service.sessions(limit=1000))
    say(page, too_long)
    expect(page.get_by_role("alert")).to_contain_text("context")
    assert len(site.service.sessions(limit=1000)) == before, "a refused first message left an empty chat"
    assert "session=" not in page.url


def test_rename_pin_delete_and_undo(page: Page, site: Site) -> None:
    session_id = open_chat(page, site, SHORT, "Something to rename.")
    chats = page.get_by_role("list", name="Chats")
    button(page, "Rename").click()
    title = page.get_by_role("textbox", name="Title")
    expect(title).to_have_value("Something to rename.")
    title.fill("<b>Renamed</b>")
    title.press("Enter")
    expect(page.get_by_role("heading", name="<b>Renamed</b>", level=1)).to_be_visible()
    expect(chats.get_by_role("link", name="<b>Renamed</b>")).to_be_visible()
    button(page, "Pin").click()
    expect(button(page, "Unpin")).to_be_visible()
    expect(chats.get_by_role("link").first).to_contain_text("<b>Renamed</b>")
    button(page, "Delete").click()
    expect(page.get_by_role("status").filter(has_text="is in the bin")).to_be_visible()
    expect(page.get_by_role("heading", name="New chat", level=1)).to_be_visible()
    expect(chats.get_by_role("link", name="<b>Renamed</b>")).to_have_count(0)
    assert site.service.get_session(session_id).deleted_at is not None
    button(page, "Undo").click()
    expect(page.get_by_role("heading", name="<b>Renamed</b>", level=1)).to_be_visible()
    assert site.service.get_session(session_id).deleted_at is None
    site.service.update_session(session_id, pinned=False)


def test_search_finds_chats(page: Page, site: Site) -> None:
    open_chat(page, site, SHORT, "Tell me about hedgehogs.")
    chats = page.get_by_role("list", name="Chats")
    search = page.get_by_role("textbox", name="Search chats")
    search.fill("hedgehogs")
    expect(chats.get_by_role("link")).to_have_count(1)
    search.fill("no such words anywhere")
    expect(chats.get_by_role("link")).to_have_count(0)
    expect(page.get_by_text("No chat matches")).to_be_visible()
    search.fill("")
    expect(chats.get_by_role("link", name="Tell me about hedgehogs.").first).to_be_visible()


def test_an_exported_chat_can_be_imported(page: Page, site: Site, tmp_path: Path) -> None:
    session_id = open_chat(page, site, SHORT, "Keep this / safe: “please”.")
    with page.expect_download() as download:
        button(page, "Export").click()
    file = tmp_path / download.value.suggested_filename
    download.value.save_as(file)
    assert file.name == "Keep-this-safe-please.json"
    assert json.loads(file.read_text(encoding="utf-8"))["session"]["id"] == session_id
    site.service.delete(session_id)
    site.service.purge(session_id)
    page.goto(site.url)
    expect(box(page)).to_be_visible()
    page.locator("input[type=file]").set_input_files(file)
    expect(page.get_by_role("status").filter(has_text="was imported")).to_be_visible()
    expect(page.get_by_role("article", name="You")).to_have_text("Keep this / safe: “please”.")
    broken = tmp_path / "broken.json"
    broken.write_bytes(b'{"format": \xff')
    page.locator("input[type=file]").set_input_files(broken)
    expect(page.get_by_role("alert")).to_be_visible()


def test_hostile_text_stays_text_and_the_page_talks_to_no_other_host(page: Page, site: Site) -> None:
    hosts: set[str] = set()
    page.on("request", lambda request: hosts.add(request.url.split("/")[2]) if "//" in request.url else None)
    alarms: list[str] = []
    page.on("dialog", lambda dialog: (alarms.append(dialog.message), dialog.dismiss()))
    hostile = (
        "<script>alert(1)</script><img src=x onerror=alert(2)> ${alert(3)} {{constructor}} `${alert(4)}` "
        "[link](javascript:alert(5)) ![picture](http://elsewhere.example/p.png) <iframe src=//elsewhere.example>"
    )
    session_id = open_chat(page, site, SHORT, hostile)
    tip = site.service.messages(session_id)[-1]
    site.service.edit(tip.id, hostile)
    expect(page.get_by_text("2 of 2")).to_be_visible()
    expect(page.get_by_role("article", name="You")).to_have_text(hostile)
    expect(replies(page).last).to_contain_text("<script>alert(1)</script><img src=x onerror=alert(2)> ${alert(3)}")
    for selector in ("script", "img", "iframe", "a[href^='javascript']"):
        assert page.locator(f"#conversation {selector}").count() == 0
    assert alarms == []
    assert hosts == {site.url.split("/")[2]}


@pytest.mark.parametrize(("host", "status"), [("localhost", 200), ("127.0.0.1", 200), ("elsewhere.example", 400)])
def test_a_name_that_somebody_else_leads_here_is_not_answered(site: Site, host: str, status: int) -> None:
    address = urlsplit(site.url)
    with closing(HTTPConnection(address.hostname, address.port, timeout=10)) as connection:
        connection.request("GET", "/", headers={"Host": f"{host}:{address.port}"})
        assert connection.getresponse().status == status


def test_the_cache_region_says_what_the_service_counted(page: Page, site: Site) -> None:
    session_id = open_chat(page, site, SHORT, "One question.", "Another question.")
    tip = site.service.messages(session_id)[-1]
    stats = site.service.turn_stats([tip.id])[tip.id]
    region = page.get_by_role("region", name="Cache")
    expect(region).to_contain_text(
        f"{stats.num_cached_tokens:,} of {stats.num_prompt_tokens:,} tokens reused from memory"
    )
    expect(region).to_contain_text(f"{stats.num_computed_tokens:,} computed")
    expect(region).to_contain_text(f"{site.service.cache_report(session_id).num_tokens:,} tokens, ")
    expect(region.get_by_role("img", name=f"{stats.num_cached_tokens:,} reused")).to_be_visible()


def test_long_chats_are_shown_in_pages(page: Page, site: Site) -> None:
    session_id = open_chat(page, site, Sampling(temperature=0.0, max_new_tokens=1))
    for number in range(23):
        site.service.send(session_id, f"Message number {number}.").result(60)
    page.goto(site.address(session_id))
    expect(replies(page)).to_have_count(20)
    mine = page.get_by_role("article", name="You")
    expect(mine.first).to_have_text("Message number 3.")
    button(page, "Show earlier messages").click()
    expect(mine).to_have_count(23)
    expect(mine.first).to_have_text("Message number 0.")
    expect(button(page, "Show earlier messages")).to_have_count(0)


@pytest.mark.parametrize(("width", "height"), [(1280, 800), (390, 844)])
def test_the_page_fits_wide_and_narrow(browser: Browser, site: Site, width: int, height: int) -> None:
    context = browser.new_context(viewport={"width": width, "height": height}, locale="en-US")
    context.set_default_timeout(WAIT_MS)
    try:
        page = context.new_page()
        session = site.service.create_session(sampling=Sampling(temperature=0.0, max_new_tokens=16))
        site.service.send(session.id, "What is a key/value cache?").result(60)
        site.service.regenerate(session.id).result(60)
        page.goto(site.address(session.id))
        expect(page.get_by_text("2 of 2")).to_be_visible()
        expect(button(page, "Send")).to_be_in_viewport(ratio=1)
        expect(box(page)).to_be_in_viewport(ratio=1)
        expect(page.get_by_role("region", name="Cache")).to_be_in_viewport()
        for name in ("Regenerate", "Roll back", "Continue", "Previous reply"):
            expect(button(page, name)).to_be_in_viewport(ratio=1)
        if width < 500:
            expect(button(page, "Rename")).to_be_hidden()
            button(page, "Chat menu").click()
            expect(button(page, "Rename")).to_be_focused()
        for name in ("Rename", "Pin", "Delete", "Export"):
            expect(button(page, name)).to_be_in_viewport(ratio=1)
        if width < 500:
            page.keyboard.press("Escape")
            expect(button(page, "Rename")).to_be_hidden()
            expect(button(page, "Chat menu")).to_be_focused()
        assert page.evaluate("document.documentElement.scrollWidth") == width
        assert page.evaluate("document.documentElement.scrollHeight") <= height
        if width < 500:
            expect(page.get_by_role("textbox", name="Search chats")).not_to_be_in_viewport()
            button(page, "Toggle Sidebar").click()
            expect(page.get_by_role("textbox", name="Search chats")).to_be_in_viewport(ratio=1)
            button(page, "New chat").click()
            expect(page.get_by_role("textbox", name="Search chats")).not_to_be_in_viewport()
            expect(page.get_by_text("What would you like to talk about?")).to_be_in_viewport(ratio=1)
            page.go_back()
            expect(page.get_by_text("2 of 2")).to_be_visible()
    finally:
        context.close()


def test_a_turkish_browser_is_led_to_the_turkish_page_and_back_to_its_chat(browser: Browser, site: Site) -> None:
    session = site.service.create_session(title="Merhaba", sampling=Sampling(max_new_tokens=8))
    context = browser.new_context(locale="tr-TR")
    page = context.new_page()
    page.goto(site.address(session.id))
    expect(page).to_have_url(f"{site.url}tr/?session={session.id}")
    expect(page.get_by_role("heading", name="Merhaba")).to_be_visible()
    page.get_by_role("textbox", name="İleti").fill("Selam")
    button(page, "Gönder").click()
    expect(button(page, "Yeniden üret")).to_be_visible()
    expect(page.get_by_role("region", name="Önbellek")).to_contain_text("hesaplandı")
    context.close()
