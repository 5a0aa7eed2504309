"""A person who goes from chat to chat quicker than the page: what is shown, and whose the drafts are. In Chromium."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from browser import SHORT, Site, box, button, end_reply, open_chat, say, session_in_address
from playwright.sync_api import Page, expect

from chatcache.errors import InvalidInputError

pytestmark = pytest.mark.browser


@pytest.fixture
def slow(site: Site, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Lets every look at a chat take a while from now on."""
    get_session = site.service.get_session

    def late(session_id: str) -> Any:
        time.sleep(0.4)
        return get_session(session_id)

    return lambda: monkeypatch.setattr(site.service, "get_session", late)


def chat_links(page: Page, *titles: str) -> list[Any]:
    chats = page.get_by_role("list", name="Chats")
    return [chats.get_by_role("link", name=title) for title in titles]


def test_of_chats_that_are_clicked_quickly_the_last_one_is_shown(
    page: Page, site: Site, slow: Callable[[], None]
) -> None:
    sessions = [open_chat(page, site, SHORT, f"Chat number {number}.") for number in (1, 2, 3)]
    first, second, third = chat_links(page, "Chat number 1.", "Chat number 2.", "Chat number 3.")
    expect(third).to_have_attribute("aria-current", "page")
    slow()
    first.click()
    second.click()
    expect(second).to_have_attribute("aria-current", "page")
    expect(page.get_by_role("article", name="You")).to_have_text("Chat number 2.")
    page.wait_for_url(site.address(sessions[1]))
    third.click()
    first.click()
    button(page, "New chat").click()
    expect(page.get_by_role("heading", name="New chat", level=1)).to_be_visible()
    page.wait_for_timeout(1500)  # whatever is still on its way has come
    expect(page.get_by_role("heading", name="New chat", level=1)).to_be_visible()
    assert "session=" not in page.url


def test_the_list_marks_the_chat_that_is_open_before_it_is_read_anew(page: Page, site: Site) -> None:
    page.add_init_script(HOLD_BACK % "((sent) => window.isMarked && sent.length === 2 && sent[0].includes('zone'))")
    there = site.service.create_session(title="There", sampling=SHORT)
    open_chat(page, site, SHORT, "Here.")
    here, link = chat_links(page, "Here.", "There")
    expect(here).to_have_attribute("aria-current", "page")
    page.evaluate("() => { window.isMarked = true; }")
    link.click()
    page.wait_for_function("() => window.letGo !== undefined")
    expect(link).to_have_attribute("aria-current", "page")
    expect(here).not_to_have_attribute("aria-current", "page")
    page.evaluate("() => window.letGo()")
    page.wait_for_url(site.address(there.id))


def test_a_chat_that_was_pressed_is_opened_although_another_one_has_taken_its_place_in_the_list(
    page: Page, site: Site
) -> None:
    last, meant = (site.service.create_session(sampling=SHORT).id for _ in range(2))
    site.service.send(meant, "This one was meant.").result(60)
    shown = open_chat(page, site, SHORT, "This one is shown.")
    second = page.locator("#chats a[data-session]").nth(1)
    expect(second).to_have_attribute("data-session", meant)
    second.hover()
    page.mouse.down()
    site.service.send(last, "This one moves up.").result(60)
    site.service.update_session(shown, title="Has the list read anew")
    expect(second).to_have_attribute("data-session", last)
    page.mouse.up()
    expect(page.get_by_role("article", name="You")).to_have_text("This one was meant.")


def test_back_pressed_twice_quickly_goes_back_twice_and_forward_leads_to_what_lay_between(
    page: Page, site: Site, slow: Callable[[], None]
) -> None:
    names = [f"Place number {number}." for number in (1, 2, 3)]
    sessions = []
    for name in names:
        session = site.service.create_session(sampling=SHORT)
        site.service.send(session.id, name).result(60)
        sessions.append(session.id)
    page.goto(site.address(sessions[0]))
    for session_id, link in zip(sessions[1:], chat_links(page, *names[1:]), strict=True):
        link.click()
        page.wait_for_url(site.address(session_id))
    expect(page.get_by_role("article", name="You")).to_have_text(names[2])
    slow()
    page.evaluate("() => { history.back(); setTimeout(() => history.back(), 100); }")
    expect(page.get_by_role("article", name="You")).to_have_text(names[0])
    page.wait_for_timeout(1000)  # whatever is still on its way has come
    expect(page.get_by_role("article", name="You")).to_have_text(names[0])
    assert session_in_address(page) == sessions[0]
    page.go_forward()
    expect(page.get_by_role("article", name="You")).to_have_text(names[1])
    assert session_in_address(page) == sessions[1]


