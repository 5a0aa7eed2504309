"""Between live caches and the segment store: saves that meet each other, fail, are refused or withdrawn; restores."""

from __future__ import annotations

import dataclasses
import gc
import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from databases import open_database
from sqlalchemy import select
from tiny_models import tiny_model, with_model

from chatcache import cache_problems, writer_pace
from chatcache import persistence as persistence_module
from chatcache.cache.kinds import make_session_cache
from chatcache.cache.session_cache import SessionCache
from chatcache.cache.token_range import TokenRange
from chatcache.cache_problems import CANNOT_BE_STORED
from chatcache.fingerprint import fingerprint
from chatcache.loader import LoadedModel
from chatcache.persistence import Persistence
from chatcache.restore import READ_AHEAD, Piece, Restore, Room
from chatcache.session_key import SessionKey
from chatcache.stored_forms import StoredForm
from storage.chat_store import ChatStore
from storage.database import Database
from storage.models import unpack_token_ids
from storage.segment_files import SegmentFolder
from storage.segment_format import FileKind
from storage.segment_models import SegmentRow
from storage.segment_save import ParentSegment
from storage.segment_store import SegmentStore

ME = "me"
A, B = tuple(range(3, 303)), tuple(range(303, 3, -1))


def mine(session_id: str) -> SessionKey:
    return SessionKey(ME, session_id)


@dataclass
class Bench:
    """A store, a persistence on it, and what a test does with them."""

    loaded: LoadedModel
    data_dir: Path
    quota_bytes: int = 2**40
    is_busy: Callable[[], bool] = lambda: False
    store: SegmentStore = field(init=False)
    persistence: Persistence = field(init=False)

    def __post_init__(self) -> None:
        self.database = open_database(self.data_dir)
        self.store = SegmentStore(self.database, self.quota_bytes)
        self.persistence = Persistence(self.store, self.loaded, "dynamic", self.empty, self.is_busy)

    def empty(self, kind: str = "dynamic") -> SessionCache:
        return make_session_cache(self.loaded.model, kind)

    def session(self) -> str:
        chats = ChatStore(self.database)
        return chats.create_session(ME, title="", system_prompt=None, sampling={}, settings={}, template_vars={}).id

    @torch.inference_mode()
    def feed(self, cache: SessionCache, ids: Sequence[int]) -> SessionCache:
        """Always in the same pieces, so that the same tokens are the same bytes whatever the cache held before."""
        while ids:
            num_tokens = 10 - cache.num_tokens % 10
            self.loaded.model(input_ids=torch.tensor([list(ids[:num_tokens])]), cache=cache.cache, use_cache=True)
            cache.advance(ids[:num_tokens])
            ids = ids[num_tokens:]
        return cache

    def filled(self, ids: Sequence[int]) -> SessionCache:
        return self.feed(self.empty(), ids)

    def restored(self, session_id: str, ids: Sequence[int]) -> SessionCache:
        cache = self.empty()
        self.persistence.extend(mine(session_id), cache, ids)
        return cache

    def check_is_stored(self, ids: Sequence[int], num_tokens: int | None = None) -> None:
        """`num_tokens` of `ids` (default: all), written down and byte for byte those of a cache that computed them."""
        self.persistence.flush()
        restored = self.restored("any", ids)
        num_tokens = len(ids) if num_tokens is None else num_tokens
        assert restored.num_tokens == num_tokens
        if num_tokens:
            assert_same(restored.export(0, num_tokens), self.filled(ids[:num_tokens]).export(0, num_tokens))

    def num_files(self) -> int:
        self.persistence.flush()
        return len(SegmentFolder(self.data_dir).sizes())

    def close(self) -> None:
        self.persistence.close()
        self.database.close()


@pytest.fixture
def bench(tiny_llama: LoadedModel, tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tiny_llama, tmp_path)
    yield bench
    bench.close()


