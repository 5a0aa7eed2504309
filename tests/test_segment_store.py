"""The segment store on real files and real SQLite: what is found, what is shared, what is refused, what is removed."""

from __future__ import annotations

import dataclasses
import errno
import hashlib
import os
import random
import sqlite3
import stat
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from pathlib import Path

import pytest
from databases import open_database
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import select

from storage import segment_files, segment_room
from storage.byte_sizes import format_size
from storage.chat_store import ChatStore
from storage.database import DATABASE_NAME, Database
from storage.errors import (
    DataDirError,
    InvalidRecordError,
    SegmentDamagedError,
    SegmentRemovedError,
    SegmentUnavailableError,
)
from storage.models import unpack_token_ids
from storage.segment_chain import SegmentPart, StoredPrefix
from storage.segment_files import SegmentFolder
from storage.segment_format import FileKind, TensorLayout
from storage.segment_index import read_nodes
from storage.segment_models import SegmentRow
from storage.segment_save import Namespace, NewSegment, ParentSegment, SaveReport
from storage.segment_store import SegmentStore
from storage.sentence import Sentence
from storage.told import SaveTold

ME, OTHER = "me", "somebody else"
LAYOUT = (
    TensorLayout("layers.0.keys", "F32", (1, 2, 0, 4), 2),
    TensorLayout("layers.0.values", "F32", (1, 2, 0, 4), 2),
)
STATE_LAYOUT = (TensorLayout("layers.1.state", "F32", (1, 8), None),)
BIG = 2**40


@pytest.fixture
def store(database: Database) -> SegmentStore:
    return SegmentStore(database, BIG)


@pytest.fixture
def namespace(store: SegmentStore) -> Namespace:
    return store.namespace(ME, {"model": "m"}, LAYOUT)


def new_session(database: Database, owner: str = ME) -> str:
    chats = ChatStore(database)
    made = chats.create_session(owner, title="", system_prompt=None, sampling={}, settings={}, template_vars={})
    return made.id


def kv(token_ids: Sequence[int], start: int, layout: Sequence[TensorLayout] = LAYOUT) -> dict[str, bytes]:
    """Buffers that say which token stands where, as KV does."""
    values = {}
    for tensor in layout:
        if tensor.token_axis is None:
            values[tensor.name] = random.Random(f"{tensor.name}{list(token_ids)}").randbytes(tensor.num_bytes_for(0))
        else:
            size = tensor.num_bytes_for(1)
            values[tensor.name] = b"".join(
                random.Random(f"{tensor.name} {token} {start + n}").randbytes(size) for n, token in enumerate(token_ids)
            )
    return values


def cut(token_ids: Sequence[int], *ends: int) -> list[NewSegment]:
    """Segments of `token_ids` that end at `ends`."""
    starts = (0, *ends)
    return [
        NewSegment(start, token_ids[start:end], kv(token_ids[start:end], start))
        for start, end in zip(starts, ends, strict=False)
    ]


def below(token_ids: Sequence[int], start: int, end: int) -> NewSegment:
    return NewSegment(start, token_ids[start:end], kv(token_ids[start:end], start))


def last_of(store: SegmentStore, namespace: Namespace, token_ids: Sequence[int]) -> ParentSegment:
    part = store.lookup(namespace, token_ids).parts[-1]
    return ParentSegment(part.key, part.start, part.start + part.num_tokens)


def loaded_into(store: SegmentStore, namespace: Namespace, part: SegmentPart) -> dict[str, bytes]:
    """A whole segment, read into memory that is there already."""
    room = {tensor.name: bytearray(tensor.num_bytes_for(part.num_tokens)) for tensor in LAYOUT}
    store.load_into(namespace, part, {name: memoryview(data) for name, data in room.items()}, nullcontext)
    return {name: bytes(data) for name, data in room.items()}


def restored(store: SegmentStore, namespace: Namespace, prefix: StoredPrefix) -> bytes:
    """The keys of the prefix, part after part (each part's tokens are the first of its segment)."""
    size = LAYOUT[0].num_bytes_for(1)
    data = b""
    for part in prefix.parts:
        assert part.start * size == len(data)
        data += bytes(store.load(namespace, part.key)["layers.0.keys"].data)[: part.num_tokens * size]
    return data


def check_restores(store: SegmentStore, namespace: Namespace, token_ids: Sequence[int], num_tokens: int) -> None:
    prefix = store.lookup(namespace, token_ids)
    assert prefix.num_tokens == num_tokens
    assert restored(store, namespace, prefix) == kv(token_ids[:num_tokens], 0)["layers.0.keys"]


def folder_bytes(tmp_path: Path) -> int:
    return sum(file.stat().st_size for file in (tmp_path / "segments").rglob("*") if file.is_file())


def segment_names(tmp_path: Path) -> set[str]:
    return {file.name for file in (tmp_path / "segments").iterdir() if file.is_file()}


# Finding


def test_what_was_saved_is_found_and_reads_back(store: SegmentStore, database: Database, namespace: Namespace) -> None:
    ids = list(range(100, 120))
    report = store.save(namespace, new_session(database), None, cut(ids, 8, 16, 20))
    assert (report.num_tokens, report.refused) == (20, None)
    check_restores(store, namespace, ids, 20)
    check_restores(store, namespace, [*ids, 1, 2, 3], 20)
    check_restores(store, namespace, ids[:12], 12)
    check_restores(store, namespace, [*ids[:10], 7, 7, 7], 10)
    check_restores(store, namespace, [1, *ids], 0)
    check_restores(store, namespace, [], 0)


def test_who_reads_while_a_save_is_written_sees_what_was_there_before_it_or_all_of_it(
    database: Database, store: SegmentStore, namespace: Namespace
) -> None:
    session, ids, seen, is_done = new_session(database), list(range(1, 241)), set(), threading.Event()

    def read() -> None:
        while not is_done.is_set():
            prefix = store.lookup(namespace, ids)
            assert restored(store, namespace, prefix) == keys[: prefix.num_tokens * size]
            seen.add(prefix.num_tokens)

    size, keys = LAYOUT[0].num_bytes_for(1), kv(ids, 0)["layers.0.keys"]
    with ThreadPoolExecutor(2) as pool:
        readers = [pool.submit(read) for _ in range(2)]
        try:
            parent = None
            for end in range(40, 241, 40):  # one save of several segments each
                segments = [below(ids, start, start + 10) for start in range(end - 40, end, 10)]
                parent = store.save(namespace, session, parent, segments).last
        finally:
            is_done.set()
    for reader in readers:
        reader.result()
    assert len(seen) > 1
    assert {num_tokens % 40 for num_tokens in seen} == {0}
    check_restores(store, namespace, ids, 240)


