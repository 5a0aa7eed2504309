"""kill -9 at each step of a save: the head is the old or the new one, nothing half is ever used, nothing is left over.

The child imports only `storage` and kills itself before or after one step of the write order.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from storage.chat_store import ChatStore
from storage.database import Database
from storage.segment_check import verify_files
from storage.segment_files import SegmentFolder
from storage.segment_format import TensorLayout
from storage.segment_store import SegmentStore

LAYOUT = (TensorLayout("keys", "F32", (0, 8), 0),)
OLD, NEW = list(range(8)), list(range(16))
CHILD = """
import os, random, signal, sys
from pathlib import Path
from storage import segment_files
from storage.database import Database
from storage.segment_format import TensorLayout
from storage.segment_store import NewSegment, ParentSegment, SegmentStore

data_dir, session_id, step, moment, nth = Path(sys.argv[1]), *sys.argv[2:5], int(sys.argv[5])
layout = (TensorLayout("keys", "F32", (0, 8), 0),)

def dying(function):
    calls = 0
    def wrapper(*arguments):
        nonlocal calls
        calls += 1
        if calls != nth:
            return function(*arguments)
        if moment == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        if moment == "halfway":
            os.write(arguments[0], arguments[1][: len(arguments[1]) // 2])
            os.kill(os.getpid(), signal.SIGKILL)
        function(*arguments)
        os.kill(os.getpid(), signal.SIGKILL)
    return wrapper

with Database.open(data_dir) as database:
    store = SegmentStore(database, 2**30)
    namespace = store.namespace("me", {}, layout)
    part = store.lookup(namespace, list(range(8))).parts[-1]
    if step == "_commit":
        store._commit = dying(store._commit)
    else:
        setattr(segment_files, step, dying(getattr(segment_files, step)))
    new = [
        NewSegment(a, list(range(a, a + 4)), {"keys": b"".join(bytes([n]) * 32 for n in range(a, a + 4))})
        for a in (8, 12)
    ]
    store.save(namespace, session_id, ParentSegment(part.key, part.start, 8), new)
print("never reached")
"""
STEPS = [
    *(
        (step, moment, nth)
        for step in ("_write", "_sync", "_rename")
        for moment in ("before", "after")
        for nth in (1, 2)
    ),
    ("_write", "halfway", 2),
    ("_sync_folder", "before", 1),
    ("_sync_folder", "after", 1),
    ("_commit", "before", 1),
    ("_commit", "after", 1),
]


def keys(token_ids: list[int]) -> bytes:
    return b"".join(bytes([n]) * 32 for n in token_ids)


@pytest.mark.parametrize(("step", "moment", "nth"), STEPS)
def test_a_save_that_is_killed_has_happened_or_has_not(tmp_path: Path, step: str, moment: str, nth: int) -> None:
    from storage.segment_store import NewSegment

    with Database.open(tmp_path) as database:
        chats = ChatStore(database)
        session_id = chats.create_session(
            "me", title="kept", system_prompt=None, sampling={}, settings={}, template_vars={}
        ).id
        store = SegmentStore(database, 2**30)
        store.save(store.namespace("me", {}, LAYOUT), session_id, None, [NewSegment(0, OLD, {"keys": keys(OLD)})])
    child = subprocess.run(
        [sys.executable, "-c", CHILD, str(tmp_path), session_id, step, moment, str(nth)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (child.returncode, child.stdout, child.stderr) == (-9, "", "")

    with Database.open(tmp_path) as database:
        assert [s.title for s in ChatStore(database).sessions("me")] == ["kept"]
        folder = SegmentFolder(tmp_path)
        assert verify_files(database, folder).damage == ()
        store = SegmentStore(database, 2**30)
        namespace = store.namespace("me", {}, LAYOUT)
        prefix = store.lookup(namespace, NEW)
        assert prefix.num_tokens == (16 if (step, moment) == ("_commit", "after") else 8)
        read = b"".join(bytes(store.load(namespace, part.key)["keys"].data) for part in prefix.parts)
        assert read == keys(NEW[: prefix.num_tokens])
        assert len(folder.sizes()) == len(prefix.parts)
        assert sum(folder.sizes().values()) == store.used_bytes
        assert list(store.report("me").session_bytes) == [session_id]
        assert verify_files(database, folder).orphans == ()
