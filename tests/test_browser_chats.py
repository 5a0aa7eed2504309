"""The list of chats, the bin, forks and files, in a real Chromium."""

from __future__ import annotations

import copy
import json
import re
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from browser import SHORT, Site, box, button, end_reply, open_chat, replies, say, session_in_address
from playwright.sync_api import Browser, Locator, Page, expect

from chatcache.stats import Sampling

pytestmark = pytest.mark.browser


@pytest.fixture(autouse=True)
def an_empty_shelf(site: Site) -> Iterator[None]:
    """Each test sees its own chats only."""
    yield
    for session in site.service.sessions(limit=10_000):
        site.service.delete(session.id)
    for session in site.service.sessions(deleted=True, limit=10_000):
        site.service.purge(session.id)


@pytest.fixture(scope="module")
def exported(site: Site) -> dict[str, Any]:
    """A chat of one turn, as its file says it."""
    session = site.service.create_session(sampling=SHORT)
    site.service.send(session.id, "Say hello.").result(60)
    data: dict[str, Any] = json.loads(site.service.export(session.id))
    site.service.delete(session.id)
    site.service.purge(session.id)
    return data


def chat_file(exported: dict[str, Any], title: str, **fields: Any) -> str:
    """The file of another chat with the same messages."""
    data = copy.deepcopy(exported)
    text = json.dumps(data)
    for record in (data["session"], *data["messages"], *data["turns"]):
        text = text.replace(record["id"], str(uuid.uuid4()))
    data = json.loads(text)
    data["session"] |= {"title": title, "pinned": False, **fields}
    return json.dumps(data)


def chats(page: Page) -> Locator:
    return page.get_by_role("list", name="Chats").get_by_role("link")


def in_bin(page: Page) -> Locator:
    return page.get_by_role("list", name="Bin").get_by_role("link")


def told(page: Page) -> Locator:
    return page.locator("#notice [role=status]")


def choose(page: Page, *files: Path) -> None:
    with page.expect_file_chooser() as chooser:
        button(page, "Import").click()
    chooser.value.set_files(list(files))


def zone_where_it_is(hour: int) -> str:
    """The name of a time zone in which the clock shows this hour."""
    ahead = (hour - datetime.now(UTC).hour) % 24
    return f"Etc/GMT{-ahead:+d}" if ahead <= 14 else f"Etc/GMT{24 - ahead:+d}"


def test_chats_stand_under_their_days_as_the_persons_calendar_has_them(
    browser: Browser, site: Site, exported: dict[str, Any]
) -> None:
    for title, hours, pinned in (("New", 0, False), ("Fresh", 4, False), ("Older", 96, False), ("Kept", 9999, True)):
        moment = datetime.now(UTC) - timedelta(hours=hours)
        site.service.import_(chat_file(exported, title, updated_at=moment.isoformat(), pinned=pinned))
    for hour, days in (
        (2, ["Pinned", "Today", "Yesterday", "Previous 7 days"]),
        (14, ["Pinned", "Today", "Previous 7 days"]),
    ):
        context = browser.new_context(locale="en-US", timezone_id=zone_where_it_is(hour))
        page = context.new_page()
        page.goto(site.url)
        expect(page.locator("#chats h3")).to_have_text(days)
        expect(chats(page)).to_have_text(["Kept", "New", "Fresh", "Older"])
        context.close()


def test_many_chats_are_listed_in_pages_and_searched_as_one_types(
    page: Page, site: Site, exported: dict[str, Any]
) -> None:
    for number in range(61):
        site.service.import_(chat_file(exported, f"Chat number {number}"))
    page.goto(site.url)
    expect(chats(page)).to_have_count(50)
    button(page, "Show more").click()
    expect(chats(page)).to_have_count(61)
    expect(button(page, "Show more")).to_have_count(0)
    search = page.get_by_role("textbox", name="Search chats")
    search.press_sequentially("number 17")
    expect(chats(page)).to_have_text(["Chat number 17"])
    search.fill("hello")
    expect(chats(page)).to_have_count(61)
    expect(chats(page).first.locator(".excerpt mark").first).to_have_text(re.compile("hello", re.I))
    search.fill("<img src=x onerror=alert(1)> ${1} \"'%_*")
    expect(page.get_by_text("No chat matches “<img src=x onerror=alert(1)> ${1}")).to_be_visible()


