"""`SegmentReader`: stored segments as the pieces that a restore reads.

A chat of many short turns has many short segments. Each costs the same few hundred steps, whatever its length; so what
is short is read, and taken in, together.

It knows segments and how their tensors become tokens. It does not know which of them are wanted, nor by whom.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from chatcache.cache.states import KeptState
from chatcache.cache.token_range import TokenRange
from chatcache.restore import Piece, Room
from chatcache.segment_codec import SegmentCodec
from storage.errors import SegmentUnavailableError
from storage.segment_chain import SegmentPart
from storage.segment_format import FileKind
from storage.segment_save import Namespace
from storage.segment_store import SegmentStore

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SegmentReader:
    """Of one namespace. `is_converted`: see `TokenRange`. `num_tokens`: where what is wanted ends, and a recurrent
    state is needed. One before is passed over where it cannot be had."""

    store: SegmentStore
    namespace: Namespace
    codec: SegmentCodec
    is_converted: bool
    num_tokens: int

    def pieces(self, parts: Sequence[SegmentPart], begin: int, ids: tuple[int, ...]) -> Iterator[Piece]:
        """What `parts`, which follow each other, hold of the tokens `ids` from `begin` on."""
        most_tokens = self.codec.max_segment_tokens
        run: list[SegmentPart] = []
        for part in parts:
            end = part.start + part.num_tokens
            if end <= begin:
                continue
            is_whole = part.is_whole and part.start >= begin
            if run and not (is_whole and end - run[0].start <= most_tokens):
                yield self._run(run, ids)
                run = []
            if is_whole:
                run.append(part)
            else:
                yield Piece(max(begin, part.start), end, partial(self._read_part, part, max(begin, part.start), ids))
        if run:
            yield self._run(run, ids)

    def _run(self, parts: Sequence[SegmentPart], ids: tuple[int, ...]) -> Piece:
        alone = tuple(self._run([part], ids) for part in parts) if len(parts) > 1 else ()
        end = parts[-1].start + parts[-1].num_tokens
        return Piece(parts[0].start, end, partial(self._read_run, tuple(parts), ids), alone)

    def _read_run(self, parts: Sequence[SegmentPart], ids: tuple[int, ...], room: Room) -> list[TokenRange]:
        """Whole segments are read into the room, if there is any."""
        begin, end = parts[0].start, parts[-1].start + parts[-1].num_tokens
        places = [room.part(part.start - begin, part.start - begin + part.num_tokens) for part in parts]
        targets = [into for place in places if (into := self.codec.targets(place.data)) is not None]
        if len(targets) < len(parts):
            return [tokens for part in parts for tokens in self._read_part(part, part.start, ids, room)]
        states: list[KeptState] = []
        for part, into in zip(parts, targets, strict=True):
            states += self._states(part)
            self.store.load_into(self.namespace, part, into, room.writing)
        return [self._told(TokenRange(begin, ids[begin:end], room.layers, tuple(states)))]

    def _read_part(self, part: SegmentPart, begin: int, ids: tuple[int, ...], _room: Room) -> list[TokenRange]:
        """One of which a part is wanted is read elsewhere."""
        wanted = ids[begin : part.start + part.num_tokens]
        states = self._states(part)
        tensors = self.store.load(self.namespace, part.key)
        return [self._told(self.codec.tokens(tensors, part.start, begin, wanted, states))]

    def _states(self, part: SegmentPart) -> tuple[KeptState, ...]:
        if not part.has_state:
            return ()
        end = part.start + part.num_tokens
        try:
            stored = self.store.load(self.namespace, part.key, FileKind.STATE)
        except SegmentUnavailableError as error:
            if end == self.num_tokens:
                raise
            logger.info("The recurrent state at token %d is passed over: %s", end, error)
            return ()
        return (self.codec.state_of(stored, end),)

    def _told(self, tokens: TokenRange) -> TokenRange:
        return dataclasses.replace(tokens, is_converted=self.is_converted)
