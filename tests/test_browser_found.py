"""From what a search found to the message that has it, in a real Chromium."""

from __future__ import annotations

import json
import uuid
from datetime import UTC, datetime
from typing import Any

import pytest
from browser import SHORT, Site, box, button, open_chat, replies
from playwright.sync_api import Locator, Page, ViewportSize, expect

from chatcache.ui.place import NUM_MESSAGES_SHOWN
from chatcache.ui.texts import ENGLISH as texts

pytestmark = pytest.mark.browser

WIDE: ViewportSize = {"width": 1280, "height": 800}
NARROW: ViewportSize = {"width": 390, "height": 844}
NUM_TURNS = 500


def chat_with(site: Site, word: str, position: int) -> tuple[str, str]:
    """A long chat that has the word in one message: its id and the message's."""
    moment = datetime.now(UTC).isoformat()
    messages: list[dict[str, Any]] = []
    for number in range(2 * NUM_TURNS):
        messages.append(
            {
                "id": str(uuid.uuid4()),
                "parent_id": messages[-1]["id"] if messages else None,
                "role": ("user", "assistant")[number % 2],
                "text": f"Here **{word}** is." if number == position else f"Number {number}.",
                "status": "complete",
                "created_at": moment,
            }
        )
    session = {"id": str(uuid.uuid4()), "title": "A long chat", "tip_id": messages[-1]["id"]}
    session |= {"created_at": moment, "updated_at": moment}
    file = {"format": "chatcache.chat", "format_version": 1, "session": session, "messages": messages, "turns": []}
    return site.service.import_(json.dumps(file)).session.id, messages[position]["id"]


def find(page: Page, word: str) -> Locator:
    """The only chat that has the word, in the list."""
    expect(page.locator("body.cc-ready")).to_be_visible()
    if not page.locator("#sidebar.open").count():
        page.locator("#sidebar .toggle-button").click()
    page.get_by_role("textbox", name=texts.SEARCH_CHATS).fill(word)
    link = page.locator("#chats a")
    expect(link).to_have_count(1)
    expect(link.locator("mark").first).to_have_text(word)
    return link


def message(page: Page, message_id: str) -> Locator:
    return page.locator(f"#transcript article[data-id='{message_id}']")


def is_marked(shown: Locator) -> bool:
    return bool(shown.evaluate("e => getComputedStyle(e.querySelector('.bubble') ?? e).outlineStyle === 'solid'"))


def marked_words(page: Page) -> list[str]:
    """What is marked inside messages, as it stands there."""
    words: list[str] = page.evaluate("[...(CSS.highlights.get('cc-found') ?? [])].map((range) => range.toString())")
    return words


@pytest.mark.parametrize("size", [WIDE, NARROW], ids=["wide", "narrow"])
def test_a_hit_far_up_in_a_long_chat_is_shown_where_it_stands(page: Page, site: Site, size: ViewportSize) -> None:
    page.set_viewport_size(size)
    word = f"heron{size['width']}"
    session_id, message_id = chat_with(site, word, 3)
    open_chat(page, site, SHORT, "Another chat.")
    find(page, word).click()
    found = message(page, message_id)
    expect(found).to_be_in_viewport(ratio=1)
    expect(found).to_be_focused()
    assert is_marked(found)
    assert page.url == site.address(session_id), "a reload leads to where the chat has got to"
    site.service.update_session(session_id, title="A repaint")
    expect(page.get_by_role("heading", name="A repaint")).to_be_visible()
    expect(found).to_be_focused()
    expect(found).to_be_in_viewport(ratio=1)


def test_in_a_message_longer_than_the_screen_the_word_is_shown_until_the_person_goes_on(page: Page, site: Site) -> None:
    session_id = open_chat(page, site, SHORT, "One.")
    much = "A paragraph.\n\n" * 60
    site.service.edit(site.service.messages(session_id)[1].id, f"{much}Here stands a **curlew**.\n\n{much}")
    long = site.service.messages(session_id)[1]
    find(page, "curlew").click()
    expect(message(page, long.id)).to_be_focused()
    expect(page.locator("#transcript strong")).to_be_in_viewport(ratio=1)
    assert marked_words(page) == ["curlew"]
    box(page).fill("And now?")
    button(page, texts.SEND).click()
    expect(button(page, texts.REGENERATE)).to_be_in_viewport()
    assert not is_marked(message(page, long.id))
    assert marked_words(page) == []