def test_files_are_private_and_what_is_stored_outlives_the_process(
    store: SegmentStore, database: Database, namespace: Namespace, tmp_path: Path
) -> None:
    store.save(namespace, new_session(database), None, cut([1, 2, 3], 3))
    assert {stat.S_IMODE(f.stat().st_mode) for f in (tmp_path / "segments").glob("*.safetensors")} == {0o600}
    assert stat.S_IMODE((tmp_path / "segments").stat().st_mode) == 0o700
    database.close()
    with Database.open(tmp_path) as again:
        reopened = SegmentStore(again, BIG)
        assert reopened.used_bytes == store.used_bytes == folder_bytes(tmp_path)
        check_restores(reopened, reopened.namespace(ME, {"model": "m"}, LAYOUT), [1, 2, 3], 3)


def test_a_branch_continues_from_inside_a_stored_segment(
    store: SegmentStore, database: Database, namespace: Namespace
) -> None:
    session = new_session(database)
    old, new = [1, 2, 3, 4, 5, 6, 7, 8], [1, 2, 3, 4, 5, 90, 91, 92]
    store.save(namespace, session, None, cut(old, 3, 8))
    inside = last_of(store, namespace, new)
    assert (inside.start, inside.end) == (3, 5)
    report = store.save(namespace, session, inside, [below(new, 5, 8)])
    assert report.num_tokens == 8
    check_restores(store, namespace, old, 8)
    check_restores(store, namespace, new, 8)
    check_restores(store, namespace, [1, 2, 3, 4, 90, 91], 4)
    # The branch begins as wanted where it stands, but the tokens of its parent before it do not.
    check_restores(store, namespace, [1, 2, 3, 4, 70, 90, 91, 92], 4)


def test_the_longest_of_many_branches_is_found(store: SegmentStore, database: Database, namespace: Namespace) -> None:
    session = new_session(database)
    trunk = [1, 2, 3, 4]
    parent = store.save(namespace, session, None, cut(trunk, 4)).last
    for branch in range(20):
        ids = [*trunk, 5, *([branch] * branch), 99]
        store.save(namespace, session, parent, [below(ids, 4, len(ids))])
    check_restores(store, namespace, [*trunk, 5, *([13] * 13), 99], 4 + 1 + 13 + 1)
    check_restores(store, namespace, [*trunk, 5, *([13] * 30)], 4 + 1 + 13)
    check_restores(store, namespace, [*trunk, 6], 4)


def test_nothing_stored_is_written_twice_and_chats_share_what_they_have_in_common(
    store: SegmentStore, database: Database, namespace: Namespace, tmp_path: Path
) -> None:
    system, one, other = list(range(50)), [*range(50), 1, 1], [*range(50), 2, 2]
    first = store.save(namespace, new_session(database), None, cut(one, 50, 52))
    names = segment_names(tmp_path)
    second = store.save(namespace, new_session(database), None, cut(other, 50, 52))
    assert second.num_written_bytes < first.num_written_bytes
    assert len(segment_names(tmp_path)) == 3
    assert names < segment_names(tmp_path)
    again = store.save(namespace, new_session(database), None, cut(one, 50, 52))
    assert (again.num_written_bytes, again.num_tokens) == (0, 52)
    assert folder_bytes(tmp_path) == store.used_bytes
    report = store.report(ME)
    assert len(report.session_bytes) == 3
    assert report.num_segments == 3
    assert report.num_bytes == store.used_bytes
    assert report.shared_bytes == first.num_written_bytes
    assert store.lookup(namespace, system).num_tokens == 50


def test_another_owner_model_or_layout_finds_nothing_and_writes_its_own(
    store: SegmentStore, database: Database, namespace: Namespace, tmp_path: Path
) -> None:
    ids = [1, 2, 3, 4]
    store.save(namespace, new_session(database), None, cut(ids, 4))
    wider = (*LAYOUT, TensorLayout("more", "F32", (0,), 0))
    others = [
        (OTHER, store.namespace(OTHER, {"model": "m"}, LAYOUT)),
        (ME, store.namespace(ME, {"model": "n"}, LAYOUT)),
        (ME, store.namespace(ME, {"model": "m"}, wider)),
        (ME, store.namespace(ME, {"model": "m"}, (dataclasses.replace(LAYOUT[0], dtype="I32"), LAYOUT[1]))),
    ]
    assert len({namespace.root, *(other.root for _, other in others)}) == 5
    for number, (owner, other) in enumerate(others, 2):
        assert store.lookup(other, ids).num_tokens == 0
        new = NewSegment(0, ids, kv(ids, 0, other.layout))
        assert store.save(other, new_session(database, owner), None, [new]).num_tokens == 4
        assert len(segment_names(tmp_path)) == number
        assert store.lookup(other, ids).num_tokens == 4
    assert store.namespace(ME, {"model": "m"}, LAYOUT) == namespace


def test_saving_for_a_session_of_another_owner_or_one_that_is_gone_leaves_nothing(
    store: SegmentStore, database: Database, namespace: Namespace, tmp_path: Path
) -> None:
    for session in (new_session(database, OTHER), "no such session"):
        report = store.save(namespace, session, None, cut([1, 2], 2))
        assert report.num_tokens == 0
        assert report.refused is not None
    assert store.lookup(namespace, [1, 2]).num_tokens == 0
    assert (segment_names(tmp_path), store.used_bytes) == (set(), 0)


def test_segments_that_do_not_follow_each_other_are_refused_and_leave_nothing(
    store: SegmentStore, database: Database, namespace: Namespace, tmp_path: Path
) -> None:
    ids = list(range(10))
    good = cut(ids, 4)[0]
    parent = ParentSegment("0" * 64, 0, 4)
    for wrong in ([below(ids, 1, 4)], [good, below(ids, 0, 8)], [good, below(ids, 5, 8)], [good, below(ids, 4, 4)]):
        with pytest.raises(InvalidRecordError):
            store.save(namespace, new_session(database), None, wrong)
    with pytest.raises(InvalidRecordError):
        store.save(namespace, new_session(database), None, [NewSegment(0, ids, {"other": b""})])
    assert store.save(namespace, new_session(database), parent, [below(ids, 4, 8)]).refused is not None
    assert (segment_names(tmp_path), store.used_bytes) == (set(), 0)


