"""`Restore`: what is stored of a cache's missing tokens, read ahead by threads, taken in step by step.

Room for all of it is reserved first, so that the threads can read to where the cache will hold it; to take that in is
to count it.

It knows a cache and where to read what it lacks. It does not know who asked, what a file is, or how long others may
wait: its owner calls `step` as often as it likes, on the thread that owns the cache.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, Executor, Future, wait
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from chatcache.cache.session_cache import SessionCache
from chatcache.cache.token_range import TokenRange
from chatcache.first_sentence import first_sentence
from chatcache.out_of_memory import is_out_of_memory
from chatcache.tensor_bytes import bytes_of
from chatcache.told import Told
from storage.errors import SegmentDamagedError, SegmentRemovedError
from storage.sentence import Sentence

logger = logging.getLogger(__name__)

STEP_S = 0.05
"""How long a step may take: so long do other turns wait for it."""
READ_AHEAD = 6
"""How many pieces are read while one is taken in. A piece has 8 MiB at most; most are read to where they will stay."""


class Room:
    """Where a cache will hold tokens: for each layer its tensors by name, and the bytes of these, to read into; none
    where no room is reserved.

    The owner of the cache may need it for other tokens at any time. So it is written to inside `writing` only, a little
    at a time.
    """

    def __init__(
        self,
        layers: Sequence[Mapping[str, Tensor]],
        data: Sequence[Mapping[str, memoryview]],
        rows: slice = slice(None),
        door: _Door | None = None,
    ) -> None:
        self._layers = layers
        self._data = data
        self._rows = rows
        self._door = door or _Door()

    @classmethod
    def of(cls, layers: Sequence[Mapping[str, Tensor]]) -> Room:
        """All of what a cache has reserved. Other devices' memory has no bytes here."""
        on_cpu = [{name: rows for name, rows in layer.items() if rows.device.type == "cpu"} for layer in layers]
        return cls(on_cpu, [{name: bytes_of(rows) for name, rows in layer.items()} for layer in on_cpu])

    @property
    def layers(self) -> tuple[dict[str, Tensor], ...]:
        return tuple({name: tensor[self._rows] for name, tensor in layer.items()} for layer in self._layers)

    @property
    def data(self) -> list[dict[str, memoryview]]:
        return [
            {name: _rows_of(data, self._layers[index][name].shape[0], self._rows) for name, data in layer.items()}
            for index, layer in enumerate(self._data)
        ]

    def part(self, start: int, stop: int) -> Room:
        """Rows `[start, stop)` of it, which are withdrawn with it."""
        first = self._rows.start or 0
        return Room(self._layers, self._data, slice(first + start, first + stop), self._door)

    def own_part(self, start: int, stop: int) -> Room:
        """Rows `[start, stop)` of it, which are withdrawn, and written to, by themselves."""
        part = self.part(start, stop)
        return Room(self._layers, self._data, part._rows)

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Raises CancelledError where the room was withdrawn."""
        with self._door.lock:
            if self._door.is_closed:
                raise CancelledError
            yield

    def withdraw(self) -> None:
        """From when this returns on nothing is written to it any more."""
        with self._door.lock:
            self._door.is_closed = True


class _Door:
    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.is_closed = False


def _rows_of(data: memoryview, num_rows: int, rows: slice) -> memoryview:
    row_bytes = len(data) // max(1, num_rows)
    start, stop, _ = rows.indices(num_rows)
    return data[start * row_bytes : stop * row_bytes]


@dataclass(frozen=True, slots=True)
class Piece:
    """Tokens `[begin, end)`, and how they are read, by any thread, into the room for them or elsewhere: as ranges that
    follow each other. `read` verifies what it reads, or raises. Then its `parts`, where it has any, are read instead,
    one by one, up to the one that is to blame."""

    begin: int
    end: int
    read: Callable[[Room], Sequence[TokenRange]]
    parts: tuple[Piece, ...] = ()


@dataclass(frozen=True, slots=True)
class _Read:
    """A piece that is being read. `error`: why what it is a part of could not be."""

    piece: Piece
    room: Room
    tokens: Future[Sequence[TokenRange]]
    error: Exception | None = None


class Restore:
    """Appends `pieces`, each of which begins where the one before ended, to a cache that ends where the first begins.

    At a piece that cannot be read it ends: what was taken in is valid and stays, `problem` says in a sentence what was
    wrong, if anything: that the rest was dropped meanwhile is not. The cache never holds less than before.
    """

    def __init__(
        self,
        cache: SessionCache,
        pieces: Sequence[Piece],
        readers: Executor,
        on_end: Callable[[Restore], None],
        problem: str | None = None,
        no_tokens: TokenRange | None = None,
    ) -> None:
        """`on_end` is called once, when it has ended; `problem` is one that was met before it began. `no_tokens` tells
        an empty cache what its tokens are like, so that it can reserve room before the first one comes."""
        self.cache = cache
        self.problem = problem
        self.ran_out_of_memory = False
        """Whether that is what ended it: another one may do, with more memory."""
        self.num_total_tokens = pieces[-1].end - pieces[0].begin if pieces else 0
        """How many tokens it will append, if all goes well."""
        self.seconds = 0.0
        self._num_appended = 0
        self._num_before = cache.num_tokens
        self._began_s = time.perf_counter()
        self._readers = readers
        self._on_end = on_end
        self._pieces = deque(pieces)
        self._reads: deque[_Read] = deque()
        self._has_ended = False
        self._room = self._reserve(no_tokens)
        self._read_ahead()

    @property
    def num_tokens(self) -> int:
        """How many tokens it has appended."""
        return self._num_appended if self._has_ended else self.cache.num_tokens - self._num_before

    @torch.inference_mode()
    def step(self, *, may_wait: bool = True) -> bool:
        """Take in what was read, for `STEP_S` at most, and where it `may_wait` as long for the next piece. True when it
        has ended."""
        until_s = time.perf_counter() + STEP_S
        while not self._has_ended and self._reads:
            tokens = self._reads[0].tokens
            wait([tokens], timeout=max(0.0, until_s - time.perf_counter()) if may_wait else 0.0)
            if not tokens.done():
                return False
            read = self._reads.popleft()
            self._read_ahead()
            self._take_in(read)
            if time.perf_counter() >= until_s:
                break
        if not self._reads:
            self.end()
        return self._has_ended

    def end(self) -> None:
        """Read no further. May be called at any time, again and again."""
        if self._has_ended:
            return
        self._go_back_to_state()
        self._num_appended = self.num_tokens
        self._has_ended = True
        self.seconds = time.perf_counter() - self._began_s
        for read in self._reads:
            read.tokens.cancel()
            read.room.withdraw()
        self._reads.clear()
        self._pieces.clear()
        self._on_end(self)

    def _reserve(self, no_tokens: TokenRange | None) -> Room:
        stop = self._num_before + self.num_total_tokens
        try:
            if no_tokens is not None and self._pieces:
                self.cache.import_(no_tokens)
            self.cache.reserve(stop)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            # What fits is taken in all the same, and the rest is told then.
        return Room.of(self.cache.room(self._num_before, stop))

    def _read_ahead(self) -> None:
        while self._pieces and len(self._reads) < READ_AHEAD:
            self._reads.append(self._begin(self._pieces.popleft()))

    def _begin(self, piece: Piece, error: Exception | None = None) -> _Read:
        room = self._room.own_part(piece.begin - self._num_before, piece.end - self._num_before)
        return _Read(piece, room, self._readers.submit(piece.read, room), error)

    def _take_in(self, read: _Read) -> None:
        try:
            ranges = read.tokens.result()
        except Exception as error:
            if read.piece.parts:
                self._reads.extendleft(reversed([self._begin(part, error) for part in read.piece.parts]))
            else:
                self._give_up(read.error or error)  # what was damaged is set aside by now, and would seem removed
            return
        try:
            for tokens in ranges:
                self.cache.import_(tokens)
        except Exception as error:
            self.cache.repair()
            self._give_up(error)

    def _go_back_to_state(self) -> None:
        """To the last recurrent state that came, where there are any."""
        if self.cache.num_tokens > self._num_before and not self.cache.is_croppable:
            self.cache.repair()

    def _give_up(self, error: Exception) -> None:
        self._go_back_to_state()  # first: from there on it is computed again
        if isinstance(error, SegmentRemovedError):  # by somebody who wanted it: nothing is wrong
            logger.info("A cache was restored up to token %d; the rest was dropped meanwhile", self.cache.num_tokens)
            self.end()
            return
        self.ran_out_of_memory = is_out_of_memory(error)
        logger.warning("A cache was restored up to token %d only", self.cache.num_tokens, exc_info=error)
        index, failure = self.cache.num_tokens, first_sentence(error)
        rest = f"from token {index:,} on it is computed again. ({failure})"
        if isinstance(error, SegmentDamagedError):
            sentence = f"Saved cache data was damaged and set aside; {rest}"
            self.problem = Sentence(sentence, Told.RESTORE_DAMAGED, index=index, failure=failure)
        else:
            sentence = f"Saved cache data could not be used; {rest}"
            self.problem = Sentence(sentence, Told.RESTORE_FAILED, index=index, failure=failure)
        self.end()
