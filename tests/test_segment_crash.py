"""kill -9 at each step of a save: the head is the old or the new one, nothing half is ever used, nothing is left over.

A process that imports only `storage` forks for every run; the fork kills itself before, in or after one step.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from storage.chat_store import ChatStore
from storage.database import Database
from storage.segment_check import verify_files
from storage.segment_files import SegmentFolder
from storage.segment_format import TensorLayout
from storage.segment_save import NewSegment
from storage.segment_store import SegmentStore

pytestmark = pytest.mark.slow

NUM_RUNS = 20
LAYOUT = (TensorLayout("keys", "F32", (0, 8), 0),)
FORKS = """
import json, os, signal, sys
from pathlib import Path
from storage import segment_files
from storage.database import Database
from storage.segment_format import TensorLayout
from storage.segment_save import NewSegment, ParentSegment, SegmentSave
from storage.segment_store import SegmentStore

def dying(function, moment, nth):
    calls = 0
    def wrapper(*arguments):
        nonlocal calls
        calls += 1
        if calls != nth:
            return function(*arguments)
        if moment == "halfway":
            os.write(arguments[0], arguments[1][: len(arguments[1]) // 2])
        elif moment == "after":
            function(*arguments)
        os.kill(os.getpid(), signal.SIGKILL)
    return wrapper

def save_and_die(data_dir, session_id, num_stored, step, moment, nth):
    with Database.open(Path(data_dir)) as database:
        store = SegmentStore(database, 2**30)
        namespace = store.namespace("me", {}, (TensorLayout("keys", "F32", (0, 8), 0),))
        part = store.lookup(namespace, list(range(num_stored))).parts[-1]
        place = SegmentSave if step == "_commit" else segment_files
        setattr(place, step, dying(getattr(place, step), moment, nth))
        new = [
            NewSegment(a, list(range(a, a + 4)), {"keys": b"".join(bytes([n]) * 32 for n in range(a, a + 4))})
            for a in (num_stored, num_stored + 4)
        ]
        store.save(namespace, session_id, ParentSegment(part.key, part.start, num_stored), new)

for line in sys.stdin:
    child = os.fork()
    if not child:
        save_and_die(*json.loads(line))
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""
STEPS = [
    *((step, moment) for step in ("_write", "_sync", "_rename") for moment in ("before", "after")),
    ("_write", "halfway"),
    ("_sync_folder", "before"),
    ("_sync_folder", "after"),
    ("_commit", "before"),
    ("_commit", "after"),
]


@pytest.fixture(scope="module")
def forks() -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-c", FORKS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield process
        assert process.stdin is not None
        process.stdin.close()


def exit_status(forks: subprocess.Popen[str], *arguments: object) -> int:
    assert forks.stdin is not None
    assert forks.stdout is not None
    forks.stdin.write(json.dumps(arguments) + "\n")
    forks.stdin.flush()
    return int(forks.stdout.readline())


def keys(token_ids: range) -> bytes:
    return b"".join(bytes([n]) * 32 for n in token_ids)


@pytest.mark.parametrize(("step", "moment"), STEPS)
def test_a_save_that_is_killed_has_happened_or_has_not(
    tmp_path: Path, forks: subprocess.Popen[str], step: str, moment: str
) -> None:
    with Database.open(tmp_path) as database:
        session_id = (
            ChatStore(database)
            .create_session("me", title="kept", system_prompt=None, sampling={}, settings={}, template_vars={})
            .id
        )
        store = SegmentStore(database, 2**30)
        store.save(
            store.namespace("me", {}, LAYOUT), session_id, None, [NewSegment(0, range(8), {"keys": keys(range(8))})]
        )
    num_stored = 8
    for run in range(NUM_RUNS):
        times = 1 if step in ("_commit", "_sync_folder") else run % 2 + 1
        assert exit_status(forks, str(tmp_path), session_id, num_stored, step, moment, times) == -9
        expected = num_stored + (8 if (step, moment) == ("_commit", "after") else 0)
        num_stored = check_after_the_crash(tmp_path, session_id, num_stored + 8)
        assert num_stored == expected


def check_after_the_crash(data_dir: Path, session_id: str, num_wanted: int) -> int:
    """Everything that must hold after any crash. Returns how many tokens are stored."""
    with Database.open(data_dir) as database:
        folder = SegmentFolder(data_dir)
        assert verify_files(database, folder).damage == ()
        assert [session.title for session in ChatStore(database).sessions("me")] == ["kept"]
        store = SegmentStore(database, 2**30)
        namespace = store.namespace("me", {}, LAYOUT)
        prefix = store.lookup(namespace, range(num_wanted))
        read = b"".join(bytes(store.load(namespace, part.key)["keys"].data) for part in prefix.parts)
        assert read == keys(range(prefix.num_tokens))
        assert len(folder.sizes()) == len(prefix.parts)
        assert sum(folder.sizes().values()) == store.used_bytes
        assert list(store.report("me").session_bytes) == [session_id]
        return prefix.num_tokens