# Recurrent state


@pytest.fixture
def recurrent(store: SegmentStore) -> Namespace:
    return store.namespace(ME, {"model": "recurrent"}, LAYOUT, STATE_LAYOUT)


def with_state(segment: NewSegment) -> NewSegment:
    return dataclasses.replace(segment, state=kv(segment.token_ids, segment.start, STATE_LAYOUT))


def test_a_recurrent_chat_is_restored_at_states_only(
    store: SegmentStore, database: Database, recurrent: Namespace
) -> None:
    ids = list(range(12))
    first, second, third = cut(ids, 4, 8, 12)
    session = new_session(database)
    store.save(recurrent, session, None, [with_state(first), second, with_state(third)])
    assert store.lookup(recurrent, ids).num_tokens == 12
    assert store.lookup(recurrent, ids[:11]).num_tokens == 4
    assert store.lookup(recurrent, ids[:8]).num_tokens == 4
    assert store.lookup(recurrent, ids[:3]).num_tokens == 0
    prefix = store.lookup(recurrent, ids)
    assert prefix.has_state
    state = store.load(recurrent, prefix.parts[-1].key, FileKind.STATE)
    assert bytes(state["layers.1.state"].data) == kv(ids[8:12], 8, STATE_LAYOUT)["layers.1.state"]

    for part in prefix.parts:
        store.drop_state(part.key, session)
    assert store.lookup(recurrent, ids[:11]).num_tokens == 0
    assert store.lookup(recurrent, ids).num_tokens == 12, "a chat ends there: its state stays"


def test_a_state_can_be_added_to_a_segment_that_is_stored(
    store: SegmentStore, database: Database, recurrent: Namespace
) -> None:
    session, segments = new_session(database), cut([1, 2, 3], 3)
    store.save(recurrent, session, None, segments)
    assert store.lookup(recurrent, [1, 2, 3]).num_tokens == 0
    assert store.save(recurrent, session, None, [with_state(segments[0])]).num_written_bytes > 0
    assert store.lookup(recurrent, [1, 2, 3]).num_tokens == 3


def test_a_branch_from_inside_a_segment_does_not_count_for_recurrent_models(
    store: SegmentStore, database: Database, recurrent: Namespace
) -> None:
    session, old, new = new_session(database), [1, 2, 3, 4], [1, 2, 9, 9]
    last = store.save(recurrent, session, None, [with_state(cut(old, 4)[0])]).last
    assert last is not None
    store.save(recurrent, session, ParentSegment(last.key, 0, 2), [with_state(below(new, 2, 4))])
    assert store.lookup(recurrent, new).num_tokens == 0


# Quota, eviction, release


def one_segment_bytes(store: SegmentStore, database: Database) -> int:
    """What a segment of four tokens at the beginning takes."""
    probe = store.namespace("probe", {}, LAYOUT)
    report = store.save(probe, new_session(database, "probe"), None, cut([0, 0, 0, 0], 4))
    store.release("probe")
    return report.num_written_bytes


def test_the_quota_holds_and_the_longest_unused_chat_goes_first(database: Database, tmp_path: Path) -> None:
    size = one_segment_bytes(SegmentStore(database, BIG), database)
    store = SegmentStore(database, 3 * size)
    namespace = store.namespace(ME, {"model": "m"}, LAYOUT)
    chats = [[n, n, n, n] for n in range(1, 5)]
    sessions = [new_session(database) for _ in chats]
    for ids, session in zip(chats[:3], sessions, strict=False):
        store.save(namespace, session, None, cut(ids, 4))
    assert store.used_bytes == 3 * size
    store.save(namespace, sessions[0], last_of(store, namespace, chats[0]), ())
    store.save(namespace, sessions[3], None, cut(chats[3], 4))
    assert [store.lookup(namespace, ids).num_tokens for ids in chats] == [4, 0, 4, 4]
    assert folder_bytes(tmp_path) == store.used_bytes == 3 * size


def test_what_chats_in_the_bin_hold_goes_before_all_others(database: Database) -> None:
    size = one_segment_bytes(SegmentStore(database, BIG), database)
    store = SegmentStore(database, 3 * size)
    namespace = store.namespace(ME, {"model": "m"}, LAYOUT)
    chats = [[n, n, n, n] for n in range(1, 5)]
    sessions = [new_session(database) for _ in chats]
    for ids, session in zip(chats[:3], sessions, strict=False):
        store.save(namespace, session, None, cut(ids, 4))
    ChatStore(database).delete(ME, sessions[2])
    store.save(namespace, sessions[3], None, cut(chats[3], 4))
    assert [store.lookup(namespace, ids).num_tokens for ids in chats] == [4, 4, 0, 4]


