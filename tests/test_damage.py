"""Whatever happens to the files and rows of a live store: it is found or harmless, set aside, told, and the reply is
the one that would have come without any of it."""

from __future__ import annotations

import random
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import pytest
from databases import open_database
from services import open_service

from chatcache.chat import ChatService
from chatcache.events import CacheEvent
from chatcache.loader import LoadedModel
from chatcache.stats import Sampling
from storage.chat_store import ChatStore
from storage.database import DATABASE_NAME, Database
from storage.errors import SegmentDamagedError
from storage.segment_files import SegmentFolder
from storage.segment_format import TensorLayout
from storage.segment_save import Namespace, NewSegment, ParentSegment
from storage.segment_store import SegmentStore

TIMEOUT_S = 60
NUM_PLACES = 1000
GREEDY = Sampling(temperature=0.0, max_new_tokens=8)

Damage = Callable[[list[Path], random.Random], None]
"""Damages at least one of the segment files given; every one it touches differs afterwards, or is gone."""


def flip(files: list[Path], source: random.Random) -> None:
    path = source.choice(files)
    data = bytearray(path.read_bytes())
    data[source.randrange(len(data))] ^= 1 << source.randrange(8)
    path.write_bytes(data)


def truncate(files: list[Path], source: random.Random) -> None:
    path = source.choice(files)
    path.write_bytes(path.read_bytes()[: source.randrange(path.stat().st_size)])


def append(files: list[Path], source: random.Random) -> None:
    path = source.choice(files)
    path.write_bytes(path.read_bytes() + source.randbytes(source.randrange(1, 5000)))


def zero_a_page(files: list[Path], source: random.Random) -> None:
    path = source.choice(files)
    data = bytearray(path.read_bytes())
    start = source.randrange(0, len(data), 4096)
    data[start : start + 4096] = bytes(len(data[start : start + 4096]))
    path.write_bytes(data)


def swap(files: list[Path], source: random.Random) -> None:
    one, other = source.sample(files, 2)
    content = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(content)


def remove(files: list[Path], source: random.Random) -> None:
    source.choice(files).unlink()


def empty(files: list[Path], source: random.Random) -> None:
    source.choice(files).write_bytes(b"")


DAMAGES: list[Damage] = [flip, flip, flip, truncate, append, zero_a_page, swap, remove, empty]


@dataclass
class LiveStore:
    """A chain of segments with random ids and contents, in a folder that is put back as it was after each damage."""

    database: Database
    store: SegmentStore
    namespace: Namespace
    session_id: str
    ids: list[int]
    keys: bytes
    folder: Path
    sound: dict[Path, bytes]

    def segments(self, parent: ParentSegment | None) -> list[NewSegment]:
        start = parent.end if parent else 0
        bounds = [(begin, min(begin + 64, len(self.ids))) for begin in range(start, len(self.ids), 64)]
        return [NewSegment(a, self.ids[a:b], {"0.keys": self.keys[a * 32 : b * 32]}) for a, b in bounds]

    def read(self) -> bytes:
        """What a restore gets, in its order, up to where it finds damage."""
        data = b""
        for part in self.store.lookup(self.namespace, self.ids).parts:
            room = bytearray(part.num_tokens * 32)
            try:
                self.store.load_into(self.namespace, part, {"0.keys": memoryview(room)}, nullcontext)
            except SegmentDamagedError:
                break
            data += room
        return data


@pytest.fixture
def live(tmp_path: Path) -> LiveStore:
    source = random.Random(0)
    database = open_database(tmp_path)
    session = ChatStore(database).create_session(
        "me", title="", system_prompt=None, sampling={}, settings={}, template_vars={}
    )
    store = SegmentStore(database, 2**30)
    namespace = store.namespace("me", {}, (TensorLayout("0.keys", "F32", (0, 8), 0),))
    ids = [source.randrange(50_000) for _ in range(400)]
    folder = tmp_path / "segments"
    live = LiveStore(database, store, namespace, session.id, ids, source.randbytes(400 * 32), folder, {})
    store.save(namespace, session.id, None, live.segments(None))
    live.sound = {path: path.read_bytes() for path in folder.glob("*.safetensors")}
    assert len(live.sound) == 7
    return live