def test_every_word_that_was_found_is_marked_as_it_is_written_and_the_frame_fades(page: Page, site: Site) -> None:
    session_id = open_chat(page, site, SHORT, "One.")
    said = "A **Dun**lin3 flew.\n\n- the DUNLIN3, by the stilt\n- dun\n- lin3\n\n```python\ndunlin3 = 'Stílt'\n```"
    site.service.edit(site.service.messages(session_id)[1].id, said)
    page.get_by_role("textbox", name=texts.SEARCH_CHATS).fill("dunlin3 stilt")
    expect(page.locator("#chats a mark").first).to_be_visible()
    page.locator("#chats a").click()
    found = message(page, site.service.messages(session_id)[1].id)
    expect(found).to_be_focused()
    assert marked_words(page) == ["Dunlin3", "DUNLIN3", "stilt", "dunlin3", "Stílt"]
    page.wait_for_function("e => getComputedStyle(e).outlineColor === 'rgba(0, 0, 0, 0)'", arg=found.element_handle())
    site.service.update_session(session_id, title="A repaint")
    expect(page.get_by_role("heading", name="A repaint")).to_be_visible()
    assert marked_words(page) == ["Dunlin3", "DUNLIN3", "stilt", "dunlin3", "Stílt"]


def test_what_is_found_next_in_the_same_message_is_marked_and_shown_instead(page: Page, site: Site) -> None:
    session_id = open_chat(page, site, SHORT, "One.")
    said = "Here stands a **sandpiper**.\n\n" + "A paragraph.\n\n" * 60 + "Here stands a **smew**."
    site.service.edit(site.service.messages(session_id)[1].id, said)
    long = message(page, site.service.messages(session_id)[1].id)
    for word in ("sandpiper", "smew"):
        find(page, word).click()
        expect(long.locator("strong", has_text=word)).to_be_in_viewport(ratio=1)
        assert marked_words(page) == [word]


def test_a_greek_word_is_marked_in_either_case_whatever_letter_it_ends_with(page: Page, site: Site) -> None:
    session_id = open_chat(page, site, SHORT, "One.")
    site.service.edit(site.service.messages(session_id)[1].id, "Ένας γλάρος, ΓΛΆΡΟΣ.")
    find(page, "γλάρος").click()
    expect(message(page, site.service.messages(session_id)[1].id)).to_be_focused()
    assert marked_words(page) == ["γλάρος", "ΓΛΆΡΟΣ"]


def test_a_hit_in_a_folded_file_unfolds_it_and_is_seen(page: Page, site: Site) -> None:
    lines = [f"line {number}" for number in range(400)]
    lines[300] = "here stands a godwit, far down"
    much = "Much to say.\n" * 40
    session_id = open_chat(page, site, SHORT, f"{much}\nnotes.txt\n```txt\n" + "\n".join(lines) + "\n```")
    page.goto(site.url)
    find(page, "godwit").click()
    expect(message(page, site.service.messages(session_id)[0].id)).to_be_focused()
    expect(page.locator("#transcript .file")).to_have_attribute("open", "")
    assert marked_words(page) == ["godwit"]
    seen = """() => {
        const [word] = CSS.highlights.get('cc-found');
        const { top, bottom, left } = word.getBoundingClientRect();
        const at = document.elementFromPoint(left + 1, (top + bottom) / 2);
        return at?.closest('.file pre') != null;
    }"""
    page.wait_for_function(seen)


