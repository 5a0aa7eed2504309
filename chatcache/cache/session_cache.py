"""`SessionCache`: token ids and the library's `Cache` as one value that cannot get out of step unseen.

Not thread-safe: used on the model thread only. Forwards that feed `cache` must run under `torch.inference_mode`, which
is per thread; the methods here enter it themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache

from chatcache.cache.errors import CacheStateError
from chatcache.cache.layers import KEPT_TAIL_TOKENS, TokenLayer
from chatcache.cache.token_buffer import BLOCK_TOKENS
from chatcache.stats import MissReason

MAX_CANDIDATE_TOKENS = 32
"""More tokens in one forward are a piece of a prompt, never candidates."""


@dataclass(frozen=True, slots=True)
class Alignment:
    """What `align` found. Tokens `[num_cached_tokens, len(wanted))` are left to forward, at least one.

    `num_dropped_tokens` left the cache. `mismatch_index` is the index of the first wanted token that could have been
    cached and was not, `reason` says why; both are None where nothing was missed.
    """

    num_cached_tokens: int
    num_dropped_tokens: int
    mismatch_index: int | None = None
    reason: MissReason | None = None


@dataclass(frozen=True, slots=True)
class TokenRange:
    """What a cache holds for `token_ids`, which start at token `start`: for each layer its tensors by name.

    Each tensor is contiguous, its first dimension is the token. A layer that stores nothing has none.
    """

    start: int
    token_ids: tuple[int, ...]
    layers: tuple[dict[str, Tensor], ...]

    @property
    def num_bytes(self) -> int:
        return sum(tensor.nbytes for layer in self.layers for tensor in layer.values())


class SessionCache:
    """The tokens a model has read in one session, with what it computed for them.

    `kind` says how it is held. For kind "none" there is no `cache`, and no token is ever kept.
    """

    def __init__(self, kind: str, make_layers: Callable[[], list[Any]] | None) -> None:
        self.kind = kind
        self.cache: Cache | None = None
        self._make_layers = make_layers
        self._token_ids: list[int] = []
        self._settle_at: int | None = None
        self._was_converted = False
        if make_layers is not None:
            self.cache = Cache(layers=make_layers())

    @property
    def token_ids(self) -> Sequence[int]:
        """The ids the cache holds, in order. Not to be changed by the caller."""
        return self._token_ids

    @property
    def num_tokens(self) -> int:
        return len(self._token_ids)

    @property
    def num_bytes(self) -> int:
        """Allocated bytes, spare room included."""
        return sum(_layer_bytes(layer) for layer in self._layers())

    @property
    def is_croppable(self) -> bool:
        """Whether tokens can be removed one by one, given out and taken in."""
        return all(isinstance(layer, TokenLayer) for layer in self._storing_layers())

    @property
    def is_pure(self) -> bool:
        """Whether all tokens were computed and held in this kind alone: what is given out is worth storing as such."""
        return not self._was_converted

    def align(self, wanted_ids: Sequence[int]) -> Alignment:
        """Keep the longest run of tokens that `wanted_ids` begins with, but leave at least one wanted token to forward.

        Where tokens cannot be removed one by one, all are. A turn begins here: what is kept is settled now, and what
        the prompt adds when the token before its last has been fed, the state from which any reply to it starts.
        """
        if not wanted_ids:
            raise ValueError("wanted_ids must not be empty")
        num_held, limit = self.num_tokens, len(wanted_ids) - 1
        self._settle_at = limit
        if num_held == 0:
            is_miss = limit > 0
            return Alignment(0, 0, 0, MissReason.NO_CACHE) if is_miss else Alignment(0, 0)
        num_common = min(common_length(self._token_ids, wanted_ids), limit)
        reason = MissReason.HISTORY if num_common < min(num_held, limit) else None
        if num_common < num_held and not self.is_croppable:
            reason, num_common = MissReason.NOT_CROPPABLE, 0
        self.crop_to(num_common)
        self.settle()
        return Alignment(num_common, num_held - num_common, None if reason is None else num_common, reason)

    def advance(self, token_ids: Sequence[int]) -> None:
        """Note that a forward just fed `token_ids`. Raises CacheStateError when a layer does not hold them.

        Up to `MAX_CANDIDATE_TOKENS` may still be cropped again as rejected, without a trace.
        """
        if self.cache is None:
            return
        self._token_ids.extend(token_ids)
        self.check()
        if self.num_tokens == self._settle_at:
            self.settle()
        elif len(token_ids) > MAX_CANDIDATE_TOKENS:
            self.settle(KEPT_TAIL_TOKENS)

    def check(self) -> None:
        """Raises CacheStateError when a layer's length is not the number of token ids."""
        for index, layer in enumerate(self._storing_layers()):
            if isinstance(layer, TokenLayer) and layer.num_tokens != self.num_tokens:
                raise CacheStateError(
                    f"Layer {index} of the cache holds {layer.num_tokens} tokens, expected {self.num_tokens}; "
                    "repair the cache before the next forward."
                )

    @torch.inference_mode()
    def crop_to(self, num_tokens: int) -> None:
        """Keep the first `num_tokens` tokens. Raises CacheStateError where they cannot be kept without the rest."""
        if not 0 <= num_tokens <= self.num_tokens:
            raise CacheStateError(f"cannot keep {num_tokens} tokens of a cache that holds {self.num_tokens}")
        if num_tokens == 0:
            self._rebuild()
        elif num_tokens < self.num_tokens:
            if not self.is_croppable:
                raise CacheStateError("this cache holds state that cannot be cropped")
            for layer in self._storing_layers():
                layer.crop_to(num_tokens)
        del self._token_ids[num_tokens:]

    @torch.inference_mode()
    def reserve(self, num_tokens: int) -> None:
        """Make room for `num_tokens` tokens in every layer that holds any, so that appending up to there moves none."""
        for layer in self._layers():
            if isinstance(layer, TokenLayer):
                layer.reserve(num_tokens)

    @torch.inference_mode()
    def settle(self, num_unsettled: int = 0) -> None:
        """Bring all tokens but the last into the form in which they stay; lossless kinds hold them so already."""
        for layer in self._token_layers():
            layer.settle(num_unsettled)

    @torch.inference_mode()
    def convert(self, kind: str, make_layers: Callable[[], list[Any]]) -> None:
        """Hold the same tokens in another kind, without a forward. At any moment one layer exists twice.

        A failure on the way leaves every token held, by some layers in the old form; asked again, it goes on.
        """
        for index, new in enumerate(make_layers()):
            old = self._layers()[index]
            if not isinstance(old, TokenLayer) or not isinstance(new, TokenLayer) or old.form == new.form:
                continue
            for start in range(0, old.num_tokens, BLOCK_TOKENS):
                new.append(*old.states(start, min(start + BLOCK_TOKENS, old.num_tokens)))
                new.settle()
            self._layers()[index] = new
            self._was_converted |= self.num_tokens > 0
        self.kind, self._make_layers = kind, make_layers

    @torch.inference_mode()
    def trim(self, num_tokens: int = 0) -> None:
        """Give back the spare room that `num_tokens` tokens, or the ones held, do not need; one layer at a time."""
        for layer in self._token_layers():
            layer.trim(num_tokens)

    @torch.inference_mode()
    def repair(self) -> int:
        """After an exception inside a forward: make all layers hold the same tokens again. Returns how many."""
        if self.is_croppable:
            lengths = [layer.num_tokens for layer in self._storing_layers()]
            num_kept = min([self.num_tokens, *lengths])
            for layer in self._storing_layers():
                layer.crop_to(num_kept)
            del self._token_ids[num_kept:]
        else:
            self.crop_to(0)
        return self.num_tokens

    @torch.inference_mode()
    def fork(self, num_tokens: int) -> SessionCache:
        """A cache of the same kind with copies of the first `num_tokens` tokens; empty where they cannot be copied."""
        forked = SessionCache(self.kind, self._make_layers)
        if self.is_croppable and num_tokens > 0:
            self.check()
            for mine, its in zip(self._storing_layers(), forked._storing_layers(), strict=True):
                its.copy_prefix(mine, num_tokens)
            forked._token_ids = self._token_ids[:num_tokens]
            forked._was_converted = self._was_converted
        return forked

    @torch.inference_mode()
    def export(self, start: int, stop: int) -> TokenRange:
        """Copies of what is held for tokens `[start, stop)`; a writer may keep them as long as it likes.

        Settles the cache, so it is called between turns.
        """
        if not self.is_croppable:
            raise CacheStateError("this cache holds state that cannot be given out by token")
        self.check()
        self.settle()
        layers = tuple(layer.export(start, stop) if isinstance(layer, TokenLayer) else {} for layer in self._layers())
        return TokenRange(start, tuple(self._token_ids[start:stop]), layers)

    @torch.inference_mode()
    def import_(self, tokens: TokenRange) -> None:
        """Append what `export` of a cache of the same kind and model gave out. Raises CacheStateError on a gap."""
        layers = list(self._layers())
        if tokens.start != self.num_tokens or len(tokens.layers) != len(layers):
            raise CacheStateError(f"tokens from {tokens.start} cannot be appended to a cache of {self.num_tokens}")
        for layer, rows in zip(layers, tokens.layers, strict=True):
            if isinstance(layer, TokenLayer):
                layer.import_(rows)
        self.advance(tokens.token_ids)

    def _layers(self) -> list[Any]:
        return [] if self.cache is None else self.cache.layers

    def _token_layers(self) -> Iterator[TokenLayer]:
        return (layer for layer in self._layers() if isinstance(layer, TokenLayer))

    def _storing_layers(self) -> Iterator[Any]:
        """The layers that hold anything: shared and attention-free ones do not."""
        if self.cache is None:
            return iter(())
        return (layer for layer, dummy in zip(self.cache.layers, self.cache.is_dummy, strict=True) if not dummy)

    def _rebuild(self) -> None:
        if self.cache is not None and self._make_layers is not None:
            self.cache.layers[:] = self._make_layers()
        self._token_ids.clear()
        self._was_converted = False


def common_length(held: Sequence[int], wanted: Sequence[int]) -> int:
    """How many ids the two begin with in common."""
    shorter = min(len(held), len(wanted))
    if list(held[:shorter]) == list(wanted[:shorter]):
        return shorter
    return next(i for i in range(shorter) if held[i] != wanted[i])


def _layer_bytes(layer: Any) -> int:
    if isinstance(layer, TokenLayer):
        return layer.num_bytes
    return sum(tensor.nbytes for value in vars(layer).values() for tensor in _tensors_in(value))


def _tensors_in(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _tensors_in(item)
