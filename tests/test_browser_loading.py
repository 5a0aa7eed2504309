"""A page that is open before the model's weights are there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import SCREENSHOTS, SHORT, Site, box, button, replies, say, served, session_in_address
from playwright.sync_api import Browser, Page, expect
from services import HeldWeights, loading_service

from chatcache.errors import ModelLoadError
from chatcache.loader import LoadedModel
from chatcache.ui.texts import ENGLISH
from chatcache.ui.turkish import TURKISH

pytestmark = pytest.mark.browser


@pytest.fixture
def weights(tiny_llama: LoadedModel) -> HeldWeights:
    return HeldWeights(tiny_llama)


@pytest.fixture
def site(request: pytest.FixtureRequest, weights: HeldWeights, tmp_path: Path) -> Iterator[Site]:
    request.getfixturevalue("browser")  # where no event loop runs yet, Gradio makes some that nobody closes
    with loading_service(weights, tmp_path) as service, served(service) as site:
        yield site


def test_a_message_sent_before_the_model_is_there_says_so_and_is_answered_then(
    page: Page, site: Site, weights: HeldWeights
) -> None:
    page.goto(site.url)
    loading = page.locator("#loading")
    expect(loading.get_by_role("status")).to_have_text(ENGLISH.LOADING)
    expect(loading).to_contain_text("It takes long.")
    expect(loading).to_contain_text(re.compile(r"\b[1-9]\d*\ss\b"))
    page.screenshot(path=SCREENSHOTS / "loading.png")
    say(page, "Hello there.")
    expect(page.get_by_role("article", name="You")).to_contain_text("Hello there.")
    for place in (replies(page).last, page.get_by_role("region", name="Cache")):
        expect(place).to_contain_text("Waiting for the model…")
    expect(button(page, "Stop")).to_be_visible()
    weights.arrive()
    expect(button(page, "Regenerate")).to_be_visible()
    expect(loading).to_be_empty()
    assert site.service.messages(session_in_address(page))[-1].text


def test_a_chat_can_be_read_stopped_and_left_while_the_model_is_loading(
    page: Page, site: Site, weights: HeldWeights
) -> None:
    session = site.service.create_session(title="Read me", sampling=SHORT)
    site.service.send(session.id, "What was said before.")
    page.goto(site.address(session.id))
    expect(page.get_by_role("article", name="You")).to_contain_text("What was said before.")
    button(page, "Stop").click()
    expect(replies(page)).to_contain_text("Stopped.")
    button(page, ENGLISH.NEW_CHAT).click()
    expect(page.get_by_text(ENGLISH.WELCOME)).to_be_visible()
    expect(page.locator("#loading")).to_contain_text(ENGLISH.LOADING)
    box(page).fill("a draft")
    weights.arrive()
    expect(page.locator("#loading")).to_be_empty()
    expect(box(page)).to_have_value("a draft")


def test_the_memory_plan_says_that_it_waits_for_the_model_and_comes_with_it(
    page: Page, site: Site, weights: HeldWeights
) -> None:
    page.goto(site.url)
    expect(page.locator("#loading")).to_contain_text(ENGLISH.LOADING)
    page.get_by_role("button", name=ENGLISH.PLAN).click()
    expect(page.locator("#planned")).to_have_text(ENGLISH.PLAN_WAITS)
    weights.arrive()
    expect(page.locator("#planned .verdict")).to_be_visible()


def test_in_turkish_it_is_said_in_turkish(browser: Browser, site: Site, weights: HeldWeights) -> None:
    context = browser.new_context(locale="tr-TR")
    page = context.new_page()
    page.goto(site.url)
    expect(page.locator("#loading")).to_contain_text(TURKISH.LOADING)
    weights.arrive()
    expect(page.locator("#loading")).to_be_empty()
    context.close()


def test_that_the_model_cannot_be_loaded_is_said_on_the_page(page: Page, site: Site, weights: HeldWeights) -> None:
    weights.failure = ModelLoadError("The weights are damaged. Copy them again.")
    session = site.service.create_session()
    page.goto(site.address(session.id))
    expect(page.locator("#loading")).to_contain_text(ENGLISH.LOADING)
    weights.arrive()
    expect(page.get_by_role("alert").filter(has_text="The weights are damaged.")).to_be_visible()
    expect(page.locator("#loading")).to_be_empty()
