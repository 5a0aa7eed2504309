"""Writing and reading on the page, in a real Chromium: editing, the composer, the keyboard, and who is shut out."""

from __future__ import annotations

from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from browser import LONG, SHORT, STORY, WAIT_MS, Site, box, button, open_chat, replies, say
from playwright.sync_api import Browser, Locator, Page, expect

from chatcache.stats import Sampling
from chatcache.ui.texts import ENGLISH as texts

pytestmark = pytest.mark.browser

ONE = Sampling(temperature=0.0, max_new_tokens=1)


def mine(page: Page) -> Locator:
    return page.get_by_role("article", name="You")


def editor(page: Page) -> Locator:
    return page.get_by_role("textbox", name="Edit message")


def reply_editor(page: Page) -> Locator:
    return page.get_by_role("textbox", name="Edit reply")


# ------------------------------------------------------------------- editing


def test_a_message_is_edited_where_it_stands_and_answered_anew(page: Page, site: Site) -> None:
    session_id = open_chat(page, site, SHORT, "Frist question.", "Second question.")
    button(page, "Edit message").first.click()
    expect(editor(page)).to_have_value("Frist question.")
    expect(editor(page)).to_be_focused()
    editor(page).fill("First question,\nmended.")
    button(page, "Save and send").click()
    expect(mine(page)).to_have_count(1)
    expect(mine(page)).to_have_text("First question,\nmended.")
    expect(editor(page)).to_have_count(0)
    expect(button(page, "Regenerate")).to_be_visible()
    assert site.service.messages(session_id)[0].text == "First question,\nmended."
    button(page, "Previous version of your message").click()
    expect(mine(page)).to_have_count(2)
    expect(mine(page).first).to_contain_text("Frist question.")


def test_a_reply_is_edited_without_a_model_call(page: Page, site: Site) -> None:
    session_id = open_chat(page, site, SHORT, "A question.")
    old = site.service.messages(session_id)[-1]
    button(page, "Edit reply").click()
    expect(reply_editor(page)).to_have_value(old.text)
    reply_editor(page).fill("**Mine** and $x^2$.")
    reply_editor(page).press("Control+Enter")
    expect(page.get_by_text("2 of 2")).to_be_visible()
    expect(replies(page).locator("strong")).to_have_text("Mine")
    expect(replies(page).locator("math")).to_have_count(1)
    expect(button(page, "Edit reply")).to_be_focused()
    tip = site.service.messages(session_id)[-1]
    assert (tip.text, tip.edited) == ("**Mine** and $x^2$.", True)
    button(page, "Edit reply").click()
    expect(reply_editor(page)).to_have_value("**Mine** and $x^2$.")


def test_escape_leaves_the_editor_and_the_focus_returns(page: Page, site: Site) -> None:
    session_id = open_chat(page, site, SHORT, "A question.")
    button(page, "Edit message").focus()
    page.keyboard.press("Enter")
    editor(page).fill("Something else")
    page.keyboard.press("Escape")
    expect(editor(page)).to_have_count(0)
    expect(button(page, "Edit message")).to_be_focused()
    expect(mine(page)).to_have_text("A question.")
    assert len(site.service.messages(session_id)) == 2


def test_a_repaint_takes_nothing_from_an_open_editor(page: Page, site: Site) -> None:
    session_id = open_chat(page, site, ONE, "One.", "Two.")
    button(page, "Edit message").first.click()
    editor(page).fill("half a thou")
    site.service.send(session_id, "Three, from another window.").result(60)
    expect(replies(page)).to_have_count(3)
    expect(editor(page)).to_be_focused()
    page.keyboard.type("ght")
    expect(editor(page)).to_have_value("half a thought")
    site.service.rollback(session_id, 3)
    expect(page.get_by_text("What would you like to talk about?")).to_be_visible()
    expect(box(page)).to_have_value("half a thought")
    expect(page.get_by_text(texts.EDIT_MOVED)).to_be_visible()


def test_an_edit_that_was_not_saved_waits_where_it_was_left(page: Page, site: Site) -> None:
    first, second = (open_chat(page, site, ONE, question) for question in ("One.", "Two."))
    button(page, "Edit message").click()
    editor(page).fill("Two, and half a thou")
    chats = page.get_by_role("list", name="Chats")
    chats.get_by_role("link", name="One.").first.click()
    page.wait_for_url(f"**?session={first}")
    expect(mine(page)).to_have_text("One.")
    expect(editor(page)).to_have_count(0)
    expect(box(page)).to_have_value("")
    chats.get_by_role("link", name="Two.").first.click()
    expect(editor(page)).to_have_value("Two, and half a thou")
    page.reload()
    expect(editor(page)).to_have_value("Two, and half a thou")
    button(page, "Cancel").click()
    expect(mine(page)).to_have_text("Two.")
    page.reload()
    expect(mine(page)).to_have_text("Two.")
    expect(editor(page)).to_have_count(0)
    assert len(site.service.messages(second)) == 2


