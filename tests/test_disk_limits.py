"""The disk: a quota that holds at every moment, and a disk that is full while a person chats."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from services import GREEDY, open_service

from chatcache.chat import ChatService
from chatcache.errors import StorageError
from chatcache.loader import LoadedModel
from chatcache.stats import FinishReason, Sampling
from storage.segment_files import SegmentFolder

TIMEOUT_S = 60
LONG = Sampling(temperature=0.0, max_new_tokens=300)


def send(service: ChatService, session_id: str, text: str, sampling: Sampling = GREEDY) -> None:
    reply = service.send(session_id, text, sampling).result(TIMEOUT_S)
    assert reply.stats.finish_reason is not FinishReason.ERROR
    assert reply.message.text or reply.stats.num_completion_tokens


def folder_bytes(data_dir: Path) -> int:
    """All that is in the folder now: complete files, those being written, those set aside."""
    total = 0
    for folder, _, names in os.walk(data_dir / "segments"):
        for name in names:
            try:
                total += os.stat(os.path.join(folder, name)).st_size
            except FileNotFoundError:
                continue
    return total


@contextmanager
def watched(data_dir: Path) -> Iterator[list[int]]:
    """A list that gets the largest size of the folder that a thread beside the block ever saw."""
    is_over, largest = threading.Event(), [0]

    def watch() -> None:
        while not is_over.wait(0.001):
            largest[0] = max(largest[0], folder_bytes(data_dir))

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield largest
    finally:
        is_over.set()
        thread.join()


@pytest.mark.slow
def test_files_never_exceed_the_quota_while_thirty_chats_with_two_models_run(
    tiny_llama: LoadedModel, tmp_path: Path
) -> None:
    quota_bytes = 600_000  # a chat of below takes about 60,000
    other_model = dataclasses.replace(tiny_llama, digest="11" * 32)
    num_evicting = 0
    with watched(tmp_path) as largest:
        for loaded in (tiny_llama, other_model, tiny_llama):
            with open_service(loaded, tmp_path, disk_quota_bytes=quota_bytes) as service:
                assert service.storage_report().cache.used_bytes <= quota_bytes
                for number in range(10):
                    session = service.create_session(system_prompt=f"Number {number}.")
                    turns = [service.send(session.id, f"word {number} " * 20, GREEDY)]
                    other = service.create_session()
                    turns.append(service.send(other.id, f"Something else {number}", GREEDY))
                    for turn in turns:
                        assert turn.result(TIMEOUT_S).stats.finish_reason is not FinishReason.ERROR
                    service._runtime.persistence.flush()
                    report = service.storage_report().cache
                    assert folder_bytes(tmp_path) == report.used_bytes <= quota_bytes
                    num_evicting += report.used_bytes > quota_bytes * 0.8
                    assert service.cache_report(session.id).problem is None
    assert 0 < largest[0] <= quota_bytes
    assert num_evicting > 5, "the quota was never reached, so the test says nothing"


def test_a_chat_larger_than_the_quota_is_refused_and_goes_on(tiny_llama: LoadedModel, tmp_path: Path) -> None:
    quota_bytes = 100_000
    with open_service(tiny_llama, tmp_path, disk_quota_bytes=quota_bytes) as service:
        session = service.create_session()
        send(service, session.id, "word " * 150, LONG)
        send(service, session.id, "Go on", LONG)
        service._runtime.persistence.flush()
        assert "quota" in (service.cache_report(session.id).problem or "")
        assert folder_bytes(tmp_path) <= quota_bytes
        small = service.create_session()
        send(service, small.id, "Hello")
    with open_service(tiny_llama, tmp_path, disk_quota_bytes=quota_bytes) as service:
        assert service.prefetch(small.id) > 0
        send(service, session.id, "And on")


def test_a_quota_of_nothing_stores_nothing_and_says_why(tiny_llama: LoadedModel, tmp_path: Path) -> None:
    with open_service(tiny_llama, tmp_path, disk_quota_bytes=0) as service:
        session = service.create_session()
        send(service, session.id, "Hello")
        service._runtime.persistence.flush()
        assert folder_bytes(tmp_path) == 0
        assert "quota" in (service.cache_report(session.id).problem or "")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 9 MiB."""
    path = tmp_path / "disk"
    path.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=9m", "tmpfs", path], capture_output=True, text=True)
    if mounted.returncode:
        pytest.skip(f"No file system can be mounted here: {mounted.stderr.strip()}")
    yield path
    subprocess.run(["umount", "-l", path], check=True)


