"""The fields of a chat's settings, made of Gradio's components, and the updates they take."""

from __future__ import annotations

import html
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import gradio as gr

from chatcache.reports import ModelInfo
from chatcache.stats import SAMPLING_LIMITS, Sampling
from chatcache.ui.settings_form import AUTOMATIC, FIELDS, NOTHING_SET, NUMBERS, Loaded
from chatcache.ui.texts import Texts


@dataclass(frozen=True, slots=True)
class SettingsPanel:
    """`stored` is written by the follower whenever the stored settings changed, `loaded` says what the fields were last
    filled with; `fields` are in the order of `FIELDS`."""

    stored: gr.HTML
    loaded: gr.HTML
    fields: tuple[gr.components.Component, ...]
    reset: gr.Button
    status: gr.HTML

    def by_name(self, name: str) -> gr.components.Component:
        return self.fields[FIELDS.index(name)]


def lay_out_settings(texts: Texts, model: ModelInfo, script: Callable[[str], str]) -> SettingsPanel:
    """Make the components, inside the container that is open. `script` gives what a component runs on the page."""
    # Outside the accordion, for what is in a closed one is not on the page.
    stored = gr.HTML("", html_template="", js_on_load=script("settings"), elem_id="stored-settings")
    filled = script("filled")
    loaded = gr.HTML(Loaded().to_json(), html_template="", js_on_load=filled, elem_id="loaded-settings")
    with gr.Accordion(texts.SETTINGS, open=False, elem_id="settings"):
        fields = _lay_out_fields(texts, model)
        status = gr.HTML("", js_on_load=None, elem_id="settings-status", apply_default_css=False)
        reset = gr.Button(texts.RESET_SETTINGS, size="sm", min_width=0, elem_classes=["plain-button"])
    return SettingsPanel(stored, loaded, fields, reset, status)


def _lay_out_fields(texts: Texts, model: ModelInfo) -> tuple[gr.components.Component, ...]:
    made: dict[str, gr.components.Component] = {}
    made["system_prompt"] = gr.Textbox(
        lines=2, max_lines=8, placeholder=texts.NO_SYSTEM_PROMPT, **_common(texts, "system_prompt")
    )
    defaults = model.default_sampling
    with gr.Row(elem_classes=["pair"]):
        for name in NUMBERS:
            step = 1 if name in ("top_k", "max_new_tokens") else 0.05
            made[name] = gr.Number(placeholder=_placeholder(texts, defaults, name), step=step, **_common(texts, name))
        made["seed"] = gr.Textbox(max_lines=1, placeholder=texts.SEED_DRAWN, **_common(texts, "seed"))
    made["stop"] = gr.Textbox(
        lines=1, max_lines=4, placeholder=_placeholder(texts, defaults, "stop"), **_common(texts, "stop")
    )
    made["cache"] = _choice(
        texts,
        "cache",
        [(texts.model_default(model.cache_kind), AUTOMATIC), *((kind, kind) for kind in model.cache_kinds)],
    )
    made["context_full"] = _choice(
        texts, "context_full", [(said, choice) for choice, said in texts.CONTEXT_FULL_CHOICES.items()]
    )
    switch = [(texts.AS_THE_MODEL, AUTOMATIC), (texts.ON, "on"), (texts.OFF, "off")]
    made["thinking"] = _choice(texts, "thinking", switch, visible=model.supports_thinking_switch)
    made["prompt_lookup"] = gr.Checkbox(value=False, **_common(texts, "prompt_lookup"))
    return tuple(made[name] for name in FIELDS)


def show_values(panel: SettingsPanel, values: Mapping[str, Any]) -> dict[Any, Any]:
    """Updates that fill these fields and take away what was said at them."""
    return {panel.by_name(name): gr.update(value=value, elem_classes=["setting"]) for name, value in values.items()}


def show_problems(texts: Texts, panel: SettingsPanel, problems: Mapping[str, str]) -> dict[Any, Any]:
    """Updates that say at each field what is wrong with it, and at the others nothing. No field's value is touched."""
    updates: dict[Any, Any] = {}
    for name in ("system_prompt", *NUMBERS, "seed", "stop"):
        said = problems.get(name, _hint(texts, name))
        # Gradio goes on showing what stood below a field when nothing stands there any more
        classes = ["setting", "wrong" if name in problems else "told" if said else "silent"]
        updates[panel.by_name(name)] = gr.update(info=said, elem_classes=classes)
    return updates


def render_status(sentence: str, *, is_error: bool = False) -> str:
    role = "alert" if is_error else "status"
    return f'<p class="quiet" role="{role}">{html.escape(sentence)}</p>' if sentence else ""


def _common(texts: Texts, name: str) -> dict[str, Any]:
    return {
        "label": texts.SETTING_NAMES[name],
        "info": _hint(texts, name) or None,
        "elem_id": f"setting-{name.replace('_', '-')}",
        "elem_classes": ["setting"],
        "min_width": 0,
    }


def _hint(texts: Texts, name: str) -> str:
    """What a field takes, where that has to be said."""
    limits = SAMPLING_LIMITS.get(name)
    return texts.SETTING_HINTS.get(name) or (texts.limits(limits) if limits is not None else "")


def _choice(texts: Texts, name: str, choices: Sequence[tuple[str, str]], *, visible: bool = True) -> gr.Dropdown:
    value = getattr(NOTHING_SET, name)
    return gr.Dropdown(choices=list(choices), value=value, visible=visible, filterable=False, **_common(texts, name))


def _placeholder(texts: Texts, defaults: Sampling, name: str) -> str:
    value = getattr(defaults, name)
    if name == "stop":
        return ", ".join(value) if value else texts.NO_STOP_STRINGS
    return "" if value is None else f"{value:g}"
