"""`SessionCache`: token ids and the library's `Cache` as one value that cannot get out of step unseen.

What the layers hold together is `layer_stack`'s, which recurrent states are known `state_keeper`'s. Not thread-safe:
used on the model thread only. Forwards that feed `cache` must run under `torch.inference_mode`, which is per thread;
the methods here enter it themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache

from chatcache.cache.alignment import Alignment
from chatcache.cache.errors import CacheStateError
from chatcache.cache.layer_stack import LayerStack
from chatcache.cache.layers import KEPT_TAIL_TOKENS
from chatcache.cache.state_keeper import StateKeeper
from chatcache.cache.states import StateRole
from chatcache.cache.token_range import TokenRange
from chatcache.prefix import common_length
from chatcache.stats import MissReason

MAX_CANDIDATE_TOKENS = 32
"""More tokens in one forward are a piece of a prompt, never candidates."""


class SessionCache:
    """The tokens a model has read in one session, with what it computed for them.

    `kind` says how it is held. For kind "none" there is no `cache`, and it `keeps_tokens` never.
    """

    def __init__(self, kind: str, make_layers: Callable[[], list[Any]] | None) -> None:
        self.kind = kind
        self.cache = None if make_layers is None else Cache(layers=make_layers())
        self._layers = LayerStack(self.cache)
        self._make_layers = make_layers
        self._token_ids: list[int] = []
        self._settle_at: int | None = None
        self._was_converted = self._is_mixed = False
        self._states = StateKeeper(self._layers)

    @property
    def token_ids(self) -> Sequence[int]:
        """The ids the cache holds, in order. Not to be changed by the caller."""
        return self._token_ids

    @property
    def num_tokens(self) -> int:
        return len(self._token_ids)

    @property
    def keeps_tokens(self) -> bool:
        """Whether what is fed is held at all; with kind "none" all of it is fed again and again."""
        return self.cache is not None

    @property
    def num_settled_tokens(self) -> int:
        """How many tokens every layer holds in the form in which they stay; `export` gives these out unnoticed."""
        return self._layers.num_settled_tokens(self.num_tokens)

    @property
    def num_bytes(self) -> int:
        """Allocated bytes, spare room and states kept for rolling back included."""
        return self._layers.num_bytes + self._states.num_bytes

    @property
    def is_croppable(self) -> bool:
        """Whether tokens can be removed one by one."""
        return self._layers.is_croppable

    @property
    def can_take_candidates(self) -> bool:
        """Whether guessed tokens can be fed and cropped again."""
        return self.keeps_tokens and self.is_croppable

    @property
    def max_candidate_tokens(self) -> int:
        """How many candidates may now go into one forward behind the next token and be cropped without a trace."""
        if not self.can_take_candidates:
            return 0
        return self._layers.max_undisturbed_tokens(MAX_CANDIDATE_TOKENS) - 1

    @property
    def is_exportable(self) -> bool:
        """Whether all that the layers hold can be given out and taken in: tokens, or recurrent state."""
        return self._layers.is_exportable

    @property
    def forgotten_positions(self) -> frozenset[int]:
        """Where a recurrent state was known that is not worth keeping any longer, in memory or elsewhere."""
        return self._states.forgotten

    @property
    def kept_positions(self) -> tuple[int, ...]:
        """Where a cache with recurrent state can be rolled back to, beside its beginning and its end."""
        return self._states.positions

    @property
    def is_shortened(self) -> bool:
        """Whether layers with a sliding window keep no more than a chat's last turns need."""
        return self._layers.is_shortened

    @property
    def can_be_shortened(self) -> bool:
        return self._layers.can_be_shortened

    @property
    def num_forgotten_tokens(self) -> int:
        """How many of the first tokens are not held by every layer any more, and cannot be given out."""
        return self._layers.num_forgotten_tokens

    @property
    def is_pure(self) -> bool:
        """Whether what is held is what a cache of this kind computes: no token was rounded by a conversion."""
        return not self._was_converted

    @property
    def is_mixed(self) -> bool:
        """Whether a conversion failed on its way: some layers have another form than `kind` says."""
        return self._is_mixed

    def align(self, wanted_ids: Sequence[int]) -> Alignment:
        """Keep the longest run of tokens that `wanted_ids` begins with, but leave at least one wanted token to forward.

        Where tokens cannot be removed one by one, as many are as the nearest kept state asks for. A turn begins here:
        what is kept is settled now, and what the prompt adds when the token before its last has been fed, the state
        from which any reply to it starts.
        """
        if not wanted_ids:
            raise ValueError("wanted_ids must not be empty")
        num_held, limit = self.num_tokens, len(wanted_ids) - 1
        self._settle_at = limit
        if num_held == 0:
            return Alignment(0, 0, MissReason.NO_CACHE) if limit > 0 else Alignment(0)
        num_common = min(common_length(self._token_ids, wanted_ids), limit)
        reason = MissReason.HISTORY if num_common < min(num_held, limit) else None
        num_kept = self.nearest_length(num_common)
        if num_kept < num_common:
            reason = MissReason.NOT_CROPPABLE
        if num_kept == num_held:
            self.keep_state(StateRole.REPLY)
        self.crop_to(num_kept)
        self.settle()
        return Alignment(num_kept, None if reason is None else num_kept, reason)

    def nearest_length(self, num_tokens: int) -> int:
        """The most tokens, up to `num_tokens`, that the cache can be cropped to and used with."""
        is_now = num_tokens == self.num_tokens and not self._states.is_lacking
        return num_tokens if is_now else self._nearest_restorable(num_tokens)

    @torch.inference_mode()
    def keep_state(self, role: StateRole = StateRole.SHARED) -> None:
        """Keep the recurrent state as it is now, so that the cache can be rolled back to this length later."""
        self._states.keep(role, self.num_tokens)

    def advance(self, token_ids: Sequence[int]) -> None:
        """Note that a forward just fed `token_ids`. Raises CacheStateError when a layer does not hold them.

        Up to `MAX_CANDIDATE_TOKENS` may still be cropped again as rejected, without a trace.
        """
        if not self.keeps_tokens:
            return
        self._token_ids.extend(token_ids)
        self.check()
        if self.num_tokens == self._settle_at:
            self.settle()
            self.keep_state(StateRole.PROMPT)
        elif len(token_ids) > MAX_CANDIDATE_TOKENS:
            self.settle(KEPT_TAIL_TOKENS)

    def check(self) -> None:
        """Raises CacheStateError when a layer's length is not the number of token ids."""
        self._layers.check(self.num_tokens)

    @torch.inference_mode()
    def crop_to(self, num_tokens: int) -> None:
        """Keep the first `num_tokens` tokens. Raises CacheStateError where they cannot be kept without the rest."""
        if not 0 <= num_tokens <= self.num_tokens:
            raise CacheStateError(f"cannot keep {num_tokens} tokens of a cache that holds {self.num_tokens}")
        if num_tokens == 0:
            self._rebuild()
        elif num_tokens < self.num_tokens:
            if self.nearest_length(num_tokens) != num_tokens:
                raise CacheStateError(
                    f"this cache cannot be cropped to {num_tokens} tokens; states are kept at {self.kept_positions}, "
                    f"{self.num_forgotten_tokens} tokens are forgotten"
                )
            self._restore(num_tokens)

    @torch.inference_mode()
    def reserve(self, num_tokens: int) -> None:
        """Make room for `num_tokens` tokens in every layer that holds any, so that appending up to there moves none."""
        self._layers.reserve(num_tokens)

    @torch.inference_mode()
    def settle(self, num_unsettled: int = 0) -> None:
        """Bring all tokens but the last into the form in which they stay; lossless kinds hold them so already."""
        self._layers.settle(num_unsettled)

    @torch.inference_mode()
    def convert(self, kind: str, make_layers: Callable[[], list[Any]]) -> None:
        """Hold the same tokens in another kind, without a forward. At any moment one layer exists twice.

        A failure on the way leaves every token held, by some layers in the old form; asked again, it goes on.
        """
        for is_rounded in self._layers.convert(make_layers()):
            self._is_mixed = True
            self._was_converted |= self.num_tokens > 0 and is_rounded
        self.kind, self._make_layers, self._is_mixed = kind, make_layers, False

    @torch.inference_mode()
    def shorten(self) -> None:
        """Have layers with a sliding window forget what lies far behind it, from the next forward or `trim` on, until
        the cache is emptied: same logits, less memory, but fewer tokens that can be cropped or given out."""
        self._layers.shorten()

    @torch.inference_mode()
    def trim(self, num_tokens: int = 0) -> None:
        """Give back the spare room that `num_tokens` tokens, or the ones held, do not need; one layer at a time."""
        self._layers.trim(num_tokens)

    @torch.inference_mode()
    def repair(self) -> int:
        """After an exception inside a forward: make all layers hold the same tokens again. Returns how many."""
        num_kept = self._nearest_restorable(self._layers.num_tokens(self.num_tokens))
        if num_kept == 0:
            self._rebuild()
        else:
            self._restore(num_kept)
        return num_kept

    @torch.inference_mode()
    def fork(self, num_tokens: int) -> SessionCache:
        """A cache of the same kind with copies of the first `num_tokens` tokens, or of as many as can be copied."""
        forked = SessionCache(self.kind, self._make_layers)
        num_kept = self.nearest_length(num_tokens)
        if num_kept == 0 or not self.is_exportable or self.num_forgotten_tokens:
            return forked
        self.check()
        forked._layers.copy_prefix(self._layers, num_kept)
        forked._layers.put_states(self._states.of_layers(num_kept, self.num_tokens))
        forked._token_ids = self._token_ids[:num_kept]
        forked._was_converted = self._was_converted
        forked.keep_state()
        return forked

    @torch.inference_mode()
    def export(self, start: int, stop: int) -> TokenRange:
        """Copies of what is held for tokens `[start, stop)`; a writer may keep them as long as it likes.

        What is not settled yet is settled first, which is done between turns only.
        """
        if not self.is_exportable:
            raise CacheStateError("this cache holds what cannot be given out")
        self.check()
        if stop > self.num_settled_tokens:
            self.settle()
        layers, ids = self._layers.export(start, stop), tuple(self._token_ids[start:stop])
        states = self._states.between(start, stop, self.num_tokens)
        return TokenRange(start, ids, layers, states, self._was_converted)

    @torch.inference_mode()
    def room(self, start: int, stop: int) -> tuple[Mapping[str, Tensor], ...]:
        """By layer, where tokens `[start, stop)` will lie that are not held yet, as far as room is reserved. Another
        thread may fill it while nothing is appended; what it wrote counts once `import_` is given these very views."""
        return self._layers.room(start, stop)

    @torch.inference_mode()
    def import_(self, tokens: TokenRange) -> None:
        """Append what `export` of a cache of the same kind and model gave out. Raises CacheStateError on a gap.

        Recurrent layers are usable again where a state ended the range; `repair` goes back to the last one.
        """
        if tokens.start != self.num_tokens:
            raise CacheStateError(f"tokens from {tokens.start} cannot be appended to a cache of {self.num_tokens}")
        self._layers.import_(tokens.layers)
        self._token_ids.extend(tokens.token_ids)
        self._was_converted |= tokens.is_converted
        self._states.take_in(tokens)
        self.check()

    def _nearest_restorable(self, num_tokens: int) -> int:
        """The most tokens, up to `num_tokens`, to which every layer can go back."""
        if not self.is_croppable:
            num_tokens = self._states.nearest(num_tokens)
        return num_tokens if self._layers.can_crop_to(num_tokens) else 0

    def _restore(self, num_tokens: int) -> None:
        """Bring every layer to `num_tokens` tokens, at which a state is kept if the cache is not croppable."""
        self._layers.crop_to(num_tokens)
        self._states.go_back(num_tokens)
        del self._token_ids[num_tokens:]

    def _rebuild(self) -> None:
        if self._make_layers is not None:
            self._layers.replace(self._make_layers())
        self._token_ids.clear()
        self._was_converted = self._is_mixed = False
        self._states.clear()
