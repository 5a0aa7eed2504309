"""A page after the server has ended and another one begun: one that was open meanwhile, and one that is opened then."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from browser import Site, box, button, open_chat, replies, say, served
from playwright.sync_api import Page, expect
from services import open_service

from chatcache.loader import LoadedModel
from chatcache.stats import Sampling

pytestmark = pytest.mark.browser

BRIEF = Sampling(temperature=0.0, max_new_tokens=4)


@contextmanager
def running(model: LoadedModel, data_dir: Path, port: int = 0) -> Iterator[Site]:
    with open_service(model, data_dir) as service, served(service, port) as site:
        yield site


def test_a_stale_tab_shows_what_is_there_after_a_restart_and_overwrites_nothing(
    page: Page, tiny_llama: LoadedModel, tmp_path: Path
) -> None:
    with running(tiny_llama, tmp_path) as site:
        port = int(site.url.rstrip("/").rpartition(":")[2])
        session_id = open_chat(page, site, BRIEF, "First question.")
        box(page).fill("a draft")
    lost = page.get_by_role("alert").filter(has_text="Connection lost")
    expect(lost).to_be_visible()
    with open_service(tiny_llama, tmp_path) as service:
        service.send(session_id, "Asked elsewhere meanwhile.").result(60)
    with running(tiny_llama, tmp_path, port) as site:
        expect(lost).to_be_hidden()
        expect(replies(page)).to_have_count(2)
        expect(page.get_by_role("article", name="You").last).to_contain_text("Asked elsewhere meanwhile.")
        expect(box(page)).to_have_value("a draft")
        say(page, "And here again.")
        expect(replies(page)).to_have_count(3)
        expect(button(page, "Regenerate").last).to_be_visible()
        said = [message.text for message in site.service.messages(session_id)][::2]
        assert said == ["First question.", "Asked elsewhere meanwhile.", "And here again."]


def test_a_chat_that_is_opened_after_a_restart_is_in_memory_before_anything_is_sent(
    page: Page, tiny_llama: LoadedModel, tmp_path: Path
) -> None:
    with open_service(tiny_llama, tmp_path) as service:
        session_id = service.create_session(sampling=BRIEF).id
        service.send(session_id, "Before the restart.").result(60)
        num_tokens = service.cache_report(session_id).num_tokens
    with running(tiny_llama, tmp_path) as site:
        page.goto(site.address(session_id))
        expect(page.get_by_role("region", name="Cache")).to_contain_text(f"In memory{num_tokens} tokens")
        assert len(site.service.messages(session_id)) == 2
        say(page, "After it.")
        expect(replies(page)).to_have_count(2)
        expect(button(page, "Regenerate").last).to_be_visible()
        reply_id = site.service.messages(session_id)[-1].id
        assert site.service.turn_stats([reply_id])[reply_id].num_cached_tokens == num_tokens
