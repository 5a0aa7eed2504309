"""What the page's handlers say where something goes wrong, over a real service and without a browser."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, cast

import gradio as gr
import pytest
from markup import Elements
from services import GREEDY, open_service, runtime_of

from chatcache.chat import ChatService
from chatcache.errors import Reason, StorageError
from chatcache.loader import LoadedModel
from chatcache.memory.outlook import MemoryOutlook
from chatcache.stats import Sampling
from chatcache.ui import follow, watch
from chatcache.ui.actions import Actions
from chatcache.ui.composer import Composer
from chatcache.ui.follow import Follower
from chatcache.ui.handlers import Updates
from chatcache.ui.layout import Page, lay_out
from chatcache.ui.list_actions import ListActions
from chatcache.ui.panel_handlers import PanelHandlers
from chatcache.ui.place import Destination, Place, Seen, Used
from chatcache.ui.settings_form import FIELDS, Form, Loaded
from chatcache.ui.settings_handlers import SettingsHandlers
from chatcache.ui.shelf import Shelf
from chatcache.ui.texts import ENGLISH as texts
from chatcache.ui.turkish import TURKISH

TAB = cast(gr.Request, SimpleNamespace(session_hash="tab"))
NOWHERE = Place(session_id="00000000-0000-4000-8000-000000000000")


@pytest.fixture(scope="module")
def service(tiny_llama: LoadedModel, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ChatService]:
    with open_service(tiny_llama, tmp_path_factory.mktemp("handlers")) as service:
        runtime_of(service).prompts.end_token_ids = frozenset()  # every reply is as long as it is asked to be
        yield service


@pytest.fixture(scope="module")
def page(service: ChatService) -> Page:
    async def laid_out() -> Page:
        with gr.Blocks():
            return lay_out(texts, service.model_info)

    return asyncio.run(laid_out())  # where no event loop runs, Gradio makes one that nobody closes


def told(page: Page, updates: Updates) -> str:
    return Elements(updates[page.notice]).text


async def all_of(updates: AsyncIterator[Updates]) -> list[Updates]:
    return [update async for update in updates]


def failing(error: Exception) -> Any:
    def fail(*_args: object) -> None:
        raise error

    return fail


def test_the_place_says_that_a_chat_is_temporary_however_it_was_reached(service: ChatService, page: Page) -> None:
    actions = Actions(service, page, texts)
    for is_temporary in (True, False):
        session = service.create_session(temporary=is_temporary)
        moved = actions.go_to(Place().to_json(), Destination(session.id).to_json(), "")
        assert Place.from_json(moved[page.place]) == Place(session.id, visit=1, is_temporary=is_temporary)


def test_a_tab_that_cannot_go_where_it_wants_to_moves_to_where_it_is_and_says_why(
    service: ChatService, page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = Place().at(service.create_session().id), Destination(service.create_session().id)
    monkeypatch.setattr(service, "is_temporary", failing(StorageError("x")))
    stays = Actions(service, page, texts).go_to(here.to_json(), there.to_json(), "")
    assert Place.from_json(stays[page.place]) == here.at(here.session_id)
    assert told(page, stays)


def go_to_found(service: ChatService, page: Page, session_id: str, message_id: str) -> tuple[Place, str]:
    """Where a search's hit leads, and what is said there."""
    destination = Destination(session_id, message_id=message_id).to_json()
    moved = Actions(service, page, texts).go_to(Place().to_json(), destination, "")
    return Place.from_json(moved[page.place]), told(page, moved)


def test_a_hit_leads_to_its_message_and_as_far_up_as_is_needed(service: ChatService, page: Page) -> None:
    session_id = service.create_session(sampling=GREEDY).id
    for number in range(2):
        service.send(session_id, f"{number}").result(60)
    messages = service.messages(session_id)
    assert go_to_found(service, page, session_id, messages[0].id) == (
        Place(session_id, visit=1, message_id=messages[0].id),
        "",
    )
    assert Place(session_id).showing("m1", 900).num_shown > 901
    assert Place(session_id).showing("m1", 900).showing_more().message_id is None, "whoever moves on is not led back"


