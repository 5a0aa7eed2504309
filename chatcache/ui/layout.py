"""The page's components and where they stand. Nothing happens here: `events` binds them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import gradio as gr

from chatcache.reports import ModelInfo
from chatcache.ui.composer_html import render_attach, render_help, render_menu, render_skip_link
from chatcache.ui.editor import render_editors
from chatcache.ui.notice import render_offline
from chatcache.ui.place import Destination, Place, Seen, Used
from chatcache.ui.settings_panel import SettingsPanel
from chatcache.ui.shelf import Shelf
from chatcache.ui.shortcuts import render_shortcuts
from chatcache.ui.side import Side, lay_out_side
from chatcache.ui.texts import Texts
from chatcache.ui.transcript import LIVE_TEMPLATE, render_opening

ASSETS = Path(__file__).resolve().parents[2] / "assets"


@dataclass(frozen=True, slots=True)
class Page:
    """The components that events read or write."""

    place: gr.HTML
    destination: gr.HTML
    seen: gr.HTML
    used: gr.HTML
    ticket: gr.HTML
    draft: gr.HTML
    new_chat: gr.Button
    new_temporary_chat: gr.Button
    shelf: gr.HTML
    search: gr.Textbox
    chats: gr.HTML
    bin: gr.Button
    upload: gr.UploadButton
    unfit: gr.HTML
    title: gr.HTML
    session_tools: gr.Row
    rename: gr.Button
    pin: gr.Button
    delete: gr.Button
    export: gr.Button
    export_markdown: gr.Button
    exported: gr.HTML
    rename_row: gr.Row
    new_title: gr.Textbox
    save_title: gr.Button
    cancel_title: gr.Button
    transcript: gr.HTML
    live: gr.HTML
    loading: gr.HTML
    notice: gr.HTML
    message: gr.Textbox
    tally: gr.HTML
    send: gr.Button
    stop: gr.Button
    side: Side
    settings: SettingsPanel
    stored_settings: gr.HTML
    cache: gr.HTML


def lay_out(texts: Texts, model: ModelInfo) -> Page:
    """Make the components, inside the `gr.Blocks` that is open."""
    gr.HTML(render_skip_link(texts), js_on_load=None, elem_id="skip", apply_default_css=False)
    made = _lay_out_state()
    with gr.Sidebar(width=280, elem_id="sidebar"):
        made |= _lay_out_sidebar(texts)
    with gr.Row(elem_id="desk"):
        with gr.Column(elem_id="talk"):
            made |= _lay_out_head(texts) | _lay_out_conversation(texts) | _lay_out_composer(texts)
        side = lay_out_side(texts, model, script)
    gr.HTML(render_editors(texts), js_on_load=None, elem_id="editors")
    gr.HTML(render_shortcuts(texts), js_on_load=None, elem_id="shortcuts", apply_default_css=False)
    made["exported"] = gr.HTML(None, html_template="", js_on_load=script("download"), elem_id="exported")
    return Page(
        **made,
        side=side,
        settings=side.settings,
        stored_settings=side.settings.stored,
        cache=side.cache,
    )


def _lay_out_state() -> dict[str, Any]:
    """What the browser holds for the server."""
    return {
        "place": gr.HTML(Place().to_json(), html_template="", js_on_load=script("place"), elem_id="place"),
        "destination": gr.HTML(
            Destination().to_json(), html_template="", js_on_load=script("destination"), elem_id="destination"
        ),
        "seen": gr.HTML(Seen().to_json(), html_template="", js_on_load=script("seen"), elem_id="seen"),
        "used": gr.HTML(Used().to_json(), html_template="", js_on_load=script("used"), elem_id="used"),
        "ticket": gr.HTML("", html_template="", js_on_load=None, elem_id="ticket"),
        "draft": gr.HTML(None, html_template="", js_on_load=script("draft"), elem_id="draft"),
    }


def _lay_out_sidebar(texts: Texts) -> dict[str, Any]:
    gr.HTML(f'<p class="brand" data-toggle="{texts.TOGGLE_SIDEBAR}">{texts.APP_NAME}</p>', js_on_load=None)
    made: dict[str, Any] = {}
    with gr.Row(elem_id="beginnings"):
        made["new_chat"] = gr.Button(texts.NEW_CHAT, variant="primary", min_width=0, elem_id="new-chat")
        made["new_temporary_chat"] = gr.Button(texts.TEMPORARY_CHAT, min_width=0, elem_id="new-temporary-chat")
    made["shelf"] = gr.HTML(Shelf().to_json(), html_template="", js_on_load=script("shelf"), elem_id="shelf")
    made["search"] = gr.Textbox(
        label=texts.SEARCH_CHATS, placeholder=texts.SEARCH_CHATS, show_label=False, container=False, max_lines=1
    )
    made["chats"] = gr.HTML("", js_on_load=script("chats"), elem_id="chats", apply_default_css=False)
    with gr.Row(elem_id="shelf-tools"):
        made["upload"] = gr.UploadButton(
            texts.IMPORT, file_count="multiple", file_types=[".json"], size="sm", min_width=0, elem_id="import"
        )
        made["bin"] = gr.Button(texts.BIN, size="sm", min_width=0, elem_id="bin")
    made["unfit"] = gr.HTML("", html_template="", js_on_load=script("unfit"), elem_id="unfit")
    return made


def _lay_out_head(texts: Texts) -> dict[str, Any]:
    """The chat's title, the row in which it is changed, and what can be done with the chat."""
    made: dict[str, Any] = {}
    tools = {
        "rename": texts.RENAME,
        "pin": texts.PIN,
        "delete": texts.DELETE,
        "export": texts.EXPORT,
        "export_markdown": texts.EXPORT_MARKDOWN,
    }
    with gr.Row(elem_id="head"):
        made["title"] = gr.HTML("", js_on_load=script("title"), elem_id="title", apply_default_css=False)
        with gr.Row(visible=False, elem_id="rename-row") as made["rename_row"]:
            made["new_title"] = gr.Textbox(label=texts.TITLE, show_label=False, container=False, max_lines=1)
            made["save_title"] = gr.Button(texts.SAVE_TITLE, variant="primary", size="sm", min_width=0)
            made["cancel_title"] = gr.Button(texts.CANCEL, size="sm", min_width=0, elem_id="cancel-title")
        gr.HTML(render_menu(texts), js_on_load=script("menu"), elem_id="menu", apply_default_css=False)
        with gr.Row(visible=False, elem_id="session-tools") as made["session_tools"]:
            for tool, name in tools.items():
                icon = tool.replace("_", "-")
                made[tool] = gr.Button(name, size="sm", min_width=0, elem_classes=["tool", icon])
    return made


