"""`CacheSaving`: live caches on their way to disk, as far as there is memory for copies of them.

It knows the disk (`persistence`) and the budget in which copies count until they are written. It does not know which
caches there are, nor when one is to be saved. Used on the model thread only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from chatcache.cache.session_cache import SessionCache
from chatcache.cache.token_buffer import BLOCK_TOKENS
from chatcache.memory.budget import Budget
from chatcache.out_of_memory import return_to_system
from chatcache.persistence import Persistence
from chatcache.session_key import SessionKey
from chatcache.stored_forms import StoredForm

_COPIES = "copies on their way to disk"


@dataclass(frozen=True, slots=True)
class Saving:
    """A session's live cache as it is to be saved: its first `num_tokens` tokens. `kind` is the one in which the chat
    will go on; another one was taken for want of memory. `is_wanted`: nothing of a temporary chat's is, nor what is to
    be forgotten."""

    key: SessionKey
    cache: SessionCache
    num_tokens: int
    kind: str
    is_wanted: bool

    @property
    def is_worth_it(self) -> bool:
        return self.is_wanted and self.cache.kind == self.kind

    @property
    def form(self) -> StoredForm:
        """The one in which the chat's tokens are looked for on disk."""
        form = StoredForm.of(self.cache)
        return StoredForm(self.kind) if form is None or form.kind != self.kind else form


class CacheSaving:
    """Without `persistence` nothing is saved."""

    def __init__(self, persistence: Persistence | None, budget: Budget) -> None:
        self._persistence = persistence
        self._budget = budget

    def count_copies(self) -> None:
        """Have the budget hold what the copies take that are not written yet."""
        if self._persistence is not None:
            self._budget.hold(_COPIES, self._persistence.pending)

    def wait_for_copies(self) -> bool:
        """Until all are written. Whether there were any."""
        if self._persistence is None or not self._persistence.has_pending:
            return False
        self._persistence.flush()
        return_to_system()
        self.count_copies()
        return True

    def save(self, saving: Saving, cuts: Sequence[int] = ()) -> bool:
        """See `LiveCaches.save`."""
        return self._save(saving, cuts, self._room_bytes(), saving.num_tokens)

    def save_piece(self, saving: Saving) -> None:
        """`save` a little, also where there is hardly memory for a copy."""
        # Beside what the caches take, one layer is kept free: nothing else needs it before the copy is written.
        room_bytes = self._room_bytes() + self._budget.free_layer_bytes
        self._save(saving, (), room_bytes, min(saving.num_tokens, self._num_saved(saving) + BLOCK_TOKENS))

    def save_at_last(self, saving: Saving) -> bool:
        """See `LiveCaches.save_at_last`."""
        if self._persistence is None:
            return False
        if self.save(saving):
            return True
        num_before = -1
        self.wait_for_copies()
        num_saved = self._num_saved(saving)
        while num_before < num_saved < saving.num_tokens and saving.is_worth_it:
            self.save_piece(saving)
            self.wait_for_copies()
            num_before, num_saved = num_saved, self._num_saved(saving)
        return num_saved >= saving.num_tokens

    def is_behind(self, key: SessionKey) -> bool:
        """Whether the last save of the session's cache did not go to its end."""
        return self._persistence is not None and self._persistence.is_behind(key)

    def _save(self, saving: Saving, cuts: Sequence[int], room_bytes: int, num_tokens: int) -> bool:
        if self._persistence is None or not saving.is_worth_it:
            return False
        key = saving.key
        return self._persistence.save(key, saving.cache, cuts, num_tokens, room_bytes)

    def _num_saved(self, saving: Saving) -> int:
        if self._persistence is None:
            return 0
        key = saving.key
        return self._persistence.num_saved(key, saving.cache.token_ids, saving.form)

    def _room_bytes(self) -> int:
        self.count_copies()
        lie_in_ram = self._persistence is not None and self._persistence.copies_lie_in_ram
        return self._budget.free_host_bytes if lie_in_ram else self._budget.free_bytes