def test_a_hit_on_another_branch_is_not_shown_at_the_cost_of_a_reply_that_is_being_written(
    service: ChatService, page: Page
) -> None:
    session_id = service.create_session(sampling=GREEDY).id
    old = service.send(session_id, "One.").result(60).message
    running = service.regenerate(session_id, sampling=Sampling(max_new_tokens=1000))
    place, said = go_to_found(service, page, session_id, old.id)
    assert place == Place(session_id, visit=1)
    assert texts.FOUND_BESIDE_A_REPLY in said
    assert not running.stop_requested
    running.stop()
    running.result(60)
    before = service.get_session(session_id)
    service.delete(session_id)
    place, said = go_to_found(service, page, session_id, old.id)
    assert (place, said) == (Place(session_id, visit=1, message_id=old.id), ""), "the follower says what can be done"
    assert service.get_session(session_id).tip_id == before.tip_id, "nothing changes in the bin"
    undelete = gr.EventData(None, {"action": "undelete", "message": session_id})
    restored = Actions(service, page, texts).act(place.to_json(), "", "", "", undelete)
    assert Place.from_json(restored[page.place]) == Place(session_id, visit=2, message_id=old.id)
    assert told(page, restored).startswith(texts.FOUND_IN_ANOTHER_VERSION)
    assert service.get_session(session_id).tip_id == old.id


@pytest.mark.parametrize("is_in_bin", [False, True])
@pytest.mark.parametrize("message_id", ["nonsense", "of another chat"])
def test_an_address_with_a_message_that_is_not_there_leads_to_the_chats_end(
    service: ChatService, page: Page, message_id: str, is_in_bin: bool
) -> None:
    session_id, other_id = (service.create_session(sampling=GREEDY).id for _ in range(2))
    other = service.send(other_id, "One.").result(60).message
    before = service.get_session(other_id)
    if is_in_bin:
        service.delete(session_id)
    message_id = other.id if message_id == "of another chat" else message_id
    assert go_to_found(service, page, session_id, message_id) == (Place(session_id, visit=1), "")
    assert service.get_session(other_id) == before


def test_an_undo_that_comes_too_late_ends_no_reply_that_has_begun_meanwhile(service: ChatService, page: Page) -> None:
    session_id = service.create_session(sampling=GREEDY).id
    first = service.send(session_id, "One.").result(60).message
    service.rollback(session_id)
    running = service.send(session_id, "Two.", sampling=Sampling(max_new_tokens=1000))
    undo = gr.EventData(None, {"action": "select", "message": first.id})
    said = Actions(service, page, texts).act(Place(session_id).to_json(), "", "", "", undo)
    assert texts.BUSY in told(page, said)
    assert not running.stop_requested
    running.stop()
    running.result(60)


def box_after(page: Page, updates: Updates) -> str | None:
    """What the message box holds after an action (None: what it held), where nothing else was typed meanwhile."""
    return json.loads(updates[page.draft])["after"] if page.draft in updates else None


def act(service: ChatService, page: Page, action: str, target: str, session_id: str, text: str = "") -> Updates:
    """A click in a tab that has seen the chat as it is."""
    seen = Seen.of(service.get_session(session_id)).to_json()
    event = gr.EventData(None, {"action": action, "message": target})
    return Actions(service, page, texts).act(Place(session_id).to_json(), seen, "", text, event)


def test_going_forward_takes_back_what_rolling_back_did_to_the_box(service: ChatService, page: Page) -> None:
    session_id = service.create_session(sampling=GREEDY).id
    for text in ("One.", "One. And two."):
        service.send(session_id, text).result(60)
    drafts = ["mine"]
    for _ in range(2):
        drafts.append(box_after(page, act(service, page, "rollback", "", session_id, drafts[-1])) or "")
    assert drafts == ["mine", "One. And two.\n\nmine", "One.\n\nmine"], "only what was rolled back last"
    for text, before in pairwise(reversed(drafts)):
        undone = service.undone(session_id)
        assert undone is not None
        assert box_after(page, act(service, page, "forward", undone.id, session_id, text)) == before
    service.rollback(session_id, 2)
    undone = service.undone(session_id)
    assert undone is not None
    assert box_after(page, act(service, page, "forward", undone.id, session_id, "One. And more")) is None
    changed = act(service, page, "rollback", "", session_id, "One. And two, changed.")
    assert box_after(page, changed) == "One.\n\nOne. And two, changed.", "what the person has written is not lost"


