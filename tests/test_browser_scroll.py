"""Where the conversation is scrolled to, and the arrows between alternatives, in a real Chromium."""

from __future__ import annotations

import pytest
from browser import SHORT, STORY, Site, button, open_chat, replies, say
from playwright.sync_api import Locator, Page, ViewportSize, expect

from chatcache.stats import Sampling
from chatcache.ui.actions import Actions
from chatcache.ui.handlers import Refusal
from chatcache.ui.texts import ENGLISH as texts

pytestmark = pytest.mark.browser

QUESTIONS = tuple(f"Question {number}." for number in range(5))
LOW: ViewportSize = {"width": 1280, "height": 440}
"""A window in which few messages are seen at once."""


def refuse(_actions: Actions, _session_id: str) -> None:
    raise Refusal(texts.BUSY)


def top_of(locator: Locator) -> float:
    box = locator.bounding_box()
    assert box is not None
    return box["y"]


def scroll_to_start(page: Page) -> None:
    """Once no reply is being written: until then the page goes to the end with each piece of it."""
    expect(button(page, texts.REGENERATE)).to_be_visible()
    page.wait_for_function(
        "() => { const talk = document.getElementById('conversation');"
        " const isThere = talk.scrollTop === 0; talk.scrollTop = 0; return isThere }"
    )


def test_quick_clicks_on_an_arrow_are_one_step_each(page: Page, site: Site) -> None:
    session_id = open_chat(page, site, SHORT, "One.")
    reply_id = site.service.messages(session_id)[-1].id
    for number in range(4):
        site.service.edit(reply_id, f"Reply {number}.")
    expect(page.get_by_text("5 of 5")).to_be_visible()
    button(page, "Previous reply").click(click_count=3, delay=60)
    expect(page.get_by_text("2 of 5")).to_be_visible()
    button(page, "Next reply").click(click_count=3)
    expect(page.get_by_text("5 of 5")).to_be_visible()
    assert site.service.get_session(session_id).tip_id == site.service.alternatives(reply_id)[-1].id


def test_in_a_chat_too_short_to_scroll_the_arrows_stay_where_they_are_clicked(page: Page, site: Site) -> None:
    session_id = open_chat(page, site, SHORT, "One.")
    reply_id = site.service.messages(session_id)[-1].id
    for text in ("A longer one.\n\nIt has three paragraphs.\n\nThis is the last one.", "Short.", "Two.\n\nOf them."):
        site.service.edit(reply_id, text)
    expect(page.get_by_text("4 of 4")).to_be_visible()
    arrow = button(page, "Previous reply")
    top = top_of(arrow)
    for name, number in (("Previous reply", 3), ("Previous reply", 2), ("Previous reply", 1), ("Next reply", 2)):
        button(page, name).click()
        expect(page.get_by_text(f"{number} of 4")).to_be_visible()
        page.wait_for_timeout(200)
        assert abs(top_of(arrow) - top) < 2, number
    say(page, "Two.")
    expect(replies(page)).to_have_count(2)
    assert page.locator("#transcript").evaluate("e => [e.style.marginTop, e.style.marginBottom]") == ["0px", "0px"]


def test_a_step_that_is_refused_holds_no_later_one(page: Page, site: Site) -> None:
    page.add_init_script(
        "const soon = setTimeout; setTimeout = (call, ms, ...rest) => (ms >= 10000 ? 0 : soon(call, ms, ...rest));"
    )
    session_id = open_chat(page, site, SHORT, "One.")
    reply_id = site.service.messages(session_id)[-1].id
    site.service.edit(reply_id, "By hand.")
    expect(page.get_by_text("2 of 2")).to_be_visible()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Actions, "_refuse_if_busy", refuse)
        button(page, "Previous reply").click()
        expect(page.get_by_role("alert")).to_contain_text(texts.BUSY)
    button(page, "Previous reply").click()
    expect(page.get_by_text("1 of 2")).to_be_visible()


def test_a_double_click_regenerates_once(page: Page, site: Site) -> None:
    session_id = open_chat(page, site, SHORT, "One.")
    button(page, "Regenerate").dblclick()
    expect(page.get_by_text("2 of 2")).to_be_visible()
    page.wait_for_timeout(500)
    assert len(site.service.alternatives(site.service.messages(session_id)[-1].id)) == 2


def test_a_reply_that_is_written_anew_further_up_is_followed_and_the_page_says_where_the_later_turns_are(
    page: Page, site: Site
) -> None:
    page.set_viewport_size(LOW)
    session_id = open_chat(page, site, SHORT, *QUESTIONS)
    site.service.update_session(session_id, sampling=Sampling(temperature=0.0, max_new_tokens=150))
    edited = site.service.edit(site.service.messages(session_id)[0].id, STORY)
    edited.result(60)
    for question in QUESTIONS[1:]:
        site.service.send(session_id, question, sampling=SHORT).result(60)
    expect(replies(page)).to_have_count(len(QUESTIONS))
    scroll_to_start(page)
    button(page, texts.REGENERATE_THIS).first.click()
    expect(replies(page).get_by_text("2 of 2")).to_be_visible()
    expect(button(page, texts.REGENERATE)).to_be_in_viewport()
    expect(page.locator("#notice [role=status]")).to_have_text(texts.REGENERATED_FURTHER_UP)
    button(page, "Previous reply").click()
    expect(replies(page)).to_have_count(len(QUESTIONS))


