"""`python -m storage`: what it prints, what it exits with, what it changes."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from storage import segment_check
from storage.__main__ import RUNNING, main
from storage.chat_store import ChatStore
from storage.data_dir import lock_data_dir
from storage.database import DATABASE_NAME, Database
from storage.errors import DatabaseError
from storage.segment_check import check_file
from storage.segment_format import TensorLayout
from storage.segment_index import ensure_salt
from storage.segment_save import NewSegment
from storage.segment_store import SegmentStore

LAYOUT = (TensorLayout("keys", "F32", (0, 8), 0),)


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    with Database.open(tmp_path) as database:
        store = SegmentStore(database, 2**30)
        namespace = store.namespace("me", {}, LAYOUT)
        store.save(namespace, new_session(database, "Llamas"), None, [NewSegment(0, [1, 2], {"keys": bytes(64)})])
    return tmp_path


def new_session(database: Database, title: str) -> str:
    chats = ChatStore(database)
    made = chats.create_session("me", title=title, system_prompt=None, sampling={}, settings={}, template_vars={})
    return made.id


def sizes(data_dir: Path) -> list[int]:
    return sorted(path.stat().st_size for path in (data_dir / "segments").glob("*.safetensors"))


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    status = main(arguments)
    return status, capsys.readouterr().out


def segment(data_dir: Path) -> Path:
    (path,) = (data_dir / "segments").glob("*.safetensors")
    return path


def test_a_sound_store_verifies_with_status_0(data_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, output = run(capsys, "verify", "--json", "--data-dir", str(data_dir))
    size = segment(data_dir).stat().st_size
    assert status == 0
    assert json.loads(output) == {"num_files": 1, "num_bytes": size, "damage": [], "orphans": []}


def test_damage_is_named_with_status_1_and_left_as_it_is(data_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = segment(data_dir)
    damaged = path.read_bytes()[:-1] + b"!"
    path.write_bytes(damaged)
    (data_dir / "segments" / "stranger").write_bytes(b"x")
    status, output = run(capsys, "verify", "--json", "--data-dir", str(data_dir))
    report = json.loads(output)
    assert status == 1
    assert [entry["name"] for entry in report["damage"]] == [path.name]
    assert report["orphans"] == ["stranger"]
    assert path.read_bytes() == damaged
    status, output = run(capsys, "verify", "--data-dir", str(data_dir))
    assert (status, f"{path.name} was changed" in output) == (1, True)


def test_a_sweep_removes_strangers_and_tells(data_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stranger = data_dir / "segments" / "stranger.tmp"
    stranger.write_bytes(b"x")
    status, output = run(capsys, "sweep", "--json", "--data-dir", str(data_dir))
    assert (status, json.loads(output)["num_temporary"]) == (0, 1)
    assert not stranger.exists()
    segment(data_dir).write_bytes(b"cut")
    status, output = run(capsys, "sweep", "--data-dir", str(data_dir))
    assert (status, "damaged: 1" in output) == (1, True)
    assert run(capsys, "sweep", "--data-dir", str(data_dir))[0] == 0


def test_stats_count_what_is_stored(data_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    size = segment(data_dir).stat().st_size
    status, output = run(capsys, "stats", "--json", "--data-dir", str(data_dir))
    facts = json.loads(output)
    assert status == 0
    assert [(chat["title"], chat["num_bytes"]) for chat in facts["sessions"]] == [("Llamas", size)]
    assert (facts["num_bytes"], facts["folder_bytes"], facts["num_segments"]) == (size, size, 1)


def test_stats_are_a_table_with_units_and_titles_the_largest_chat_first(
    data_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Database.open(data_dir) as database:
        store = SegmentStore(database, 2**30)
        namespace = store.namespace("me", {}, LAYOUT)
        for title, num_tokens in (("", 4), ("Long", 40_000)):
            session = new_session(database, title)
            ids = range(num_tokens, 2 * num_tokens)
            store.save(namespace, session, None, [NewSegment(0, ids, {"keys": bytes(32 * num_tokens)})])
    lines = run(capsys, "stats", "--data-dir", str(data_dir))[1].splitlines()
    assert lines[0].endswith("1.4 MiB  saved caches, in 3 pieces")
    assert "3 in all" in lines[-4]
    chats = [line.strip() for line in lines[-3:]]
    assert [chat.split("  ")[0] for chat in chats] == ["1.4 MiB", f"{sizes(data_dir)[1]} B", f"{sizes(data_dir)[0]} B"]
    assert [chat.split("  ")[1].rpartition(" ")[0] for chat in chats] == ["Long", "without a title", "Llamas"]


def test_what_only_reads_works_while_a_server_runs_and_says_so(
    data_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Database.open(data_dir):
        for command in ("stats", "verify"):
            assert main([command, "--json", "--data-dir", str(data_dir)]) == 0
            captured = capsys.readouterr()
            assert json.loads(captured.out)["num_bytes"] == segment(data_dir).stat().st_size
            assert "is running" in captured.err
        assert main(["sweep", "--data-dir", str(data_dir)]) == 2
        assert "Another chatcache" in capsys.readouterr().err
        reader = Database.open_to_read(data_dir)
        with pytest.raises(DatabaseError), reader.write() as db:
            ensure_salt(db, "somebody new")
        reader.close()


def test_what_a_running_server_removes_meanwhile_is_no_damage(
    data_dir: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with Database.open(data_dir) as database:
        store = SegmentStore(database, 2**30)

        def release_first(*arguments: Any, **options: Any) -> Any:
            store.release("me")
            return check_file(*arguments, **options)

        monkeypatch.setattr(segment_check, "check_file", release_first)
        status, output = run(capsys, "verify", "--json", "--data-dir", str(data_dir))
    assert (status, json.loads(output)["damage"]) == (0, [])


@pytest.mark.slow
def test_a_second_process_that_looks_after_a_folder_in_which_a_server_writes_all_the_while_finds_and_harms_nothing(
    tmp_path: Path,
) -> None:
    size, is_over = 4096, threading.Event()
    with Database.open(tmp_path) as database, ThreadPoolExecutor(1) as pool:
        store = SegmentStore(database, 60 * size)
        namespace = store.namespace("me", {}, LAYOUT)
        ids = tuple(range(size // 32))

        def chain(first: int) -> list[NewSegment]:
            step, buffers = len(ids), {"keys": bytes([first % 256]) * size}
            return [NewSegment(n * step, [first, *ids[1:]], buffers) for n in range(4)]

        kept = new_session(database, "Kept")
        store.save(namespace, kept, None, chain(0))
        store.protect(kept)

        def write() -> int:
            """Saves at the quota, every third of which is removed again, and saved anew under the same names."""
            number = 0
            while not is_over.is_set():
                number += 1
                session = new_session(database, f"Chat {number}")
                assert store.save(namespace, session, None, chain(number)).refused is None
                if number % 3 == 0:
                    store.release("me", {session})
                    assert store.save(namespace, session, None, chain(number)).refused is None
            return number

        def command(*arguments: str) -> subprocess.CompletedProcess[str]:
            asked = [sys.executable, "-m", "storage", *arguments, "--data-dir", str(tmp_path)]
            return subprocess.run(asked, capture_output=True, text=True, timeout=120)

        written = pool.submit(write)
        try:
            for _ in range(4):
                verified, swept, counted = command("verify", "--json"), command("sweep"), command("stats", "--json")
                assert (verified.returncode, json.loads(verified.stdout)["damage"]) == (0, []), verified
                assert (swept.returncode, "Another chatcache" in swept.stderr) == (2, True), swept
                assert (counted.returncode, json.loads(counted.stdout)["set_aside_bytes"]) == (0, 0), counted
                assert verified.stderr.splitlines() == counted.stderr.splitlines() == [RUNNING]
        finally:
            is_over.set()
        assert written.result(60) > 60 // 4, "what was saved first had to leave"
        assert store.verify("me", lambda *_: None).damage == ()
        assert store.lookup(namespace, [0, *ids[1:]] * 4).num_tokens == 4 * len(ids)
    assert command("sweep").returncode == 0
    swept_again = json.loads(command("sweep", "--json").stdout)
    assert (swept_again["num_orphans"], swept_again["num_damaged"], swept_again["num_unreachable"]) == (0, 0, 0)


def test_a_folder_that_is_not_there_or_holds_no_database_of_ours_is_told_with_status_2(
    data_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["verify", "--data-dir", str(data_dir / "none")]) == 2
    assert not (data_dir / "none").exists()
    empty = tmp_path / "empty"
    lock = lock_data_dir(empty)
    assert main(["stats", "--data-dir", str(empty)]) == 2
    assert "no database" in capsys.readouterr().err
    sqlite3.connect(empty / DATABASE_NAME).execute("CREATE TABLE other (id INTEGER)")
    assert main(["stats", "--data-dir", str(empty)]) == 2
    assert "another version" in capsys.readouterr().err
    lock.release()


def test_the_command_runs_as_a_module(data_dir: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "storage", "stats", "--json", "--data-dir", str(data_dir)],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert json.loads(done.stdout)["num_segments"] == 1
