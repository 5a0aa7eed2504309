"""`Persistence`: live caches ↔ segments on disk: saved in the background, restored where a session lacks them.

It knows what is stored and what is on its way; every form of a cache is stored apart (`stored_forms`). It does not know
sessions' texts, turns or what a file looks like (`storage`). A problem here is never a problem of the chat: it costs
computing, and is told by `problem`.

What is stored is asked of the store each time and noted nowhere: so a save that failed, was refused or was undone by an
eviction needs no undoing here; the next one finds what is missing.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import takewhile

from chatcache.cache.session_cache import SessionCache
from chatcache.cache_problems import (
    CANNOT_BE_STORED,
    CHAIN_GONE,
    FORGOTTEN,
    HALF_CONVERTED,
    LATER,
    NO_ROOM,
    CacheProblems,
    not_looked_up,
    not_saved,
)
from chatcache.loader import LoadedModel
from chatcache.memory.budget import Need
from chatcache.pending_saves import PendingSave, PendingSaves
from chatcache.restore import Piece, Restore
from chatcache.segment_codec import on_cpu
from chatcache.session_key import SessionKey
from chatcache.stored_forms import StoredForm, StoredForms
from chatcache.stored_tokens import StoredTokens
from chatcache.writer_pace import WriterPace, yield_to_others
from storage.errors import StoreError
from storage.segment_chain import StoredPrefix
from storage.segment_save import ParentSegment
from storage.segment_store import SegmentStore

logger = logging.getLogger(__name__)

NUM_READERS = 3
"""Two keep two cores busy while a third waits for the file system."""
MAX_PENDING_BYTES = 256 * 2**20
"""Copies that wait to be written. What would go beyond is left to the next save."""


class Persistence:
    """Joins `SessionCache` and `SegmentStore`. What takes a cache belongs to the model thread, the rest to any."""

    def __init__(
        self,
        store: SegmentStore,
        loaded: LoadedModel,
        kind: str,
        make_cache: Callable[[str], SessionCache],
        is_busy: Callable[[], bool] = lambda: False,
    ) -> None:
        """`kind` is the one that most chats have; while `is_busy`, turns run and writing takes its time. Forwards one
        token, to learn what a token takes: on the model thread, like what takes a cache of another kind for the first
        time."""
        self._store = store
        self._loaded = loaded
        self._kind = kind
        self._forms = StoredForms(store, loaded, make_cache)
        self._forms.learn(kind)
        self._writer = ThreadPoolExecutor(
            max_workers=1, thread_name_prefix="chatcache-writer", initializer=yield_to_others
        )
        self._readers = ThreadPoolExecutor(max_workers=NUM_READERS, thread_name_prefix="chatcache-reader")
        self._lock = threading.Lock()
        self._pending = PendingSaves()
        self._stored = StoredTokens(store, self._forms, self._pending)
        # Where turns compute more than is written at leisure, it is written as fast as it can be.
        self._pace = WriterPace(lambda: is_busy() and self._pending.num_bytes < MAX_PENDING_BYTES // 2)
        self._holds: Counter[SessionKey] = Counter()
        self._problems = CacheProblems()
        self._num_wanted_tokens: Counter[str] = Counter()  # by owner
        self._num_restored_tokens: Counter[str] = Counter()

    @property
    def pending(self) -> Need:
        """Copies in memory that wait to be written."""
        num_bytes = self._pending.num_bytes
        return Need(host_bytes=num_bytes) if self.copies_lie_in_ram else Need(num_bytes)

    @property
    def has_pending(self) -> bool:
        """Whether there are any."""
        return self._pending.num_bytes > 0

    @property
    def copies_lie_in_ram(self) -> bool:
        """Whether these lie elsewhere than the caches."""
        return self._loaded.model.device.type != "cpu"

    def hit_rate(self, owner: str) -> float | None:
        """Of the tokens that the owner's sessions lacked and asked for since the start, the part that was stored; None
        before."""
        with self._lock:
            num_wanted = self._num_wanted_tokens[owner]
            return self._num_restored_tokens[owner] / num_wanted if num_wanted else None

    def problem(self, key: SessionKey, kind: str | None = None) -> str | None:
        """Why the session's cache, of `kind`, is not stored to its end, or could not be used, as a sentence; None if it
        is fine."""
        kind = kind or self._kind
        if kind == "none":
            return None
        if self._forms.cannot_store(kind):
            return CANNOT_BE_STORED
        return self._problems.of(key)

    def is_behind(self, key: SessionKey) -> bool:
        """Whether the last save of the session's cache did not go to its end."""
        return self._problems.is_behind(key)

    # ----------------------------------------------------------- model thread

    def hold(self, key: SessionKey) -> None:
        """A turn is running: what the session has stored stays, however full the disk is, until `let_go`."""
        with self._lock:
            self._holds[key] += 1
        self._store.protect(key.session_id)

    def let_go(self, key: SessionKey) -> None:
        """The turn is over. Takes effect after what it saved is written."""
        self._writer.submit(self._let_go, key)

    def restore(
        self, key: SessionKey, cache: SessionCache, wanted_ids: Sequence[int], *, is_miss: bool = True
    ) -> Restore:
        """Begin to append to `cache`, which holds a beginning of `wanted_ids`, what is stored of the rest, or is on its
        way there. Reading begins at once. Not `is_miss`: the cache held all it had to; the rate of hits counts what is
        found, and nothing as missing.
        """
        num_wanted = len(wanted_ids) - cache.num_tokens if is_miss else None
        pieces: list[Piece] = []
        problem = None
        try:
            pieces = self._stored.pieces(key.owner, cache, tuple(wanted_ids))
        except StoreError as error:
            logger.exception("What is stored of a cache could not be looked up")
            problem = not_looked_up(error)
        on_end = partial(self._restored, key, num_wanted)
        no_tokens = self._forms.codec(cache.kind).no_tokens(cache.num_tokens) if pieces else None
        return Restore(cache, pieces, self._readers, on_end, problem, no_tokens)

    def extend(self, key: SessionKey, cache: SessionCache, wanted_ids: Sequence[int]) -> int:
        """`restore` in one go; how many tokens were appended."""
        restore = self.restore(key, cache, wanted_ids)
        while not restore.step():
            pass
        return restore.num_tokens

    def save(
        self,
        key: SessionKey,
        cache: SessionCache,
        cuts: Sequence[int] = (),
        num_tokens: int | None = None,
        room_bytes: int = MAX_PENDING_BYTES,
    ) -> bool:
        """Have the first `num_tokens` tokens of `cache` (default: all), where they are not stored yet, written in the
        background; segments end at `cuts`. What only a part of another chat's segment holds is written again: the chat
        holds nothing but its own.

        The copies are made here, so the cache may change at once; they take no more than `room_bytes`. False where not
        all of it is on its way: then `problem` says why, and the next save tries again.
        """
        form, codec = StoredForm.of(cache), self._forms.learn(cache.kind)
        if form is None:
            self._problems.note_save(key, HALF_CONVERTED)
        if form is None or codec is None:
            return False
        # Recurrent layers can go on from a known state only, so nothing is stored behind the last one.
        ids = tuple(cache.token_ids[: cache.nearest_length(cache.num_tokens if num_tokens is None else num_tokens)])
        if not ids:
            return True
        try:
            start = self._stored.num_whole_tokens(key.owner, form, ids)
            if start < cache.num_forgotten_tokens:
                self._problems.note_save(key, FORGOTTEN)
                return False
            left_bytes = max(0, MAX_PENDING_BYTES - self._pending.num_bytes)
            num_new = min(len(ids) - start, min(left_bytes, room_bytes) // max(1, codec.bytes_per_token))
            stop = max(start, cache.nearest_length(start + num_new))
            tokens = on_cpu(cache.export(start, stop))
        except Exception as error:  # the database, or no memory for the copy
            logger.exception("A cache could not be copied for saving")
            self._problems.note_save(key, not_saved(error))
            return False
        problem = None
        if stop < len(ids):
            problem = LATER if left_bytes <= room_bytes else NO_ROOM
            self._problems.note_save(key, problem)
        if start < stop or problem is None:
            ends = codec.ends(tokens, cuts)
            pending = PendingSave(key, form, ids[:stop], tokens, ends, problem, cache.forgotten_positions)
            self._pending.add(pending)
            self._writer.submit(self._write, pending)
        return problem is None

    def hold_stored(self, key: SessionKey, kind: str, branches: Iterable[Sequence[int]]) -> None:
        """Let the session, which has saved nothing yet, hold what is stored of a beginning of the ids of each of its
        `branches` for caches of this kind, after what is on its way there, in segments that hold nothing else."""
        if self._forms.learn(kind) is not None:
            for ids in branches:
                self._writer.submit(self._hold_stored, key, StoredForm(kind), tuple(ids))

    def num_saved(self, key: SessionKey, token_ids: Sequence[int], form: StoredForm | None = None) -> int:
        """How many leading tokens of `token_ids` are stored for caches of this form, or on their way there, in segments
        that hold nothing else."""
        form = form or StoredForm(self._kind)
        if self._forms.learn(form.kind) is None:
            return 0
        try:
            return self._stored.num_whole_tokens(key.owner, form, tuple(token_ids))
        except StoreError as error:
            self._problems.note_save(key, not_saved(error))
            return 0

    # -------------------------------------------------------------- any thread

    def release(self, owner: str, session_ids: Set[str] | None = None) -> int:
        """Free what is stored for these sessions, or all of the owner's, and nobody else holds, and withdraw what is on
        its way. Returns the bytes freed."""
        self._pending.withdraw(owner, session_ids)
        self._problems.forget(owner, session_ids)
        with self._pace.hurried():
            return self._writer.submit(self._store.release, owner, session_ids).result()

    def flush(self) -> None:
        """Wait until everything handed to `save` so far is written."""
        with self._pace.hurried():
            self._writer.submit(lambda: None).result()

    def close(self) -> None:
        """Write what is pending, end the threads. Nothing may be saved or restored afterwards."""
        with self._pace.hurried():
            self._writer.shutdown(wait=True)
        self._readers.shutdown(wait=True, cancel_futures=True)

    # ------------------------------------------------------------ writer thread

    def _write(self, pending: PendingSave) -> None:
        problem = None
        try:
            if pending in self._pending:
                problem = self._store_tokens(pending) or pending.problem
        except Exception as error:
            logger.exception("A cache could not be saved; the next turn tries again")
            problem = not_saved(error)
        if self._pending.remove(pending):
            self._problems.note_save(pending.key, problem)

    def _store_tokens(self, pending: PendingSave) -> str | None:
        """Why not all of it is stored now; None if it is."""
        codec = self._forms.codec(pending.form.kind)
        namespace = self._forms.namespace(pending.key.owner, pending.form)
        prefix = self._store.lookup(namespace, pending.ids, at_end=True)
        if prefix.num_tokens < pending.tokens.start:
            return CHAIN_GONE
        segments = self._pace.slowed(codec.segments(pending.tokens, prefix.num_tokens, pending.ends))
        segments = takewhile(lambda _segment: pending in self._pending, segments)  # else it was withdrawn
        refused = self._store.save(namespace, pending.key.session_id, _parent(prefix), segments).refused
        for part in prefix.parts:
            end = part.start + part.num_tokens
            if part.has_state and end in pending.forgotten and end < len(pending.ids):
                self._store.drop_state(part.key, pending.key.session_id)
        return refused

    def _hold_stored(self, key: SessionKey, form: StoredForm, ids: tuple[int, ...]) -> None:
        namespace = self._forms.namespace(key.owner, form)
        try:
            if parent := _parent(self._store.lookup(namespace, ids, at_end=True)):
                self._store.save(namespace, key.session_id, parent, ())
        except StoreError:
            logger.exception("What is stored for a chat could not be held; its next turn saves what is gone by then")

    def _let_go(self, key: SessionKey) -> None:
        with self._lock:
            self._holds[key] -= 1
            if self._holds[key] <= 0:
                del self._holds[key]
                self._store.unprotect(key.session_id)

    # ---------------------------------------------------------------- private

    def _restored(self, key: SessionKey, num_wanted: int | None, restore: Restore) -> None:
        with self._lock:
            self._num_wanted_tokens[key.owner] += restore.num_tokens if num_wanted is None else num_wanted
            self._num_restored_tokens[key.owner] += restore.num_tokens
        self._problems.note_restore(key, restore.problem)


def _parent(prefix: StoredPrefix) -> ParentSegment | None:
    if not prefix.parts:
        return None
    last = prefix.parts[-1]
    return ParentSegment(last.key, last.start, last.start + last.num_tokens)