def assert_same(one: TokenRange, other: TokenRange) -> None:
    assert one.token_ids == other.token_ids
    for mine, its in zip(one.layers, other.layers, strict=True):
        assert mine.keys() == its.keys()
        assert all(torch.equal(mine[name], its[name]) for name in mine)


class Gate:
    """Holds every write of a segment file until it is opened; `error` is raised then, instead of writing."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_open, self.reached = threading.Event(), threading.Event()
        self.error: BaseException | None = None
        write = SegmentFolder.write

        def gated(folder: SegmentFolder, *arguments: object) -> object:
            self.reached.set()
            assert self.is_open.wait(30)
            if self.error is not None:
                raise self.error
            return write(folder, *arguments)

        monkeypatch.setattr(SegmentFolder, "write", gated)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    gate = Gate(monkeypatch)
    yield gate
    gate.is_open.set()


# Saving


def test_a_save_during_a_save_hands_over_only_what_is_new(bench: Bench, gate: Gate) -> None:
    session = bench.session()
    cache = bench.filled(A[:100])
    assert bench.persistence.save(mine(session), cache)
    assert gate.reached.wait(30)
    one = bench.persistence.pending.num_bytes
    bench.feed(cache, A[100:150])
    assert bench.persistence.save(mine(session), cache)
    assert bench.persistence.pending.num_bytes == one * 3 // 2
    gate.is_open.set()
    bench.check_is_stored(A[:150])
    assert bench.persistence.pending.num_bytes == 0


def test_what_is_cropped_and_computed_anew_during_a_save_is_stored_as_it_was(bench: Bench, gate: Gate) -> None:
    session = bench.session()
    cache = bench.filled(A[:100])
    bench.persistence.save(mine(session), cache, cuts=(60,))
    cache.crop_to(50)
    bench.feed(cache, B[:40])
    bench.persistence.save(mine(session), cache)
    gate.is_open.set()
    bench.check_is_stored(A[:100])
    bench.check_is_stored((*A[:50], *B[:40]))
    assert len(bench.store.report(ME).session_bytes) == 1


def test_what_waits_to_be_written_can_be_restored_already(bench: Bench, gate: Gate) -> None:
    session = bench.session()
    cache = bench.filled(A[:100])
    bench.persistence.save(mine(session), cache)
    bench.feed(cache, A[100:200])
    bench.persistence.save(mine(session), cache)
    restored = bench.restored(session, (*A[:180], *B[:20]))
    assert restored.num_tokens == 180
    assert_same(restored.export(0, 180), cache.export(0, 180))
    other = bench.empty()
    assert bench.persistence.extend(SessionKey("somebody else", session), other, A) == 0
    assert bench.persistence.num_saved(mine(session), A) == 200
    gate.is_open.set()
    bench.check_is_stored(A, 200)


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), RuntimeError("injected"), MemoryError()])
def test_a_save_that_fails_is_told_and_made_good_by_the_next(bench: Bench, gate: Gate, error: BaseException) -> None:
    session = bench.session()
    cache = bench.filled(A[:100])
    bench.persistence.save(mine(session), cache)
    assert gate.reached.wait(30)
    bench.feed(cache, A[100:120])
    assert bench.persistence.save(mine(session), cache), "nothing has failed yet"
    gate.error = error
    gate.is_open.set()
    bench.persistence.flush()
    assert bench.persistence.pending.num_bytes == 0
    assert bench.persistence.problem(mine(session)) is not None
    assert bench.num_files() == 0
    gate.error = None
    assert bench.persistence.save(mine(session), cache)
    bench.persistence.flush()
    assert bench.persistence.problem(mine(session)) is None
    bench.check_is_stored(A[:120])


def test_copies_that_wait_never_take_more_than_their_share_of_memory(
    bench: Bench, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = bench.session()
    cache = bench.filled(A)
    per_token = cache.export(0, 1).num_bytes
    monkeypatch.setattr(persistence_module, "MAX_PENDING_BYTES", 120 * per_token)
    assert not bench.persistence.save(mine(session), cache)
    assert bench.persistence.pending.num_bytes == 120 * per_token
    assert "next turn" in (bench.persistence.problem(mine(session)) or "")
    assert not bench.persistence.save(mine(session), cache)
    assert bench.persistence.pending.num_bytes == 120 * per_token
    gate.is_open.set()
    bench.check_is_stored(A, 120)
    assert "next turn" in (bench.persistence.problem(mine(session)) or ""), "only a part of it is stored"
    while not bench.persistence.save(mine(session), cache):
        bench.persistence.flush()
    bench.check_is_stored(A)
    assert bench.persistence.problem(mine(session)) is None


def test_a_chat_that_another_one_has_stored_holds_it_too(bench: Bench) -> None:
    one, two = bench.session(), bench.session()
    cache = bench.filled(A)
    bench.persistence.save(mine(one), cache)
    bench.persistence.flush()
    assert bench.persistence.save(mine(two), cache)
    assert bench.persistence.pending.num_bytes == 0
    bench.persistence.release(ME, {one})
    bench.check_is_stored(A)
    bench.persistence.release(ME, {two})
    assert bench.num_files() == 0


@pytest.mark.parametrize("is_written", [True, False])
def test_a_chat_all_of_which_lies_inside_anothers_segment_holds_its_own_and_no_more(
    bench: Bench, gate: Gate, is_written: bool
) -> None:
    one, two = bench.session(), bench.session()
    bench.persistence.save(mine(one), bench.filled(A[:200]))
    if is_written:
        gate.is_open.set()
        bench.persistence.flush()
    inside = bench.restored(two, A[:150])
    assert inside.num_tokens == 150
    assert bench.persistence.num_saved(mine(two), A[:150]) == 0, "whoever leaves memory relies on what is its own"
    assert bench.persistence.save(mine(two), inside)
    assert bench.persistence.num_saved(mine(two), A[:150]) == 150
    gate.is_open.set()
    bench.persistence.release(ME, {one})
    bench.check_is_stored(A, 150)
    bench.persistence.release(ME, {two})
    assert bench.num_files() == 0


@pytest.mark.parametrize("is_written", [True, False])
def test_a_chat_that_parts_from_another_inside_a_segment_keeps_none_of_its_words(
    bench: Bench, gate: Gate, is_written: bool
) -> None:
    one, two = bench.session(), bench.session()
    bench.persistence.save(mine(one), bench.filled(A), cuts=(40,))
    if is_written:
        gate.is_open.set()
        bench.persistence.flush()
    other = bench.restored(two, A[:130])
    bench.feed(other, B[:100])
    assert bench.persistence.save(mine(two), other)
    gate.is_open.set()
    stored = token_ids_of(bench)
    assert bench.persistence.problem(mine(two)) is None
    assert stored == [A[:40], A[40:296], A[296:], (*A[40:130], *B[:100])]
    bench.persistence.release(ME, {one})
    assert token_ids_of(bench) == [stored[0], stored[3]], "they share what ended where their ways parted"
    bench.check_is_stored((*A[:130], *B[:100]))
    bench.check_is_stored(A, 130)


def test_going_back_into_a_segment_again_and_again_writes_no_more_than_that_segment_again(bench: Bench) -> None:
    session = bench.session()
    cache = bench.filled(A)
    bench.persistence.save(mine(session), cache, cuts=(100, 200))
    for token_id in range(20):
        cache.crop_to(250)
        bench.feed(cache, [token_id] * 10)
        bench.persistence.save(mine(session), cache)
    assert [len(ids) for ids in token_ids_of(bench)] == [100, 100, 100, *[60] * 20]
    for token_id in range(20):
        bench.check_is_stored((*A[:250], *([token_id] * 10)))


def test_what_continues_from_inside_a_segment_as_older_versions_stored_it_is_read_and_continued(bench: Bench) -> None:
    session = bench.session()
    bench.persistence.save(mine(session), bench.filled(A[:200]))
    bench.persistence.flush()
    ids = (*A[:130], *B[:100])
    namespace = bench.persistence._forms.namespace(ME, StoredForm("dynamic"))
    (part,) = bench.store.lookup(namespace, ids).parts
    codec = bench.persistence._forms.codec("dynamic")
    inside = codec.segments(bench.filled(ids).export(130, 230), 130, ())
    bench.store.save(namespace, session, ParentSegment(part.key, 0, 130), inside)
    bench.check_is_stored(ids)
    again = bench.restored(session, ids)
    bench.feed(again, A[:50])
    bench.persistence.save(mine(session), again)
    bench.check_is_stored((*ids, *A[:50]))
    assert token_ids_of(bench) == [A[:200], B[:100], A[:50]]


def token_ids_of(bench: Bench) -> list[tuple[int, ...]]:
    """Those of every stored segment, the oldest first."""
    bench.persistence.flush()
    with bench.database.read() as db:
        return list(map(unpack_token_ids, db.scalars(select(SegmentRow.token_ids).order_by(SegmentRow.id))))


def test_withdrawing_a_session_takes_back_what_is_stored_and_what_is_on_its_way(bench: Bench, gate: Gate) -> None:
    session, other = bench.session(), bench.session()
    bench.persistence.save(mine(other), bench.filled(B[:50]))
    assert gate.reached.wait(30)
    for num_tokens in (100, 200, 300):
        bench.persistence.save(mine(session), bench.filled(A[:num_tokens]))
    released = ThreadPoolExecutor(1).submit(bench.persistence.release, ME, {session})
    while bench.persistence.num_saved(mine(session), A):
        time.sleep(0.001)
    gate.is_open.set()
    released.result(30)
    bench.check_is_stored(A, 0)
    bench.check_is_stored(B[:50])
    assert bench.persistence.pending.num_bytes == 0


def test_while_turns_run_the_writer_takes_its_time_and_whoever_waits_for_it_does_not(
    tiny_llama: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer_pace, "SHARE", 1e-6)
    bench = Bench(tiny_llama, tmp_path, is_busy=lambda: True)
    session, cache = bench.session(), bench.filled(A)
    bench.persistence.save(mine(session), cache, cuts=(100, 200))
    time.sleep(0.2)
    assert len(SegmentFolder(tmp_path).sizes()) < 3
    bench.check_is_stored(A)
    bench.persistence.save(mine(session), bench.filled(B), cuts=(100, 200))
    bench.persistence.release(ME)
    bench.persistence.save(mine(session), cache, cuts=(100, 200))
    bench.close()
    with Database.open(tmp_path) as database:
        assert len(SegmentFolder(tmp_path).sizes()) == SegmentStore(database, 2**40).report(ME).num_segments == 3


def test_copies_that_take_much_memory_are_written_at_once(
    tiny_llama: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer_pace, "SHARE", 1e-6)
    bench = Bench(tiny_llama, tmp_path, is_busy=lambda: True)
    cache = bench.filled(A)
    monkeypatch.setattr(persistence_module, "MAX_PENDING_BYTES", cache.export(0, len(A)).num_bytes * 3 // 2)
    bench.persistence.save(mine(bench.session()), cache, cuts=(100, 200))
    for _ in range(3000):
        if not bench.persistence.pending.num_bytes:
            break
        time.sleep(0.01)
    assert bench.persistence.pending.num_bytes == 0
    bench.close()


def test_closing_writes_what_waits(tiny_llama: LoadedModel, tmp_path: Path, gate: Gate) -> None:
    bench = Bench(tiny_llama, tmp_path)
    bench.persistence.save(mine(bench.session()), bench.filled(A))
    gate.is_open.set()
    bench.close()
    again = Bench(tiny_llama, tmp_path)
    again.check_is_stored(A)
    again.close()


def test_what_a_running_chat_has_stored_is_not_evicted_until_its_last_save_is_written(
    tiny_llama: LoadedModel, tmp_path: Path
) -> None:
    per_token = Bench(tiny_llama, tmp_path / "probe").filled(A[:1]).export(0, 1).num_bytes
    bench = Bench(tiny_llama, tmp_path, quota_bytes=2 * 300 * per_token + 8192)
    running, other = bench.session(), bench.session()
    bench.persistence.save(mine(running), bench.filled(A))
    bench.persistence.hold(mine(running))
    for number in range(3):
        bench.persistence.save(mine(other), bench.filled((380 - number, *B)))
    bench.check_is_stored(A)
    assert bench.persistence.problem(mine(other)) is None
    bench.persistence.let_go(mine(running))
    for number in range(3):
        bench.persistence.save(mine(other), bench.filled((370 - number, *B)))
    bench.persistence.flush()
    assert bench.restored(running, A).num_tokens < len(A)
    bench.close()


def test_holds_count_so_that_a_turn_begun_before_the_last_ones_end_keeps_its_own(bench: Bench) -> None:
    session = bench.session()
    bench.persistence.hold(mine(session))
    bench.persistence.let_go(mine(session))
    bench.persistence.hold(mine(session))
    bench.persistence.flush()
    assert session in bench.store._room.open_sessions
    bench.persistence.let_go(mine(session))
    bench.persistence.flush()
    assert not bench.store._room.open_sessions


def test_a_save_that_does_not_fit_the_quota_is_refused_told_and_nothing_is_exempt(
    tiny_llama: LoadedModel, tmp_path: Path
) -> None:
    bench = Bench(tiny_llama, tmp_path, quota_bytes=1000)
    session = bench.session()
    bench.persistence.save(mine(session), bench.filled(A))
    bench.check_is_stored(A, 0)
    assert "quota" in (bench.persistence.problem(mine(session)) or "")
    assert bench.store.used_bytes == 0
    bench.close()


def test_a_model_whose_caches_cannot_be_stored_says_so_and_saves_nothing(
    tiny_llama: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SessionCache, "is_exportable", False)
    bench = Bench(tiny_llama, tmp_path)
    session = bench.session()
    assert not bench.persistence.save(mine(session), bench.filled(A[:10]))
    assert bench.restored(session, A[:10]).num_tokens == 0
    assert bench.persistence.problem(mine(session)) == CANNOT_BE_STORED
    bench.close()


def test_sessions_that_were_seen_leave_nothing_behind_in_memory(
    tiny_llama: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache_problems, "MAX_PROBLEMS", 5)
    bench = Bench(tiny_llama, tmp_path, quota_bytes=1000)
    ranges_before = num_of(TokenRange)
    cache = bench.filled(A[:30])
    for _ in range(20):
        session = bench.session()
        bench.persistence.hold(mine(session))
        bench.persistence.save(mine(session), cache)
        bench.persistence.let_go(mine(session))
    bench.persistence.flush()
    state = vars(bench.persistence) | vars(bench.persistence._forms)
    sizes = {name: len(value) for name, value in state.items() if hasattr(value, "__len__")}
    by_owner = {"_num_wanted_tokens": 0, "_num_restored_tokens": 0, "_namespaces": 1}
    assert sizes == {"_pending": 0, "_holds": 0, "_problems": 5, "_codecs": 1, "_kind": 7} | by_owner
    assert num_of(TokenRange) == ranges_before
    assert not bench.store._room.open_sessions
    bench.close()


def num_of(kind: type) -> int:
    gc.collect()
    return sum(type(each) is kind for each in gc.get_objects())


def test_a_number_that_json_does_not_know_in_the_rope_settings_is_no_obstacle(tiny_llama: LoadedModel) -> None:
    config = tiny_llama.model.config
    own = config.rope_parameters
    config.rope_parameters = {**own, "factor": float("inf"), "what": {1, 2}}
    try:
        assert fingerprint(tiny_llama, "dynamic") != fingerprint(dataclasses.replace(tiny_llama, digest="2"), "dynamic")
    finally:
        config.rope_parameters = own


# Restoring


def test_what_was_removed_meanwhile_is_computed_again_and_is_no_problem(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = bench.session()
    bench.persistence.save(mine(session), bench.filled(A), cuts=(100, 200))
    bench.persistence.flush()
    load_into = SegmentStore.load_into

    def removed_before(store: SegmentStore, *arguments: Any) -> None:
        store.release(ME, {session})
        load_into(store, *arguments)

    with monkeypatch.context() as patched:
        patched.setattr(SegmentStore, "load_into", removed_before)
        assert bench.restored(session, A).num_tokens == 0
    assert bench.persistence.problem(mine(session)) is None
    bench.persistence.save(mine(session), bench.filled(A))
    bench.check_is_stored(A)


def test_a_damaged_segment_ends_the_restore_before_it_and_is_told_until_the_next_one_is_sound(
    bench: Bench, tmp_path: Path
) -> None:
    session = bench.session()
    cache = bench.filled(A)
    bench.persistence.save(mine(session), cache, cuts=(100, 200))
    bench.persistence.flush()
    namespace = bench.persistence._forms.namespace(ME, StoredForm("dynamic"))
    part = bench.store.lookup(namespace, A).parts[1]
    (path,) = (tmp_path / "segments").glob(f"{part.key}*")
    path.write_bytes(path.read_bytes()[:-1])
    restored = bench.restored(session, A)
    assert restored.num_tokens == 100
    restored.check()
    bench.persistence.save(mine(session), cache, cuts=(100, 200))
    bench.persistence.flush()
    assert "damaged" in (bench.persistence.problem(mine(session)) or ""), "saved again, but it did happen"
    assert bench.restored(session, A).num_tokens == len(A)
    assert bench.persistence.problem(mine(session)) is None
    bench.check_is_stored(A)


def test_a_damaged_state_where_what_is_stored_ends_is_passed_over_while_copies_lead_further(
    tiny_llama: LoadedModel, tmp_path: Path, gate: Gate
) -> None:
    bench = Bench(with_model(tiny_llama, tiny_model("lfm2", 384), name="lfm2"), tmp_path)
    session = bench.session()
    cache = bench.filled(A[:100])
    gate.is_open.set()
    bench.persistence.save(mine(session), cache)
    bench.persistence.flush()
    gate.is_open.clear()
    for num_tokens in (150, 200):
        bench.feed(cache, A[cache.num_tokens : num_tokens])
        bench.persistence.save(mine(session), cache)
    (path,) = (path for path in (tmp_path / "segments").iterdir() if FileKind.STATE.value in path.name)
    path.write_bytes(path.read_bytes()[:-1])
    restored = bench.restored(session, A[:200])
    assert restored.num_tokens == 200
    assert_same(restored.export(0, 200), cache.export(0, 200))
    assert_same(bench.feed(restored, A[200:]).export(0, 300), bench.filled(A).export(0, 300))
    assert bench.persistence.problem(mine(session)) is None
    gate.is_open.set()
    bench.persistence.save(mine(session), restored)
    bench.check_is_stored(A)
    bench.close()


def test_the_hit_rate_counts_wanted_and_restored_tokens_of_one_owner(bench: Bench) -> None:
    assert bench.persistence.hit_rate(ME) is None
    bench.persistence.save(mine(bench.session()), bench.filled(A[:100]))
    bench.persistence.flush()
    bench.restored("any", A[:200])
    bench.persistence.extend(SessionKey("other", "theirs"), bench.empty(), A[:200])
    assert bench.persistence.hit_rate(ME) == 0.5
    assert bench.persistence.hit_rate("other") == 0
    assert bench.persistence.hit_rate("a third") is None


@pytest.fixture
def readers() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as readers:
        yield readers


def pieces_of(whole: TokenRange, size: int, read: Callable[[int, TokenRange], TokenRange]) -> list[Piece]:
    """The tokens of `whole` as pieces of `size`; `read` is given each one's number and tokens."""
    pieces = []
    for number, begin in enumerate(range(0, len(whole.token_ids), size)):
        layers = tuple({name: rows[begin : begin + size] for name, rows in layer.items()} for layer in whole.layers)
        tokens = TokenRange(begin, whole.token_ids[begin : begin + size], layers)
        pieces.append(Piece(begin, begin + len(tokens.token_ids), partial(_read, read, number, tokens)))
    return pieces


