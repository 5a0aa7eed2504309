"""What a page costs: bytes that reach the browser, for long chats and for many, per token and at first sight."""

from __future__ import annotations

import dataclasses
import json
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pytest
from browser import Site, button, replies, served
from playwright.sync_api import Browser, BrowserContext, Page, expect
from services import open_service, runtime_of

from chatcache.chat import ChatService
from chatcache.loader import LoadedModel
from chatcache.stats import Sampling
from chatcache.ui.gauge import Gauge
from storage.chat_rows import insert_tree
from storage.records import SessionTree

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def quick_site(browser: Browser, tiny_llama: LoadedModel, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A page over a model so small that the longest chat is answered at once. The browser runs, as `site` wants it.

    While a turn runs, the panel is left as it is: what it sends once a second and at each phase, which stays the same
    however long a reply is (`test_side` says so), is none of what a token costs.
    """
    assert browser.is_connected()
    with (
        pytest.MonkeyPatch.context() as patch,
        open_service(tiny_llama, tmp_path_factory.mktemp("costs")) as service,
        served(service) as site,
    ):
        patch.setattr(Gauge, "look", lambda gauge: gauge._progress)
        runtime_of(service).prompts.end_token_ids = frozenset()  # every reply is as long as it is asked to be
        yield site


def chat_of(service: ChatService, num_turns: int) -> str:
    """A chat of so many turns that nobody had to wait for."""
    moment = datetime.now(UTC).isoformat()
    messages: list[dict[str, Any]] = []
    for number in range(2 * num_turns):
        messages.append(
            {
                "id": str(uuid.uuid4()),
                "parent_id": messages[-1]["id"] if messages else None,
                "role": ("user", "assistant")[number % 2],
                "text": "The cache keeps what was computed.",
                "status": "complete",
                "created_at": moment,
            }
        )
    session = {"id": str(uuid.uuid4()), "title": f"{num_turns} turns", "tip_id": messages[-1]["id"]}
    session |= {"created_at": moment, "updated_at": moment}
    file = {"format": "chatcache.chat", "format_version": 1, "session": session, "messages": messages, "turns": []}
    return service.import_(json.dumps(file)).session.id


class Received:
    """How many bytes of answers have reached a page since it was last asked."""

    def __init__(self, page: Page) -> None:
        self._num_bytes = 0
        session = page.context.new_cdp_session(page)
        session.on("Network.dataReceived", self._add)
        session.send("Network.enable")

    def _add(self, event: dict[str, Any]) -> None:
        self._num_bytes += event["dataLength"]

    def taken(self, page: Page) -> int:
        page.wait_for_timeout(400)  # what is still under way
        num_bytes, self._num_bytes = self._num_bytes, 0
        return num_bytes


@dataclass(frozen=True)
class Cost:
    """What a turn sends to a page that looks on: each further token, and a turn with a short reply as a whole."""

    token_bytes: float
    turn_bytes: int


def cost_of_a_turn(page: Page, site: Site, num_turns: int) -> Cost:
    """In a chat of so many turns."""
    session_id = chat_of(site.service, num_turns)
    page.goto(site.address(session_id))
    expect(button(page, "Regenerate")).to_be_visible()
    received = Received(page)
    sent = []
    for num_tokens in (40, 400):
        received.taken(page)
        turn = site.service.send(session_id, "Go on.", sampling=Sampling(temperature=0.0, max_new_tokens=num_tokens))
        num_written = turn.result(60).stats.num_completion_tokens
        expect(button(page, "Regenerate")).to_be_visible()
        expect(page.locator(f"[data-id='{turn.reply_id}']")).to_be_visible()
        sent.append((num_written, received.taken(page)))
    (few, few_bytes), (many, many_bytes) = sent
    assert (few, many) == (40, 400)
    return Cost((many_bytes - few_bytes) / (many - few), few_bytes)


def test_a_token_sends_as_many_bytes_in_a_long_chat_as_in_a_short_one(page: Page, quick_site: Site) -> None:
    short, long, longest = (cost_of_a_turn(page, quick_site, num_turns) for num_turns in (1, 100, 500))
    # A token is some ten bytes of text, more where it has to be escaped; the list of chats is read every 15 seconds:
    # below 40 nothing that grows with the chat is sent.
    assert max(cost.token_bytes for cost in (short, long, longest)) < 40, (short, long, longest)
    assert longest.turn_bytes <= 1.2 * long.turn_bytes, (long, longest)


def first_sight(context: BrowserContext, address: str, num_replies: int) -> int:
    """Bytes until a page is there, without the files that a browser keeps."""
    sizes = []
    for _ in range(2):
        page = context.new_page()
        received = Received(page)
        page.goto(address)
        expect(replies(page)).to_have_count(num_replies)
        expect(page.get_by_role("list", name="Chats").get_by_role("link").first).to_be_visible()
        sizes.append(received.taken(page))
        page.close()
    return min(sizes)


def test_a_chat_of_500_turns_opens_as_one_of_50(context: BrowserContext, quick_site: Site) -> None:
    short, long = (quick_site.address(chat_of(quick_site.service, num_turns)) for num_turns in (50, 500))
    sizes = first_sight(context, short, 20), first_sight(context, long, 20)
    assert sizes[1] <= 1.05 * sizes[0], sizes


def test_a_list_of_2000_chats_opens_as_one_of_50(context: BrowserContext, quick_site: Site) -> None:
    service = quick_site.service
    for session in service.sessions(limit=100):
        service.delete(session.id)
    for number in range(50):
        like = service.create_session(title=f"Chat {number}")
    few = first_sight(context, quick_site.url, 0)
    with runtime_of(service).database.write() as db:
        for number in range(50, 2000):
            another = dataclasses.replace(like, id=str(uuid.uuid4()), title=f"Chat {number}")
            insert_tree(db, SessionTree(another, (), ()))
    many = first_sight(context, quick_site.url, 0)
    assert many <= 1.05 * few, (few, many)
