"""Cache layers that keep every token: they append in place, crop in O(1), and give out and take in any range of tokens.

Drop-in for the library's dynamic layers, sliding ones included. A layer knows its own tensors and its length; it does
not know token ids, other layers, or who else may hold the cache.
"""

# The library leaves `__init__` and `__init_subclass__` of its layers without types.
# mypy: allow-untyped-calls
from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import CacheLayerMixin

from chatcache.cache.errors import CacheStateError
from chatcache.cache.token_buffer import BLOCK_TOKENS, TokenBuffer

KEPT_TAIL_TOKENS = 128
"""What a running turn leaves unsettled. Attention looks at the last tokens most: in full precision they take int4's KL
divergence from 0.14 to 0.009 (SmolLM2, a token at a time)."""

KEPT_PAST_TOKENS = 2048
"""How far a shortened layer can be cropped, at least: a long reply."""


def most_held_tokens(sliding_window: int, num_new_tokens: int) -> int:
    """What a shortened layer holds at most, when `num_new_tokens` come at once."""
    return sliding_window + KEPT_PAST_TOKENS + BLOCK_TOKENS + max(num_new_tokens, BLOCK_TOKENS)


class TokenLayer(CacheLayerMixin):
    """A layer that holds something for each of its tokens, and nothing else.

    `sliding_window`: the model's mask lets a token see only that many tokens, itself included. The layer keeps the full
    history all the same, so that any token can be cropped or stored, and hands out what the window can see: exactly
    the tensors and mask sizes of the library's sliding layer. Once shortened, it forgets what lies `KEPT_PAST_TOKENS`
    behind its window, in whole blocks, so that what it keeps lies in memory as before.
    """

    is_croppable = True

    def __init__(self, sliding_window: int | None = None, **_: Any) -> None:
        super().__init__()
        self.sliding_window = sliding_window
        self.is_sliding = sliding_window is not None
        self.is_shortened = False
        self._num_tokens = 0
        self._num_forgotten = 0

    @property
    def num_tokens(self) -> int:
        return self._num_tokens

    @property
    def num_forgotten_tokens(self) -> int:
        """How many of the first tokens are held no longer."""
        return self._num_forgotten

    @property
    def num_bytes(self) -> int:
        """Allocated bytes, spare room included."""
        return sum(buffer.num_bytes for buffer in self.buffers().values())

    @property
    def num_settled_tokens(self) -> int:
        """How many tokens are held in the form in which they stay; only these can be given out as rows."""
        return self._num_tokens

    @property
    def max_undisturbed_tokens(self) -> int | None:
        """How many tokens one update may append so that each sees what it would see if they came one by one; None:
        any number."""
        return None

    @property
    @abstractmethod
    def form(self) -> str:
        """What tokens are held as. Rows fit between layers of one form."""

    @property
    def is_exact(self) -> bool:
        """Whether states are given back as they came."""
        return True

    @abstractmethod
    def buffers(self) -> Mapping[str, TokenBuffer]:
        """What is held of settled tokens, by name; empty before the first. Rows start with the batch dimension."""

    @abstractmethod
    def append(self, key_states: Tensor, value_states: Tensor) -> None:
        """Append `[batch, heads, new, head_dim]`. An allocation that fails changes nothing that counts."""

    @abstractmethod
    def states(self, start: int, stop: int) -> tuple[Tensor, Tensor]:
        """Keys and values of tokens `[start, stop)` as attention reads them; valid until the next call of a layer."""

    @abstractmethod
    def import_(self, rows: Mapping[str, Tensor]) -> None:
        """Append settled tokens that a layer of the same form gave out, byte for byte."""

    def settle(self, num_unsettled: int = 0) -> None:
        """Bring tokens into the form in which they stay, all but the last `num_unsettled`."""

    def shorten(self) -> None:
        """From now on forget what the window cannot see, with the next `update`, `import_` or `trim`."""
        self.is_shortened = self.is_sliding

    def begin_like(self, origin: TokenLayer) -> None:
        """Before the first token: count as held once what `origin` has forgotten."""
        self.is_shortened = origin.is_shortened
        self._num_tokens = self._num_forgotten = origin.num_forgotten_tokens

    def can_crop_to(self, num_tokens: int) -> bool:
        """Whether all that the token behind the first `num_tokens` can see is held."""
        return num_tokens == 0 or self._num_forgotten <= self._first_visible(num_tokens)

    def copy_prefix(self, origin: TokenLayer, num_tokens: int) -> None:
        """Append copies of the first tokens of a layer of the same form, settled. The origin is not changed."""
        self.import_(origin.rows(0, num_tokens))

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Append `[batch, heads, new, head_dim]` and return what the new tokens can see, the new ones included."""
        first = self._first_visible(self._num_tokens)
        self._forget_past()
        self.append(key_states, value_states)
        return self.states(first, self._num_tokens)

    def rows(self, start: int, stop: int) -> dict[str, Tensor]:
        """Views of what is held for settled tokens `[start, stop)`: each `[stop - start, batch, ...]`, contiguous."""
        if not self._num_forgotten <= start <= stop <= self.num_settled_tokens:
            raise CacheStateError(
                f"tokens [{start}, {stop}) asked of a layer with {self.num_settled_tokens} settled, "
                f"{self._num_forgotten} of them forgotten"
            )
        first = self._num_forgotten
        return {name: buffer.rows(start - first, stop - first) for name, buffer in self.buffers().items()}

    def room(self, start: int, stop: int) -> dict[str, Tensor]:
        """Views of where `import_` will put tokens `[start, stop)`, behind the ones held; none where room was not
        reserved. What is written there counts once it is imported."""
        first = self._num_forgotten
        rooms = {name: buffer.rows(start - first, stop - first) for name, buffer in self.buffers().items()}
        return {name: rows for name, rows in rooms.items() if rows.shape[0] == stop - start}

    def export(self, start: int, stop: int) -> dict[str, Tensor]:
        """Like `rows`, as clones that later changes of the layer cannot reach."""
        return {name: rows.clone() for name, rows in self.rows(start, stop).items()}

    def crop_to(self, num_tokens: int) -> None:
        """Keep the first `num_tokens` tokens. Nothing moves; the room is used again, or freed when no token is left."""
        if not 0 <= num_tokens <= self._num_tokens or not self.can_crop_to(num_tokens):
            raise CacheStateError(
                f"cannot keep {num_tokens} tokens of a layer that holds [{self._num_forgotten}, {self._num_tokens})"
            )
        self._num_tokens = num_tokens
        if num_tokens == 0:
            self._num_forgotten = 0
            for buffer in self.buffers().values():
                buffer.release()
        self._refresh()

    def reserve(self, num_tokens: int) -> None:
        """Make room for `num_tokens` tokens at once; before the first update there is nothing to make it in."""
        if not self.is_shortened:
            for buffer in self.buffers().values():
                buffer.reserve(self._num_tokens, num_tokens)
        self._refresh()

    def trim(self, num_tokens: int) -> None:
        """Give back the spare room that `num_tokens` tokens, or the ones held, do not need."""
        self._forget_past()
        for buffer in self.buffers().values():
            buffer.trim(max(num_tokens, self._num_tokens) - self._num_forgotten)
            self._refresh()

    def crop(self, tokens_to_remove: int) -> None:
        """The library's form of `crop_to`: a count that is negative, or zero to keep all."""
        if tokens_to_remove > 0:
            raise ValueError("crop takes the number of tokens to remove, as a negative integer.")
        self.crop_to(max(self._num_tokens + tokens_to_remove, 0))

    def get_seq_length(self) -> int:
        return self._num_tokens

    def get_max_length(self) -> int:
        return -1 if self.sliding_window is None else self.sliding_window

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Length and offset of what the next update returns for `query_length` new tokens."""
        first = self._first_visible(self._num_tokens)
        return self._num_tokens - first + query_length, first

    def reset(self) -> None:
        self.crop_to(0)

    def reorder_cache(self, beam_idx: Tensor) -> None:
        self.batch_select_indices(beam_idx)

    def batch_select_indices(self, indices: Tensor) -> None:
        for buffer in self.buffers().values():
            buffer.select_batch(indices)
        self._refresh()

    def batch_repeat_interleave(self, repeats: int) -> None:
        if self._num_tokens:
            batch_size = self.states(0, 1)[0].shape[0]
            self.batch_select_indices(torch.arange(batch_size).repeat_interleave(repeats))

    def _first_visible(self, num_past_tokens: int) -> int:
        """The first token that a query at `num_past_tokens` can see."""
        return 0 if self.sliding_window is None else max(num_past_tokens - self.sliding_window + 1, 0)

    def _forget_past(self) -> None:
        """Where shortened, give back the blocks that neither the window nor a crop within bounds will need."""
        if not self.is_shortened:
            return
        unneeded = min(self._first_visible(self._num_tokens) - KEPT_PAST_TOKENS, self.num_settled_tokens)
        num_more = (unneeded - self._num_forgotten) // BLOCK_TOKENS * BLOCK_TOKENS
        if num_more > 0:
            # All copies first: an allocation that fails changes nothing.
            shorter = {buffer: buffer.copy_from(num_more) for buffer in self.buffers().values()}
            for buffer, data in shorter.items():
                buffer.replace(data)
            self._num_forgotten += num_more
            self._refresh()

    def _refresh(self) -> None:
        """Called when the length or the buffers changed other than by an update."""


class AppendLayer(TokenLayer):
    """Keys and values in full precision, shaped `[batch, heads, tokens, head_dim]` for the model.

    `keys` and `values` are views of all tokens held, as the library's own code expects them.
    """

    def __init__(self, sliding_window: int | None = None, **_: Any) -> None:
        super().__init__(sliding_window)
        self._buffers: dict[str, TokenBuffer] = {}

    @property
    def form(self) -> str:
        return "dense"

    def buffers(self) -> Mapping[str, TokenBuffer]:
        return self._buffers

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        self._start({"keys": as_rows(key_states), "values": as_rows(value_states)})

    def append(self, key_states: Tensor, value_states: Tensor) -> None:
        self.import_({"keys": as_rows(key_states), "values": as_rows(value_states)})

    def states(self, start: int, stop: int) -> tuple[Tensor, Tensor]:
        assert self.keys is not None
        assert self.values is not None
        if start == 0 and stop == self._num_tokens:
            return self.keys, self.values
        start, stop = start - self._num_forgotten, stop - self._num_forgotten
        return self.keys[:, :, start:stop], self.values[:, :, start:stop]

    def import_(self, rows: Mapping[str, Tensor]) -> None:
        if not self.is_initialized:
            self._start(rows)
        self._forget_past()
        start, num_new = self._num_tokens - self._num_forgotten, rows["keys"].shape[0]
        self._buffers["keys"].write(start, rows["keys"])
        self._buffers["values"].write(start, rows["values"])
        # Only now: an allocation that failed half-way has changed nothing that counts.
        self._num_tokens += num_new
        self._refresh()

    def _start(self, rows: Mapping[str, Tensor]) -> None:
        self._buffers = {name: TokenBuffer(tuple(t.shape[1:]), t.dtype, t.device) for name, t in rows.items()}
        self.device = rows["keys"].device
        self.is_initialized = True

    def _refresh(self) -> None:
        if self.is_initialized:
            num_held = self._num_tokens - self._num_forgotten
            self.keys = as_states(self._buffers["keys"].rows(0, num_held))
            self.values = as_states(self._buffers["values"].rows(0, num_held))


def as_rows(states: Tensor) -> Tensor:
    """`[batch, heads, tokens, dim]` → `[tokens, batch, heads, dim]`, a view."""
    return states.permute(2, 0, 1, 3)


def as_states(rows: Tensor) -> Tensor:
    """`[tokens, batch, heads, dim]` → `[batch, heads, tokens, dim]`, a view."""
    return rows.permute(1, 2, 0, 3)
