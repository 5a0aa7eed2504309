"""A real out-of-memory on an accelerator: its allocator may give no more, and the chat goes on, offloaded."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from services import GREEDY, open_service, runtime_of
from tiny_models import with_model

from chatcache.events import CacheEvent
from chatcache.loader import LoadedModel
from chatcache.prompt import PromptBuilder
from chatcache.stats import FinishReason, Sampling

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an accelerator (CUDA)"),
]

TIMEOUT_S = 200
LONG = Sampling(temperature=0.0, max_new_tokens=1800)
SPARE_BYTES = 64 * 2**20


@pytest.fixture
def loaded(tiny_llama: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> Iterator[LoadedModel]:
    """On the accelerator, and never at an end by itself."""
    monkeypatch.setattr(PromptBuilder, "_terminator", lambda *_: frozenset())
    model = copy.deepcopy(tiny_llama.model).to("cuda")
    yield with_model(tiny_llama, model, eos_token_ids=frozenset())
    torch.cuda.set_per_process_memory_fraction(1.0)


def fill_up() -> list[torch.Tensor]:
    """All that the cap leaves."""
    ballast: list[torch.Tensor] = []
    for num_bytes in (2**20, 2**18):
        try:
            while True:
                ballast.append(torch.empty(num_bytes, dtype=torch.uint8, device="cuda"))
        except torch.OutOfMemoryError:
            continue
    return ballast


def test_a_reply_goes_on_offloaded_where_the_accelerator_gives_no_more(loaded: LoadedModel, tmp_path: Path) -> None:
    with open_service(loaded, tmp_path / "reference") as service:
        expected = service.send(service.create_session().id, "Hello", LONG).result(TIMEOUT_S).message.token_ids
    with open_service(loaded, tmp_path / "capped", memory_budget_bytes=2**40) as service:
        idle, session = service.create_session(), service.create_session()
        service.send(idle.id, "My name is Ada.", GREEDY).result(TIMEOUT_S)
        total = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + SPARE_BYTES) / total)
        ballast = runtime_of(service).scheduler.call(fill_up)
        turn = service.send(session.id, "Hello", LONG)
        reply = turn.result(TIMEOUT_S)
        kinds = [event.kind for event in turn.events() if isinstance(event, CacheEvent)]
        assert "convert" in kinds
        assert reply.stats.cache_kind == "offloaded"
        assert reply.stats.finish_reason is FinishReason.LENGTH
        assert reply.message.token_ids == expected, "the step was lossless"
        del ballast
        torch.cuda.empty_cache()
        back = service.send(idle.id, "What is my name?", GREEDY).result(TIMEOUT_S)
        assert (back.stats.finish_reason, back.stats.miss_reason) == (FinishReason.LENGTH, None)
