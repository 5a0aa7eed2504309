"""`TokenRange`: what a cache holds for some of its tokens, as a value that can be stored and taken in again."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from chatcache.cache.states import KeptState


@dataclass(frozen=True, slots=True)
class TokenRange:
    """What a cache holds for `token_ids`, which start at token `start`: for each layer its tensors by name.

    Each tensor is contiguous, its first dimension is the token. A layer that stores nothing has none. `states` are the
    recurrent states known behind some of the tokens, in order. `is_converted`: tokens were rounded after they had been
    computed; see `SessionCache.is_pure`.
    """

    start: int
    token_ids: tuple[int, ...]
    layers: tuple[dict[str, Tensor], ...]
    states: tuple[KeptState, ...] = ()
    is_converted: bool = False

    @property
    def num_bytes(self) -> int:
        num_token_bytes = sum(tensor.nbytes for layer in self.layers for tensor in layer.values())
        return num_token_bytes + sum(state.num_bytes for state in self.states)
