"""The right column: the cache region on top, and below it the panels, closed until somebody asks for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import gradio as gr

from chatcache.reports import ModelInfo
from chatcache.ui.cache_panel import render_cache_opening
from chatcache.ui.facts import render_meanings
from chatcache.ui.settings_panel import SettingsPanel, lay_out_settings
from chatcache.ui.storage_panel import render_waiting
from chatcache.ui.texts import Texts

MEANT_OF_CACHE = (
    "REUSED_TOKENS", "COMPUTED_TOKENS", "IN_THIS_CHAT", "RESERVED", "USED", "FRAME", "RESERVED_FOR_REPLY", "TTFT",
    "SPEED", "WRITTEN", "KIND", "IN_MEMORY",
)  # fmt: skip
MEANT_OF_STORAGE = ("DATABASE", "SHARED", "SET_ASIDE", "HIT_RATE")
"""The figures that are explained, in the order in which they stand."""


@dataclass(frozen=True, slots=True)
class StoragePanel:
    folder: gr.Accordion
    content: gr.HTML


@dataclass(frozen=True, slots=True)
class PlanPanel:
    folder: gr.Accordion
    context: gr.Slider
    num_chats: gr.Number
    kind: gr.Dropdown
    content: gr.HTML


@dataclass(frozen=True, slots=True)
class Side:
    """The column's components."""

    cache: gr.HTML
    settings: SettingsPanel
    storage: StoragePanel
    plan: PlanPanel


def lay_out_side(texts: Texts, model: ModelInfo, script: Callable[[str], str]) -> Side:
    """Make the components, inside the row that is open. `script` gives what a component runs on the page."""
    with gr.Column(elem_id="side"):
        cache = gr.HTML(
            render_cache_opening(texts), js_on_load=script("cache"), elem_id="cache", apply_default_css=False
        )
        _lay_out_meanings(texts, MEANT_OF_CACHE, "cache-meanings")
        with gr.Column(elem_id="panels"):
            settings = lay_out_settings(texts, model, script)
            with gr.Accordion(texts.STORAGE, open=False, elem_id="storage") as storage_folder:
                stored = gr.HTML(
                    render_waiting(texts),
                    js_on_load=script("storage"),
                    elem_id="stored-caches",
                    apply_default_css=False,
                )
                _lay_out_meanings(texts, MEANT_OF_STORAGE, "storage-meanings")
            with gr.Accordion(texts.PLAN, open=False, elem_id="plan") as plan_folder:
                plan = _lay_out_plan(texts, model, plan_folder)
    return Side(cache, settings, StoragePanel(storage_folder, stored), plan)


def _lay_out_meanings(texts: Texts, names: Sequence[str], elem_id: str) -> None:
    gr.HTML(render_meanings(texts, names), js_on_load=None, elem_id=elem_id, apply_default_css=False)


def _lay_out_plan(texts: Texts, model: ModelInfo, folder: gr.Accordion) -> PlanPanel:
    most = model.max_context_tokens
    context = gr.Slider(1, most, value=most, step=1, label=texts.PLAN_CONTEXT, min_width=0, buttons=[])
    with gr.Row(elem_classes=["pair"]):
        num_chats = gr.Number(1, label=texts.PLAN_CHATS, precision=0, min_width=0)
        kind = gr.Dropdown(
            choices=list(model.cache_kinds or (model.cache_kind,)),
            value=model.cache_kind,
            label=texts.PLAN_KIND,
            filterable=False,
            min_width=0,
        )
    content = gr.HTML("", js_on_load=None, elem_id="planned", apply_default_css=False)
    return PlanPanel(folder, context, num_chats, kind, content)