@pytest.mark.parametrize("typed", ["", "mine"])
def test_going_back_says_how_far_and_whether_the_text_stands_before_what_was_typed(
    service: ChatService, page: Page, typed: str
) -> None:
    session_id, box = service.create_session(sampling=GREEDY).id, typed
    for text in ("First.", "Second.", "Third."):
        service.send(session_id, text).result(60)
    where = ", before what you had typed;" if typed else ";"
    for went in ("one turn. Its text", "2 turns. The first", "3 turns. The first"):
        rolled_back = act(service, page, "rollback", "", session_id, box)
        assert told(page, rolled_back).startswith(f"Went back {went} is in the box{where}")
        box = box_after(page, rolled_back) or ""


@pytest.mark.parametrize("is_here", [True, False], ids=["here", "from another chat"])
def test_a_hit_in_what_was_rolled_back_takes_its_text_out_of_the_box_where_it_is_shown_again(
    service: ChatService, page: Page, is_here: bool
) -> None:
    session_id = service.create_session(sampling=GREEDY).id
    first, _ = (service.send(session_id, text).result(60).message for text in ("Alpha.", "Beta."))
    service.regenerate(session_id, first.id).result(60)
    other_version = service.messages(session_id)[1].id
    service.select(first.id)

    at = Place(session_id if is_here else service.create_session().id, visit=1)

    def box_at(message_id: str, text: str) -> str | None:
        service.rollback(session_id)
        destination = Destination(session_id, message_id=message_id, draft=text).to_json()
        moved = Actions(service, page, texts).go_to(at.to_json(), destination, "")
        assert texts.FOUND_IN_ANOTHER_VERSION in told(page, moved)
        service.select(first.id)
        return box_after(page, moved)

    beta = service.messages(session_id)[2].id
    assert box_at(beta, "Beta.") == ""
    assert box_at(beta, "Beta.\n\nmine") == "mine"
    assert box_at(beta, "mine") is None, "what the person has written is not lost"
    assert box_at(other_version, "Beta.") is None, "it stands in the box alone"


def test_a_step_forward_from_where_the_chat_no_longer_is_changes_nothing(service: ChatService, page: Page) -> None:
    session_id = service.create_session(sampling=GREEDY).id
    first = service.send(session_id, "One.").result(60).message
    service.rollback(session_id)
    seen = Seen.of(service.get_session(session_id)).to_json()
    service.send(session_id, "Two.").result(60)
    before = service.get_session(session_id)
    forward = gr.EventData(None, {"action": "forward", "message": first.id})
    said = Actions(service, page, texts).act(Place(session_id).to_json(), seen, "", "", forward)
    assert texts.STALE_PAGE in told(page, said)
    assert service.get_session(session_id) == before


def test_a_fork_says_how_many_tokens_its_next_turn_reuses_and_how_many_it_reads(
    service: ChatService, page: Page
) -> None:
    session_id = service.create_session(sampling=GREEDY).id
    first, last = (service.send(session_id, text).result(60).message for text in ("One.", "Two."))
    num_tokens = service.context_use(session_id).num_fed_tokens
    forked = act(service, page, "fork", last.id, session_id)
    assert texts.forked(num_tokens - 1, num_tokens) in told(page, forked), "the last token written was not fed yet"
    stats = service.send(Place.from_json(forked[page.place]).session_id or "", "Three.").result(60).stats
    assert stats.num_cached_tokens >= num_tokens - 1
    assert "All of its" in told(page, act(service, page, "fork", first.id, session_id))
    service.drop_all_caches()
    dropped = service.context_use(session_id).num_fed_tokens
    assert texts.forked(0, dropped) in told(page, act(service, page, "fork", last.id, session_id))


@pytest.mark.parametrize(("used", "is_known"), [(Used(450), True), (Used(), False), ("what is it?", False)])
def test_what_is_left_for_a_message_is_what_the_page_shows_as_free(
    service: ChatService, page: Page, used: Used | str, is_known: bool
) -> None:
    text, whole = "Some words.", service.model_info.max_context_tokens
    sent = used if isinstance(used, str) else used.to_json()
    said = Elements(Composer(service, page, texts).count(sent, text)[page.tally]).text
    num_typed = service.count_tokens(text)
    num_left = f", {texts.number(whole - 450 - num_typed)} left in the context" if is_known else ""
    assert said == f"{texts.tokens(num_typed)} typed{num_left}"


