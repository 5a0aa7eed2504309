"""What a turn is asked for and what it reports: `Sampling`, `TurnStats` and the values inside them."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from chatcache.errors import InvalidInputError, Reason
from storage.sentence import sentence_from_json, sentence_to_json


class FinishReason(StrEnum):
    """Why a reply ended. "interrupted": the process ended, or the service was closed, while it was written."""

    STOP = "stop"
    LENGTH = "length"
    CANCELLED = "cancelled"
    CONTEXT_FULL = "context-full"
    INTERRUPTED = "interrupted"
    ERROR = "error"


class MissReason(StrEnum):
    """Why cached tokens could not be used as far as they reached."""

    TEMPLATE = "template"
    """The model's template rewrote history."""
    NO_CACHE = "no-cache"
    """The session has no live cache (new process, evicted, or cache="none")."""
    HISTORY = "history"
    """Another branch, an edit, or a changed system prompt."""
    NOT_CROPPABLE = "not-croppable"
    """The cache holds recurrent state that cannot be cropped."""
    SMALLER_FORM = "smaller-form"
    """For want of memory the cache had taken a lossy form; there is room for its own again."""
    CACHE_KIND = "cache-kind"
    """The chat was given another cache kind, which cannot take over what the old one held."""
    CONTEXT = "context"
    """The context was full, so the oldest turns were left out; what follows stands elsewhere now."""


@dataclass(frozen=True, slots=True)
class Reuse:
    """`num_tokens` of the prompt came from `source`: "live", "disk" or "prefix"."""

    source: str
    num_tokens: int


@dataclass(frozen=True, slots=True)
class TurnStats:
    """What one turn did. `num_prompt_tokens == num_cached_tokens + num_computed_tokens`, always.

    `num_recomputed_tokens` counts tokens forwarded again after a repair, on top of the computed ones.
    `num_completion_tokens` counts sampled tokens, the terminator included. `miss_index` is the index in the prompt of
    the first token that could have been cached and was not. The prompt began at the message at position
    `context_start`; older ones were left out.
    """

    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_computed_tokens: int = 0
    num_recomputed_tokens: int = 0
    num_completion_tokens: int = 0
    num_drafted_tokens: int = 0
    num_accepted_tokens: int = 0
    ttft_s: float | None = None
    restore_s: float | None = None
    prefill_s: float | None = None
    decode_tokens_per_s: float | None = None
    cache_kind: str = "dynamic"
    cache_bytes: int = 0
    reuse: tuple[Reuse, ...] = ()
    miss_reason: MissReason | None = None
    miss_index: int | None = None
    finish_reason: FinishReason | None = None
    context_start: int = 0
    fallbacks: tuple[str, ...] = ()
    seed: int = 0

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values, for the store."""
        return dataclasses.asdict(self) | {"fallbacks": [sentence_to_json(told) for told in self.fallbacks]}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> TurnStats:
        """From stored values. What is missing, damaged or a newer version's takes its default."""
        values: dict[str, Any] = {}
        for field in dataclasses.fields(cls):
            with contextlib.suppress(KeyError, TypeError, ValueError, OverflowError):
                values[field.name] = _STORED_STATS[str(field.type)](data[field.name])
        return cls(**values)


def _stored_count(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 2**63:
        raise ValueError(value)
    return value


def _stored_number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < math.inf:
        raise ValueError(value)
    return float(value)


def _stored_text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(value)
    return value


_STORED_STATS: Mapping[str, Callable[[Any], Any]] = {
    "int": _stored_count,
    "int | None": _stored_count,
    "float | None": _stored_number,
    "str": _stored_text,
    "tuple[str, ...]": lambda values: tuple(map(sentence_from_json, values)),
    "tuple[Reuse, ...]": lambda values: tuple(
        Reuse(_stored_text(value["source"]), _stored_count(value["num_tokens"])) for value in values
    ),
    "MissReason | None": MissReason,
    "FinishReason | None": FinishReason,
}
"""How a field of each type is read back; raises KeyError, TypeError, ValueError or OverflowError where it cannot be."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a number may be, both ends included; `high` None: as large as one likes."""

    low: float
    high: float | None = None
    is_whole: bool = False

    def hold(self, value: object) -> bool:
        """Whether it is such a number."""
        if isinstance(value, bool) or not isinstance(value, int if self.is_whole else int | float):
            return False
        return self.low <= value and (self.high is None or value <= self.high)


SAMPLING_LIMITS: Mapping[str, Limits] = {
    "temperature": Limits(0.0, 2.0),
    "top_p": Limits(0.0, 1.0),
    "top_k": Limits(0, is_whole=True),
    "min_p": Limits(0.0, 1.0),
    "repetition_penalty": Limits(0.5, 2.0),
    "max_new_tokens": Limits(1, is_whole=True),
    "seed": Limits(0, is_whole=True),
}
"""Of each number in `Sampling`. Beyond them a model writes noise, or nothing."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are chosen. None means: the model's generation_config, else the defaults of `resolve`.

    temperature 0 is greedy. `stop` are strings that end a reply and are not part of it.
    """

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    max_new_tokens: int | None = None
    stop: tuple[str, ...] | None = None
    seed: int | None = None

    def __post_init__(self) -> None:
        for name, limits in SAMPLING_LIMITS.items():
            _check(name, getattr(self, name), limits)
        if self.seed is not None and self.seed >= 2**63:
            raise InvalidInputError(f"seed must be below 2**63, not {self.seed}.", Reason.SEED_TOO_LARGE)
        stop: object = self.stop  # a bare string is a sequence of strings too, and not what is meant
        if stop is not None and not (isinstance(stop, tuple) and all(isinstance(s, str) and s for s in stop)):
            raise InvalidInputError("stop must be a tuple of non-empty strings.")

    def merged(self, fallback: Sampling) -> Sampling:
        """This one, with what is None taken from `fallback`."""
        mine = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        return dataclasses.replace(fallback, **{k: v for k, v in mine.items() if v is not None})

    def to_json(self) -> dict[str, Any]:
        """What is set, as plain JSON values."""
        return {k: v for k, v in dataclasses.asdict(self).items() if v is not None}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Sampling:
        """From stored values. What is damaged or a newer version's counts as not set."""
        sampling = cls()
        for field in dataclasses.fields(cls):
            value: Any = data.get(field.name)
            value = tuple(value) if isinstance(value, list) else value
            with contextlib.suppress(InvalidInputError):
                sampling = dataclasses.replace(sampling, **{field.name: value})
        return sampling


def checked_sampling(sampling: Sampling | None) -> Sampling:
    """What was given; nothing is set where nothing was. Raises InvalidInputError for what is no Sampling."""
    given: object = sampling
    if given is not None and not isinstance(given, Sampling):
        raise InvalidInputError(f"sampling must be a Sampling, not {type(given).__name__}.")
    return sampling or Sampling()


def _check(name: str, value: object, limits: Limits) -> None:
    """Raises InvalidInputError for what is beyond the limits, or no such number."""
    if value is None or limits.hold(value):
        return
    low, high = limits.low, limits.high
    number = "a whole number" if limits.is_whole else "a number"
    if high is None:
        raise InvalidInputError(
            f"{name} must be {number} of at least {low:g}, not {value!r}.", Reason.NOT_A_COUNT, low=low
        )
    raise InvalidInputError(
        f"{name} must be {number} from {low:g} to {high:g}, not {value!r}.", Reason.OUT_OF_RANGE, low=low, high=high
    )
