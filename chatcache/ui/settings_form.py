"""A chat's settings as the fields of a form, and back: what was typed, what that means, what of it is wrong.

Pure. Each field stands for itself: where two tabs, or a person and a repaint, change different fields, both count.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from chatcache.context_window import CONTEXT_FULL_CHOICES
from chatcache.errors import InvalidInputError
from chatcache.reports import ModelInfo
from chatcache.stats import Sampling
from chatcache.ui.sent import from_json, text, to_json
from chatcache.ui.texts import Texts
from storage.records import ChatSession

NUMBERS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "max_new_tokens")
SAMPLING_FIELDS = (*NUMBERS, "seed", "stop")
AUTOMATIC = ""
SWITCH = {AUTOMATIC: None, "on": True, "off": False}


@dataclass(frozen=True, slots=True)
class Form:
    """What the fields show. A number is None, a text empty, where nothing is set and the model's default counts.

    `stop` has a string in each line, a line break inside one written as backslash n. `thinking` is a key of `SWITCH`.
    """

    system_prompt: str = ""
    temperature: float | None = None
    top_p: float | None = None
    top_k: float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    max_new_tokens: float | None = None
    seed: str = ""
    stop: str = ""
    cache: str = AUTOMATIC
    context_full: str = CONTEXT_FULL_CHOICES[0]
    thinking: str = AUTOMATIC
    prompt_lookup: bool = False

    @classmethod
    def of(cls, session: ChatSession | None, model: ModelInfo) -> Form:
        """A chat's stored settings; None: a chat not yet begun has none. What this model does not have is not set."""
        if session is None:
            return cls()
        sampling, settings = Sampling.from_json(session.sampling), session.settings
        switch = {value: name for name, value in SWITCH.items() if model.supports_thinking_switch}
        kind = settings.get("cache")
        return cls(
            system_prompt=session.system_prompt or "",
            **{name: getattr(sampling, name) for name in NUMBERS},
            seed="" if sampling.seed is None else str(sampling.seed),
            stop="\n".join(_escaped(text) for text in sampling.stop or ()),
            cache=kind if kind in model.cache_kinds else AUTOMATIC,
            context_full=str(settings.get("context_full") or CONTEXT_FULL_CHOICES[0]),
            thinking=switch.get(settings.get("thinking"), AUTOMATIC),
            prompt_lookup=settings.get("prompt_lookup") is True,
        )

    @classmethod
    def from_values(cls, values: Sequence[Any]) -> Form:
        """From the components' values, in the order of `FIELDS`; what is of no use counts as not set."""
        shown = dict(zip(FIELDS, values, strict=True))
        return cls(**{name: _like(getattr(NOTHING_SET, name), name, value) for name, value in shown.items()})

    def differing(self, other: Form) -> tuple[str, ...]:
        """The fields in which this form says something else than `other`."""
        return tuple(name for name in FIELDS if getattr(self, name) != getattr(other, name))


FIELDS = tuple(field.name for field in dataclasses.fields(Form))
NOTHING_SET = Form()


@dataclass(frozen=True, slots=True)
class Loaded:
    """What a tab's fields were last filled with (None: they were not yet), and from which chat (None: one not begun).

    What differs from `form` was typed since, and is not stored yet.
    """

    session_id: str | None = None
    form: Form | None = None

    def typed(self, session_id: str | None, now: Form) -> tuple[str, ...] | None:
        """The fields that were changed since; None where they are not those of this chat."""
        if self.form is None or self.session_id != session_id:
            return None
        return now.differing(self.form)

    def to_json(self) -> str:
        """As text without any tag in it, for the page."""
        return to_json({"session": self.session_id, "form": dataclasses.asdict(self.form) if self.form else None})

    @classmethod
    def from_json(cls, sent: object) -> Loaded:
        """From what a browser sent; what is not understood counts as nothing."""
        data = from_json(sent)
        form = data.get("form")
        if not isinstance(form, dict) or not form.keys() >= set(FIELDS):
            return cls()
        return cls(text(data.get("session")), Form.from_values([form[name] for name in FIELDS]))


@dataclass(frozen=True, slots=True)
class Changes:
    """What `ChatService.update_session` takes (`values`), and what is wrong, in a sentence for each field."""

    values: Mapping[str, Any]
    problems: Mapping[str, str]


def read_changes(
    texts: Texts, model: ModelInfo, form: Form, names: Iterable[str], stored: ChatSession | None
) -> Changes:
    """What the fields `names` of `form` make of the stored settings; the others stay as they are stored."""
    problems: dict[str, str] = {}
    sampling = Sampling.from_json(stored.sampling if stored else {})
    merged = Form.of(stored, model)
    values: dict[str, Any] = {}
    for name in names:
        if name in SAMPLING_FIELDS:
            try:
                sampling = dataclasses.replace(sampling, **{name: _meaning(name, getattr(form, name))})
                values["sampling"] = sampling
            except InvalidInputError as error:
                problems[name] = texts.refused_setting(name, error)
        elif name == "system_prompt":
            values[name] = form.system_prompt
        else:
            merged = dataclasses.replace(merged, **{name: getattr(form, name)})
            values["settings"] = _settings_of(merged)
    return Changes(values, problems)


def typed_values(texts: Texts, model: ModelInfo, sent: Sequence[Any]) -> Mapping[str, Any]:
    """What the fields ask of a chat not yet begun, as `Changes.values`; nothing where they are another chat's still.
    `sent`: what they were loaded with, and their values; empty where the page did not say."""
    if not sent:
        return {}
    form = Form.from_values(sent[1:])
    names = Loaded.from_json(sent[0]).typed(None, form) or ()
    return read_changes(texts, model, form, names, None).values


def _settings_of(form: Form) -> dict[str, Any]:
    return {
        "cache": form.cache or None,
        "context_full": form.context_full,
        "thinking": SWITCH.get(form.thinking),
        "prompt_lookup": form.prompt_lookup or None,
    }


def _meaning(name: str, shown: Any) -> Any:
    """What a field's value says as a value of `Sampling`, which refuses what is none."""
    if name == "stop":
        return tuple(_unescaped(line) for line in shown.split("\n") if line) or None
    if name == "seed":
        return int(shown) if shown.strip().isdecimal() else shown.strip() or None
    return int(shown) if isinstance(shown, float) and shown.is_integer() else shown


def _like(default: Any, name: str, value: Any) -> Any:
    """`value` where it is of the field's type, else the field's default."""
    if name in NUMBERS:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return value if is_number else None
    return value if isinstance(value, type(default)) else default


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace("\t", "\\t").replace("\r", "\\r")


def _unescaped(line: str) -> str:
    parts = {"\\\\": "\\", "\\n": "\n", "\\t": "\t", "\\r": "\r"}
    text, rest = "", line
    while rest:
        length = 2 if rest[:2] in parts else 1
        text, rest = text + parts.get(rest[:2], rest[0]), rest[length:]
    return text