def test_whoever_has_read_further_up_and_sends_a_message_sees_its_reply(page: Page, site: Site) -> None:
    page.set_viewport_size(LOW)
    open_chat(page, site, SHORT, *QUESTIONS)
    scroll_to_start(page)
    say(page, "One more.")
    expect(replies(page)).to_have_count(len(QUESTIONS) + 1)
    expect(button(page, texts.REGENERATE)).to_be_in_viewport()


def test_a_chat_opens_at_its_end_wherever_another_one_was_left(page: Page, site: Site) -> None:
    page.set_viewport_size(LOW)
    other = site.service.create_session(sampling=SHORT, title="Another chat")
    for question in (*QUESTIONS, *QUESTIONS):
        site.service.send(other.id, question).result(60)
    open_chat(page, site, SHORT, *QUESTIONS)
    scroll_to_start(page)
    page.get_by_role("list", name="Chats").get_by_role("link", name="Another chat").click()
    expect(replies(page)).to_have_count(2 * len(QUESTIONS))
    expect(button(page, texts.REGENERATE)).to_be_in_viewport()


def test_a_message_whose_arrow_is_clicked_stays_where_it_is(page: Page, site: Site) -> None:
    page.set_viewport_size(LOW)
    session_id = open_chat(page, site, SHORT, *QUESTIONS)
    second = site.service.messages(session_id)[3]
    site.service.edit(second.id, "Another reply, written by hand.\n\nIt has three paragraphs.\n\nThis is the last one.")
    for question in QUESTIONS[2:]:
        site.service.send(session_id, question).result(60)
    site.service.select(second.id)
    first_arrow = button(page, "Next version")
    expect(first_arrow).to_be_enabled()
    expect(replies(page)).to_have_count(len(QUESTIONS))
    first_arrow.scroll_into_view_if_needed()
    page.wait_for_timeout(200)
    top = top_of(first_arrow)
    first_arrow.click()
    expect(page.get_by_text("2 of 2")).to_be_visible()
    page.wait_for_timeout(300)
    assert abs(top_of(first_arrow) - top) < 2
    button(page, "Previous version").click()
    expect(page.get_by_text("1 of 2")).to_be_visible()
    page.wait_for_timeout(300)
    assert abs(top_of(first_arrow) - top) < 2


def test_a_message_that_is_edited_far_above_the_end_is_in_view_and_stays_there(page: Page, site: Site) -> None:
    page.set_viewport_size(LOW)
    session_id = open_chat(page, site, SHORT, *QUESTIONS)
    expect(button(page, texts.ROLL_BACK)).to_be_in_viewport()
    edit = button(page, texts.EDIT_QUESTION).nth(1)
    expect(edit).not_to_be_in_viewport()
    edit.dispatch_event("click")
    form = page.locator("#transcript form.editor")
    expect(form).to_be_in_viewport(ratio=1)
    site.service.send(session_id, "From another window.").result(60)
    expect(replies(page)).to_have_count(6)
    expect(form).to_be_in_viewport(ratio=1)
    button(page, texts.SAVE_AND_SEND).click()
    expect(replies(page)).to_have_count(2)
    expect(button(page, texts.ROLL_BACK)).to_be_in_viewport()


@pytest.mark.parametrize("num_turns", [4, 12], ids=["short", "long"])
def test_rolling_back_and_forward_again_needs_no_new_aim(page: Page, site: Site, num_turns: int) -> None:
    open_chat(page, site, SHORT, *(f"Question {number}." for number in range(num_turns)))
    for name, steps in ((texts.ROLL_BACK, (-1, -1, -1)), (texts.FORWARD, (1, 1, 1))):
        expect(button(page, name)).to_be_in_viewport(ratio=1)
        place = button(page, name).bounding_box()
        assert place is not None
        at = place["x"] + place["width"] / 2, place["y"] + place["height"] / 2
        num_shown = replies(page).count()
        for step in steps:
            page.wait_for_timeout(600)  # a second click at once would be that of a double click, which is one step
            page.mouse.click(*at)
            num_shown += step
            expect(replies(page)).to_have_count(num_shown)
    expect(button(page, texts.FORWARD)).to_have_count(0)


def test_rolling_back_a_long_message_leaves_the_control_in_view(page: Page, site: Site) -> None:
    open_chat(page, site, SHORT, "One.", "Two.", "A line.\n" * 12)
    button(page, texts.ROLL_BACK).click()
    expect(replies(page)).to_have_count(2)
    expect(page.locator("#notice")).to_contain_text(texts.rolled_back(1, is_before_typed=False))
    expect(button(page, texts.ROLL_BACK)).to_be_in_viewport(ratio=1)
    button(page, texts.ROLL_BACK).click()
    expect(replies(page)).to_have_count(1)