def _read(
    read: Callable[[int, TokenRange], TokenRange], number: int, tokens: TokenRange, _room: Room
) -> list[TokenRange]:
    return [read(number, tokens)]


def test_a_step_does_not_wait_until_a_slow_disk_has_read(bench: Bench, readers: ThreadPoolExecutor) -> None:
    whole = bench.filled(A).export(0, 300)
    is_readable = threading.Event()

    def read(number: int, tokens: TokenRange) -> TokenRange:
        assert number == 0 or is_readable.wait(30)
        return tokens

    ended: list[Restore] = []
    restore = Restore(bench.empty(), pieces_of(whole, 30, read), readers, ended.append)
    assert restore.num_total_tokens == 300
    while restore.num_tokens < 30:
        assert not restore.step()
    assert not restore.step()
    assert (restore.num_tokens, ended) == (30, [])
    is_readable.set()
    while not restore.step():
        pass
    assert (restore.num_tokens, ended) == (300, [restore])
    assert_same(restore.cache.export(0, 300), whole)


def test_no_more_is_read_ahead_than_a_few_pieces(bench: Bench, readers: ThreadPoolExecutor) -> None:
    read_numbers: list[int] = []

    def read(number: int, tokens: TokenRange) -> TokenRange:
        read_numbers.append(number)
        return tokens

    restore = Restore(bench.empty(), pieces_of(bench.filled(A).export(0, 300), 10, read), readers, lambda _: None)
    readers.submit(lambda: None).result()
    time.sleep(0.05)
    assert len(read_numbers) <= READ_AHEAD
    while not restore.step():
        pass
    assert read_numbers == list(range(30))