HOLD_BACK = """
(() => {
  const send = window.fetch;
  let isHeld = false;
  window.fetch = async (address, options) => {
    if (!isHeld && String(address).includes("/queue/join") && %s(JSON.parse(options.body).data)) {
      isHeld = true;
      await new Promise((go) => { window.letGo = go; });
    }
    return send(address, options);
  };
})();
"""
"""Of what the page asks, the first that fits goes out late."""

LEADS_TO_THE_ADDRESS = """((sent) => sent[1] === '{"session":"","message":"","temporary":false,"draft":""}')"""
LOOKS_AT_A_NEW_CHAT = (
    """((sent) => sent.length > 3 && JSON.parse(sent[0])?.visit === 1 && !JSON.parse(sent[0]).session)"""
)


GOES_ELSEWHERE = """((sent) => window.isHolding && /"temporary"/.test(sent[1]) && !/"visit"/.test(sent[1]))"""
ACTS = """((sent) => window.isHolding && /"tip"/.test(sent[1]))"""


def let_go(page: Page) -> None:
    page.evaluate("() => window.letGo()")


def hold_back(page: Page) -> None:
    """From now on, where what fits was told with `isHolding`."""
    page.evaluate("() => { window.isHolding = true; }")


def wait_until_held(page: Page) -> None:
    page.wait_for_function("() => window.letGo !== undefined")


def visited(page: Page, site: Site, *names: str) -> list[str]:
    """The chats that begin with these messages; the tab has been in one after the other."""
    sessions = [site.service.create_session(sampling=SHORT).id for _ in names]
    for session_id, name in zip(sessions, names, strict=True):
        site.service.send(session_id, name).result(60)
    page.goto(site.address(sessions[0]))
    for session_id, name in zip(sessions[1:], names[1:], strict=True):
        page.locator(f"#chats a[data-session='{session_id}']").click()
        expect(page.get_by_role("article", name="You")).to_have_text(name)
        page.wait_for_url(site.address(session_id))
    return sessions


