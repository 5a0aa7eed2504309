"""`CacheProblems`: why sessions' caches are not stored to their end, or could not be used, as sentences for people.

Thread-safe. Of many sessions with problems the latest are known.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Set
from dataclasses import dataclass, replace

from chatcache.first_sentence import first_sentence
from chatcache.session_key import SessionKey
from chatcache.told import Told
from storage.sentence import Sentence

MAX_PROBLEMS = 1000

CANNOT_BE_STORED = Sentence(
    "This model's caches cannot be saved to disk; after a restart its chats are computed again.", Told.CANNOT_BE_STORED
)
LATER = Sentence(
    "The disk is slower than the chat; the rest of this cache is saved at the next turn.", Told.SAVED_LATER
)
NO_ROOM = Sentence(
    "Memory is short; the rest of this cache is saved at the next turn, or when it leaves memory.", Told.NO_ROOM_TO_SAVE
)
HALF_CONVERTED = Sentence(
    "For want of memory this cache is in two forms at once; it is saved when it is in one again.", Told.HALF_CONVERTED
)
FORGOTTEN = Sentence(
    "A part of this cache is neither in memory nor on disk any more; after a restart it is computed again.",
    Told.FORGOTTEN,
)
CHAIN_GONE = Sentence(
    "What this cache continues is no longer on disk; all of it is saved at the next turn.", Told.CHAIN_GONE
)


def not_saved(error: Exception) -> Sentence:
    """A save failed."""
    failure = first_sentence(error)
    sentence = f"This chat's cache could not be saved; the next turn tries again. ({failure})"
    return Sentence(sentence, Told.NOT_SAVED, failure=failure)


def not_looked_up(error: Exception) -> Sentence:
    """What is stored could not be looked up."""
    failure = first_sentence(error)
    sentence = f"Saved cache data could not be looked up; it is computed again. ({failure})"
    return Sentence(sentence, Told.LOOKUP_FAILED, failure=failure)


@dataclass(frozen=True, slots=True)
class _Problem:
    """What went wrong with a session's last save and its last restore."""

    save: str | None = None
    restore: str | None = None


class CacheProblems:
    """One of saving and one of restoring for each session; each new one replaces the one before."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._problems: OrderedDict[SessionKey, _Problem] = OrderedDict()

    def __len__(self) -> int:
        return len(self._problems)

    def of(self, key: SessionKey) -> str | None:
        """What is to be told of the session; None where all is fine."""
        problem = self._get(key)
        return problem.save or problem.restore

    def is_behind(self, key: SessionKey) -> bool:
        """Whether the last save did not go to its end."""
        return self._get(key).save is not None

    def note_save(self, key: SessionKey, sentence: str | None) -> None:
        """How the last save went; None: well. Why one was refused is not replaced by what follows from it."""
        with self._lock:
            before = self._problems.get(key, _Problem())
            if sentence != CHAIN_GONE or before.save is None:
                self._put(key, replace(before, save=sentence))

    def note_restore(self, key: SessionKey, sentence: str | None) -> None:
        """How the last restore went; None: well."""
        with self._lock:
            self._put(key, replace(self._problems.get(key, _Problem()), restore=sentence))

    def forget(self, owner: str, session_ids: Set[str] | None) -> None:
        """Those of these sessions, or of all of the owner's."""
        with self._lock:
            for key in list(self._problems):
                if key.owner == owner and (session_ids is None or key.session_id in session_ids):
                    del self._problems[key]

    def _get(self, key: SessionKey) -> _Problem:
        with self._lock:
            return self._problems.get(key, _Problem())

    def _put(self, key: SessionKey, problem: _Problem) -> None:
        self._problems.pop(key, None)
        if problem != _Problem():
            self._problems[key] = problem
        while len(self._problems) > MAX_PROBLEMS:
            self._problems.popitem(last=False)