def test_a_restore_that_is_ended_early_keeps_what_it_has(bench: Bench, readers: ThreadPoolExecutor) -> None:
    whole = bench.filled(A).export(0, 300)
    is_readable = threading.Event()

    def read(number: int, tokens: TokenRange) -> TokenRange:
        assert number < 2 or is_readable.wait(30)
        return tokens

    restore = Restore(bench.empty(), pieces_of(whole, 30, read), readers, lambda _: None)
    while restore.num_tokens < 60:
        restore.step()
    restore.end()
    assert restore.step()
    is_readable.set()
    bench.feed(restore.cache, A[60:100])
    assert restore.num_tokens == 60
    assert_same(restore.cache.export(0, 60), bench.filled(A).export(0, 60))


def test_whole_segments_are_read_to_where_the_cache_holds_them(bench: Bench) -> None:
    bench.persistence.save(mine(bench.session()), bench.filled(A), cuts=(100, 200))
    bench.persistence.flush()
    restore = bench.persistence.restore(mine("any"), cache := bench.empty(), A[:250])
    starts = [rows.data_ptr() for layer in cache.room(0, 250) for rows in layer.values()]
    while not restore.step():
        pass
    held = [buffer.rows(0, 250) for layer in cache.cache.layers for buffer in layer.buffers().values()]
    assert [rows.data_ptr() for rows in held] == starts
    assert_same(cache.export(0, 250), bench.filled(A).export(0, 250))  # the last piece is a part of a segment


