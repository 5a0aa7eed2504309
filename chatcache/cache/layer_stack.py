"""`LayerStack`: the layers of one cache as one: what they hold, what can be done with all of them at once.

It knows which of them are ours, recurrent, or neither. It does not know token ids, nor which states are kept. Its
methods run under `torch.inference_mode`, which the caller enters.
"""

# The library leaves its layers' methods without types.
# mypy: allow-untyped-calls
from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor
from transformers.cache_utils import Cache

from chatcache.cache.errors import CacheStateError
from chatcache.cache.layers import TokenLayer
from chatcache.cache.states import LayerState, is_recurrent, num_state_bytes, put_states, take_states
from chatcache.cache.token_buffer import BLOCK_TOKENS


class LayerStack:
    """The layers of `cache`, whichever these are at the moment; none where there is no cache."""

    def __init__(self, cache: Cache | None) -> None:
        self._cache = cache

    @property
    def num_bytes(self) -> int:
        """Allocated bytes, spare room included."""
        return sum(map(_num_bytes, self._layers()))

    @property
    def is_croppable(self) -> bool:
        """Whether tokens can be removed one by one."""
        return all(isinstance(layer, TokenLayer) and not is_recurrent(layer) for layer in self._storing())

    @property
    def is_exportable(self) -> bool:
        """Whether all that is held can be given out and taken in: tokens, or recurrent state."""
        return all(isinstance(layer, TokenLayer) or is_recurrent(layer) for layer in self._storing())

    @property
    def has_state(self) -> bool:
        """Whether any of them is recurrent."""
        return any(map(is_recurrent, self._layers()))

    @property
    def is_shortened(self) -> bool:
        return any(layer.is_shortened for layer in self._of_tokens())

    @property
    def can_be_shortened(self) -> bool:
        return any(layer.is_sliding and not layer.is_shortened for layer in self._of_tokens())

    @property
    def num_forgotten_tokens(self) -> int:
        """How many of the first tokens are not held by all of them any more."""
        return max((layer.num_forgotten_tokens for layer in self._of_tokens()), default=0)

    def num_tokens(self, most: int) -> int:
        """How many tokens, up to `most`, all of them hold."""
        return min([most, *(layer.num_tokens for layer in self._of_tokens())])

    def num_settled_tokens(self, most: int) -> int:
        """How many tokens, up to `most`, all of them hold in the form in which they stay."""
        return min((layer.num_settled_tokens for layer in self._of_tokens()), default=most)

    def max_undisturbed_tokens(self, most: int) -> int:
        """How many tokens, up to `most`, one forward may append so that each sees what it would see if they came one by
        one."""
        limits = [layer.max_undisturbed_tokens for layer in self._of_tokens()]
        return min([most, *(limit for limit in limits if limit is not None)])

    def check(self, num_tokens: int) -> None:
        """Raises CacheStateError when one of them does not hold `num_tokens` tokens."""
        for index, layer in enumerate(self._storing()):
            if isinstance(layer, TokenLayer) and layer.num_tokens != num_tokens:
                raise CacheStateError(
                    f"Layer {index} of the cache holds {layer.num_tokens} tokens, expected {num_tokens}; "
                    "repair the cache before the next forward."
                )

    def can_crop_to(self, num_tokens: int) -> bool:
        """Whether all that is ours can go back there. Recurrent ones need a state for it besides."""
        return all(layer.can_crop_to(num_tokens) for layer in self._of_tokens())

    def crop_to(self, num_tokens: int) -> None:
        for layer in self._of_tokens():
            layer.crop_to(num_tokens)

    def reserve(self, num_tokens: int) -> None:
        """Make room for `num_tokens` tokens in every one that holds any."""
        for layer in self._of_tokens():
            layer.reserve(num_tokens)

    def settle(self, num_unsettled: int) -> None:
        """Bring all tokens but the last into the form in which they stay."""
        for layer in self._of_tokens():
            layer.settle(num_unsettled)

    def shorten(self) -> None:
        for layer in self._of_tokens():
            layer.shorten()

    def trim(self, num_tokens: int) -> None:
        """Give back the spare room that `num_tokens` tokens, or the ones held, do not need; one at a time."""
        for layer in self._of_tokens():
            layer.trim(num_tokens)

    def replace(self, layers: Sequence[Any]) -> None:
        """Others, which hold nothing yet, in their place."""
        if self._cache is not None:
            self._cache.layers[:] = layers

    def convert(self, layers: Sequence[Any]) -> Iterator[bool]:
        """Have `layers`, which are empty, take over what is held and come in one by one, where their form is another.
        After each: whether tokens may have been rounded by that."""
        held = self._layers()
        for index, new in enumerate(layers):
            old = held[index]
            if not isinstance(old, TokenLayer) or not isinstance(new, TokenLayer) or old.form == new.form:
                continue
            new.begin_like(old)
            for start in range(old.num_forgotten_tokens, old.num_tokens, BLOCK_TOKENS):
                new.append(*old.states(start, min(start + BLOCK_TOKENS, old.num_tokens)))
                new.settle()
            put_states([new], take_states([old]))
            held[index] = new
            yield not (old.is_exact and new.is_exact)

    def copy_prefix(self, origin: LayerStack, num_tokens: int) -> None:
        """Append copies of the first tokens that one of the same forms holds. The origin is not changed."""
        for mine, its in zip(self._of_tokens(), origin._of_tokens(), strict=True):
            mine.copy_prefix(its, num_tokens)

    def export(self, start: int, stop: int) -> tuple[dict[str, Tensor], ...]:
        """Copies of what each holds for settled tokens `[start, stop)`."""
        return tuple(layer.export(start, stop) if isinstance(layer, TokenLayer) else {} for layer in self._layers())

    def room(self, start: int, stop: int) -> tuple[dict[str, Tensor], ...]:
        """Where each will hold tokens `[start, stop)`, as far as room is reserved."""
        return tuple(layer.room(start, stop) if isinstance(layer, TokenLayer) else {} for layer in self._layers())

    def import_(self, rows: Sequence[Mapping[str, Tensor]]) -> None:
        """Append what `export` of one of the same forms gave out. Raises CacheStateError where there are more or fewer
        layers."""
        layers = self._layers()
        if len(layers) != len(rows):
            raise CacheStateError(f"tokens of {len(rows)} layers cannot be taken in by {len(layers)}")
        for layer, its in zip(layers, rows, strict=True):
            if isinstance(layer, TokenLayer):
                layer.import_(its)

    def take_states(self) -> tuple[LayerState, ...]:
        """Copies of the state of the recurrent ones."""
        return take_states(self._layers())

    def put_states(self, states: Sequence[LayerState]) -> None:
        """Give the recurrent ones copies of `states`."""
        put_states(self._layers(), states)

    def _layers(self) -> list[Any]:
        return [] if self._cache is None else self._cache.layers

    def _of_tokens(self) -> Iterator[TokenLayer]:
        return (layer for layer in self._layers() if isinstance(layer, TokenLayer))

    def _storing(self) -> Iterator[Any]:
        """Those that hold anything: shared and attention-free ones do not."""
        if self._cache is None:
            return iter(())
        return (layer for layer, dummy in zip(self._cache.layers, self._cache.is_dummy, strict=True) if not dummy)


def _num_bytes(layer: Any) -> int:
    token_bytes = layer.num_bytes if isinstance(layer, TokenLayer) else 0
    if is_recurrent(layer):
        return token_bytes + num_state_bytes(layer)
    return token_bytes if isinstance(layer, TokenLayer) else _unknown_bytes(layer)


def _unknown_bytes(layer: Any) -> int:
    """The tensors that a layer of the library has as attributes."""
    return sum(value.nbytes for value in vars(layer).values() if isinstance(value, Tensor))
