"""What the page looks like: each scene in both languages, light and dark, wide and on a phone, kept as pictures; and
that nothing in any of them is cut or wider than its place."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

import pytest
from browser import SCREENSHOTS, WAIT_MS, Site, button, replies
from playwright.sync_api import Browser, Locator, Page, expect
from test_browser_chats import chat_file
from test_browser_layout import LOCALES

from chatcache.stats import Sampling
from chatcache.ui.texts import ENGLISH, Texts
from chatcache.ui.turkish import TURKISH

pytestmark = pytest.mark.browser

SIZES = {1280: 860, 390: 844}

QUESTION = "How do I find a number in a sorted list? Show me the code, and how many steps it takes."
REASONING = "A sorted list: bisection. The number of steps is the logarithm to base two of the length."
ANSWER = """Halve the list until one place is left:

```python
def find(numbers: list[int], wanted: int) -> int | None:
    low, high = 0, len(numbers)
    while low < high:
        middle = (low + high) // 2  # never outside the list
        if numbers[middle] < wanted:
            low = middle + 1
        else:
            high = middle
    return low if numbers[low:] and numbers[low] == wanted else None
```

For $n$ numbers that takes at most $\\lceil \\log_2 (n + 1) \\rceil$ steps:

$$T(n) = T\\left(\\frac{n}{2}\\right) + 1 \\quad\\Rightarrow\\quad T(n) \\in O(\\log n)$$

| numbers | steps |
|--------:|------:|
| 1,000 | 10 |
| 1,000,000 | 20 |
"""


@dataclass(frozen=True)
class Album:
    """The chats that the pictures show."""

    site: Site
    address: str


@pytest.fixture(scope="module")
def album(site: Site) -> Album:
    """A chat with everything that a reply can hold, some others, and two in the bin."""
    service, moment = site.service, datetime.now(UTC)
    begun = service.create_session(sampling=Sampling(temperature=0.0, max_new_tokens=20))
    service.send(begun.id, QUESTION).result(60)
    exported = json.loads(service.export(begun.id))
    service.delete(begun.id)
    service.purge(begun.id)
    for title, hours in (("Ferries across the Bosporus and where they stop", 30), ("A poem about the sea", 700)):
        updated_at = (moment - timedelta(hours=hours)).isoformat()
        service.import_(chat_file(exported, title, updated_at=updated_at, pinned=hours == 700))
    for title in ("Rainy Sunday", "Notes on caches"):
        service.delete(service.import_(chat_file(exported, title)).session.id)
    shown = service.import_(json.dumps(with_reply(exported))).session
    service.send(shown.id, "And in one sentence?").result(60)
    service.regenerate(shown.id).result(60)
    return Album(site, site.address(shown.id))


def with_reply(exported: dict[str, Any]) -> dict[str, Any]:
    """The chat, whose reply says `ANSWER`."""
    reply = {"text": ANSWER, "reasoning": REASONING, "token_ids": None}
    messages = [m | reply if m["role"] == "assistant" else m for m in exported["messages"]]
    return exported | {"messages": messages}


@dataclass(frozen=True)
class Screen:
    """A page in one language, colour scheme and width."""

    page: Page
    texts: Texts
    scheme: str
    width: int

    @property
    def is_narrow(self) -> bool:
        return self.width < 1000

    def keep(self, scene: str) -> None:
        """The picture of a scene, in which nothing is wider than its place."""
        too_wide = self.page.evaluate(
            "width => [...document.querySelectorAll('#talk *, #side *, #sidebar.open *, #notice *')].filter(e =>"
            " e.checkVisibility() && !e.closest('.table-scroll, pre, math, svg, .sr-only, [inert], #offline')"
            " && getComputedStyle(e).position !== 'absolute' && e.getBoundingClientRect().width > 1"
            " && e.getBoundingClientRect().right > width + 1).map(e => e.outerHTML.slice(0, 120))",
            self.width,
        )
        assert too_wide == [], scene
        assert self.page.evaluate("document.documentElement.scrollWidth") == self.width, scene
        name = f"{scene}-{self.width}-{self.scheme}-{self.texts.LANGUAGE}.png"
        self.page.screenshot(path=SCREENSHOTS / name, animations="disabled")

    def show_list(self) -> None:
        if self.is_narrow:
            self.page.locator("#sidebar .toggle-button").click()

    def panel(self, name: str, filled: str) -> Locator:
        """Unfold a panel of the right column, and bring it to the top of it."""
        head = button(self.page, re.compile(rf"^{name}"))  # type: ignore[arg-type]
        head.click()
        expect(self.page.locator(filled).first).to_be_visible()
        self.page.locator("#side").evaluate("e => { e.style.scrollBehavior = 'auto'; }")
        head.evaluate("e => e.scrollIntoView()")
        return head


@pytest.fixture(
    params=[(texts, scheme, width) for width in SIZES for scheme in ("light", "dark") for texts in (ENGLISH, TURKISH)],
    ids=lambda param: f"{param[2]}-{param[1]}-{param[0].LANGUAGE}",
)
def screen(request: pytest.FixtureRequest, browser: Browser) -> Iterator[Screen]:
    texts, scheme, width = request.param
    chosen: Literal["light", "dark"] = scheme
    context = browser.new_context(
        viewport={"width": width, "height": SIZES[width]},
        locale=LOCALES[texts.LANGUAGE],
        color_scheme=chosen,
        has_touch=width < 1000,
    )
    context.set_default_timeout(WAIT_MS)
    yield Screen(context.new_page(), texts, scheme, width)
    context.close()


def test_every_scene_has_its_room_in_every_language_scheme_and_width(screen: Screen, album: Album) -> None:
    page, texts = screen.page, screen.texts
    page.goto(album.address)
    expect(page.locator("#transcript math").first).to_be_visible()
    expect(page.locator("#cache .account-bar")).to_have_count(2)
    screen.keep("end")
    page.locator("#transcript .thought").evaluate("e => { e.open = true; }")
    page.locator("#conversation").evaluate("e => e.scrollTo(0, 0)")
    page.locator("#transcript .message.reply").first.hover()
    screen.keep("chat")

    if screen.is_narrow:
        expect(page.locator("#panels")).to_be_hidden()
        button(page, texts.SHOW_DETAILS).first.click()
    page.locator("#cache-meanings summary").click()
    screen.keep("cache")
    page.locator("#cache-meanings summary").click()
    for scene, name, filled in (
        ("settings", texts.SETTINGS, "#setting-cache"),
        ("storage", texts.STORAGE, "#stored-caches .stored"),
        ("plan", texts.PLAN, "#planned .verdict"),
    ):
        head = screen.panel(name, filled)
        screen.keep(scene)
        head.click()

    if screen.is_narrow:
        button(page, texts.CLOSE).click()
    screen.show_list()
    expect(page.locator("#chats a").first).to_be_visible()
    if screen.is_narrow:
        screen.keep("list")
    page.locator("#sidebar input[type=text]").fill("sorted")
    expect(page.locator("#chats mark").first).to_be_visible()
    screen.keep("search")
    page.locator("#sidebar input[type=text]").fill("")
    page.locator("#bin").click()
    expect(page.locator("#chats .in-bin")).to_have_count(2)
    screen.keep("bin")
    page.locator("#bin").click()
    expect(page.locator("#chats .in-bin")).to_have_count(0)
    page.locator("#new-chat").click()
    expect(page.locator("#transcript .welcome")).to_be_visible()
    expect(replies(page)).to_have_count(0)
    screen.keep("welcome")