@pytest.mark.parametrize(
    ("error", "said"), [(StorageError("The disk is gone."), "The disk is gone."), (OSError("x"), texts.UNEXPECTED)]
)
def test_a_check_that_fails_says_so_and_leaves_no_panel_that_waits_for_it(
    service: ChatService, page: Page, monkeypatch: pytest.MonkeyPatch, error: Exception, said: str
) -> None:
    monkeypatch.setattr(service, "verify_caches", failing(error))
    (update,) = asyncio.run(all_of(PanelHandlers(service, page, texts).verify(Place().to_json())))
    assert said in told(page, update)
    assert texts.STORAGE_WAITS in update[page.side.storage.content]


def test_the_plan_is_made_beside_the_loop_that_serves_all_tabs(
    service: ChatService, page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[threading.Thread] = []
    memory_plan = service.memory_plan

    def plan(*asked: Any) -> MemoryOutlook:
        threads.append(threading.current_thread())
        return memory_plan(*asked)

    monkeypatch.setattr(service, "memory_plan", plan)
    (update,) = asyncio.run(all_of(PanelHandlers(service, page, texts).show_plan(100, None, "dynamic")))
    assert "dynamic" in Elements(update[page.side.plan.content]).text
    (thread,) = threads
    assert thread is not threading.current_thread()


def test_a_follower_that_fails_says_so_and_begins_anew_when_it_is_asked_to(
    service: ChatService, page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    follower, place = Follower(service, page, texts), Place().at(service.create_session().id).to_json()
    with monkeypatch.context() as patch:
        patch.setattr(service, "get_session", failing(RuntimeError("x")))
        updates = asyncio.run(all_of(follower.follow(place, TAB)))
    assert texts.UNEXPECTED in told(page, updates[0])

    async def resumed() -> Updates:
        following = follower.resume(place, TAB)
        painted = await anext(following)
        await follower.leave(TAB)
        await all_of(following)
        return painted

    assert page.transcript in asyncio.run(resumed())


@pytest.mark.parametrize(("is_temporary", "said"), [(True, texts.GONE), (False, texts.purged(1))])
def test_a_chat_that_is_removed_while_it_is_looked_at_is_not_called_unknown(
    service: ChatService, page: Page, is_temporary: bool, said: str
) -> None:
    session_id = service.create_session(temporary=is_temporary).id
    if not is_temporary:
        service.delete(session_id)

    async def followed() -> list[Updates]:
        follower = Follower(service, page, texts)
        following = follower.follow(Place().at(session_id).to_json(), TAB)
        updates = [await anext(following)]
        await asyncio.to_thread(service.delete if is_temporary else service.purge, session_id)
        async for update in following:
            updates.append(update)
            if update.get(page.seen) == Seen().to_json():
                await follower.leave(TAB)
        return updates

    updates = asyncio.run(asyncio.wait_for(followed(), 20))
    notices = [update[page.notice] for update in updates if isinstance(update.get(page.notice), str)]
    assert said in Elements(notices[-1]).text
    assert not any(texts.UNKNOWN_SESSION in notice for notice in notices)


def test_whoever_comes_back_before_the_follower_has_gone_is_shown_the_chat(service: ChatService, page: Page) -> None:
    follower, place = Follower(service, page, texts), Place().at(service.create_session().id).to_json()

    async def left_and_back() -> Updates:
        first = follower.follow(place, TAB)
        await anext(first)
        await follower.leave(TAB)
        second = follower.resume(place, TAB)
        painted, nothing = await asyncio.gather(anext(first), all_of(second))
        await follower.leave(TAB)
        await all_of(first)
        assert all(update.keys() == {page.notice} for update in nothing)
        return painted

    assert page.transcript in asyncio.run(asyncio.wait_for(left_and_back(), 20))


def test_who_asks_late_to_follow_where_the_tab_was_does_not_end_the_follower_of_where_it_is(
    service: ChatService, page: Page
) -> None:
    new_chat = Place().at(None)
    there = new_chat.at(service.create_session().id)

    async def overtaken() -> tuple[list[Updates], Updates]:
        follower = Follower(service, page, texts)
        following = follower.follow(there.to_json(), TAB)
        await anext(following)
        late = await all_of(follower.follow(new_chat.to_json(), TAB))
        goes_on = await anext(following)
        await follower.leave(TAB)
        await all_of(following)
        return late, goes_on

    late, goes_on = asyncio.run(asyncio.wait_for(overtaken(), 20))
    assert all(update.keys() == {page.notice} for update in late)
    assert Seen.from_json(goes_on[page.seen]).session_id == there.session_id


def test_a_follower_that_is_not_where_the_tab_is_goes_there_when_the_page_asks_for_one(
    service: ChatService, page: Page
) -> None:
    new_chat = Place().at(None)
    there = new_chat.at(service.create_session().id)

    async def led_there() -> Updates:
        follower = Follower(service, page, texts)
        stale = follower.follow(new_chat.to_json(), TAB)
        await anext(stale)
        resumed = follower.resume(there.to_json(), TAB)
        painted, nothing = await asyncio.gather(anext(stale), all_of(resumed))
        await follower.leave(TAB)
        await all_of(stale)
        assert all(update.keys() == {page.notice} for update in nothing)
        return painted

    painted = asyncio.run(asyncio.wait_for(led_there(), 20))
    assert Seen.from_json(painted[page.seen]).session_id == there.session_id


def test_where_the_tabs_follower_does_not_answer_another_one_takes_its_place(
    service: ChatService, page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follow, "CHANGE_TIMEOUT_S", 0.05)
    place = Place().at(None)

    async def taken_over() -> tuple[Updates, list[Updates]]:
        follower = Follower(service, page, texts)
        unheard = follower.follow(place.to_json(), TAB)
        await anext(unheard)
        following = follower.follow(place.at(None).to_json(), TAB)
        painted = await anext(following)
        late = await all_of(unheard)
        await follower.leave(TAB)
        await all_of(following)
        return painted, late

    painted, late = asyncio.run(asyncio.wait_for(taken_over(), 20))
    assert page.transcript in painted
    assert not any(page.transcript in update for update in late)


def test_of_places_asked_for_at_once_the_tab_is_followed_to_the_last(service: ChatService, page: Page) -> None:
    places = [Place().at(service.create_session().id)]
    for _ in range(3):
        places.append(places[-1].at(service.create_session().id))

    async def led_on() -> Updates:
        follower = Follower(service, page, texts)
        following = follower.follow(places[0].to_json(), TAB)
        await anext(following)
        asked = [all_of(follower.follow(place.to_json(), TAB)) for place in (places[1], places[3], places[2])]
        painted, *nothing = await asyncio.gather(anext(following), *asked)
        await follower.leave(TAB)
        await all_of(following)
        assert all(update.keys() == {page.notice} for updates in nothing for update in updates)
        return painted

    painted = asyncio.run(asyncio.wait_for(led_on(), 20))
    assert Seen.from_json(painted[page.seen]).session_id == places[3].session_id


def fields(session_id: str | None, **typed: Any) -> list[Any]:
    """The settings' fields of a tab that filled them for this chat, and in which this was typed since."""
    loaded, form = Loaded(session_id, Form()).to_json(), replace(Form(), **typed)
    return [loaded, *(getattr(form, name) for name in FIELDS)]


def painted(service: ChatService, page: Page, place: Place, *form: Any) -> Updates:
    """What a tab that has come to the place is shown first."""

    async def look() -> Updates:
        follower = Follower(service, page, texts)
        following = follower.follow(place.to_json(), TAB, *form)
        first = await anext(following)
        await follower.leave(TAB)
        await all_of(following)
        return first

    return asyncio.run(look())


def kept_free(page: Page, updates: Updates) -> str:
    said = Elements(updates[page.cache]).text
    return said.split(texts.RESERVED_FOR_REPLY)[1].split(texts.FREE)[0]


def test_what_a_new_chat_keeps_free_for_its_replies_follows_its_settings(service: ChatService, page: Page) -> None:
    place, settings = Place().at(None), SettingsHandlers(service, page, texts)
    usual = kept_free(page, painted(service, page, place))
    typed, of_another = fields(None, max_new_tokens=7.0), fields("another chat", max_new_tokens=7.0)
    assert kept_free(page, painted(service, page, place, *typed)) == "7" != usual
    assert kept_free(page, painted(service, page, place, *of_another)) == usual
    assert kept_free(page, settings.save(place.to_json(), *typed)) == "7"
    assert kept_free(page, settings.reset(place.to_json(), *typed)) == usual
    begun = service.create_session()
    assert page.cache not in settings.save(Place().at(begun.id).to_json(), *fields(begun.id, max_new_tokens=7.0))


def test_what_a_new_chat_has_left_for_its_first_message_counts_template_and_system_prompt(
    service: ChatService, page: Page
) -> None:
    place, settings = Place().at(None), SettingsHandlers(service, page, texts)
    plain, prompted = (Used(service.context_use_of_new_chat(said).num_tokens).to_json() for said in ("", "Be brief."))
    typed = fields(None, system_prompt="Be brief.", max_new_tokens=7.0)
    assert painted(service, page, place)[page.used] == plain != prompted
    assert painted(service, page, place, *typed)[page.used] == prompted
    assert settings.save(place.to_json(), *typed)[page.used] == prompted
    assert settings.reset(place.to_json(), *typed)[page.used] == prompted, "what was typed of the system prompt stays"


def test_a_chat_that_was_restored_is_said_to_be_in_the_bin_no_more(service: ChatService, page: Page) -> None:
    session = service.create_session()
    deleted = Actions(service, page, texts).delete(Place().at(session.id).to_json())
    assert texts.deleted(session.title) in told(page, deleted)
    restore = gr.EventData(None, {"action": "restore", "message": session.id})
    restored = ListActions(service, page, texts).act(deleted[page.place], Shelf(is_bin=True).to_json(), restore)
    assert restored[page.notice] == ""


@pytest.mark.parametrize("is_temporary", [True, False])
def test_a_chat_that_is_in_no_list_cannot_be_pinned(service: ChatService, page: Page, is_temporary: bool) -> None:
    place = Place().at(service.create_session(temporary=is_temporary).id)
    assert painted(service, page, place)[page.pin]["visible"] is not is_temporary


@pytest.mark.parametrize("has_chat", [True, False])
def test_a_tab_that_is_heard_of_no_more_is_followed_no_more(
    service: ChatService, page: Page, monkeypatch: pytest.MonkeyPatch, has_chat: bool
) -> None:
    now_s = 0.0
    monkeypatch.setattr(watch, "monotonic", lambda: now_s)
    monkeypatch.setattr(follow, "CHANGE_TIMEOUT_S", 0.02)
    place = Place().at(service.create_session().id if has_chat else None).to_json()

    async def followed() -> None:
        nonlocal now_s
        follower = Follower(service, page, texts)
        looking = asyncio.ensure_future(all_of(follower.follow(place, TAB)))
        for _ in range(3):
            await asyncio.sleep(0.06)
            assert not looking.done()
            await all_of(follower.resume(place, TAB))
            now_s += 0.8 * watch.SILENCE_S
        now_s += 0.8 * watch.SILENCE_S
        await looking

    asyncio.run(asyncio.wait_for(followed(), 20))


@pytest.mark.parametrize(("place", "is_painted"), [(Place(), False), (Place().at(None), True)])
def test_a_tab_is_followed_where_it_has_no_chat_too(
    service: ChatService, page: Page, place: Place, is_painted: bool
) -> None:
    async def followed() -> tuple[list[Updates], list[Updates]]:
        follower, seen = Follower(service, page, texts), list[Updates]()

        async def look() -> None:
            async for update in follower.follow(place.to_json(), TAB):
                seen.append(update)

        looking = asyncio.ensure_future(look())
        await asyncio.sleep(0.1)
        assert not looking.done()
        again = await all_of(follower.resume(place.to_json(), TAB))
        await follower.leave(TAB)
        await looking
        return seen, again

    seen, again = asyncio.run(followed())
    assert (page.transcript in seen[0]) == is_painted
    assert page.transcript not in again[0], "it was followed already"


def test_on_a_turkish_page_the_services_refusals_are_turkish_and_the_pages_own_stay_as_they_are(
    service: ChatService, page: Page
) -> None:
    actions = Actions(service, page, TURKISH)
    session_id = service.create_session().id
    service.delete(session_id)
    binned = actions.toggle_pin(Place(session_id).to_json())
    assert TURKISH.REFUSALS[Reason.IN_BIN] in told(page, binned)
    assert TURKISH.EMPTY_MESSAGE in told(page, actions.send(Place().to_json(), "", "", " "))
