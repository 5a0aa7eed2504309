"""`StateKeeper`: the recurrent states of one cache: the one that its layers hold now, and those kept to go back to.

It knows the layers, and after how many tokens a state was taken. It does not know token ids; which states are worth
keeping is decided in `states`. Methods that copy tensors run under `torch.inference_mode`, which the caller enters.
"""

from __future__ import annotations

from chatcache.cache.layer_stack import LayerStack
from chatcache.cache.states import KeptState, KeptStates, LayerState, StateRole
from chatcache.cache.token_range import TokenRange


class StateKeeper:
    """Of `layers`. Where none of them is recurrent it keeps nothing."""

    def __init__(self, layers: LayerStack) -> None:
        self.is_lacking = False
        """Tokens were taken in without the state behind them: nothing can go on from there."""
        self._layers = layers
        self._kept = KeptStates()

    @property
    def num_bytes(self) -> int:
        """Of those that are kept."""
        return self._kept.num_bytes

    @property
    def positions(self) -> tuple[int, ...]:
        """After how many tokens those that are kept were taken."""
        return self._kept.positions

    @property
    def forgotten(self) -> frozenset[int]:
        """Where one was known that is not worth keeping any longer, here or elsewhere."""
        return frozenset(self._kept.forgotten)

    def keep(self, role: StateRole, num_tokens: int) -> None:
        """Keep the state that the layers hold now, after `num_tokens` tokens."""
        is_new = role is StateRole.SHARED or num_tokens not in self.positions
        if is_new and num_tokens and self._layers.is_exportable and self._layers.has_state:
            self._kept.add(self._now(role, num_tokens))

    def take_in(self, tokens: TokenRange) -> None:
        """Keep those that came with tokens. One that stands behind the last of them is what the layers hold now."""
        for state in tokens.states:
            self._kept.add(state)
        if tokens.states and tokens.states[-1].num_tokens == tokens.start + len(tokens.token_ids):
            self._layers.put_states(tokens.states[-1].layers)
            self.is_lacking = False
        elif tokens.token_ids:
            self.is_lacking = self._layers.has_state

    def between(self, start: int, stop: int, num_tokens: int) -> tuple[KeptState, ...]:
        """Those kept after more than `start` and at most `stop` tokens, and the one that the layers hold now, after
        `num_tokens`, if it stands there. That one is not kept by being given out."""
        states = self._kept.between(start, stop)
        is_now = start < stop == num_tokens and stop not in self.positions and not self.is_lacking
        if not is_now or not self._layers.has_state:
            return states
        self._kept.forgotten.add(stop)
        return (*states, self._now(StateRole.REPLY, stop))

    def nearest(self, num_tokens: int) -> int:
        """The last position at or before `num_tokens` at which one is kept; 0 where there is none."""
        state = self._kept.nearest(num_tokens)
        return 0 if state is None else state.num_tokens

    def of_layers(self, num_tokens: int, num_held: int) -> tuple[LayerState, ...]:
        """What recurrent layers held after `num_tokens` tokens, of the `num_held` they hold now."""
        state = None if num_tokens == num_held else self._kept.nearest(num_tokens)
        return self._layers.take_states() if state is None else state.layers

    def go_back(self, num_tokens: int) -> None:
        """Have the layers, as far as they are recurrent, hold what was kept after `num_tokens` tokens."""
        state = self._kept.nearest(num_tokens)
        if state is not None:
            self._layers.put_states(state.layers)
            self.is_lacking = False
        self._kept.crop_to(num_tokens)

    def clear(self) -> None:
        """The layers hold nothing any more."""
        self._kept = KeptStates()
        self.is_lacking = False

    def _now(self, role: StateRole, num_tokens: int) -> KeptState:
        turn = self._kept.turn_of(role, num_tokens)
        return KeptState(num_tokens, turn, role, self._layers.take_states())