def test_an_edit_that_comes_too_early_says_so_and_keeps_the_text(page: Page, site: Site) -> None:
    session_id = open_chat(page, site, SHORT, "A question.")
    button(page, "Edit message").click()
    editor(page).fill("")
    button(page, "Save and send").click()
    expect(page.get_by_role("alert")).to_contain_text("empty")
    editor(page).fill("Another question.")
    turn = site.service.send(session_id, STORY, sampling=LONG)
    expect(button(page, "Stop")).to_be_visible()
    button(page, "Save and send").click()
    expect(page.get_by_role("alert")).to_contain_text("being written")
    expect(editor(page)).to_have_value("Another question.")
    assert not turn.stop_requested
    turn.stop()
    turn.result(60)
    expect(button(page, "Regenerate")).to_be_visible()
    button(page, "Save and send").click()
    expect(mine(page)).to_have_count(1)
    expect(mine(page)).to_have_text("Another question.")


def test_a_reply_further_up_is_regenerated_and_the_old_branch_stays(page: Page, site: Site) -> None:
    session_id = open_chat(page, site, Sampling(temperature=1.0, max_new_tokens=4), "One.", "Two.")
    first = site.service.messages(session_id)[1]
    button(page, "Regenerate this reply").click()
    expect(page.get_by_text("2 of 2")).to_be_visible()
    expect(replies(page)).to_have_count(1)
    button(page, "Previous reply").click()
    expect(replies(page)).to_have_count(2)
    expect(button(page, "Next version")).to_be_visible()
    assert site.service.messages(session_id)[1].id == first.id


def test_details_stay_open_through_a_repaint(page: Page, site: Site) -> None:
    session_id = open_chat(page, site, ONE, "One.")
    figures = replies(page).first.locator("details.figures")
    figures.locator("summary").click()
    expect(figures).to_contain_text("Seed")
    site.service.send(session_id, "Two.").result(60)
    expect(replies(page)).to_have_count(2)
    expect(figures.get_by_text("Cache kind")).to_be_visible()


# ------------------------------------------------------------------ composer


def test_each_chat_keeps_its_draft_also_after_the_tab_was_closed(page: Page, site: Site) -> None:
    other = open_chat(page, site, ONE, "The other chat.")
    session_id = open_chat(page, site, ONE, "This chat.")
    box(page).fill("a draft for this chat")
    page.get_by_role("list", name="Chats").get_by_role("link", name="The other chat.").first.click()
    expect(mine(page)).to_have_text("The other chat.")
    expect(box(page)).to_have_value("")
    box(page).fill("and one for the other")
    page.close()
    again = page.context.new_page()
    again.goto(site.address(session_id))
    expect(box(again)).to_have_value("a draft for this chat")
    again.goto(site.address(other))
    expect(box(again)).to_have_value("and one for the other")
    box(again).press("Enter")
    expect(box(again)).to_have_value("")
    expect(replies(again)).to_have_count(2)
    again.reload()
    expect(replies(again)).to_have_count(2)
    expect(box(again)).to_be_editable()
    expect(box(again)).to_have_value("")


def test_a_first_message_leaves_no_draft_behind(page: Page, site: Site) -> None:
    page.goto(site.url)
    say(page, "Hello there.")
    page.wait_for_url("**?session=*")
    button(page, "New chat").click()
    expect(page.get_by_text("What would you like to talk about?")).to_be_visible()
    expect(box(page)).to_have_value("")


def test_enter_that_ends_a_composition_sends_nothing(page: Page, site: Site) -> None:
    session_id = open_chat(page, site, SHORT)
    box(page).fill("にほん")
    box(page).evaluate(
        """box => ["keydown", "keypress"].forEach(kind => box.dispatchEvent(new KeyboardEvent(kind, {
            key: "Enter", code: "Enter", keyCode: 229, isComposing: true, bubbles: true, cancelable: true })))"""
    )
    page.wait_for_timeout(400)
    expect(box(page)).to_have_value("にほん")
    assert site.service.messages(session_id) == ()


