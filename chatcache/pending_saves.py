"""`PendingSaves`: what was copied from live caches and is not written yet, in the order in which it will be.

It knows copies and how far they lead along a prompt. It does not know who writes them, nor where.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence, Set
from dataclasses import dataclass

from chatcache.cache.token_range import TokenRange
from chatcache.prefix import common_length
from chatcache.session_key import SessionKey
from chatcache.stored_forms import StoredForm


@dataclass(frozen=True, slots=True, eq=False)
class PendingSave:
    """A save on its way: `ids` from the prompt's first token on, copies of those that were not stored, as `form`
    says.

    Its segments will end at `ends`, and other saves can go on from there. `problem` is what is still to be told when it
    is written. Recurrent states at `forgotten` positions are no longer needed then.
    """

    key: SessionKey
    form: StoredForm
    ids: tuple[int, ...]
    tokens: TokenRange
    ends: tuple[int, ...]
    problem: str | None
    forgotten: frozenset[int]

    def reach(self, ids: tuple[int, ...], reached: int, *, needs_state: bool) -> int:
        """How far this leads along `ids`, where tokens up to `reached` are there already. With `needs_state` it leads
        to one of its recurrent states only."""
        if not self.tokens.start <= reached < len(self.ids):
            return reached
        end = common_length(self.ids, ids)
        if needs_state:
            end = max((state.num_tokens for state in self.tokens.states if state.num_tokens <= end), default=0)
        return max(reached, end)

    def last_end(self, ids: tuple[int, ...], reached: int) -> int:
        """The last of its ends up to which it leads along `ids`, where whole segments lead to `reached` already; that
        where it leads no further."""
        if not self.tokens.start <= reached < len(self.ids):
            return reached
        common = common_length(self.ids, ids)
        return max((reached, *(end for end in self.ends if end <= common)))


class PendingSaves:
    """Thread-safe. What was withdrawn is not written any more, but takes its memory until the writer has come to it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._saves: list[PendingSave] = []
        self._withdrawn: list[PendingSave] = []

    @property
    def num_bytes(self) -> int:
        """What the copies take in memory."""
        with self._lock:
            return sum(save.tokens.num_bytes for save in (*self._saves, *self._withdrawn))

    def __contains__(self, save: PendingSave) -> bool:
        """Whether it is still to be written."""
        with self._lock:
            return save in self._saves

    def __len__(self) -> int:
        with self._lock:
            return len(self._saves)

    def add(self, save: PendingSave) -> None:
        with self._lock:
            self._saves.append(save)

    def remove(self, save: PendingSave) -> bool:
        """The writer is done with it: it is written, or cannot be. False where it was withdrawn meanwhile."""
        with self._lock:
            is_wanted = save in self._saves
            (self._saves if is_wanted else self._withdrawn).remove(save)
            return is_wanted

    def withdraw(self, owner: str, session_ids: Set[str] | None) -> None:
        """Do not write what belongs to these sessions, or to all of the owner's."""
        with self._lock:
            unwanted = [
                save
                for save in self._saves
                if save.key.owner == owner and (session_ids is None or save.key.session_id in session_ids)
            ]
            self._saves = [save for save in self._saves if save not in unwanted]
            self._withdrawn += unwanted

    def of(self, owner: str, form: StoredForm) -> Sequence[PendingSave]:
        """The owner's that go to this form, first come first."""
        with self._lock:
            return [save for save in self._saves if (save.key.owner, save.form) == (owner, form)]