def test_a_chat_goes_through_the_bin_and_back_or_for_good(page: Page, site: Site, exported: dict[str, Any]) -> None:
    ids = [site.service.import_(chat_file(exported, title)).session.id for title in ("One", "Two", "Three", "Four")]
    page.goto(site.address(ids[0]))
    button(page, "Delete").click()
    expect(button(page, "Bin (1)")).to_be_visible()
    for session_id in ids[1:3]:
        site.service.delete(session_id)
    page.reload()
    button(page, "Bin (3)").click()
    expect(in_bin(page)).to_have_count(3)
    page.get_by_role("button", name="Restore: One").click()
    expect(chats(page)).to_have_text(["One", "Four"])
    expect(chats(page).first).to_be_focused()
    assert site.service.get_session(ids[0]).deleted_at is None
    button(page, "Bin (2)").click()
    button(page, "New chat").click()
    expect(chats(page)).to_have_text(["One", "Four"])
    button(page, "Bin (2)").click()
    page.get_by_role("button", name="Remove for good: Two").click()
    expect(button(page, "Keep")).to_be_focused()
    page.keyboard.press("Enter")
    expect(button(page, "Keep")).to_have_count(0)
    expect(in_bin(page)).to_have_count(2)
    page.get_by_role("button", name="Remove for good: Two").click()
    expect(page.get_by_text("Remove “Two” for good?")).to_be_visible()
    button(page, "Remove for good").click()
    expect(in_bin(page)).to_have_text(["Three"])
    button(page, "Empty the bin").click()
    button(page, "Remove for good").click()
    expect(page.get_by_text("The bin is empty.")).to_be_visible()
    expect(told(page)).to_have_text("1 chat was removed for good.")
    button(page, "Back to chats").click()
    expect(chats(page)).to_have_text(["One", "Four"])
    assert site.service.sessions(deleted=True) == ()


def test_a_chat_that_is_looked_at_in_the_bin_and_removed_leaves_a_fresh_start(
    page: Page, site: Site, exported: dict[str, Any]
) -> None:
    session_id = site.service.import_(chat_file(exported, "Gone")).session.id
    site.service.delete(session_id)
    page.goto(site.address(session_id))
    expect(told(page)).to_contain_text("is in the bin")
    button(page, "Bin (1)").click()
    page.get_by_role("button", name="Remove for good: Gone").click()
    button(page, "Remove for good").click()
    expect(page.get_by_role("heading", name="New chat", level=1)).to_be_visible()
    assert "session=" not in page.url


def test_a_fork_is_a_new_chat_that_goes_on_from_there(page: Page, site: Site) -> None:
    session_id = open_chat(page, site, SHORT, "First question.", "Second question.")
    button(page, "Fork").first.click()
    expect(told(page)).to_contain_text("new chat")
    expect(replies(page)).to_have_count(1)
    forked = session_in_address(page)
    num_tokens = site.service.context_use(forked).num_fed_tokens
    expect(told(page)).to_contain_text(f"All of its {num_tokens} tokens are reused; none has to be read again.")
    assert forked != session_id
    say(page, "Another question.")
    expect(replies(page)).to_have_count(2)
    expect(button(page, "Regenerate")).to_be_visible()
    assert [m.text for m in site.service.messages(forked)][::2] == ["First question.", "Another question."]
    assert [m.text for m in site.service.messages(session_id)][::2] == ["First question.", "Second question."]


def test_the_title_is_changed_where_it_stands_and_escape_leaves_it(page: Page, site: Site) -> None:
    session_id = open_chat(page, site, SHORT, "A title to keep.")
    title = page.get_by_role("textbox", name="Title")
    button(page, "Rename").focus()
    page.keyboard.press("Enter")
    expect(title).to_be_focused()
    page.keyboard.type("something else")
    page.keyboard.press("Escape")
    expect(title).to_have_count(0)
    expect(button(page, "Rename")).to_be_focused()
    assert site.service.get_session(session_id).title == "A title to keep."


def test_a_chat_is_exported_as_json_and_as_markdown(page: Page, site: Site) -> None:
    session_id = open_chat(page, site, SHORT, "../../etc: `code` and $x^2$")
    for name, form, file in (
        ("Export", "json", "etc-code-and-x-2.json"),
        ("Export as Markdown", "markdown", "etc-code-and-x-2.md"),
    ):
        with page.expect_download() as download:
            button(page, name).click()
        assert download.value.suggested_filename == file
        assert Path(download.value.path()).read_text(encoding="utf-8") == site.service.export(
            session_id, format="json" if form == "json" else "markdown"
        )


def test_what_is_here_already_is_replaced_only_when_asked_for(
    page: Page, site: Site, exported: dict[str, Any], tmp_path: Path
) -> None:
    text = chat_file(exported, "As it was", colour="red")
    session_id = site.service.import_(text).session.id
    site.service.update_session(session_id, title="As it is")
    file = tmp_path / "<img src=x onerror=alert(1)>.json"
    file.write_text(text, encoding="utf-8")
    page.goto(site.url)
    expect(box(page)).to_be_editable()
    choose(page, file)
    expect(told(page)).to_contain_text("“As it is” is here already; nothing was changed.")
    expect(told(page)).to_contain_text("colour")
    button(page, "Replace").click()
    expect(told(page)).to_contain_text("“As it was” was imported; the chat that was here before is in the bin.")
    expect(page.get_by_role("heading", name="As it was", level=1)).to_be_visible()
    assert [chat.title for chat in site.service.sessions(deleted=True)] == ["As it is"]
    site.service.delete(session_id)
    expect(told(page)).to_have_text("“As it was” is in the bin.")
    choose(page, file)
    expect(told(page)).to_contain_text("“As it was” was in the bin and is back, as it was.")
    assert site.service.get_session(session_id).deleted_at is None