def test_up_in_an_empty_box_edits_the_last_message(page: Page, site: Site) -> None:
    open_chat(page, site, ONE, "One.", "Two.")
    box(page).press("ArrowUp")
    expect(editor(page)).to_have_value("Two.")
    page.keyboard.press("Escape")
    box(page).fill("text")
    box(page).press("ArrowUp")
    expect(editor(page)).to_have_count(0)


def test_escape_stops_a_reply(page: Page, site: Site) -> None:
    open_chat(page, site, LONG)
    say(page, STORY)
    expect(replies(page).locator(".prose")).not_to_be_empty()
    expect(button(page, "Stop")).to_be_visible()
    page.wait_for_timeout(600)  # Stop takes no click in its first half second
    page.keyboard.press("Escape")
    expect(page.get_by_text("Stopped.")).to_be_visible()


def test_what_is_typed_is_counted(page: Page, site: Site) -> None:
    session_id = open_chat(page, site, ONE, "One.")
    text = "How many tokens are there in this sentence?"
    box(page).fill(text)
    num_typed = site.service.count_tokens(text)

    def left() -> str:
        num_taken = site.service.context_use(session_id).num_tokens
        num_left = site.service.model_info.max_context_tokens - num_taken - num_typed
        return f"{num_typed} tokens typed, {num_left:,} left in the context"

    before = left()
    expect(page.get_by_text(before)).to_be_visible()
    site.service.edit(site.service.messages(session_id)[-1].id, "A longer reply, written by hand.")
    assert left() != before
    expect(page.get_by_text(left())).to_be_visible()
    box(page).press("Enter")
    expect(page.get_by_text("tokens typed")).to_have_count(0)
    button(page, "Roll back").click()
    expect(page.get_by_text(f"{num_typed} tokens typed")).to_be_visible()


def test_text_files_become_text_and_others_a_sentence(page: Page, site: Site, tmp_path: Path) -> None:
    open_chat(page, site, SHORT)
    box(page).fill("Look at this:")
    with page.expect_file_chooser() as chooser:
        button(page, "Add text files").click()
    code = tmp_path / "script.py"
    code.write_bytes(b"fence = '```'\r\nprint(fence)\n")
    chooser.value.set_files(code)
    expect(box(page)).to_have_value("Look at this:\n\nscript.py\n````py\nfence = '```'\nprint(fence)\n````\n")
    drop = """(target, {name, bytes}) => {
        const data = new DataTransfer();
        data.items.add(new File([new Uint8Array(bytes)], name));
        for (const kind of ["dragover", "drop"])
            target.dispatchEvent(new DragEvent(kind, { dataTransfer: data, bubbles: true, cancelable: true }));
    }"""
    box(page).fill("")
    box(page).evaluate(drop, {"name": "../../etc/`pass\u202ewd`.txt", "bytes": list(b"secret")})
    expect(box(page)).to_have_value("passwd.txt\n```txt\nsecret\n```\n")
    box(page).evaluate(drop, {"name": "picture.png", "bytes": [137, 80, 78, 71, 0, 255]})
    expect(page.get_by_role("alert")).to_contain_text("“picture.png” is no text")
    large = tmp_path / "<b>large.txt"
    large.write_bytes(b"x" * (256 * 1024 + 1))
    with page.expect_file_chooser() as chooser:
        button(page, "Add text files").click()
    chooser.value.set_files(large)
    expect(page.get_by_role("alert")).to_contain_text("“<b>large.txt” is larger than")
    expect(box(page)).to_have_value("passwd.txt\n```txt\nsecret\n```\n")


# ------------------------------------------------------------------ keyboard


