"""Services over models made in the tests, and a counter of what really passes through a model."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from databases import open_database

from chatcache.chat import LOCAL_OWNER, ChatService
from chatcache.config import ServiceConfig
from chatcache.loader import LoadedModel
from chatcache.runtime import Runtime
from chatcache.stats import Sampling
from storage.records import Message

GREEDY = Sampling(temperature=0.0, max_new_tokens=8)
LOAD_TIMEOUT_S = 120


@contextmanager
def open_service(loaded: LoadedModel, data_dir: Path, **options: Any) -> Iterator[ChatService]:
    """A service on `data_dir` with a model that is in memory already."""
    weights = HeldWeights(loaded)
    weights.arrive()
    with loading_service(weights, data_dir, **options) as service:
        runtime_of(service).loading.result()
        yield service


@dataclass
class HeldWeights:
    """Weights that are there once `arrive` is called, unless something was put into `failure` before."""

    loaded: LoadedModel
    failure: Exception | None = None
    have_arrived: threading.Event = field(default_factory=threading.Event)

    def load(self, note: Callable[[str], None]) -> LoadedModel:
        note("It takes long.")
        assert self.have_arrived.wait(LOAD_TIMEOUT_S)
        if self.failure is not None:
            raise self.failure
        return self.loaded

    def arrive(self) -> None:
        self.have_arrived.set()


@contextmanager
def loading_service(weights: HeldWeights, data_dir: Path, **options: Any) -> Iterator[ChatService]:
    """A service whose weights have not arrived yet."""
    config = ServiceConfig(data_dir=data_dir, **options)
    service = ChatService(Runtime(open_database(data_dir), weights.loaded, weights.load, config), LOCAL_OWNER)
    try:
        service.load()
        yield service
    finally:
        service.close()
        weights.arrive()


def runtime_of(service: ChatService) -> Runtime:
    """What lies behind a service, for what its surface does not show."""
    return service._opened


@contextmanager
def counted_forwards(loaded: LoadedModel) -> Iterator[list[int]]:
    """A list that gets the number of tokens of every forward, as the input embedding sees them."""
    counts: list[int] = []
    embedding = loaded.model.get_input_embeddings()
    handle = embedding.register_forward_hook(lambda _module, args, _output: counts.append(args[0].numel()))
    try:
        yield counts
    finally:
        handle.remove()


def every_message(service: ChatService, session_id: str) -> dict[str, Message]:
    """All messages that can be reached from the session's roots by looking at alternatives and children."""
    store = runtime_of(service).store
    found: dict[str, Message] = {}
    queue: list[str | None] = [None]
    while queue:
        for message in store.children(service._owner, session_id, queue.pop()):
            found[message.id] = message
            queue.append(message.id)
    return found