def test_a_hit_in_another_version_of_a_chat_in_the_bin_says_so_and_restoring_leads_to_it(
    page: Page, site: Site
) -> None:
    session_id = open_chat(page, site, SHORT, "One.")
    shown = site.service.messages(session_id)[1]
    site.service.edit(shown.id, "Here stands a whimbrel.")
    whimbrel = site.service.messages(session_id)[1]
    site.service.select(shown.id)
    site.service.delete(session_id)
    page.goto(site.url)
    page.locator("#bin").click()
    find(page, "whimbrel").click()
    notice = page.locator("#notice")
    expect(notice).to_contain_text(texts.FOUND_IN_THE_BIN)
    assert site.service.get_session(session_id).tip_id == shown.id
    notice.get_by_role("button", name=texts.RESTORE).click()
    expect(message(page, whimbrel.id)).to_be_in_viewport()
    expect(notice).to_contain_text(texts.FOUND_IN_ANOTHER_VERSION)
    assert marked_words(page) == ["whimbrel"]


def test_a_hit_in_another_version_shows_that_version_and_the_way_back(page: Page, site: Site) -> None:
    session_id = open_chat(page, site, SHORT, "One.", "Two.")
    shown_before = site.service.messages(session_id)
    old = shown_before[1]
    site.service.edit(old.id, "Here stands a bittern.")
    bittern = site.service.messages(session_id)[1]
    site.service.select(shown_before[3].id)
    site.service.rollback(session_id)
    before = site.service.messages(session_id)
    expect(replies(page)).to_have_count(1)
    find(page, "bittern").click()
    expect(message(page, bittern.id)).to_be_focused()
    assert is_marked(message(page, bittern.id))
    assert site.service.messages(session_id)[-1].id == bittern.id
    expect(page.locator("#notice")).to_contain_text(texts.FOUND_IN_ANOTHER_VERSION)
    button(page, texts.UNDO).click()
    expect(message(page, old.id)).to_be_visible()
    expect(page.locator("#notice")).to_have_text("")
    assert site.service.messages(session_id) == before, "what was rolled back is rolled back still"


def test_a_hit_from_another_chat_that_shows_again_what_was_rolled_back_takes_it_out_of_the_box(
    page: Page, site: Site
) -> None:
    session_id = open_chat(page, site, SHORT, "Let us speak about birds.", "What does a lapwing really eat?")
    box(page).fill("Mine.")
    button(page, "Roll back").click()
    expect(box(page)).to_have_value("What does a lapwing really eat?\n\nMine.")
    button(page, "New chat").click()
    expect(box(page)).to_have_value("")
    box(page).fill("A draft elsewhere.")
    find(page, "really").click()
    expect(replies(page)).to_have_count(2)
    expect(box(page)).to_have_value("Mine.")
    page.goto(site.address(session_id))
    expect(box(page)).to_have_value("Mine.")
    page.goto(site.url)
    expect(box(page)).to_have_value("A draft elsewhere.")


def test_what_was_found_can_be_opened_in_another_tab(page: Page, site: Site) -> None:
    session_id, message_id = chat_with(site, "spoonbill", 100)
    page.goto(site.url)
    address = find(page, "spoonbill").evaluate("e => e.href")
    tab = page.context.new_page()
    tab.goto(address)
    expect(message(tab, message_id)).to_be_in_viewport(ratio=1)
    assert marked_words(tab) == ["spoonbill"]
    expect(message(tab, message_id)).to_be_focused()
    expect(tab).to_have_url(site.address(session_id))
    tab.reload()
    expect(replies(tab)).to_have_count(NUM_MESSAGES_SHOWN // 2)


@pytest.mark.parametrize("named", ["nonsense", "00000000-0000-4000-8000-000000000000"])
def test_a_message_that_is_not_there_does_not_stay_in_the_address(page: Page, site: Site, named: str) -> None:
    session_id = open_chat(page, site, SHORT, "One.")
    page.goto(f"{site.address(session_id)}&message={named}&word=one")
    expect(replies(page)).to_have_count(1)
    expect(page).to_have_url(site.address(session_id))
    page.goto(f"{site.url}?message={named}")
    expect(page.get_by_role("heading", name=texts.WELCOME)).to_be_visible()
    expect(page).to_have_url(site.url)
