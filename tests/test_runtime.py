"""What the services of all owners share: opened whole or not at all."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from chatcache.config import ServiceConfig
from chatcache.loader import LoadedModel
from chatcache.runtime import Runtime
from storage.database import Database


@pytest.mark.parametrize("part", ["CacheSizes.of", "SessionPool", "TurnStarter"])
def test_a_runtime_that_cannot_be_put_together_leaves_no_thread(
    tiny_llama: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise MemoryError("injected")

    before = set(threading.enumerate())
    with Database.open(tmp_path) as database, monkeypatch.context() as patch:
        patch.setattr(f"chatcache.runtime.{part}", fail)
        with pytest.raises(MemoryError, match="injected"):
            Runtime(database, tiny_llama, ServiceConfig(data_dir=tmp_path))
    assert set(threading.enumerate()) <= before
    Runtime(Database.open(tmp_path), tiny_llama, ServiceConfig(data_dir=tmp_path)).close()