@pytest.mark.slow
def test_damage_at_a_thousand_places_is_always_found_and_set_aside(live: LiveStore) -> None:
    source = random.Random(1)
    for number in range(NUM_PLACES):
        damage = source.choice(DAMAGES)
        damage(list(live.sound), source)
        touched = {p for p, data in live.sound.items() if not p.exists() or p.read_bytes() != data}
        read = live.read()
        what = f"place {number}, {damage.__name__}"
        assert live.keys.startswith(read), f"{what}: other data than was saved"
        prefix = live.store.lookup(live.namespace, live.ids)
        assert len(read) == 32 * prefix.num_tokens, f"{what}: more is named than can be read"
        assert len(read) < len(live.keys) or not touched, f"{what}: not found"
        assert not any(path.exists() for path in touched - _unread(live, prefix.num_tokens)), f"{what}: not set aside"
        _save_again(live)
    live.database.close()


def _unread(live: LiveStore, num_tokens: int) -> set[Path]:
    """The files behind the first damaged one: nobody has looked at them yet."""
    rows = sqlite3.connect(live.folder.parent / DATABASE_NAME)
    keys = [key for (key,) in rows.execute("SELECT key FROM segments WHERE start > ?", (num_tokens,))]
    rows.close()
    return {live.folder / f"{key}.kv.safetensors" for key in keys}


def _save_again(live: LiveStore) -> None:
    """What the next turns do, until all is sound."""
    for _ in range(3):
        live.read()
        parts = live.store.lookup(live.namespace, live.ids).parts
        last = ParentSegment(parts[-1].key, parts[-1].start, parts[-1].start + parts[-1].num_tokens) if parts else None
        report = live.store.save(live.namespace, live.session_id, last, live.segments(last))
        assert report.refused is None
        if live.read() == live.keys:
            return
    raise AssertionError("it does not heal")


def send(service: ChatService, session_id: str, text: str = "Go on") -> tuple[tuple[int, ...], list[str], list[str]]:
    """The reply's ids, the sentences that were said meanwhile, and those kept with its stats."""
    turn = service.send(session_id, text, GREEDY)
    reply = turn.result(TIMEOUT_S)
    said = [event.message for event in turn.events() if isinstance(event, CacheEvent)]
    return reply.message.token_ids or (), said, list(reply.stats.fallbacks)


@dataclass(frozen=True)
class LeftChat:
    data_dir: Path
    session_id: str
    next_ids: tuple[int, ...]


@pytest.fixture(scope="module")
def left_chat(tiny_llama: LoadedModel, tmp_path_factory: pytest.TempPathFactory) -> LeftChat:
    """A data folder with one chat of two turns, and what an uninterrupted third reply would be."""
    data_dir = tmp_path_factory.mktemp("left")
    with open_service(tiny_llama, data_dir) as service:
        session = service.create_session(system_prompt="You are brief.")
        send(service, session.id, "word " * 60)
        reply = service.send(session.id, "Two", GREEDY).result(TIMEOUT_S)
        fork = service.fork(reply.message.id)
        next_ids, _, _ = send(service, fork.id)
        service.drop_cache(fork.id)
        service._runtime.persistence.flush()
    assert len(list((data_dir / "segments").glob("*.safetensors"))) == 5
    return LeftChat(data_dir, session.id, next_ids)


@pytest.fixture
def data_dir(left_chat: LeftChat, tmp_path: Path) -> Path:
    return Path(shutil.copytree(left_chat.data_dir, tmp_path / "data"))


def check_goes_on(service: ChatService, left: LeftChat) -> None:
    """The reply is right, the damage told in events, stats and report, and the next restart is sound again."""
    ids, said, kept = send(service, left.session_id)
    service._runtime.persistence.flush()
    assert ids == left.next_ids
    assert any("damaged" in sentence for sentence in said), said
    assert any("damaged" in sentence for sentence in kept), kept
    assert "damaged" in (service.cache_report(left.session_id).problem or "")


@pytest.mark.parametrize("damage", dict.fromkeys(DAMAGES), ids=lambda damage: damage.__name__)
def test_a_damaged_file_changes_no_reply_and_is_told(
    damage: Damage, left_chat: LeftChat, data_dir: Path, tiny_llama: LoadedModel
) -> None:
    """While the service runs: at the start, a file of another size or a missing one is put in order without a word."""
    files = sorted((data_dir / "segments").glob("*.safetensors"))
    with open_service(tiny_llama, data_dir) as service:
        damage(files, random.Random(damage.__name__))
        check_goes_on(service, left_chat)
    with open_service(tiny_llama, data_dir) as service:
        assert service.prefetch(left_chat.session_id) > 100
        assert service.cache_report(left_chat.session_id).problem is None


