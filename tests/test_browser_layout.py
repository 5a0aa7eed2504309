"""That nothing on the page is cut, squeezed or broken into lines, wide and narrow, in both languages."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest
from browser import SCREENSHOTS, SHORT, WAIT_MS, Site, button
from playwright.sync_api import Browser, Locator, Page, expect

from chatcache.stats import Sampling
from chatcache.ui.texts import ENGLISH, Texts
from chatcache.ui.turkish import TURKISH

pytestmark = pytest.mark.browser

LOCALES = {"en": "en-US", "tr": "tr-TR"}


@pytest.fixture(
    params=[(1280, ENGLISH), (1280, TURKISH), (390, ENGLISH), (390, TURKISH)], ids="{0[0]} {0[1].LANGUAGE}".format
)
def screen(request: pytest.FixtureRequest, browser: Browser) -> Iterator[tuple[Page, Texts]]:
    """A page of this width, in this language."""
    width, texts = request.param
    context = browser.new_context(viewport={"width": width, "height": 800}, locale=LOCALES[texts.LANGUAGE])
    context.set_default_timeout(WAIT_MS)
    yield context.new_page(), texts
    context.close()


def top_of(element: Locator) -> float:
    box = element.bounding_box()
    assert box is not None
    return box["y"] + box["height"] / 2


def assert_in_view(page: Page, element: Locator) -> None:
    """All of it is on the screen, and all of its words are in it."""
    box, size = element.bounding_box(), page.viewport_size
    assert box is not None
    assert size is not None
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= size["width"]
    assert element.evaluate("e => e.scrollWidth <= e.clientWidth + 1"), element.inner_text()


NOTE_SHIFTS = """
    window.shifts = [];
    new PerformanceObserver((list) => {
      for (const { value, sources } of list.getEntries()) {
        const moved = sources.map(({ node }) => node?.id || node?.className || node?.nodeName);
        window.shifts.push({ value, moved });
      }
    }).observe({ type: "layout-shift", buffered: true });