def test_shortcuts_do_what_their_list_says(page: Page, site: Site) -> None:
    session_id = open_chat(page, site, Sampling(temperature=1.0, max_new_tokens=3), "One.")
    box(page).press("?")
    expect(page.get_by_role("dialog")).to_have_count(0)
    expect(box(page)).to_have_value("?")
    box(page).fill("")
    button(page, "Edit message").focus()
    page.keyboard.press("?")
    expect(page.get_by_role("dialog", name="Keyboard shortcuts")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    expect(button(page, "Edit message")).to_be_focused()
    page.keyboard.press("Alt+Shift+R")
    expect(page.get_by_text("2 of 2")).to_be_visible()
    page.keyboard.press("Alt+Shift+J")
    expect(page.get_by_text("1 of 2")).to_be_visible()
    page.keyboard.press("Alt+Shift+L")
    expect(page.get_by_text("2 of 2")).to_be_visible()
    page.keyboard.press("Alt+Shift+E")
    expect(editor(page)).to_be_focused()
    page.keyboard.press("Escape")
    page.keyboard.press("Alt+Shift+M")
    expect(box(page)).to_be_focused()
    page.keyboard.press("Alt+Shift+K")
    expect(page.get_by_role("textbox", name="Search chats")).to_be_focused()
    page.keyboard.press("Alt+Shift+N")
    expect(page.get_by_role("heading", name="New chat", level=1)).to_be_visible()
    assert len(site.service.alternatives(site.service.messages(session_id)[-1].id)) == 2


def test_the_first_thing_that_tab_reaches_leads_past_everything_to_the_box(page: Page, site: Site) -> None:
    page.goto(site.url)
    expect(box(page)).to_be_focused()
    link = page.get_by_role("link", name="Skip to the message box")
    first = page.locator("a[href], button, input:not([type=file]), textarea, summary, [tabindex='0']").first
    assert first.evaluate("(element, link) => element === link", link.element_handle())
    link.focus()
    expect(link).to_be_in_viewport(ratio=1)
    page.keyboard.press("Enter")
    expect(box(page)).to_be_focused()


def test_the_focus_stays_on_its_control_through_repaints(page: Page, site: Site) -> None:
    session_id = open_chat(page, site, Sampling(temperature=1.0, max_new_tokens=3), "One.", "Two.")
    copy = replies(page).first.get_by_role("button", name="Copy", exact=True)
    copy.focus()
    site.service.send(session_id, "Three.").result(60)
    expect(replies(page)).to_have_count(3)
    expect(button(page, "Roll back")).to_be_visible()
    expect(copy).to_be_focused()
    button(page, "Regenerate").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_text("2 of 2")).to_be_visible()
    expect(box(page)).to_be_focused()  # the control was gone while the reply was written
    button(page, "Previous reply").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_text("1 of 2")).to_be_visible()
    expect(button(page, "Next reply")).to_be_focused()  # its other half: it goes no further back


def test_whoever_stands_on_stop_stands_at_the_box_once_the_reply_has_ended(page: Page, site: Site) -> None:
    open_chat(page, site, LONG)
    say(page, STORY)
    expect(replies(page).locator(".prose")).not_to_be_empty()
    button(page, "Stop").focus()
    length = len(replies(page).inner_text())
    page.wait_for_function("n => document.querySelector('.message.live').innerText.length > n + 20", arg=length)
    expect(button(page, "Stop")).to_be_focused()
    page.keyboard.press("Enter")
    expect(button(page, "Continue")).to_be_visible()
    expect(box(page)).to_be_focused()


# -------------------------------------------------------------------- access


def assert_accessible(page: Page) -> None:
    results = Axe().run(page).response
    serious = [
        (violation["id"], [node["html"][:200] for node in violation["nodes"]])
        for violation in results["violations"]
        if violation["impact"] in ("serious", "critical")
    ]
    assert serious == []


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize(("width", "height"), [(1280, 800), (390, 844)])
def test_nothing_on_the_page_shuts_anybody_out(
    browser: Browser, site: Site, width: int, height: int, theme: str
) -> None:
    context = browser.new_context(viewport={"width": width, "height": height}, locale="en-US", has_touch=width < 500)
    context.set_default_timeout(WAIT_MS)
    try:
        page = context.new_page()
        page.goto(f"{site.url}?__theme={theme}")
        expect(page.get_by_text("What would you like to talk about?")).to_be_visible()
        assert_accessible(page)
        session = site.service.create_session(sampling=ONE)
        site.service.send(session.id, "Show me everything.").result(60)
        written = (
            "Text, `code`, $x$.\n\n```python\n@cached\ndef f(x: int) -> str:  # why\n    return 'a' + str(1.5)\n```\n"
        )
        site.service.edit(
            site.service.messages(session.id)[-1].id, f"{written}\n| a | b |\n|---|---|\n| 1 | 2 |\n\n> [q](#)"
        )
        site.service.send(session.id, "And more.").result(60)
        page.goto(f"{site.address(session.id)}&__theme={theme}")
        expect(replies(page)).to_have_count(2)
        replies(page).last.locator("details.figures summary").click()
        box(page).fill("Something typed")
        expect(page.get_by_text("typed,")).to_be_visible()
        assert_accessible(page)
        if width > 1000:
            for panel in ("Chat settings", "Storage", "Memory plan"):
                page.get_by_role("button", name=panel).first.click()
            expect(button(page, "Verify")).to_be_visible()
            assert_accessible(page)
        button(page, "Edit message").first.click()
        assert_accessible(page)
        page.keyboard.press("Escape")
        page.evaluate("window.chatcache.showShortcuts()")
        expect(page.get_by_role("dialog")).to_be_visible()
        assert_accessible(page)
    finally:
        context.close()