@pytest.mark.parametrize("damage", dict.fromkeys(DAMAGES), ids=lambda damage: damage.__name__)
def test_a_file_damaged_while_nothing_ran_changes_no_reply(
    damage: Damage, left_chat: LeftChat, data_dir: Path, tiny_llama: LoadedModel
) -> None:
    damage(sorted((data_dir / "segments").glob("*.safetensors")), random.Random(damage.__name__))
    with open_service(tiny_llama, data_dir) as service:
        ids, _, _ = send(service, left_chat.session_id)
        assert ids == left_chat.next_ids
        assert folder_bytes(data_dir, service) == service.storage_report().cache.used_bytes


def folder_bytes(data_dir: Path, service: ChatService) -> int:
    service._runtime.persistence.flush()
    return sum(path.stat().st_size for path in (data_dir / "segments").rglob("*") if path.is_file())


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM segments WHERE start > 0 AND id = (SELECT min(id) FROM segments WHERE start > 0)",
        "DELETE FROM segment_files WHERE segment_id = (SELECT max(id) FROM segments)",
        "DELETE FROM segment_heads",
        "DELETE FROM segment_namespaces",
        "DELETE FROM owner_salts",
        "UPDATE segments SET token_ids = randomblob(length(token_ids))",
        "UPDATE segments SET token_ids = substr(token_ids, 1, 8)",
        "UPDATE segments SET start = start + 1",
        "UPDATE segments SET parent_id = id",
        "UPDATE segment_files SET digest = 'x'",
        "UPDATE segment_files SET num_bytes = num_bytes + 1",
        "UPDATE segments SET token_ids = ''",
    ],
)
@pytest.mark.parametrize(
    "is_running", [pytest.param(True, id="running", marks=pytest.mark.slow), pytest.param(False, id="stopped")]
)
def test_changed_or_missing_rows_change_no_reply(
    statement: str, is_running: bool, left_chat: LeftChat, data_dir: Path, tiny_llama: LoadedModel
) -> None:
    if not is_running:
        edit(data_dir, statement)
    with open_service(tiny_llama, data_dir) as service:
        if is_running:
            edit(data_dir, statement)
        ids, _, _ = send(service, left_chat.session_id)
        assert ids == left_chat.next_ids
        service._runtime.persistence.flush()
    with open_service(tiny_llama, data_dir) as service:
        assert service.prefetch(left_chat.session_id) > 100, "saved again"
        assert service.cache_report(left_chat.session_id).problem is None


def edit(data_dir: Path, statement: str) -> None:
    connection = sqlite3.connect(data_dir / DATABASE_NAME)
    with connection:
        connection.execute("PRAGMA foreign_keys=OFF")
        assert connection.execute(statement).rowcount > 0
    connection.close()


@pytest.mark.parametrize("what", ["segments", "segments/damaged"])
def test_a_folder_removed_while_the_service_runs_costs_the_caches_alone(
    what: str, left_chat: LeftChat, data_dir: Path, tiny_llama: LoadedModel
) -> None:
    with open_service(tiny_llama, data_dir) as service:
        shutil.rmtree(data_dir / what)
        if what == "segments/damaged":
            flip(sorted((data_dir / "segments").glob("*.safetensors")), random.Random(0))
        check_goes_on(service, left_chat)
        service._runtime.persistence.flush()
    with open_service(tiny_llama, data_dir) as service:
        assert service.prefetch(left_chat.session_id) > 100


def test_what_an_older_format_left_is_a_miss_and_not_an_error(
    left_chat: LeftChat, data_dir: Path, tiny_llama: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("storage.segment_format.FORMAT", "chatcache-segment-2")
    monkeypatch.setattr("storage.segment_store.FORMAT", "chatcache-segment-2")
    with open_service(tiny_llama, data_dir) as service:
        turn = service.send(left_chat.session_id, "Go on", GREEDY)
        reply = turn.result(TIMEOUT_S)
        assert reply.message.token_ids == left_chat.next_ids
        assert reply.stats.reuse == ()
        assert service.cache_report(left_chat.session_id).problem is None


def test_files_of_strangers_in_the_folder_are_never_taken_for_data(
    left_chat: LeftChat, data_dir: Path, tiny_llama: LoadedModel
) -> None:
    folder = SegmentFolder(data_dir)
    victim = next(name for name in sorted(folder.sizes()))
    (folder.path / f"{victim}.tmp").write_bytes((folder.path / victim).read_bytes()[:100])
    (folder.path / ("ab" * 32 + ".kv.safetensors")).write_bytes(b"what is this")
    with open_service(tiny_llama, data_dir) as service:
        ids, said, _ = send(service, left_chat.session_id)
        assert ids == left_chat.next_ids
        assert any("Resumed" in sentence for sentence in said)
        assert folder_bytes(data_dir, service) == service.storage_report().cache.used_bytes
