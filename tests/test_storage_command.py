"""`python -m storage`: what it prints, what it exits with, what it changes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from storage.__main__ import main
from storage.chat_store import ChatStore
from storage.database import Database
from storage.segment_format import TensorLayout
from storage.segment_store import NewSegment, SegmentStore


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    layout = (TensorLayout("keys", "F32", (0, 8), 0),)
    with Database.open(tmp_path) as database:
        session = ChatStore(database).create_session(
            "me", title="", system_prompt=None, sampling={}, settings={}, template_vars={}
        )
        store = SegmentStore(database, 2**30)
        namespace = store.namespace("me", {}, layout)
        store.save(namespace, session.id, None, [NewSegment(0, [1, 2], {"keys": bytes(64)})])
    return tmp_path


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
    assert list(facts["session_bytes"].values()) == [size]
    assert (facts["num_bytes"], facts["folder_bytes"], facts["num_segments"]) == (size, size, 1)
    assert f"bytes: {size:,}" in run(capsys, "stats", "--data-dir", str(data_dir))[1]


def test_a_folder_in_use_or_that_is_not_there_is_told_with_status_2(
    data_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Database.open(data_dir):
        assert main(["verify", "--data-dir", str(data_dir)]) == 2
    assert "Another chatcache" in capsys.readouterr().err
    assert main(["verify", "--data-dir", str(data_dir / "none")]) == 2
    assert not (data_dir / "none").exists()


def test_the_command_runs_as_a_module(data_dir: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "storage", "stats", "--json", "--data-dir", str(data_dir)],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert json.loads(done.stdout)["num_segments"] == 1