def _lay_out_conversation(texts: Texts) -> dict[str, Any]:
    """The messages, the reply that is being written, and the sentences that stand below them."""
    log = f'<div role="log" aria-label="{texts.CONVERSATION}">${{value}}</div>'
    made: dict[str, Any] = {}
    with gr.Column(elem_id="conversation"):
        made["transcript"] = gr.HTML(
            render_opening(texts),
            html_template=log,
            js_on_load=script("actions"),
            elem_id="transcript",
            apply_default_css=False,
        )
        made["live"] = gr.HTML(
            None, html_template=LIVE_TEMPLATE, js_on_load=script("live"), elem_id="live", apply_default_css=False
        )
    gr.HTML(render_offline(texts), js_on_load=script("offline"), elem_id="offline", apply_default_css=False)
    made["loading"] = gr.HTML("", js_on_load=None, elem_id="loading", apply_default_css=False)
    made["notice"] = gr.HTML("", js_on_load=script("actions"), elem_id="notice", apply_default_css=False)
    return made


def _lay_out_composer(texts: Texts) -> dict[str, Any]:
    made: dict[str, Any] = {}
    with gr.Row(elem_id="composer"):
        gr.HTML(render_attach(texts), js_on_load=None, elem_id="attach", apply_default_css=False)
        gr.HTML(render_help(texts), js_on_load=None, elem_id="help", apply_default_css=False)
        made["message"] = gr.Textbox(
            label=texts.MESSAGE,
            placeholder=texts.MESSAGE_PLACEHOLDER,
            show_label=False,
            container=False,
            lines=1,
            max_lines=10,
            interactive=False,
            elem_id="message",
        )
        made["send"] = gr.Button(texts.SEND, variant="primary", min_width=0, elem_id="send")
        made["stop"] = gr.Button(texts.STOP, variant="stop", min_width=0, visible=False, elem_id="stop")
    with gr.Row(elem_id="composer-foot"):
        made["tally"] = gr.HTML("", js_on_load=script("tally"), elem_id="tally", apply_default_css=False)
    return made


@cache
def script(name: str) -> str:
    """What a component runs once it is on the page: `assets/<name>.js`."""
    return (ASSETS / f"{name}.js").read_text(encoding="utf-8")