def test_a_full_quota_costs_a_look_at_the_whole_index_once_for_many_writes(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    num_chats, looks = 100, []
    store = SegmentStore(database, BIG)
    namespace = store.namespace(ME, {"model": "m"}, LAYOUT)

    def save(chat: int) -> None:
        ids = [chat, 1, 2, 3]
        assert store.save(namespace, new_session(database), None, cut(ids, 4)).refused is None

    for chat in range(num_chats):
        save(chat)
    quota = folder_bytes(tmp_path)
    full = SegmentStore(database, quota)
    monkeypatch.setattr(segment_room, "EVICTED_AHEAD_PART", 10)
    monkeypatch.setattr(segment_room, "read_nodes", lambda db: (looks.append(1), read_nodes(db))[1])
    for chat in range(num_chats, num_chats + 20):
        store = full
        save(chat)
        assert folder_bytes(tmp_path) == full.used_bytes <= quota
    assert len(looks) == 2


def test_what_is_open_is_never_evicted_and_the_save_says_why_it_was_refused(database: Database) -> None:
    size = one_segment_bytes(SegmentStore(database, BIG), database)
    store = SegmentStore(database, 2 * size)
    namespace = store.namespace(ME, {"model": "m"}, LAYOUT)
    session = new_session(database)
    store.save(namespace, session, None, cut([1] * 8, 4, 8))
    store.protect(session)
    report = store.save(namespace, new_session(database), None, cut([2] * 4, 4))
    assert report.num_tokens == 0
    assert f"The disk quota of {format_size(2 * size)} is used up by open chats." in (report.refused or "")
    assert store.lookup(namespace, [1] * 8).num_tokens == 8
    store.unprotect(session)
    assert store.save(namespace, new_session(database), None, cut([2] * 4, 4)).num_tokens == 4
    assert store.lookup(namespace, [1] * 8).num_tokens == 4


def test_a_save_larger_than_the_quota_keeps_its_beginning_and_destroys_nothing_for_the_rest(
    database: Database, tmp_path: Path
) -> None:
    size = one_segment_bytes(SegmentStore(database, BIG), database)
    store = SegmentStore(database, 3 * size + size // 2)
    namespace = store.namespace(ME, {"model": "m"}, LAYOUT)
    report = store.save(namespace, new_session(database), None, cut([1] * 24, 4, 8, 12, 16, 20, 24))
    assert (report.num_tokens, report.refused is not None) == (12, True)
    check_restores(store, namespace, [1] * 24, 12)
    huge = store.save(namespace, new_session(database), None, cut([2] * 1000, 1000))
    assert huge.num_tokens == 0
    assert isinstance(huge.refused, Sentence)
    assert huge.refused.reason == SaveTold.QUOTA_TOO_SMALL
    assert huge.refused.facts["quota_bytes"] == 3 * size + size // 2 < huge.refused.facts["num_bytes"]
    assert f"more than the whole disk quota of {format_size(3 * size + size // 2)}" in huge.refused
    check_restores(store, namespace, [1] * 24, 12)
    assert folder_bytes(tmp_path) == store.used_bytes <= store.report(ME).quota_bytes


def test_what_a_save_builds_upon_is_not_evicted_to_make_room_for_it(database: Database, tmp_path: Path) -> None:
    size = one_segment_bytes(SegmentStore(database, BIG), database)
    store = SegmentStore(database, 2 * size + size // 2)
    namespace = store.namespace(ME, {"model": "m"}, LAYOUT)
    store.save(namespace, new_session(database), None, cut([1] * 4, 4))
    store.save(namespace, new_session(database), None, cut([2] * 4, 4))
    assert store.save(namespace, new_session(database), None, cut([1] * 8, 4, 8)).refused is None
    check_restores(store, namespace, [1] * 8, 8)
    check_restores(store, namespace, [2] * 4, 0)
    assert folder_bytes(tmp_path) == store.used_bytes


def test_a_segment_is_loaded_within_its_namespace_only(
    store: SegmentStore, database: Database, namespace: Namespace
) -> None:
    store.save(namespace, new_session(database), None, cut([1] * 4, 4))
    key = store.lookup(namespace, [1] * 4).parts[0].key
    with pytest.raises(SegmentRemovedError):
        store.load(store.namespace(OTHER, {"model": "m"}, LAYOUT), key)
    check_restores(store, namespace, [1] * 4, 4)


def test_a_file_that_cannot_be_read_just_now_is_left_where_it_is(
    store: SegmentStore, database: Database, namespace: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.save(namespace, new_session(database), None, cut([1] * 4, 4))
    key = store.lookup(namespace, [1] * 4).parts[0].key

    def fail(*_: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as patched:
        patched.setattr(SegmentFolder, "read", fail)
        with pytest.raises(SegmentUnavailableError, match="Too many open files") as raised:
            store.load(namespace, key)
        assert not isinstance(raised.value, SegmentDamagedError)
    check_restores(store, namespace, [1] * 4, 4)


def test_reading_into_a_room_that_was_withdrawn_ends_there_and_harms_no_file(
    store: SegmentStore, database: Database, namespace: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segment_files, "BATCH_BYTES", 1)
    store.save(namespace, new_session(database), None, cut([1] * 4, 4))
    (part,) = store.lookup(namespace, [1] * 4).parts
    room = {tensor.name: bytearray(tensor.num_bytes_for(4)) for tensor in LAYOUT}
    batches = iter(["header", "keys"])

    @contextmanager
    def writing() -> Iterator[None]:
        if next(batches, None) is None:
            raise CancelledError
        yield

    with pytest.raises(CancelledError):
        store.load_into(namespace, part, {name: memoryview(data) for name, data in room.items()}, writing)
    assert bytes(room["layers.0.keys"]) == kv([1] * 4, 0)["layers.0.keys"]
    assert not any(room["layers.0.values"])
    check_restores(store, namespace, [1] * 4, 4)


@pytest.mark.parametrize("most_bytes", [1, 7, 100, None])
def test_a_system_that_reads_less_than_it_is_asked_for_is_asked_again(
    store: SegmentStore,
    database: Database,
    namespace: Namespace,
    monkeypatch: pytest.MonkeyPatch,
    most_bytes: int | None,
) -> None:
    """With None it cannot read into several places at once at all."""
    store.save(namespace, new_session(database), None, cut([1] * 4, 4))
    (part,) = store.lookup(namespace, [1] * 4).parts
    room = {tensor.name: bytearray(tensor.num_bytes_for(4)) for tensor in LAYOUT}

    def readv(descriptor: int, targets: Sequence[memoryview]) -> int:
        num_read = 0
        for target in targets:
            data = os.read(descriptor, min(len(target), (most_bytes or 0) - num_read))
            target[: len(data)] = data
            num_read += len(data)
        return num_read

    if most_bytes is None:
        monkeypatch.delattr(os, "readv")
    else:
        monkeypatch.setattr(os, "readv", readv)
    store.load_into(namespace, part, {name: memoryview(data) for name, data in room.items()}, nullcontext)
    assert room == kv([1] * 4, 0)


def test_a_room_that_is_written_to_as_soon_as_it_is_withdrawn_harms_no_file(
    store: SegmentStore, database: Database, namespace: Namespace
) -> None:
    """The last tensor is whole when its owner takes the room back for other tokens."""
    store.save(namespace, new_session(database), None, cut([1] * 4, 4))
    (part,) = store.lookup(namespace, [1] * 4).parts
    room = {tensor.name: bytearray(tensor.num_bytes_for(4)) for tensor in LAYOUT}

    @contextmanager
    def writing() -> Iterator[None]:
        yield
        for data in room.values():
            data[:] = b"\xff" * len(data)

    store.load_into(namespace, part, {name: memoryview(data) for name, data in room.items()}, writing)
    check_restores(store, namespace, [1] * 4, 4)


def test_a_smaller_quota_is_reached_when_the_store_is_opened(database: Database, tmp_path: Path) -> None:
    store = SegmentStore(database, BIG)
    namespace = store.namespace(ME, {"model": "m"}, LAYOUT)
    store.save(namespace, new_session(database), None, cut([1] * 40, 10, 20, 30, 40))
    quota = store.used_bytes // 2
    smaller = SegmentStore(database, quota)
    assert folder_bytes(tmp_path) == smaller.used_bytes <= quota
    check_restores(smaller, namespace, [1] * 40, 20)


def test_the_quota_holds_at_every_moment_whoever_writes(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = one_segment_bytes(SegmentStore(database, BIG), database)
    store = SegmentStore(database, 5 * size)
    spaces = [store.namespace(owner, {"model": model}, LAYOUT) for owner in (ME, OTHER) for model in "ab"]
    sessions = [(space, new_session(database, space.owner)) for space in spaces for _ in range(3)]
    totals: list[int] = []

    def measured(step: Callable[..., None]) -> Callable[..., None]:
        def run(*arguments: object) -> None:
            step(*arguments)
            totals.append(folder_bytes(tmp_path))

        return run

    for name in ("_write", "_rename"):  # the steps after which there is more in the folder
        monkeypatch.setattr(segment_files, name, measured(getattr(segment_files, name)))

    def work(seed: int) -> None:
        for number, (space, session) in enumerate(random.Random(seed).sample(sessions, len(sessions))):
            store.save(space, session, None, cut([seed, number] * 6, 4, 8, 12))

    writers = [threading.Thread(target=work, args=(seed,)) for seed in range(3)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert 4 * size < max(totals) <= store.report(ME).quota_bytes
    assert folder_bytes(tmp_path) == store.used_bytes


def test_releasing_a_session_frees_what_nothing_else_holds(
    store: SegmentStore, database: Database, namespace: Namespace, tmp_path: Path
) -> None:
    one, two = new_session(database), new_session(database)
    store.save(namespace, one, None, cut([1, 1, 2, 2, 3, 3], 2, 4, 6))
    store.save(namespace, two, None, cut([1, 1, 2, 2, 4, 4], 2, 4, 6))
    before = store.used_bytes
    freed = store.release(ME, {one})
    assert freed > 0
    assert folder_bytes(tmp_path) == store.used_bytes == before - freed
    check_restores(store, namespace, [1, 1, 2, 2, 3, 3], 4)
    check_restores(store, namespace, [1, 1, 2, 2, 4, 4], 6)
    assert store.release(OTHER) == 0
    assert store.release(OTHER, {two}) == 0
    store.release(ME)
    assert (folder_bytes(tmp_path), store.used_bytes) == (0, 0)
    assert store.lookup(namespace, [1, 1]).num_tokens == 0


def test_what_hangs_below_the_end_of_a_segment_does_not_keep_what_another_chat_had_alone(
    store: SegmentStore, database: Database, namespace: Namespace
) -> None:
    one, two = new_session(database), new_session(database)
    store.save(namespace, one, None, cut([1, 1, 2, 2, 3, 3, 3, 3], 2, 8))
    ids = [1, 1, 2, 2, 4, 4]
    assert store.lookup(namespace, ids).num_tokens == 4
    prefix = store.lookup(namespace, ids, at_end=True)
    assert prefix.num_tokens == 2
    parent = ParentSegment(prefix.parts[-1].key, 0, 2)
    store.save(namespace, two, parent, [below(ids, 2, 6)])
    assert store.lookup(namespace, ids, at_end=True).num_tokens == 6
    assert store.lookup(namespace, ids[:5], at_end=True).num_tokens == 2
    assert store.lookup(namespace, ids[:1], at_end=True).num_tokens == 0
    store.release(ME, {one})
    check_restores(store, namespace, [1, 1, 2, 2, 3, 3, 3, 3], 4)
    check_restores(store, namespace, ids, 6)
    assert set(stored_ids(database)) == {(1, 1), (2, 2, 4, 4)}


def stored_ids(database: Database) -> list[tuple[int, ...]]:
    """Those of every segment that the index knows."""
    with database.read() as db:
        return list(map(unpack_token_ids, db.scalars(select(SegmentRow.token_ids))))


def test_a_session_holds_all_its_branches(store: SegmentStore, database: Database, namespace: Namespace) -> None:
    one, two = new_session(database), new_session(database)
    for ids in ([1, 1, 2, 2], [1, 1, 3, 3], [9, 9]):
        store.save(namespace, one, None, cut(ids, *range(2, len(ids) + 1, 2)))
    store.save(namespace, two, None, cut([1, 1], 2))
    store.release(ME, {two})
    for ids in ([1, 1, 2, 2], [1, 1, 3, 3], [9, 9]):
        check_restores(store, namespace, ids, len(ids))


def test_a_session_whose_last_segment_was_evicted_still_holds_the_rest(database: Database) -> None:
    size = one_segment_bytes(SegmentStore(database, BIG), database)
    store = SegmentStore(database, 3 * size + size // 2)
    namespace = store.namespace(ME, {"model": "m"}, LAYOUT)
    one, two = new_session(database), new_session(database)
    store.save(namespace, one, None, cut([1] * 12, 4, 8, 12))
    store.save(namespace, two, None, cut([2] * 4, 4))
    check_restores(store, namespace, [1] * 12, 8)
    store.release(ME, {two})
    check_restores(store, namespace, [1] * 12, 8)
    assert list(store.report(ME).session_bytes) == [one]


def test_purging_a_chat_ends_its_hold_and_the_next_sweep_removes_its_files(
    store: SegmentStore, database: Database, namespace: Namespace, tmp_path: Path
) -> None:
    session = new_session(database)
    store.save(namespace, session, None, cut([1, 2, 3, 4], 2, 4))
    chats = ChatStore(database)
    chats.delete(ME, session)
    chats.purge(ME, session)
    assert store.sweep().num_unreachable == 2
    assert (segment_names(tmp_path), store.used_bytes) == (set(), 0)


# Failures


def test_a_full_disk_makes_room_once_and_else_says_so_and_the_next_save_works(
    store: SegmentStore, database: Database, namespace: Namespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures = [errno.ENOSPC]
    real_write = segment_files._write

    def write(descriptor: int, piece: memoryview) -> None:
        if failures:
            raise OSError(failures.pop(), "No space left on device")
        real_write(descriptor, piece)

    monkeypatch.setattr(segment_files, "_write", write)
    old, new = new_session(database), new_session(database)
    refused = store.save(namespace, old, None, cut([1] * 8, 8))
    assert refused.refused is not None
    assert "No space" in refused.refused
    assert (segment_names(tmp_path), store.used_bytes) == (set(), 0)

    assert store.save(namespace, old, None, cut([1] * 8, 8)).refused is None
    failures.append(errno.ENOSPC)
    report = store.save(namespace, new, None, cut([2] * 8, 8))
    assert (report.num_tokens, report.refused) == (8, None)
    assert store.lookup(namespace, [1] * 8).num_tokens == 0

    failures += [errno.EIO]
    assert store.save(namespace, new, report.last, [below([2] * 16, 8, 16)]).refused is not None
    check_restores(store, namespace, [2] * 16, 8)
    assert folder_bytes(tmp_path) == store.used_bytes


@pytest.mark.parametrize("seam", ["_write", "_sync", "_rename", "_sync_folder"])
def test_a_step_that_fails_leaves_the_old_state_and_the_next_save_works(
    store: SegmentStore,
    database: Database,
    namespace: Namespace,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    seam: str,
) -> None:
    session, ids = new_session(database), list(range(8))
    first = store.save(namespace, session, None, cut(ids, 4))

    def fail(*_: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr(segment_files, seam, fail)
        report = store.save(namespace, session, first.last, [below(ids, 4, 8)])
    assert (report.num_tokens, report.last) == (4, first.last)
    assert report.refused is not None
    assert len(segment_names(tmp_path)) == 1
    assert folder_bytes(tmp_path) == store.used_bytes
    assert store.save(namespace, session, first.last, [below(ids, 4, 8)]).refused is None
    check_restores(store, namespace, ids, 8)


def test_a_folder_that_cannot_be_used_is_told_with_the_remedy(database: Database, tmp_path: Path) -> None:
    (tmp_path / "segments").write_text("in the way")
    with pytest.raises(DataDirError, match="--data-dir"):
        SegmentStore(database, BIG)


# Damage


def flip(path: Path, data: bytearray, source: random.Random) -> None:
    data[source.randrange(len(data))] ^= 1 << source.randrange(8)
    path.write_bytes(data)


def truncate(path: Path, data: bytearray, source: random.Random) -> None:
    path.write_bytes(data[: source.randrange(len(data))])


def append(path: Path, data: bytearray, source: random.Random) -> None:
    path.write_bytes(data + source.randbytes(source.randrange(1, 9)))


def zero_a_page(path: Path, data: bytearray, source: random.Random) -> None:
    start = source.randrange(len(data))
    path.write_bytes(data[:start] + bytes(len(data[start : start + 512])) + data[start + 512 :])


def swap_with_neighbour(path: Path, data: bytearray, source: random.Random) -> None:
    other = source.choice([each for each in path.parent.glob("*.safetensors") if each != path])
    path.write_bytes(other.read_bytes())
    other.write_bytes(data)


def remove(path: Path, _data: bytearray, _source: random.Random) -> None:
    path.unlink()


@pytest.mark.parametrize("damage", [flip, truncate, append, zero_a_page, swap_with_neighbour, remove])
@pytest.mark.parametrize("is_into_room", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_damage_to_any_file_is_found_the_file_set_aside_and_the_prefix_before_it_used(
    store: SegmentStore,
    database: Database,
    namespace: Namespace,
    tmp_path: Path,
    damage: Callable[[Path, bytearray, random.Random], None],
    seed: int,
    is_into_room: bool,
) -> None:
    source = random.Random(seed)
    session, ids = new_session(database), list(range(30))
    store.save(namespace, session, None, cut(ids, 10, 20, 30))
    parts = store.lookup(namespace, ids).parts
    victim = source.randrange(3)
    paths = {part.key: tmp_path / "segments" / f"{part.key}.kv.safetensors" for part in parts}
    before = {key: path.read_bytes() for key, path in paths.items()}
    path = paths[parts[victim].key]
    damage(path, bytearray(before[parts[victim].key]), source)
    changed = {key for key, path in paths.items() if not path.exists() or path.read_bytes() != before[key]}
    assert changed
    for part in parts:
        path = paths[part.key]
        try:
            if is_into_room:
                keys = loaded_into(store, namespace, part)["layers.0.keys"]
            else:
                keys = bytes(store.load(namespace, part.key)["layers.0.keys"].data)
        except SegmentDamagedError:
            assert not path.exists()
        else:
            assert keys == kv(ids[part.start : part.start + 10], part.start)["layers.0.keys"]
            assert part.key not in changed
    usable = store.lookup(namespace, ids)
    assert usable.num_tokens == min(part.start for part in parts if part.key in changed)
    check_restores(store, namespace, ids, usable.num_tokens)

    store.save(namespace, session, None, cut(ids, 10, 20, 30))
    check_restores(store, namespace, ids, 30)


def overtake(
    monkeypatch: pytest.MonkeyPatch, name: str, before: Callable[[], object], after: Callable[[], object]
) -> None:
    """The next call of the folder's method `name` comes between these, whatever it raises."""
    method = getattr(SegmentFolder, name)

    def overtaken(*arguments: object) -> object:
        monkeypatch.setattr(SegmentFolder, name, method)
        before()
        try:
            return method(*arguments)
        finally:
            after()

    monkeypatch.setattr(SegmentFolder, name, overtaken)


@pytest.mark.parametrize("is_damaged", [False, True], ids=["missing", "damaged"])
@pytest.mark.parametrize("is_into_room", [False, True])
def test_a_file_that_was_removed_and_saved_again_while_it_was_read_is_read_again_and_stays(
    store: SegmentStore,
    database: Database,
    namespace: Namespace,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    is_into_room: bool,
    is_damaged: bool,
) -> None:
    session, ids = new_session(database), list(range(10))
    store.save(namespace, session, None, cut(ids, 10))
    (part,) = store.lookup(namespace, ids).parts
    path = tmp_path / "segments" / f"{part.key}.kv.safetensors"
    if is_damaged:
        flip(path, bytearray(path.read_bytes()), random.Random(0))
    os.utime(path, (1, 1))  # it was written long ago

    def release() -> None:
        assert store.release(ME) > 0

    def save() -> None:
        if is_damaged:
            release()
        assert store.save(namespace, session, None, cut(ids, 10)).num_written_bytes > 0
        assert store.lookup(namespace, ids).parts == (part,), "nothing in the index tells it from the one before"

    overtake(monkeypatch, "read_into" if is_into_room else "read", (lambda: None) if is_damaged else release, save)
    if is_into_room:
        assert loaded_into(store, namespace, part) == kv(ids, 0)
    else:
        assert bytes(store.load(namespace, part.key)["layers.0.keys"].data) == kv(ids, 0)["layers.0.keys"]
    assert store.report(ME).set_aside_bytes == 0
    check_restores(store, namespace, ids, 10)


def test_a_check_of_all_files_tells_no_damage_of_one_that_was_removed_and_saved_again(
    store: SegmentStore, database: Database, namespace: Namespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session, ids = new_session(database), list(range(10))
    store.save(namespace, session, None, cut(ids, 10))
    (path,) = (tmp_path / "segments").glob("*.safetensors")
    os.utime(path, (1, 1))
    overtake(monkeypatch, "read", lambda: store.release(ME), lambda: store.save(namespace, session, None, cut(ids, 10)))
    assert store.verify(ME, lambda *_: None).damage == ()
    check_restores(store, namespace, ids, 10)


def test_a_flipped_bit_anywhere_in_a_file_is_found(
    store: SegmentStore, database: Database, namespace: Namespace, tmp_path: Path
) -> None:
    session, ids = new_session(database), list(range(10))
    segments = cut(ids, 10)
    store.save(namespace, session, None, segments)
    (part,) = store.lookup(namespace, ids).parts
    path = tmp_path / "segments" / f"{part.key}.kv.safetensors"
    good, source = path.read_bytes(), random.Random(0)
    for number in range(40):
        flip(path, bytearray(good), source)
        with pytest.raises(SegmentDamagedError):
            loaded_into(store, namespace, part) if number % 2 else store.load(namespace, part.key)
        assert store.lookup(namespace, ids).num_tokens == 0
        assert store.save(namespace, session, None, segments).num_tokens == 10
    check_restores(store, namespace, ids, 10)


def edit_database(tmp_path: Path, statement: str, *values: object) -> None:
    connection = sqlite3.connect(tmp_path / DATABASE_NAME)
    with connection:
        assert connection.execute(statement, values).rowcount == 1
    connection.close()


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE segments SET token_ids = X'63000000630000006300000063000000' WHERE start = 4",
        "UPDATE segments SET start = 3 WHERE start = 4",
        "UPDATE segments SET key = hex(randomblob(32)) WHERE start = 4",
        "UPDATE segments SET parent_id = NULL WHERE start = 4",
        "UPDATE segments SET parent_id = id WHERE start = 4",
        "DELETE FROM segments WHERE start = 4",
        "DELETE FROM segment_files WHERE segment_id = (SELECT id FROM segments WHERE start = 4)",
        "UPDATE segment_files SET digest = 'no' WHERE segment_id = (SELECT id FROM segments WHERE start = 4)",
        "UPDATE segment_files SET num_bytes = 1 WHERE segment_id = (SELECT id FROM segments WHERE start = 4)",
    ],
)
def test_a_row_that_was_changed_or_is_missing_costs_what_follows_and_nothing_else(
    store: SegmentStore, database: Database, namespace: Namespace, tmp_path: Path, statement: str
) -> None:
    session, ids = new_session(database), list(range(12))
    store.save(namespace, session, None, cut(ids, 4, 8, 12))
    edit_database(tmp_path, statement)
    prefix = store.lookup(namespace, ids)
    if prefix.num_tokens > 4:
        with pytest.raises(SegmentDamagedError):
            restored(store, namespace, prefix)
    check_restores(store, namespace, ids, 4)
    changed = [*ids[:4], 0x63, 0x63, 0x63, 0x63]
    check_restores(store, namespace, changed, 4)

    database.close()
    with Database.open(tmp_path) as again:
        reopened = SegmentStore(again, BIG)
        check_restores(reopened, namespace, ids, 4)
        assert folder_bytes(tmp_path) == reopened.used_bytes
        assert reopened.save(namespace, session, None, cut(ids, 4, 8, 12)).refused is None
        check_restores(reopened, namespace, ids, 12)


@pytest.mark.parametrize("change", ["token_ids = ''", "start = 3", "parent_id = NULL", "parent_id = id"])
def test_a_row_that_was_changed_is_put_right_when_its_tokens_are_saved_again(
    store: SegmentStore, database: Database, namespace: Namespace, tmp_path: Path, change: str
) -> None:
    session, ids = new_session(database), list(range(12))
    store.save(namespace, session, None, cut(ids, 4, 8, 12))
    names = segment_names(tmp_path)
    edit_database(tmp_path, f"UPDATE segments SET {change} WHERE start = 4")
    check_restores(store, namespace, ids, 4)
    parent = last_of(store, namespace, ids[:4])
    assert store.save(namespace, session, parent, [below(ids, 4, 8)]).num_written_bytes == 0
    check_restores(store, namespace, ids, 12)
    assert segment_names(tmp_path) == names


def test_what_an_older_version_wrote_with_sha256_is_read_and_checked_all_the_same(
    database: Database, store: SegmentStore, namespace: Namespace, tmp_path: Path
) -> None:
    session, ids = new_session(database), list(range(12))
    store.save(namespace, session, None, cut(ids, 4, 8))
    database.close()
    connection = sqlite3.connect(tmp_path / DATABASE_NAME)
    with connection:
        connection.execute("ALTER TABLE segment_files RENAME COLUMN digest TO sha256")
        rows = connection.execute("SELECT s.id, s.key FROM segments s").fetchall()
        for segment_id, key in rows:
            sha256 = hashlib.sha256((tmp_path / "segments" / f"{key}.kv.safetensors").read_bytes()).hexdigest()
            connection.execute("UPDATE segment_files SET sha256 = ? WHERE segment_id = ?", (sha256, segment_id))
        connection.execute("UPDATE alembic_version SET version_num = '0005'")
    connection.close()

    with Database.open(tmp_path) as again:
        reopened = SegmentStore(again, BIG)
        check_restores(reopened, namespace, ids, 8)
        assert loaded_into(reopened, namespace, reopened.lookup(namespace, ids).parts[1]) == kv(ids[4:8], 4)
        reopened.save(namespace, session, last_of(reopened, namespace, ids), [below(ids, 8, 12)])
        assert reopened.verify(ME, lambda *_: None).damage == ()
        damaged = tmp_path / "segments" / f"{reopened.lookup(namespace, ids).parts[1].key}.kv.safetensors"
        damaged.write_bytes(damaged.read_bytes()[:-1] + b"!")
        assert [damage.name for damage in reopened.verify(ME, lambda *_: None).damage] == [damaged.name]


def test_a_sweep_removes_what_belongs_to_nothing_and_keeps_the_rest(
    store: SegmentStore, database: Database, namespace: Namespace, tmp_path: Path
) -> None:
    ids = list(range(12))
    store.save(namespace, new_session(database), None, cut(ids, 4, 8, 12))
    folder = tmp_path / "segments"
    (folder / "unknown.kv.safetensors").write_bytes(b"orphan")
    (folder / "half.kv.safetensors.tmp").write_bytes(b"half")
    key = store.lookup(namespace, ids).parts[1].key
    (folder / f"{key}.kv.safetensors").write_bytes(b"cut off")
    report = store.sweep()
    assert (report.num_temporary, report.num_orphans, report.num_damaged) == (1, 1, 1)
    assert len(segment_names(tmp_path)) == report.num_kept_files == 2
    assert folder_bytes(tmp_path) == store.used_bytes
    check_restores(store, namespace, ids, 4)
    assert store.sweep() == dataclasses.replace(report, num_temporary=0, num_orphans=0, num_damaged=0)


def test_what_was_set_aside_counts_against_the_quota_and_goes_first(database: Database, tmp_path: Path) -> None:
    size = one_segment_bytes(SegmentStore(database, BIG), database)
    store = SegmentStore(database, 2 * size)
    namespace = store.namespace(ME, {"model": "m"}, LAYOUT)
    store.save(namespace, new_session(database), None, cut([1] * 4, 4))
    store.save(namespace, new_session(database), None, cut([2] * 4, 4))
    key = store.lookup(namespace, [1] * 4).parts[0].key
    path = tmp_path / "segments" / f"{key}.kv.safetensors"
    flip(path, bytearray(path.read_bytes()), random.Random(0))
    with pytest.raises(SegmentDamagedError):
        store.load(namespace, key)
    assert store.report(ME).set_aside_bytes == size
    assert folder_bytes(tmp_path) == store.used_bytes == 2 * size
    assert store.save(namespace, new_session(database), None, cut([3] * 4, 4)).num_tokens == 4
    assert store.report(ME).set_aside_bytes == 0
    assert folder_bytes(tmp_path) == store.used_bytes == 2 * size
    check_restores(store, namespace, [2] * 4, 4)


@pytest.mark.parametrize("is_swept", [False, True])
def test_what_was_set_aside_of_a_chat_leaves_with_it_and_not_with_another(
    store: SegmentStore, database: Database, namespace: Namespace, tmp_path: Path, is_swept: bool
) -> None:
    chats = {new_session(database): [token] * 4 for token in (1, 2)}
    one, two = chats
    for session, ids in chats.items():
        store.save(namespace, session, None, cut(ids, 4))
        key = store.lookup(namespace, ids).parts[0].key
        path = tmp_path / "segments" / f"{key}.kv.safetensors"
        flip(path, bytearray(path.read_bytes()), random.Random(0))
        with pytest.raises(SegmentDamagedError):
            store.load(namespace, key)
    store.save(namespace, two, None, cut(chats[two], 4))
    if is_swept:
        store.sweep()
    size = store.report(ME).set_aside_bytes // 2
    # A sweep forgets whose it was. It leaves with the next chat, and is not told as that one's.
    assert store.release(ME, {one}) == (0 if is_swept else size)
    assert store.report(ME).set_aside_bytes == size
    assert folder_bytes(tmp_path) == store.used_bytes == 2 * size
    store.release(ME, {two})
    assert folder_bytes(tmp_path) == store.used_bytes == 0


def test_what_was_set_aside_of_another_owner_is_not_told_as_freed(
    store: SegmentStore, database: Database, namespace: Namespace, tmp_path: Path
) -> None:
    session, other = new_session(database), new_session(database, OTHER)
    others = store.namespace(OTHER, {"model": "m"}, LAYOUT)
    store.save(others, other, None, cut([2] * 4, 4))
    (path,) = (tmp_path / "segments").glob("*.safetensors")
    flip(path, bytearray(path.read_bytes()), random.Random(0))
    with pytest.raises(SegmentDamagedError):
        restored(store, others, store.lookup(others, [2] * 4))
    store.sweep()
    written = store.save(namespace, session, None, cut([1] * 4, 4)).num_written_bytes
    assert store.release(ME) == written
    assert folder_bytes(tmp_path) == store.used_bytes == 0


@settings(max_examples=examples(15), deadline=None)
@given(st.data())
def test_any_chats_are_found_as_far_as_they_were_saved_and_never_further(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Few different tokens and many chats, so that they part inside each other's segments in every way."""
    with open_database(tmp_path_factory.mktemp("chats")) as database:
        store = SegmentStore(database, BIG)
        namespace = store.namespace(ME, {}, LAYOUT)
        session = new_session(database)
        tokens = st.lists(st.integers(0, 1), min_size=1, max_size=10)
        saved: list[list[int]] = []
        for ids in data.draw(st.lists(tokens, min_size=1, max_size=6)):
            prefix = store.lookup(namespace, ids)
            expected = max((common(ids, other) for other in saved), default=0)
            assert prefix.num_tokens == expected
            check_restores(store, namespace, ids, expected)
            if expected < len(ids):
                middle = data.draw(st.integers(expected + 1, len(ids)))
                parent = last_of(store, namespace, ids) if expected else None
                ends = [middle, len(ids)] if middle < len(ids) else [middle]
                starts = [expected, *ends]
                new = [below(ids, start, end) for start, end in zip(starts, ends, strict=False)]
                report: SaveReport = store.save(namespace, session, parent, new)
                assert report.num_tokens == len(ids)
                saved.append(ids)


def common(one: Sequence[int], other: Sequence[int]) -> int:
    return next((n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
