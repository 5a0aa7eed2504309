"""Row: how soon a page shows a chat and the list of chats, for long chats beside short ones and for many beside few."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any

from bench.browsing import browser_tab, served
from bench.line import Line, Ratio
from bench.workbench import Workbench, new_owner

if TYPE_CHECKING:
    from playwright.sync_api import Page

FEW_TURNS, MANY_TURNS = 50, 500
FEW_CHATS, MANY_CHATS = 50, 2000
MOST = 1.5
SAID = (
    "Why does a **key/value cache** help?\n\n- it keeps what was computed\n- `crop` takes back what was rejected\n\n"
    * 4
)

_NOTE_WHEN_SEEN = """(selector) => {
  const look = () => {
    const found = document.querySelectorAll(selector);
    if (found.length && found[found.length - 1].checkVisibility()) {
      requestAnimationFrame(() => setTimeout(() => { window.seenAfterMs = performance.now(); }));
    } else requestAnimationFrame(look);
  };
  look();
}"""
"""Notes the time since the page was asked for, once what is wanted has been painted."""


def measure_sight(bench: Workbench) -> Iterator[Line]:
    """From asking for the page to the last message, or the list, being painted; a warm browser, medians."""
    with bench.service() as service, browser_tab() as tab:
        few, many = service.for_owner(new_owner()), service.for_owner(new_owner())
        for owner, num_chats in ((few, FEW_CHATS), (many, MANY_CHATS)):
            for number in range(num_chats):
                owner.import_(chat_file(f"Chat {number}", 1))
        short, long = (few.import_(chat_file(f"{n} turns", n)).session.id for n in (FEW_TURNS, MANY_TURNS))
        with served(few) as few_url, served(many) as many_url:
            addresses = {
                "short": (f"{few_url}?session={short}", "article.reply.tip"),
                "long": (f"{few_url}?session={long}", "article.reply.tip"),
                "few": (few_url, "#chats a[data-session]"),
                "many": (many_url, "#chats a[data-session]"),
            }
            seen_s = bench.alternate(
                {name: partial(seconds_until_seen, tab, *shown) for name, shown in addresses.items()}
            )
    yield _beside(f"a chat of {MANY_TURNS} turns is shown", seen_s["long"], f"{FEW_TURNS} turns", seen_s["short"])
    yield _beside(f"a list of {MANY_CHATS:,} chats is shown", seen_s["many"], f"{FEW_CHATS} chats", seen_s["few"])


def seconds_until_seen(tab: Page, address: str, selector: str) -> float:
    """Until the last element of `selector` is on the page and painted."""
    tab.goto("about:blank")
    tab.goto(address, wait_until="commit")
    tab.evaluate(_NOTE_WHEN_SEEN, selector)
    tab.wait_for_function("() => window.seenAfterMs")
    return float(tab.evaluate("() => window.seenAfterMs")) / 1000


def chat_file(title: str, num_turns: int) -> str:
    """A chat of so many turns, as it is exported."""
    moment = datetime.now(UTC).isoformat()
    ids = [str(uuid.uuid4()) for _ in range(2 * num_turns)]
    messages: list[dict[str, Any]] = [
        {
            "id": own,
            "parent_id": above,
            "role": ("user", "assistant")[number % 2],
            "text": SAID,
            "status": "complete",
            "created_at": moment,
        }
        for number, (own, above) in enumerate(zip(ids, [None, *ids], strict=False))
    ]
    session = {"id": str(uuid.uuid4()), "title": title, "tip_id": ids[-1], "created_at": moment, "updated_at": moment}
    file = {"format": "chatcache.chat", "format_version": 1, "session": session, "messages": messages, "turns": []}
    return json.dumps(file)


def _beside(what: str, ours_s: float, other: str, other_s: float) -> Line:
    return Line(what, "s", ours_s, {other: other_s}, (Ratio(other, ours_s / other_s, at_most=MOST),))