def test_short_segments_are_read_and_taken_in_together(bench: Bench) -> None:
    bench.persistence.save(mine(bench.session()), bench.filled(A), cuts=range(10, len(A), 10))
    bench.persistence.flush()
    imported: list[int] = []
    cache = bench.empty()
    import_ = cache.import_

    def counted(tokens: TokenRange) -> None:
        imported.append(len(tokens.token_ids))
        import_(tokens)

    cache.import_ = counted  # type: ignore[method-assign]
    bench.persistence.extend(mine("any"), cache, A)
    assert bench.num_files() == len(A) // 10
    assert imported == [0, 250, len(A) - 250], "room first; as much as the longest segment has, but whole ones"
    assert_same(cache.export(0, len(A)), bench.filled(A).export(0, len(A)))


def test_of_short_segments_those_before_a_damaged_one_are_used(bench: Bench) -> None:
    bench.persistence.save(mine(bench.session()), bench.filled(A), cuts=range(10, len(A), 10))
    bench.persistence.flush()
    paths = sorted(SegmentFolder(bench.data_dir).path.glob("*.safetensors"))
    assert len({len(path.read_bytes()) for path in paths}) <= 3, "as long as each other, but for numbers in the header"
    data = bytearray(paths[7].read_bytes())
    data[-1] ^= 1
    paths[7].write_bytes(data)
    begin = int(json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])["__metadata__"]["start"])
    session = bench.session()
    assert bench.restored(session, A).num_tokens == begin
    assert "damaged" in (bench.persistence.problem(mine(session)) or "")