def test_back_counts_although_a_fork_that_was_asked_for_before_is_there_first(
    page: Page, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    page.add_init_script(HOLD_BACK % GOES_ELSEWHERE)
    names = ["Back to this one.", "Fork this one."]
    sessions = visited(page, site, *names)
    fork, asked, goes_on = site.service.fork, threading.Event(), threading.Event()

    def late(message_id: str) -> Any:
        asked.set()
        goes_on.wait(30)
        return fork(message_id)

    monkeypatch.setattr(site.service, "fork", late)
    hold_back(page)
    button(page, "Fork").click()
    assert asked.wait(30)
    page.evaluate("() => history.back()")
    wait_until_held(page)
    goes_on.set()
    expect(page.locator("#notice")).to_contain_text("new chat")
    let_go(page)
    expect(page.get_by_role("article", name="You")).to_have_text(names[0])
    assert session_in_address(page) == sessions[0]
    page.go_forward()
    expect(page.get_by_role("article", name="You")).to_have_text(names[1])
    assert session_in_address(page) == sessions[1]


def test_back_before_a_clicked_chat_is_there_leaves_that_one_out_of_the_history(page: Page, site: Site) -> None:
    page.add_init_script(HOLD_BACK % GOES_ELSEWHERE)
    names = [f"Station number {number}." for number in (1, 2, 3)]
    sessions = visited(page, site, *names)
    hold_back(page)
    page.locator(f"#chats a[data-session='{sessions[0]}']").click()
    wait_until_held(page)
    page.evaluate("() => history.back()")
    page.wait_for_url(site.address(sessions[1]))
    let_go(page)
    expect(page.get_by_role("article", name="You")).to_have_text(names[1])
    page.go_forward()
    expect(page.get_by_role("article", name="You")).to_have_text(names[2])
    assert session_in_address(page) == sessions[2]


@pytest.mark.parametrize("asked", ["Send", "Send first", "Roll back"])
def test_what_an_action_makes_of_a_draft_is_done_to_that_chats_own_wherever_the_person_is_by_then(
    page: Page, site: Site, asked: str
) -> None:
    page.add_init_script(HOLD_BACK % ACTS)
    other, there = visited(page, site, f"{asked}: the other one.", f"{asked}: this one.")
    page.locator(f"#chats a[data-session='{other}']").click()
    expect(page.get_by_role("article", name="You")).to_have_text(f"{asked}: the other one.")
    box(page).fill("A draft.")
    if asked == "Send first":
        there = ""
        button(page, "New chat").click()
        expect(page.get_by_role("heading", name="New chat", level=1)).to_be_visible()
    else:
        page.locator(f"#chats a[data-session='{there}']").click()
        expect(page.get_by_role("article", name="You")).to_have_text(f"{asked}: this one.")
    expect(box(page)).to_have_value("")
    hold_back(page)
    if asked == "Roll back":
        button(page, "Roll back").click()
    else:
        say(page, "Goes out.")
    wait_until_held(page)
    page.evaluate("() => history.back()")
    expect(box(page)).to_have_value("A draft.")
    let_go(page)
    drafts = {other: "A draft."} | ({there: f"{asked}: this one."} if asked == "Roll back" else {})
    page.wait_for_function(
        "(drafts) => Object.entries(JSON.parse(localStorage.getItem('chatcache-drafts'))).sort().toString() === drafts",
        arg=",".join(f"{key},{draft}" for key, draft in sorted(drafts.items())),
    )
    expect(box(page)).to_have_value("A draft.")
    assert session_in_address(page) == other
    page.go_forward()
    expect(box(page)).to_have_value(drafts.get(there, ""))
    end_reply(site, site.service.sessions()[0].id)


@pytest.mark.parametrize("is_first", [True, False])
def test_what_is_typed_on_while_a_message_goes_out_stays(page: Page, site: Site, is_first: bool) -> None:
    page.add_init_script(HOLD_BACK % ACTS)
    page.goto(site.url if is_first else site.address(site.service.create_session(sampling=SHORT).id))
    hold_back(page)
    say(page, "Goes out.")
    wait_until_held(page)
    box(page).press_sequentially(" Typed on.")
    let_go(page)
    expect(box(page)).to_have_value(" Typed on.")
    end_reply(site, session_in_address(page))
    expect(page.get_by_role("article", name="You")).to_have_text("Goes out.")
    expect(box(page)).to_have_value(" Typed on.")


def test_a_first_message_that_has_gone_out_is_no_draft_although_something_was_clicked_meanwhile(
    page: Page, site: Site
) -> None:
    page.add_init_script(HOLD_BACK % ACTS)
    page.goto(site.url)
    hold_back(page)
    say(page, "Goes out.")
    wait_until_held(page)
    page.get_by_role("heading", name="Cache").click()
    let_go(page)
    expect(page.get_by_role("article", name="You")).to_have_text("Goes out.")
    button(page, "New chat").click()
    expect(page.get_by_role("heading", name="New chat", level=1)).to_be_visible()
    expect(box(page)).to_have_value("")
    end_reply(site, site.service.sessions()[0].id)


def test_the_box_is_that_of_the_new_chat_from_the_click_on_and_what_is_sent_waits_for_it(
    page: Page, site: Site
) -> None:
    page.add_init_script(HOLD_BACK % GOES_ELSEWHERE)
    left = open_chat(page, site, SHORT, "This one is left.")
    box(page).fill("Its draft.")
    hold_back(page)
    button(page, "New chat").click()
    wait_until_held(page)
    expect(box(page)).to_have_value("")
    box(page).press_sequentially("Begins another one.")
    box(page).press("Enter")
    expect(box(page)).to_have_value("Begins another one.")
    let_go(page)
    expect(page.get_by_role("article", name="You")).to_have_text("Begins another one.")
    expect(box(page)).to_have_value("")
    end_reply(site, session_in_address(page))
    assert [message.text for message in site.service.messages(left)[::2]] == ["This one is left."]
    page.locator(f"#chats a[data-session='{left}']").click()
    expect(box(page)).to_have_value("Its draft.")


def go_on_while_it_goes_out(page: Page, site: Site, text: str) -> None:
    """Into a new chat, from the one that this text begins and whose sending is held back."""
    page.add_init_script(HOLD_BACK % ACTS)
    page.goto(site.url)
    hold_back(page)
    say(page, text)
    wait_until_held(page)
    button(page, "New chat").click()
    expect(box(page)).to_have_value("")


def test_a_message_sent_into_a_new_chat_while_the_one_before_goes_out_is_sent_after_it(page: Page, site: Site) -> None:
    go_on_while_it_goes_out(page, site, "Goes out first.")
    say(page, "Goes out second.")
    let_go(page)
    expect(page.get_by_role("article", name="You")).to_have_text("Goes out second.")
    expect(box(page)).to_have_value("")
    begun = [session.id for session in site.service.sessions()[:2]]
    for session_id in begun:
        end_reply(site, session_id)
    said = {site.service.messages(session_id)[0].text for session_id in begun}
    assert said == {"Goes out first.", "Goes out second."}
    expect(page.get_by_role("list", name="Chats").get_by_role("link", name="Goes out first.")).to_be_visible()


def test_a_first_message_that_is_refused_after_the_person_has_gone_on_comes_back_into_the_box(
    page: Page, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on_while_it_goes_out(page, site, "Is refused.")
    box(page).fill("Typed since.")

    def refuse(*_args: Any, **_kwargs: Any) -> Any:
        raise InvalidInputError("No.")

    monkeypatch.setattr(site.service, "send", refuse)
    let_go(page)
    expect(box(page)).to_have_value("Is refused.\n\nTyped since.")


@pytest.mark.parametrize("late", [LEADS_TO_THE_ADDRESS, LOOKS_AT_A_NEW_CHAT], ids=["move", "look"])
def test_what_was_asked_first_and_is_answered_last_does_not_lead_away_from_where_the_person_went(
    page: Page, site: Site, tmp_path: Path, late: str
) -> None:
    file = tmp_path / "chat.json"
    session = site.service.create_session(sampling=SHORT)
    site.service.send(session.id, "Stay with this one.").result(60)
    file.write_text(site.service.export(session.id), encoding="utf-8")
    site.service.delete(session.id)
    site.service.purge(session.id)
    page.add_init_script(HOLD_BACK % late)
    page.goto(site.url)
    wait_until_held(page)
    page.locator("input[type=file]").set_input_files(file)
    expect(page.get_by_role("article", name="You")).to_have_text("Stay with this one.")
    with page.expect_response("**/queue/join*"):
        let_go(page)
    page.wait_for_timeout(1500)  # whatever comes of it has come
    expect(page.get_by_role("article", name="You")).to_have_text("Stay with this one.")
    assert session_in_address(page) == site.service.sessions()[0].id


HOLD_WHAT_COMES = """
(() => {
  const send = window.fetch;
  const waiting = [];
  Object.assign(window, { isHolding: false, held: "" });
  window.letCome = () => {
    window.isHolding = false;
    waiting.splice(0).forEach((come) => come());
  };
  window.fetch = async (address, options) => {
    const answer = await send(address, options);
    if (!(address.url ?? "").includes("/queue/data")) return answer;
    const decoder = new TextDecoder();
    const held = new TransformStream({
      transform(chunk, stream) {
        if (!window.isHolding) return stream.enqueue(chunk);
        window.held += decoder.decode(chunk);
        waiting.push(() => stream.enqueue(chunk));
      },
    });
    return new Response(answer.body.pipeThrough(held), answer);
  };
})();
"""
"""What the server says is held back, when asked to, and then comes all at once, as to a machine with too much to do."""

LOOKS_AT_THE_SECOND_PLACE = "((sent) => sent.length > 3 && JSON.parse(sent[0])?.visit === 2)"


def test_what_is_painted_of_where_the_tab_was_does_not_stay_where_it_is(page: Page, site: Site) -> None:
    page.add_init_script(HOLD_WHAT_COMES)
    page.add_init_script(HOLD_BACK % LOOKS_AT_THE_SECOND_PLACE)
    session_id = open_chat(page, site, SHORT, "Somewhere else by now.")
    button(page, "New chat").click()
    page.wait_for_function("() => window.letGo !== undefined")
    page.evaluate("() => { window.isHolding = true; }")
    for title in ("First of two", "Second of two"):
        site.service.update_session(session_id, title=title)
        page.wait_for_function("(title) => window.held.includes(title)", arg=title)
    page.evaluate("() => window.letGo()")
    page.wait_for_function("() => window.held.includes('New chat')")
    page.evaluate("() => window.letCome()")
    expect(page.get_by_role("heading", name="New chat", level=1)).to_be_visible()
    page.wait_for_timeout(1000)  # whatever else was said has come
    expect(page.get_by_role("heading", name="New chat", level=1)).to_be_visible()
