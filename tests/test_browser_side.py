"""The right column in a real Chromium: settings, what a turn costs, storage and memory plan."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator

import pytest
from browser import LONG, SHORT, STORY, Site, box, button, open_chat, replies, say, session_in_address
from playwright.sync_api import BrowserContext, Locator, Page, expect

from chatcache.ui.settings_form import Form
from chatcache.ui.settings_handlers import SettingsHandlers
from chatcache.ui.texts import ENGLISH as texts
from storage.records import ChatSession

pytestmark = pytest.mark.browser


def unfold(page: Page, name: str) -> None:
    button(page, re.compile(rf"^{name}")).click()  # type: ignore[arg-type]


def unfold_settings(page: Page) -> None:
    """Until they are filled with what is stored: `open_chat` gives a reply some tokens at most. Gradio fills one field
    after the other, and what is typed into one before that is lost."""
    unfold(page, texts.SETTINGS)
    expect(field(page, "max_new_tokens")).not_to_have_value("")
    page.wait_for_timeout(300)


def field(page: Page, name: str) -> Locator:
    return page.get_by_label(texts.SETTING_NAMES[name], exact=True).first


def leave(page: Page) -> None:
    """Go on to the message box: the field that was left is saved."""
    box(page).focus()


@pytest.fixture
def second_page(context: BrowserContext) -> Iterator[Page]:
    page = context.new_page()
    yield page
    page.close()


def test_settings_are_kept_and_count_from_the_next_turn_on(page: Page, site: Site) -> None:
    session_id = open_chat(page, site, SHORT, "One.")
    unfold(page, texts.SETTINGS)
    expect(field(page, "max_new_tokens")).to_have_value("6")
    expect(field(page, "top_p")).to_have_value("")
    field(page, "max_new_tokens").fill("3")
    leave(page)
    expect(page.get_by_text(texts.SETTINGS_SAVED)).to_be_visible()
    field(page, "system_prompt").fill("You are brief.")
    leave(page)
    expect(page.get_by_text(texts.SETTINGS_REREAD)).to_be_visible()
    stored = site.service.get_session(session_id)
    assert (stored.system_prompt, stored.sampling["max_new_tokens"]) == ("You are brief.", 3)
    say(page, "Two.")
    expect(replies(page)).to_have_count(2)
    expect(button(page, "Regenerate")).to_be_visible()
    tip = site.service.messages(session_id)[-1]
    stats = site.service.turn_stats([tip.id])[tip.id]
    assert (stats.num_completion_tokens, stats.miss_reason) == (3, "history")
    page.reload()
    unfold(page, texts.SETTINGS)
    expect(field(page, "system_prompt")).to_have_value("You are brief.")
    button(page, texts.RESET_SETTINGS).click()
    expect(field(page, "max_new_tokens")).to_have_value("")
    expect(field(page, "system_prompt")).to_have_value("You are brief.")
    assert site.service.get_session(session_id).sampling == {}


def test_a_chat_begins_with_what_was_set_before_its_first_message(page: Page, site: Site) -> None:
    page.goto(site.url)
    unfold(page, texts.SETTINGS)
    expect(field(page, "max_new_tokens")).to_have_value("")
    kept_free = page.locator("#cache li").filter(has_text=texts.RESERVED_FOR_REPLY)
    usual = kept_free.inner_text()
    field(page, "max_new_tokens").fill("4")
    field(page, "system_prompt").fill("Be kind.")
    expect(kept_free).to_have_text(f"{texts.RESERVED_FOR_REPLY}4")
    say(page, "Hello there.")
    page.wait_for_url("**?session=*")
    expect(button(page, "Regenerate")).to_be_visible()
    session = site.service.get_session(session_in_address(page))
    assert (session.system_prompt, session.sampling) == ("Be kind.", {"max_new_tokens": 4})
    button(page, "New chat").click()
    expect(field(page, "system_prompt")).to_have_value("")
    expect(field(page, "max_new_tokens")).to_have_value("")
    expect(kept_free).to_have_text(usual, use_inner_text=True)


def test_a_wrong_value_is_answered_at_its_field_and_not_stored(page: Page, site: Site) -> None:
    session_id = open_chat(page, site, SHORT, "One.")
    unfold_settings(page)
    expect(page.locator("#setting-temperature")).to_contain_text("0 to 2")
    field(page, "temperature").fill("99")
    leave(page)
    expect(page.locator("#setting-temperature")).to_contain_text("Temperature must be a number from 0 to 2, not 99.")
    assert site.service.get_session(session_id).sampling["temperature"] == 0.0
    field(page, "temperature").fill("0.5")
    leave(page)
    expect(page.locator("#setting-temperature").get_by_text("must be")).not_to_be_visible()
    expect(page.locator("#setting-temperature")).to_contain_text("0 to 2")
    expect(page.get_by_text(texts.SETTINGS_SAVED)).to_be_visible()
    assert site.service.get_session(session_id).sampling["temperature"] == 0.5


def test_two_tabs_stay_in_step_and_neither_takes_away_what_the_other_types(
    page: Page, second_page: Page, site: Site
) -> None:
    session_id = open_chat(page, site, SHORT, "One.")
    unfold_settings(page)
    second_page.goto(site.address(session_id))
    expect(replies(second_page)).to_have_count(1)
    unfold_settings(second_page)
    expect(field(second_page, "max_new_tokens")).to_have_value("6")
    field(second_page, "system_prompt").press_sequentially("Half a sen")
    field(page, "max_new_tokens").fill("5")
    leave(page)
    expect(field(second_page, "max_new_tokens")).to_have_value("5")
    expect(field(second_page, "system_prompt")).to_have_value("Half a sen")
    expect(field(second_page, "system_prompt")).to_be_focused()
    field(second_page, "system_prompt").press_sequentially("tence.")
    leave(second_page)
    expect(field(page, "system_prompt")).to_have_value("Half a sentence.")
    session = site.service.get_session(session_id)
    assert (session.system_prompt, session.sampling["max_new_tokens"]) == ("Half a sentence.", 5)


def test_the_fields_take_nothing_until_they_are_filled_with_the_settings_of_the_chat_that_is_shown(
    page: Page, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = site.service.create_session(title="The other one", system_prompt="Be kind.", sampling=SHORT)
    open_chat(page, site, SHORT, "One.")
    unfold_settings(page)
    is_read, form = threading.Event(), SettingsHandlers._form

    def read_late(handlers: SettingsHandlers, session: ChatSession | None) -> Form:
        assert is_read.wait(60)
        return form(handlers, session)

    monkeypatch.setattr(SettingsHandlers, "_form", read_late)
    page.locator(f"#chats a[data-session='{other.id}']").click()
    expect(page.get_by_role("heading", name="The other one")).to_be_visible()
    prompt = field(page, "system_prompt")
    prompt.focus()
    expect(prompt).not_to_be_focused()
    is_read.set()
    expect(prompt).to_have_value("Be kind.")
    prompt.click()
    prompt.press_sequentially(" And brief.")
    leave(page)
    expect(page.get_by_text(texts.SETTINGS_SAVED)).to_be_visible()
    assert site.service.get_session(other.id).system_prompt == "Be kind. And brief."


def test_another_cache_kind_is_taken_at_the_next_turn_and_told(page: Page, site: Site) -> None:
    session_id = open_chat(page, site, SHORT, "One.")
    unfold_settings(page)
    field(page, "cache").click()
    page.get_by_role("option", name="quantized-int8").click()
    expect(page.get_by_text(texts.SETTINGS_NEW_FORM)).to_be_visible()
    say(page, "Two.")
    expect(replies(page)).to_have_count(2)
    expect(page.get_by_role("region", name="Cache")).to_contain_text("This chat · quantized-int8")
    assert site.service.cache_report(session_id).kind == "quantized-int8"


def test_the_panel_follows_a_reply_while_it_is_written_and_says_at_its_end_what_it_cost(page: Page, site: Site) -> None:
    open_chat(page, site, LONG)
    say(page, STORY)
    panel = page.get_by_role("region", name="Cache")
    expect(panel).to_contain_text(texts.THIS_REPLY)
    expect(panel).to_contain_text(texts.WRITING)
    expect(panel.locator("polyline")).to_have_count(1)
    expect(panel.locator("dl")).to_contain_text("tokens/s")
    used = panel.locator("li").filter(has_text=texts.USED)
    earlier = used.inner_text()
    expect(used).not_to_have_text(earlier, use_inner_text=True)
    button(page, "Stop").click()
    expect(panel.get_by_text(texts.LAST_REPLY)).to_have_count(1)
    expect(panel).not_to_contain_text(texts.THIS_REPLY)
    expect(panel.locator("polyline")).to_have_count(1)
    button(page, "Regenerate").click()
    expect(panel).to_contain_text(texts.THIS_REPLY)
    button(page, "Stop").click()
    button(page, "Previous reply").click()
    expect(panel.locator("polyline")).to_have_count(0)


def test_a_dropped_cache_is_gone_from_memory_and_disk_and_the_text_stays(
    page: Page, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What others share with it would be read ahead, sooner or later, and told instead.
    monkeypatch.setattr(site.service, "prefetch", lambda *_: 0)
    session_id = open_chat(page, site, SHORT, "About otters, please.")
    unfold(page, texts.STORAGE)
    expect(button(page, re.compile(rf"^{texts.STORAGE}"))).to_have_attribute("aria-expanded", "true")  # type: ignore[arg-type]
    drop = button(page, f"{texts.DROP_CACHE}: About otters, please.")
    expect(drop).to_have_text(texts.DROP_CACHE)
    drop.click()
    expect(page.get_by_text("The text stays.")).to_be_visible()
    expect(drop).to_have_count(0)
    assert session_id not in site.service.storage_report().cache.session_bytes
    page.reload()
    expect(page.get_by_role("region", name="Cache")).to_contain_text(texts.CACHE_NOWHERE)
    expect(replies(page)).to_have_count(1)


def test_all_caches_are_dropped_only_after_a_question_and_a_check_says_what_it_found(page: Page, site: Site) -> None:
    open_chat(page, site, SHORT, "One.")
    unfold(page, texts.STORAGE)
    button(page, texts.VERIFY).click()
    expect(page.get_by_text("All is well")).to_be_visible()
    button(page, texts.DROP_ALL).click()
    expect(page.get_by_text(texts.DROP_ALL_QUESTION)).to_be_visible()
    expect(button(page, texts.DROP_ALL)).to_be_focused()
    button(page, texts.CANCEL).last.click()
    expect(page.get_by_text(texts.DROP_ALL_QUESTION)).to_have_count(0)
    button(page, texts.DROP_ALL).click()
    expect(page.get_by_text(texts.DROP_ALL_QUESTION)).to_be_visible()
    button(page, texts.DROP_ALL).click()
    expect(page.get_by_text(texts.STORAGE_EMPTY)).to_be_visible()
    assert site.service.storage_report().cache.session_bytes == {}


def test_the_plan_follows_its_fields(page: Page, site: Site) -> None:
    page.goto(site.url)
    unfold(page, texts.PLAN)
    planned = page.locator("#planned")
    total = site.service.memory_plan().plan.of("dynamic").total_bytes
    expect(planned).to_contain_text(texts.size(total))
    page.get_by_label(texts.PLAN_CHATS).fill("100000")
    leave(page)
    expect(planned).to_contain_text("It does not fit with a dynamic cache")
    expect(planned).to_contain_text(texts.PLAN_ADVICE)


@pytest.mark.parametrize("motion", ["no-preference", "reduce"])
def test_a_panel_that_is_opened_comes_into_view(context: BrowserContext, site: Site, motion: str) -> None:
    page = context.new_page()
    page.emulate_media(reduced_motion=motion)  # type: ignore[arg-type]
    open_chat(page, site, SHORT, "One.")
    has_come = (
        "id => { const [side, panel] = ['side', id].map((e) => document.getElementById(e).getBoundingClientRect());"
        " return panel.top >= side.top - 1 && (panel.bottom <= side.bottom + 1 || panel.top < side.top + 2); }"
    )
    scroll = page.locator("#side").evaluate("e => getComputedStyle(e).scrollBehavior")
    assert scroll == ("auto" if motion == "reduce" else "smooth")
    for name, panel in ((texts.SETTINGS, "settings"), (texts.STORAGE, "storage"), (texts.PLAN, "plan")):
        page.locator("#side").evaluate("e => e.scrollTo({ top: 0, behavior: 'instant' })")
        unfold(page, name)
        page.wait_for_function(has_come, arg=panel)
        unfold(page, name)


def test_on_a_phone_the_figures_are_one_line_and_a_sheet_over_the_chat_that_is_closed(page: Page, site: Site) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    session_id = open_chat(page, site, SHORT, "One.")
    side, details = page.locator("#side"), button(page, texts.SHOW_DETAILS).last
    expect(details).to_be_visible()
    assert side.evaluate("e => e.offsetHeight") <= 80
    end = box(page).bounding_box()
    for close in (
        lambda: button(page, texts.CLOSE).click(),
        lambda: page.keyboard.press("Escape"),
        lambda: page.mouse.click(195, 30),
    ):
        details.click()
        expect(button(page, texts.CLOSE)).to_be_in_viewport(ratio=1)
        expect(page.locator("#panels")).to_be_visible()
        site.service.regenerate(session_id).result(60)  # the region is painted anew
        expect(button(page, texts.CLOSE)).to_have_attribute("aria-expanded", "true")
        close()
        expect(page.locator("#panels")).to_be_hidden()
        expect(details).to_have_attribute("aria-expanded", "false")
    assert box(page).bounding_box() == end
