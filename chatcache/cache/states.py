"""Recurrent state at given token positions: kept as objects, because it can be put back but never cropped.

Which positions are kept is a pure decision (`is_worth_keeping`); the rest copies tensors.
"""

# The library leaves its layers' methods without types.
# mypy: allow-untyped-calls
from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from torch import Tensor
from transformers.cache_utils import LinearAttentionCacheLayerMixin

_LAST_TURNS = 2
_EVERY_TURNS = 8
NUM_KEPT_STATES = 1 + 2 * _LAST_TURNS
"""How many are kept at once: at a shared beginning, and at the prompt and the reply of each of the last turns. Those of
every eighth turn come on top."""


class StateRole(StrEnum):
    """Where in a chat a state was taken."""

    SHARED = "shared"
    """The end of what other chats begin with too, such as the system prompt."""
    PROMPT = "prompt"
    """One token before the end of a prompt: where any reply to it starts."""
    REPLY = "reply"
    """The end of a reply: where the next prompt goes on."""


@dataclass(frozen=True, slots=True)
class LayerState:
    """One layer's state tensors by number; None where the layer has none of that sort."""

    conv: Mapping[int, Tensor | None]
    recurrent: Mapping[int, Tensor | None]
    kernel_sizes: Mapping[int, int | None]
    has_previous: Mapping[int, bool]

    @property
    def num_bytes(self) -> int:
        tensors = (*self.conv.values(), *self.recurrent.values())
        return sum(tensor.nbytes for tensor in tensors if tensor is not None)


@dataclass(frozen=True, slots=True)
class KeptState:
    """The state of all recurrent layers after `num_tokens` tokens, taken in the `turn`-th turn."""

    num_tokens: int
    turn: int
    role: StateRole
    layers: tuple[LayerState, ...]

    @property
    def num_bytes(self) -> int:
        return sum(layer.num_bytes for layer in self.layers)


def is_worth_keeping(role: StateRole, turn: int, current_turn: int) -> bool:
    """Shared beginnings, the last two turns, the end of every eighth: rolling back recomputes eight turns at most."""
    if role is StateRole.SHARED or turn > current_turn - _LAST_TURNS:
        return True
    return role is StateRole.REPLY and turn % _EVERY_TURNS == 0


class KeptStates:
    """The states kept of one cache, in the order of their positions."""

    def __init__(self) -> None:
        self._states: list[KeptState] = []
        self.forgotten: set[int] = set()
        """Positions whose state was given out or kept, and is worth it no longer."""

    @property
    def num_bytes(self) -> int:
        return sum(state.num_bytes for state in self._states)

    @property
    def positions(self) -> tuple[int, ...]:
        return tuple(state.num_tokens for state in self._states)

    def add(self, state: KeptState) -> None:
        """Keep `state` in place of any at its position, and drop what is no longer worth keeping."""
        others = [kept for kept in self._states if kept.num_tokens != state.num_tokens]
        self._states = sorted([*others, state], key=lambda kept: kept.num_tokens)
        before = self.positions
        self._states = [kept for kept in self._states if is_worth_keeping(kept.role, kept.turn, state.turn)]
        self.forgotten = (self.forgotten | set(before)) - set(self.positions)

    def turn_of(self, role: StateRole, num_tokens: int) -> int:
        """The turn that a new state belongs to: each prompt begins one."""
        last = self.nearest(num_tokens)
        return (0 if last is None else last.turn) + (role is StateRole.PROMPT)

    def between(self, start: int, stop: int) -> tuple[KeptState, ...]:
        """The states after more than `start` and at most `stop` tokens."""
        return tuple(state for state in self._states if start < state.num_tokens <= stop)

    def nearest(self, num_tokens: int) -> KeptState | None:
        """The last state at or before `num_tokens`."""
        before = [state for state in self._states if state.num_tokens <= num_tokens]
        return before[-1] if before else None

    def crop_to(self, num_tokens: int) -> None:
        self._states = [state for state in self._states if state.num_tokens <= num_tokens]
        self.forgotten = {position for position in self.forgotten if position <= num_tokens}


def is_recurrent(layer: Any) -> bool:
    """Whether a layer holds state that every token changes."""
    return isinstance(layer, LinearAttentionCacheLayerMixin)


def take_states(layers: Sequence[Any]) -> tuple[LayerState, ...]:
    """Copies of the state of the recurrent ones among `layers`."""
    return tuple(_take(layer) for layer in layers if is_recurrent(layer))


def put_states(layers: Sequence[Any], states: Sequence[LayerState]) -> None:
    """Give the recurrent ones among `layers` copies of `states`."""
    for layer, state in zip(filter(is_recurrent, layers), states, strict=True):
        _put(layer, state)


def num_state_bytes(layer: Any) -> int:
    """What a recurrent layer's state takes now."""
    tensors = (*layer.conv_states.values(), *layer.recurrent_states.values())
    return sum(tensor.nbytes for tensor in tensors if tensor is not None)


def _take(layer: Any) -> LayerState:
    return LayerState(
        conv=_copies(layer.conv_states),
        recurrent=_copies(layer.recurrent_states),
        kernel_sizes=dict(layer.conv_kernel_size),
        has_previous=dict(layer.has_previous_state),
    )


def _put(layer: Any, state: LayerState) -> None:
    # Copies again: the layer writes into its tensors.
    layer.conv_states = _copies(state.conv)
    layer.recurrent_states = _copies(state.recurrent)
    layer.conv_kernel_size = dict(state.kernel_sizes)
    layer.has_previous_state = dict(state.has_previous)
    for index in range(layer.number_of_states):
        conv, recurrent = layer.conv_states[index], layer.recurrent_states[index]
        layer.is_conv_states_initialized[index] = conv is not None
        layer.is_recurrent_states_initialized[index] = recurrent is not None
        known = conv if conv is not None else recurrent
        if known is not None:
            layer.device, layer.dtype = known.device, known.dtype


def _copies(tensors: Mapping[int, Tensor | None]) -> dict[int, Tensor | None]:
    return {index: None if tensor is None else tensor.clone() for index, tensor in tensors.items()}