"""


def test_while_a_page_is_loading_a_word_says_so_and_what_stands_there_stays(
    screen: tuple[Page, Texts], site: Site
) -> None:
    page, texts = screen
    session = site.service.create_session(sampling=SHORT)
    site.service.send(session.id, "One.").result(60)
    page.add_init_script(NOTE_SHIFTS)
    page.add_init_script(
        "new MutationObserver(() => { window.opening ??= document.querySelector('#transcript .opening')?.innerText; })"
        ".observe(document, { childList: true, subtree: true })"
    )
    page.goto(site.address(session.id))
    expect(page.locator("#cache .account-bar")).to_have_count(2)
    assert page.evaluate("window.opening") == texts.OPENING
    shifts = page.evaluate("window.shifts")
    assert sum(shift["value"] for shift in shifts) < 0.15, shifts  # a list that slid in made 0.25 of it


def test_what_stands_below_a_reply_keeps_its_lines(screen: tuple[Page, Texts], site: Site) -> None:
    page, texts = screen
    session = site.service.create_session(sampling=SHORT)
    site.service.send(session.id, "One.").result(60)
    site.service.regenerate(session.id).result(60)
    site.service.send(session.id, "Two.").result(60)
    site.service.rollback(session.id)
    page.goto(site.address(session.id))
    tip = page.locator("#transcript .tip")
    expect(button(page, texts.FORWARD)).to_be_visible()
    buttons = tip.locator("footer button").all()
    assert len(buttons) == 8
    is_narrow = page.viewport_size["width"] < 600  # type: ignore[index]
    assert len({round(top_of(each)) for each in buttons}) <= (3 if is_narrow else 1), "on a phone each has a word"
    if is_narrow:
        sizes = [each.evaluate("e => [e.offsetWidth, e.offsetHeight]") for each in buttons]
        assert min(map(min, sizes)) >= 40, "a finger hits it"
    figures = tip.locator(".figures summary")
    assert top_of(figures) > top_of(buttons[-1]) + 20
    assert figures.evaluate("e => e.getBoundingClientRect().height") <= 40, "it is broken into lines"
    for each in (*buttons, figures, page.locator("#send"), page.locator("#sidebar .toggle-button")):
        assert_in_view(page, each)
    page.screenshot(path=SCREENSHOTS / f"below-a-reply-{page.viewport_size['width']}-{texts.LANGUAGE}.png")  # type: ignore[index]


def test_on_a_phone_what_can_be_done_to_a_whole_reply_takes_one_line(browser: Browser, site: Site) -> None:
    session = site.service.create_session(sampling=Sampling(temperature=0.0, max_new_tokens=100, stop=(" ",)))
    site.service.send(session.id, "One.").result(60)
    phone = browser.new_context(viewport={"width": 390, "height": 800}, locale="en-US", is_mobile=True, has_touch=True)
    with closing(phone):
        page = phone.new_page()
        page.goto(site.address(session.id))
        expect(button(page, ENGLISH.ROLL_BACK)).to_be_visible()
        buttons = page.locator("#transcript .tip footer button").all()
        assert len(buttons) == 5
        assert len({top_of(each) for each in buttons}) == 1
        for each in buttons:
            assert_in_view(page, each)


def test_what_is_said_of_a_new_chats_cache_is_said_to_its_end(screen: tuple[Page, Texts], site: Site) -> None:
    page, texts = screen
    page.goto(site.url)
    sentence = page.locator("#cache").get_by_text(texts.CACHE_EMPTY)
    expect(sentence).to_be_visible()
    assert_in_view(page, sentence)


def test_beside_a_message_of_ones_own_what_can_be_done_to_it_takes_no_line(
    screen: tuple[Page, Texts], site: Site
) -> None:
    page, texts = screen
    session = site.service.create_session(sampling=SHORT)
    site.service.send(session.id, "One.").result(60)
    site.service.send(session.id, "word " * 40).result(60)
    page.goto(site.address(session.id))
    for question in page.locator("#transcript .user").all():
        question.hover()
        bubble, edit = question.locator(".bubble"), question.get_by_role("button", name=texts.EDIT_QUESTION)
        assert_in_view(page, edit)
        boxes = bubble.bounding_box(), edit.bounding_box()
        assert boxes[0] is not None
        assert boxes[1] is not None
        is_below = boxes[1]["y"] >= boxes[0]["y"] + boxes[0]["height"]
        assert is_below == (page.viewport_size["width"] < 600)  # type: ignore[index]
        assert is_below or boxes[1]["x"] + boxes[1]["width"] <= boxes[0]["x"]


def test_a_notice_does_not_cover_the_end_of_the_conversation(screen: tuple[Page, Texts], site: Site) -> None:
    page, texts = screen
    session = site.service.create_session(sampling=SHORT)
    for number in range(6):
        site.service.send(session.id, f"This is question number {number}.").result(60)
    page.goto(site.address(session.id))
    roll_back, talk = button(page, texts.ROLL_BACK), page.locator("#conversation")
    expect(roll_back).to_be_in_viewport()
    assert talk.evaluate("e => e.scrollHeight > e.clientHeight"), "it need not scroll"
    page.locator("#message textarea").fill("word " * 9000)
    page.locator("#send").click()
    expect(page.locator("#notice [role=alert]")).to_be_visible()
    page.wait_for_function(
        "(e => e.scrollHeight - e.scrollTop - e.clientHeight < 2)(document.getElementById('conversation'))"
    )
    notice = page.locator("#notice .notice")
    assert top_of(roll_back) < top_of(notice)
    expect(roll_back).to_be_in_viewport()


def test_the_closed_lists_button_stands_beside_the_title(screen: tuple[Page, Texts], site: Site) -> None:
    page, texts = screen
    session = site.service.create_session(title="How does one find a number in a sorted list of a million numbers?")
    page.goto(site.address(session.id))
    toggle, title = button(page, texts.TOGGLE_SIDEBAR), page.locator("#title h1")
    expect(title).to_be_visible()
    if page.locator("#sidebar.open").count():
        toggle.click()
    expect(page.locator("#sidebar.open")).to_have_count(0)
    page.wait_for_function("!document.getAnimations().length")
    assert_in_view(page, toggle)
    button_box, title_box = toggle.bounding_box(), title.bounding_box()
    assert button_box is not None
    assert title_box is not None
    assert button_box["x"] + button_box["width"] <= title_box["x"]
    assert title_box["width"] >= 150
