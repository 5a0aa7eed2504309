"""The settings of a chat: which there are, what each may be for the loaded model, and what stored ones ask for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from chatcache.cache_form import SETTING as CACHE
from chatcache.context_window import CONTEXT_FULL_CHOICES, STOP
from chatcache.errors import ChatCacheError, InvalidInputError, Reason, UnsupportedOptionError
from chatcache.reports import ModelInfo
from chatcache.told import Told
from storage.sentence import Sentence

THINKING = "thinking"
CONTEXT_FULL = "context_full"
PROMPT_LOOKUP = "prompt_lookup"
NAMES = (THINKING, CONTEXT_FULL, PROMPT_LOOKUP, CACHE)
MOST_PROBLEMS = 5


# Of stored settings, values that mean nothing (an import keeps them) count as never set.


def is_thinking(settings: Mapping[str, Any]) -> bool | None:
    """Whether the model is to think; None leaves it to the model's template."""
    value = settings.get(THINKING)
    return value if isinstance(value, bool) else None


def drops_oldest(settings: Mapping[str, Any]) -> bool:
    """Whether the oldest turns are left out when the context is full."""
    return settings.get(CONTEXT_FULL) != STOP


def looks_up_prompt(settings: Mapping[str, Any]) -> bool:
    """Whether tokens are guessed from what was said before."""
    return settings.get(PROMPT_LOOKUP) is True


def problems_of(settings: Mapping[str, Any], model: ModelInfo) -> tuple[Sentence, ...]:
    """Why settings from elsewhere have no effect here, in sentences. They are kept: elsewhere they may have."""
    problems = []
    for name, value in settings.items():
        try:
            checked_settings({name: value}, model)
        except ChatCacheError as error:
            sentence = f"Kept, without effect here: {error}"
            problems.append(Sentence(sentence, Told.WITHOUT_EFFECT, refusal=error.sentence))
    return tuple(problems[:MOST_PROBLEMS])


def checked_settings(settings: Mapping[str, Any] | None, model: ModelInfo) -> dict[str, Any]:
    """The settings as they are stored: what is None is left out, as what was never set.

    Raises UnsupportedOptionError for settings that this version or this model does not have, InvalidInputError for
    values that mean nothing.
    """
    given: object = {} if settings is None else settings
    if not isinstance(given, Mapping):
        raise InvalidInputError(f"settings must be a mapping, not {type(given).__name__}.")
    unknown = [name for name in given if name not in NAMES]
    if unknown:
        listed = ", ".join(sorted(f"{name!s:.60}" for name in unknown))
        raise UnsupportedOptionError(f"This version has no chat setting named {listed}.")
    chosen = {name: value for name, value in given.items() if value is not None}
    if THINKING in chosen and not model.supports_thinking_switch:
        raise UnsupportedOptionError(
            "The loaded model's template has no switch for thinking.", Reason.NO_THINKING_SWITCH
        )
    for name in (THINKING, PROMPT_LOOKUP):
        if not isinstance(chosen.get(name, False), bool):
            raise InvalidInputError(f"{name} must be true or false.")
    if chosen.get(CONTEXT_FULL, CONTEXT_FULL_CHOICES[0]) not in tuple(CONTEXT_FULL_CHOICES):
        raise InvalidInputError(f"{CONTEXT_FULL} must be one of {', '.join(CONTEXT_FULL_CHOICES)}.")
    if chosen.get(CACHE, model.cache_kind) not in (model.cache_kind, *model.cache_kinds):
        raise UnsupportedOptionError(
            f"The cache kind {chosen[CACHE]!r:.60} cannot be had with this model on this device. Choose one of: "
            f"{', '.join(model.cache_kinds)}; or none of them, for {model.cache_kind}.",
            Reason.KIND_UNAVAILABLE,
            kind=f"{chosen[CACHE]!s:.60}",
            kinds=", ".join(model.cache_kinds),
        )
    return chosen