def test_what_comes_late_is_not_written_over_newer_tokens(bench: Bench, readers: ThreadPoolExecutor) -> None:
    whole = bench.filled(A).export(0, 300)
    is_readable = threading.Event()

    def read(tokens: TokenRange, room: Room) -> list[TokenRange]:
        assert is_readable.wait(30)
        for layer, there in zip(tokens.layers, room.layers, strict=True):
            for name, rows in layer.items():
                with room.writing():
                    there[name].copy_(rows)
        return [tokens]

    pieces = [Piece(0, 300, partial(read, whole))]
    cache = bench.empty()
    no_tokens = TokenRange(0, (), bench.filled(A).export(0, 0).layers)
    restore = Restore(cache, pieces, readers, lambda _: None, no_tokens=no_tokens)
    assert {rows.shape[0] for layer in cache.room(0, 300) for rows in layer.values()} == {300}
    restore.end()
    bench.feed(cache, B[:100])
    is_readable.set()
    readers.shutdown(wait=True)
    assert_same(cache.export(0, 100), bench.filled(B[:100]).export(0, 100))


def test_tokens_that_were_read_into_room_that_moved_since_are_taken_in_all_the_same(
    bench: Bench, readers: ThreadPoolExecutor
) -> None:
    whole = bench.filled(A).export(0, 300)

    def read(tokens: TokenRange, room: Room) -> list[TokenRange]:
        for layer, there in zip(tokens.layers, room.layers, strict=True):
            for name, rows in layer.items():
                with torch.inference_mode():
                    there[name].copy_(rows)
        return [TokenRange(tokens.start, tokens.token_ids, room.layers)]

    cache = bench.empty()
    no_tokens = TokenRange(0, (), bench.filled(A).export(0, 0).layers)
    restore = Restore(cache, [Piece(0, 300, partial(read, whole))], readers, lambda _: None, no_tokens=no_tokens)
    readers.shutdown(wait=True)
    cache.trim()
    cache.reserve(300)
    while not restore.step():
        pass
    assert_same(cache.export(0, 300), whole)


@pytest.mark.parametrize("error", [RuntimeError("injected"), MemoryError(), OSError(5, "Input/output error")])
def test_an_error_between_two_layers_leaves_whole_tokens_only(
    bench: Bench, readers: ThreadPoolExecutor, error: Exception
) -> None:
    whole = bench.filled(A).export(0, 300)
    cache = bench.empty()
    restore = Restore(cache, pieces_of(whole, 30, lambda _number, tokens: tokens), readers, lambda _: None)
    import_, num_calls = cache.cache.layers[-1].import_, 0

    def fail_third(rows: dict[str, torch.Tensor]) -> None:
        nonlocal num_calls
        num_calls += 1
        if num_calls == 3:
            raise error
        import_(rows)

    cache.cache.layers[-1].import_ = fail_third
    while not restore.step():
        pass
    assert "could not be used" in (restore.problem or "")
    assert restore.num_tokens == cache.num_tokens == 60
    cache.check()
    assert_same(cache.export(0, 60), bench.filled(A).export(0, 60))