def test_several_files_come_in_at_once_and_what_is_no_chat_is_refused_in_words(
    page: Page, site: Site, exported: dict[str, Any], tmp_path: Path
) -> None:
    files = []
    for name, content in (
        ("one.json", chat_file(exported, "One").encode()),
        ("two.json", chat_file(exported, "Two").encode()),
        ("broken.json", b'{"format": "chatcache.chat", "messages": ['),
        ("binary.json", bytes(range(256)) * 40),
        ("deep.json", b"[" * 200_000),
        ("large.json", b'{"format": "chatcache.chat", "x": "' + b"x" * 50_000_000 + b'"}'),
    ):
        files.append(tmp_path / name)
        files[-1].write_bytes(content)
    other = tmp_path / "notes.txt"
    other.write_text("Not a chat.")
    page.goto(site.url)
    expect(box(page)).to_be_editable()
    choose(page, other)
    refused = page.locator("#notice [role=alert]")
    no_chat = "“notes.txt”: A chat’s file is one that was exported as JSON. Nothing was imported from it."
    expect(refused).to_have_text(no_chat)
    choose(page, other, files[0])
    expect(told(page)).to_contain_text("1 of 2 chats was imported. 1 was refused.")
    expect(told(page)).to_contain_text(no_chat)
    expect(chats(page)).to_have_count(1)
    expect(page.locator(".toast-body")).to_have_count(0)
    choose(page, *files)
    expect(told(page)).to_contain_text("1 of 6 chats was imported. 1 was here already. 4 were refused.")
    expect(told(page)).not_to_contain_text("notes.txt")
    for name in ("broken.json", "binary.json", "deep.json"):
        expect(told(page)).to_contain_text(f"“{name}”: This file is not JSON.")
    expect(told(page)).to_contain_text("“large.json”: A chat’s file may have at most 32.0 MiB.")
    expect(chats(page)).to_have_count(2)
    choose(page, files[2])
    expect(page.get_by_role("alert").filter(has_text="not JSON")).to_be_visible()


def test_a_chat_that_is_being_answered_shows_it_in_the_list(page: Page, site: Site) -> None:
    open_chat(page, site, Sampling(temperature=0.0, max_new_tokens=2000))
    say(page, "Tell me a long story.")
    expect(chats(page).get_by_role("img", name="is being answered")).to_be_visible()
    button(page, "Stop").click()
    expect(button(page, "Continue")).to_be_visible()
    expect(chats(page).get_by_role("img", name="is being answered")).to_have_count(0)


def test_a_temporary_chat_says_so_is_in_no_list_and_leaves_nothing(page: Page, site: Site) -> None:
    page.goto(site.url)
    expect(box(page)).to_be_editable()
    sign = page.get_by_text("Not stored", exact=True)
    expect(sign).to_have_count(0)
    button(page, "Temporary chat").click()
    expect(sign).to_be_visible()
    expect(page.get_by_text("Nothing of this chat is stored")).to_be_visible()
    expect(box(page)).to_be_focused()
    say(page, "Keep this to yourself.")
    expect(replies(page)).to_have_count(1)
    session_id = session_in_address(page)
    end_reply(site, session_id)
    expect(button(page, "Regenerate")).to_be_visible()
    page.reload()
    expect(page.get_by_role("article", name="You")).to_have_text("Keep this to yourself.")
    expect(sign).to_be_visible()
    expect(page.get_by_text("Chats you start appear here.")).to_be_visible()
    button(page, "Delete").click()
    expect(told(page)).to_contain_text("nothing of it was stored")
    expect(button(page, "Undo")).to_have_count(0)
    page.goto(site.address(session_id))
    expect(page.get_by_role("alert")).to_contain_text("no chat at this address")
    button(page, "New chat").click()
    expect(sign).to_have_count(0)


def test_what_is_typed_in_a_temporary_chat_is_not_stored_in_the_browser_either(page: Page, site: Site) -> None:
    other = open_chat(page, site, SHORT, "An ordinary chat.")
    secret = site.service.create_session(temporary=True, sampling=SHORT).id
    page.goto(site.url)
    box(page).fill("Typed before.")
    button(page, "Temporary chat").click()
    expect(page.get_by_text("Not stored", exact=True)).to_be_visible()
    box(page).press_sequentially(" Typed after.")
    page.goto(site.address(secret))
    expect(page.get_by_text("Not stored", exact=True)).to_be_visible()
    box(page).fill("Typed in it.")
    chats(page).filter(has_text="An ordinary chat.").click()
    expect(box(page)).to_have_value("")
    box(page).fill("An ordinary draft.")
    page.go_back()
    expect(box(page)).to_have_value("Typed in it.")
    stored = page.evaluate("localStorage.getItem('chatcache-drafts')")
    assert json.loads(stored) == {other: "An ordinary draft."}
