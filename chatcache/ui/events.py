"""Which event of the page calls which handler."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import gradio as gr

from chatcache.ui.actions import Actions
from chatcache.ui.composer import Composer
from chatcache.ui.follow import Follower
from chatcache.ui.layout import Page
from chatcache.ui.list_actions import ListActions
from chatcache.ui.panel_handlers import PanelHandlers
from chatcache.ui.settings_handlers import SettingsHandlers, field_events
from chatcache.ui.texts import Texts

if TYPE_CHECKING:
    from chatcache.chat import ChatService


def bind(service: ChatService, page: Page, texts: Texts) -> None:
    """Bind every event, inside the `gr.Blocks` that is open."""
    actions, follower = Actions(service, page, texts), Follower(service, page, texts)
    lists, files = ListActions(service, page, texts), actions.files
    composer = Composer(service, page, texts)
    place, seen, ticket, message = page.place, page.seen, page.ticket, page.message

    for something_changed in (seen.changed, page.shelf.changed, page.search.change):
        something_changed(
            lists.read,
            [page.shelf, page.search],
            [page.chats, page.bin, page.notice],
            trigger_mode="always_last",
            **QUIET,
        )

    message.change(None, js=SAY_CHANGED, show_progress="hidden", api_visibility="private")
    page.tally.typed(
        composer.count, [page.used, message], [page.tally, page.notice], trigger_mode="always_last", **QUIET
    )
    page.tally.told(composer.say, None, [page.notice], **QUIET)

    followed = [getattr(page, name) for name in FOLLOWED]
    form = (page.settings.loaded, *page.settings.fields)
    place.arrived(follower.follow, [place, *form], followed, trigger_mode="multiple", **QUIET)
    place.resumed(follower.resume, [place, *form], followed, trigger_mode="multiple", **QUIET)
    place.left(follower.leave, **QUIET)

    changed = [getattr(page, name) for name in CHANGED_BY_ACTIONS]

    # Where it goes is read when its turn has come: Gradio repeats the first click for the last one, but not its values.
    page.destination.chosen(
        actions.go_to, [place, page.destination, page.shelf], changed, trigger_mode="always_last", **QUIET
    )
    for button, is_temporary in ((page.new_chat, "false"), (page.new_temporary_chat, "true")):
        begin = f"() => {{ window.chatcache.go('', {is_temporary}); }}"
        button.click(None, js=begin, show_progress="hidden", api_visibility="private")

    def on(trigger: Any, handler: Callable[..., Any], *inputs: Any) -> Any:
        return trigger(handler, list(inputs), changed, **QUIET)

    on(page.chats.act, lists.act, place, page.shelf)
    on(page.bin.click, lists.turn, page.shelf)
    sent = on(partial(gr.on, [page.send.click, message.submit]), actions.send, place, seen, ticket, message, *form)
    sent.then(None, js=SAY_SENT, show_progress="hidden", api_visibility="private")
    on(page.stop.click, actions.stop, place)
    on(page.transcript.act, actions.act, place, seen, ticket, message)
    # A step may be shown, and the next one asked for, before Gradio has heard that the handler has ended.
    step = partial(page.transcript.step, trigger_mode="multiple")
    answered = on(step, actions.act, place, seen, ticket, message)
    answered.then(None, page.notice, js=SAY_IF_REFUSED, show_progress="hidden", api_visibility="private")
    on(page.notice.act, actions.act, place, seen, ticket, message)
    on(page.rename.click, actions.begin_rename, place)
    on(partial(gr.on, [page.save_title.click, page.new_title.submit]), actions.rename, place, page.new_title)
    on(page.cancel_title.click, actions.cancel_rename)
    on(page.pin.click, actions.toggle_pin, place)
    on(page.delete.click, actions.delete, place)
    on(page.export.click, files.export, place)
    on(page.export_markdown.click, files.export_markdown, place)
    on(page.upload.upload, files.import_files, place, page.shelf, page.unfit, page.upload)
    on(page.unfit.alone, files.import_files, place, page.shelf, page.unfit)

    bind_side(service, page, texts)


def bind_side(service: ChatService, page: Page, texts: Texts) -> None:
    """The events of the right column, and what they write."""
    place, settings, storage, plan = page.place, page.settings, page.side.storage, page.side.plan
    keeper, panels = SettingsHandlers(service, page, texts), PanelHandlers(service, page, texts)

    kept = {
        "inputs": [place, settings.loaded, *settings.fields],
        "outputs": [settings.loaded, settings.status, *settings.fields, page.cache, page.used, page.notice],
        **QUIET,
    }
    settings.stored.changed(keeper.load, trigger_mode="always_last", **kept)
    gr.on(field_events(settings), keeper.save, trigger_mode="always_last", **kept)
    settings.reset.click(keeper.reset, **kept)

    shown = {"inputs": place, "outputs": [storage.content, page.notice], **QUIET}
    storage.folder.expand(panels.show_storage, **shown)
    storage.content.looked(panels.show_storage, **shown)
    storage.content.act(panels.act_on_storage, **shown)
    storage.content.verify(panels.verify, **shown)

    planned = {"inputs": [plan.context, plan.num_chats, plan.kind], "outputs": [plan.content, page.notice], **QUIET}
    asked = [plan.folder.expand, plan.context.release, plan.num_chats.blur, plan.num_chats.submit, plan.kind.input]
    gr.on(asked, panels.show_plan, trigger_mode="always_last", **planned)


QUIET: dict[str, Any] = {"concurrency_limit": None, "show_progress": "hidden", "api_visibility": "private"}
"""For every event: no waiting for other tabs, no overlay over what it changes, no public endpoint."""

SAY_CHANGED = "() => { window.dispatchEvent(new Event('chatcache-changed')); }"
"""Whoever changed what is in the message box, a person or an action: its draft is kept and its tokens are counted."""

SAY_SENT = "() => { window.dispatchEvent(new Event('chatcache-sent')); }"
"""A message has been stored or refused: the next one may go out."""

SAY_IF_REFUSED = "(notice) => { if (notice?.includes('notice error')) window.chatcache.refused(); }"
"""After a step between versions: the notice says whether it was refused."""

FOLLOWED = (
    "seen", "used", "title", "session_tools", "pin", "transcript", "live", "loading", "notice", "message", "send",
    "stop", "cache", "stored_settings",
)  # fmt: skip
"""What the follower writes."""

CHANGED_BY_ACTIONS = ("place", "ticket", "draft", "notice", "shelf", "rename_row", "new_title", "exported")
"""What an action writes itself; everything else it does is seen by the follower."""
