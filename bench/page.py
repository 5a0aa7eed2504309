"""Row: tokens per second of a whole reply as it arrives in a browser, against the engine's with nobody looking."""

from __future__ import annotations

import time
from collections.abc import Iterator

from bench.browsing import browser_tab, served
from bench.line import Line, Ratio
from bench.subjects import greedy, settle
from bench.workbench import Workbench

NUM_TOKENS = 128
STORY = "Write a long story about the sea and the people who live near it."

_WATCH = """() => {
  window.seen = {began: performance.now(), last: null, text: ''};
  const look = () => {
    const replies = document.querySelectorAll('[role=article][aria-label=Model], article[aria-label=Model]');
    const prose = replies.length ? replies[replies.length - 1].querySelector('.prose') : null;
    const text = prose ? prose.innerText.trim() : '';
    if (text && text !== window.seen.text) {
      window.seen.last = performance.now();
      window.seen.text = text;
    }
    requestAnimationFrame(look);
  };
  requestAnimationFrame(look);
}"""


def measure_page(bench: Workbench) -> Iterator[Line]:
    """Whole replies of one length: from the click to the last change of the text, and from `send` to its end."""
    sampling = greedy(NUM_TOKENS)
    with bench.service() as service, served(service) as url, browser_tab() as page:

        def engine() -> float:
            page.goto("about:blank")
            session_id = service.create_session(sampling=sampling).id
            began_s = time.perf_counter()
            num_tokens = service.send(session_id, STORY).result().stats.num_completion_tokens
            took_s = time.perf_counter() - began_s
            settle(service)
            return num_tokens / took_s

        def at_the_browser() -> float:
            session_id = service.create_session(sampling=sampling).id
            page.goto(f"{url}?session={session_id}")
            box = page.get_by_role("textbox", name="Message")
            box.fill(STORY)
            page.evaluate(_WATCH)
            box.press("Enter")
            page.get_by_role("button", name="Regenerate", exact=True).wait_for(state="visible")
            page.wait_for_function("() => window.seen.last && performance.now() - window.seen.last > 1500")
            seen = page.evaluate("() => window.seen")
            num_tokens = len(service.messages(session_id)[-1].token_ids or ())
            settle(service)
            return float(num_tokens / ((seen["last"] - seen["began"]) / 1000))

        speeds = bench.alternate({"engine": engine, "browser": at_the_browser})
    ratio = Ratio("the engine's", speeds["browser"] / speeds["engine"], at_least=0.85)
    yield Line("decode as seen in a browser", "tokens/s", speeds["browser"], {"engine": speeds["engine"]}, (ratio,))
