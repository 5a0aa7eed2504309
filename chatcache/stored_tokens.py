"""`StoredTokens`: how far what is stored, or on its way there, leads along given tokens, and how it is read.

It knows forms, segments and copies that wait. It does not know who saves or restores, nor when.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from chatcache.cache.session_cache import SessionCache
from chatcache.cache.token_range import TokenRange
from chatcache.pending_saves import PendingSaves
from chatcache.restore import Piece, Room
from chatcache.segment_codec import SegmentCodec
from chatcache.segment_reader import SegmentReader
from chatcache.stored_forms import StoredForm, StoredForms
from storage.segment_store import SegmentStore


class StoredTokens:
    """Raises StoreError where the index cannot be read."""

    def __init__(self, store: SegmentStore, forms: StoredForms, pending: PendingSaves) -> None:
        self._store = store
        self._forms = forms
        self._pending = pending

    def num_whole_tokens(self, owner: str, form: StoredForm, ids: tuple[int, ...]) -> int:
        """How many leading tokens of `ids` there are in this form, whose kind is learnt, in segments that hold nothing
        else. A save goes on from there: what it stores keeps no other chat's words on disk."""
        pending = self._pending.of(owner, form)  # first: what leaves it meanwhile is stored
        num_tokens = self._store.lookup(self._forms.namespace(owner, form), ids, at_end=True).num_tokens
        for save in pending:
            num_tokens = save.last_end(ids, num_tokens)
        return num_tokens

    def pieces(self, owner: str, cache: SessionCache, wanted_ids: tuple[int, ...]) -> list[Piece]:
        """What `cache`, which holds a beginning of `wanted_ids`, lacks of them, in the form that leads furthest. Learns
        its kind."""
        if self._forms.learn(cache.kind) is None:
            return []
        found = [list(self._pieces_in(owner, form, cache.num_tokens, wanted_ids)) for form in StoredForm.all_for(cache)]
        return max(found, key=lambda pieces: pieces[-1].end if pieces else 0, default=[])

    def _pieces_in(self, owner: str, form: StoredForm, reached: int, wanted_ids: tuple[int, ...]) -> Iterator[Piece]:
        codec, namespace = self._forms.codec(form.kind), self._forms.namespace(owner, form)
        pending = self._pending.of(owner, form)  # first: what leaves it meanwhile is stored
        stored = self._store.lookup(namespace, wanted_ids)
        end = max(reached, stored.num_tokens)
        waiting: list[Piece] = []
        for save in pending:
            begin, end = end, save.reach(wanted_ids, end, needs_state=bool(codec.state_layout))
            if end > begin:
                waiting.append(Piece(begin, end, partial(_part, codec, save.tokens, begin, end)))
        # Where copies lead further than what is stored, the recurrent state at its end is not needed either.
        reader = SegmentReader(self._store, namespace, codec, form.is_converted, end)
        yield from reader.pieces(stored.parts, reached, wanted_ids)
        yield from waiting


def _part(codec: SegmentCodec, tokens: TokenRange, begin: int, end: int, _room: Room) -> list[TokenRange]:
    return [codec.part(tokens, begin, end)]
