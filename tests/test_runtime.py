"""What the services of all owners share: opened whole or not at all."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from chatcache.config import ServiceConfig
from chatcache.loader import LoadedModel
from chatcache.runtime import Runtime
from storage.database import Database


def start(database: Database, loaded: LoadedModel) -> Runtime:
    """A runtime whose parts are all there."""
    runtime = Runtime(database, loaded, lambda _note: loaded, ServiceConfig(data_dir=database.data_dir))
    try:
        runtime.loading.begin()
        runtime.loading.result()
    except BaseException:
        runtime.close()
        raise
    return runtime


@pytest.mark.parametrize(
    "part",
    ["chatcache.model_parts.CacheSizes.of", "chatcache.model_parts.SessionPool", "chatcache.runtime.TurnStarter"],
)
def test_a_runtime_that_cannot_be_put_together_leaves_no_thread(
    tiny_llama: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ValueError("injected")

    before = set(threading.enumerate())
    with Database.open(tmp_path) as database, monkeypatch.context() as patch:
        patch.setattr(part, fail)
        with pytest.raises(ValueError, match="injected"):
            start(database, tiny_llama)
    assert set(threading.enumerate()) <= before
    start(Database.open(tmp_path), tiny_llama).close()