@pytest.mark.slow
def test_caches_never_fill_the_disk_up_and_a_disk_that_others_fill_costs_the_caches_alone(
    small_disk: Path, tiny_llama: LoadedModel
) -> None:
    data_dir, other = small_disk / "data", small_disk / "somebody else's"
    with open_service(tiny_llama, data_dir) as service:
        sizes = []
        for number in range(20):
            session = service.create_session()
            send(service, session.id, f"{number} " + "word " * 350)
            service._runtime.persistence.flush()
            assert service.cache_report(session.id).problem is None, "old caches make room for new ones"
            sizes.append(folder_bytes(data_dir))
        assert max(sizes) == max(sizes[:-3]) > 2**20, "the disk was never full, so the test says nothing"
        fill(other, but=300_000)
        session = service.create_session()
        send(service, session.id, "word " * 350)
        service._runtime.persistence.flush()
        other.unlink()
        send(service, session.id, "Go on")
        service._runtime.persistence.flush()
        assert service.cache_report(session.id).problem is None
        num_held = service.cache_report(session.id).num_tokens
    with open_service(tiny_llama, data_dir) as service:
        assert service.prefetch(session.id) == num_held


def test_caches_give_way_when_a_disk_without_a_free_byte_refuses_a_message(
    small_disk: Path, tiny_llama: LoadedModel
) -> None:
    data_dir = small_disk / "data"
    with open_service(tiny_llama, data_dir) as service:
        for number in range(5):
            send(service, service.create_session().id, f"{number} " + "word " * 350)
        service._runtime.persistence.flush()
        num_bytes = folder_bytes(data_dir)
        session = service.create_session()
        fill(small_disk / "somebody else's", but=0)
        with pytest.raises(StorageError, match="disk is full"):
            write_until_refused(service, session.id)
        assert folder_bytes(data_dir) < num_bytes
        send(service, session.id, "Hello")
        assert [message.text for message in service.messages(session.id)].count("Hello") == 1


def write_until_refused(service: ChatService, session_id: str) -> None:
    """The database's log has some room of its own."""
    for _ in range(200):
        service.update_session(session_id, system_prompt="prompt " * 3000)


def fill(path: Path, but: int) -> None:
    """Leave only so many bytes of the disk free."""
    with path.open("wb", buffering=0) as file:
        with contextlib.suppress(OSError):
            while True:
                file.write(bytes(65536))
        file.truncate(max(0, file.tell() - but))


def test_a_disk_that_refuses_to_write_caches_is_told_and_used_again_when_it_takes_them(
    tiny_llama: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_space(*_args: object) -> None:
        raise OSError(28, "No space left on device")

    with open_service(tiny_llama, tmp_path) as service:
        session = service.create_session()
        with monkeypatch.context() as patch:
            patch.setattr(SegmentFolder, "write", no_space)
            send(service, session.id, "One")
            service._runtime.persistence.flush()
            assert "No space left" in (service.cache_report(session.id).problem or "")
        send(service, session.id, "Two")
        service._runtime.persistence.flush()
        assert service.cache_report(session.id).problem is None
        num_held = service.cache_report(session.id).num_tokens
    with open_service(tiny_llama, tmp_path) as service:
        assert service.prefetch(session.id) == num_held
