"""The page's components and where they stand. Nothing happens here: `events` binds them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

import gradio as gr

from chatcache.reports import ModelInfo
from chatcache.ui.composer_html import render_attach, render_help, render_skip_link
from chatcache.ui.editor import render_editors
from chatcache.ui.notice import render_offline
from chatcache.ui.place import Place, Seen
from chatcache.ui.settings_panel import SettingsPanel
from chatcache.ui.shelf import Shelf
from chatcache.ui.shortcuts import render_shortcuts
from chatcache.ui.side import Side, lay_out_side
from chatcache.ui.texts import Texts
from chatcache.ui.transcript import LIVE_TEMPLATE

ASSETS = Path(__file__).resolve().parents[2] / "assets"


@dataclass(frozen=True, slots=True)
class Page:
    """The components that events read or write."""

    place: gr.HTML
    seen: gr.HTML
    ticket: gr.HTML
    new_chat: gr.Button
    new_temporary_chat: gr.Button
    shelf: gr.HTML
    search: gr.Textbox
    chats: gr.HTML
    bin: gr.Button
    upload: gr.UploadButton
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
    notice: gr.HTML
    message: gr.Textbox
    tally: gr.HTML
    send: gr.Button
    stop: gr.Button
    side: Side
    settings: SettingsPanel
    stored_settings: gr.HTML
    cache: gr.HTML
    gauge: gr.HTML


def lay_out(texts: Texts, model: ModelInfo) -> Page:
    """Make the components, inside the `gr.Blocks` that is open."""
    gr.HTML(render_skip_link(texts), js_on_load=None, elem_id="skip", apply_default_css=False)
    place = gr.HTML(Place().to_json(), html_template="", js_on_load=script("place"), elem_id="place")
    seen = gr.HTML(Seen().to_json(), html_template="", js_on_load=script("seen"), elem_id="seen")
    ticket = gr.HTML("", html_template="", js_on_load=None, elem_id="ticket")
    with gr.Sidebar(width=280, elem_id="sidebar"):
        gr.HTML(f'<p class="brand">{texts.APP_NAME}</p>', js_on_load=None)
        with gr.Row(elem_id="beginnings"):
            new_chat = gr.Button(texts.NEW_CHAT, variant="primary", min_width=0, elem_id="new-chat")
            new_temporary_chat = gr.Button(texts.TEMPORARY_CHAT, min_width=0, elem_id="new-temporary-chat")
        shelf = gr.HTML(Shelf().to_json(), html_template="", js_on_load=script("shelf"), elem_id="shelf")
        search = gr.Textbox(
            label=texts.SEARCH_CHATS, placeholder=texts.SEARCH_CHATS, show_label=False, container=False, max_lines=1
        )
        chats = gr.HTML("", js_on_load=script("chats"), elem_id="chats", apply_default_css=False)
        with gr.Row(elem_id="shelf-tools"):
            upload = gr.UploadButton(
                texts.IMPORT, file_count="multiple", file_types=[".json"], size="sm", min_width=0, elem_id="import"
            )
            bin = gr.Button(texts.BIN, size="sm", min_width=0, elem_id="bin")
    with gr.Row(elem_id="desk"):
        with gr.Column(elem_id="talk"):
            with gr.Row(elem_id="head"):
                title = gr.HTML("", js_on_load=script("title"), elem_id="title", apply_default_css=False)
                with gr.Row(visible=False, elem_id="rename-row") as rename_row:
                    new_title = gr.Textbox(label=texts.TITLE, show_label=False, container=False, max_lines=1)
                    save_title = gr.Button(texts.SAVE_TITLE, variant="primary", size="sm", min_width=0)
                    cancel_title = gr.Button(texts.CANCEL, size="sm", min_width=0, elem_id="cancel-title")
                with gr.Row(visible=False, elem_id="session-tools") as session_tools:
                    rename, pin, delete, export, export_markdown = (
                        gr.Button(name, size="sm", min_width=0, elem_classes=["tool", icon])
                        for name, icon in (
                            (texts.RENAME, "rename"),
                            (texts.PIN, "pin"),
                            (texts.DELETE, "delete"),
                            (texts.EXPORT, "export"),
                            (texts.EXPORT_MARKDOWN, "export-markdown"),
                        )
                    )
            with gr.Column(elem_id="conversation"):
                transcript = gr.HTML(
                    "",
                    html_template=f'<div role="log" aria-label="{texts.CONVERSATION}">${{value}}</div>',
                    js_on_load=script("actions"),
                    elem_id="transcript",
                    apply_default_css=False,
                )
                live = gr.HTML(
                    None,
                    html_template=LIVE_TEMPLATE,
                    js_on_load=script("live"),
                    elem_id="live",
                    apply_default_css=False,
                )
            gr.HTML(render_offline(texts), js_on_load=script("offline"), elem_id="offline", apply_default_css=False)
            notice = gr.HTML("", js_on_load=script("actions"), elem_id="notice", apply_default_css=False)
            with gr.Row(elem_id="composer"):
                gr.HTML(render_attach(texts), js_on_load=None, elem_id="attach", apply_default_css=False)
                message = gr.Textbox(
                    label=texts.MESSAGE,
                    placeholder=texts.MESSAGE_PLACEHOLDER,
                    show_label=False,
                    container=False,
                    lines=1,
                    max_lines=10,
                    interactive=False,
                    elem_id="message",
                )
                send = gr.Button(texts.SEND, variant="primary", min_width=0, elem_id="send")
                stop = gr.Button(texts.STOP, variant="stop", min_width=0, visible=False, elem_id="stop")
            with gr.Row(elem_id="composer-foot"):
                gr.HTML(render_help(texts), js_on_load=None, elem_id="help", apply_default_css=False)
                tally = gr.HTML("", js_on_load=script("tally"), elem_id="tally", apply_default_css=False)
        side = lay_out_side(texts, model, script)
    gr.HTML(render_editors(texts), js_on_load=None, elem_id="editors")
    gr.HTML(render_shortcuts(texts), js_on_load=None, elem_id="shortcuts", apply_default_css=False)
    exported = gr.HTML(None, html_template="", js_on_load=script("download"), elem_id="exported")
    settings, stored_settings, cache, gauge = side.settings, side.settings.stored, side.cache, side.gauge
    return Page(**{name: value for name, value in locals().items() if name in Page.__slots__})


@cache
def script(name: str) -> str:
    """What a component runs once it is on the page: `assets/<name>.js`."""
    return (ASSETS / f"{name}.js").read_text(encoding="utf-8")
