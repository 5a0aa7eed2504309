"""A service whose model's weights are still being loaded: what can be done meanwhile, what waits, how it ends."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue

import pytest
from services import GREEDY, HeldWeights, loading_service, open_service, runtime_of
from tiny_models import save

from chatcache.chat import ChatService
from chatcache.config import ServiceConfig
from chatcache.errors import ModelLoadError, ServiceClosedError
from chatcache.events import Phase, StatusEvent
from chatcache.loader import LoadedModel
from chatcache.loading import Loading
from chatcache.stats import FinishReason
from storage.records import MessageStatus

WAIT_S = 60


@pytest.fixture
def weights(tiny_llama: LoadedModel) -> HeldWeights:
    return HeldWeights(tiny_llama)


@pytest.fixture
def service(weights: HeldWeights, tmp_path: Path) -> Iterator[ChatService]:
    with loading_service(weights, tmp_path) as service:
        yield service


def test_chats_can_be_made_read_changed_and_removed_before_the_weights_are_there(service: ChatService) -> None:
    session = service.create_session(title="First")
    other = service.create_session(temporary=True)
    service.update_session(session.id, title="Renamed", settings={"prompt_lookup": True})
    assert service.count_tokens("Hello there.") > 0
    assert service.model_info.name == "tiny-llama"
    assert service.storage_report().hit_rate is None
    assert service.drop_all_caches().num_bytes == 0
    service.delete(other.id)
    assert service.delete(session.id).title == "Renamed"
    service.purge(session.id)
    assert service.loading is not None


def test_how_far_it_is_can_be_asked_until_it_is_over(service: ChatService, weights: HeldWeights) -> None:
    first = service.loading
    assert first is not None
    assert first.step in ("It takes long.", None)
    second = service.loading
    assert second is not None
    assert second.seconds > first.seconds >= 0
    told: SimpleQueue[BaseException | None] = SimpleQueue()
    runtime_of(service).loading.when_over(told.put)
    weights.arrive()
    assert told.get(timeout=WAIT_S) is None
    assert service.loading is None
    assert service.model_info.weights == "full"


def test_a_message_sent_meanwhile_says_that_it_waits_and_is_answered_then(
    service: ChatService, weights: HeldWeights
) -> None:
    session = service.create_session(sampling=GREEDY)
    turn = service.send(session.id, "Hello.")
    assert turn.events_since(0) == [StatusEvent(Phase.LOADING, index=0)]
    assert service.messages(session.id)[-1].status is MessageStatus.GENERATING
    weights.arrive()
    assert turn.result(WAIT_S).stats.finish_reason in (FinishReason.STOP, FinishReason.LENGTH)
    assert service.send(session.id, "And now?").events_since(0)[0] == StatusEvent(Phase.QUEUED, index=0)


def test_a_message_that_waits_can_be_stopped_at_once(service: ChatService) -> None:
    session = service.create_session(sampling=GREEDY)
    turn = service.send(session.id, "Hello.")
    turn.stop()
    assert turn.result(WAIT_S).stats.finish_reason is FinishReason.CANCELLED
    service.send(session.id, "Once more.").stop()
    assert service.loading is not None


def test_what_is_said_of_caches_in_memory_waits_and_keeps_nobody_from_sending(
    service: ChatService, weights: HeldWeights
) -> None:
    session = service.create_session(sampling=GREEDY)
    with ThreadPoolExecutor() as pool:
        prefetch = pool.submit(service.prefetch, session.id)
        report = pool.submit(service.cache_report, session.id)
        plan = pool.submit(service.memory_plan, 100)
        turn = service.send(session.id, "Hello.")
        assert not any(waiting.done() for waiting in (prefetch, report, plan))
        weights.arrive()
        turn.result(WAIT_S)
        assert plan.result(WAIT_S).plan.shape.weight_bytes > 0
        assert report.result(WAIT_S).budget_bytes > 0
        prefetch.result(WAIT_S)


def test_closing_does_not_wait_for_the_weights(weights: HeldWeights, tmp_path: Path) -> None:
    told: list[object] = []
    with loading_service(weights, tmp_path) as service, ThreadPoolExecutor() as pool:
        runtime_of(service).loading.when_over(told.append)
        session = service.create_session(sampling=GREEDY)
        turn = service.send(session.id, "Hello.")
        report = pool.submit(service.cache_report, session.id)
        service.close()
        assert not weights.have_arrived.is_set()
        assert turn.result(WAIT_S).stats.finish_reason is FinishReason.INTERRUPTED
        with pytest.raises(ServiceClosedError):
            report.result(WAIT_S)
    assert told == []
    with open_service(weights.loaded, tmp_path) as service:
        assert [message.text for message in service.messages(session.id)] == ["Hello.", ""]
        assert service.regenerate(session.id).result(WAIT_S).message.text


def test_weights_that_cannot_be_loaded_end_what_waits_for_them_with_the_reason(
    service: ChatService, weights: HeldWeights
) -> None:
    weights.failure = ModelLoadError("The weights are damaged.")
    session = service.create_session(sampling=GREEDY)
    turn = service.send(session.id, "Hello.")
    told: SimpleQueue[BaseException | None] = SimpleQueue()
    runtime_of(service).loading.when_over(told.put)
    weights.arrive()
    stats = turn.result(WAIT_S).stats
    assert stats.finish_reason is FinishReason.ERROR
    assert "The weights are damaged." in stats.fallbacks[0]
    assert told.get(timeout=WAIT_S) is weights.failure
    with pytest.raises(ModelLoadError, match="damaged"):
        service.cache_report(session.id)
    assert service.regenerate(session.id).result(WAIT_S).stats.finish_reason is FinishReason.ERROR
    assert service.loading is None


def test_what_is_given_up_is_made_in_vain_and_never_told() -> None:
    goes_on, is_made = threading.Event(), threading.Event()

    def make(_note: object) -> int:
        assert goes_on.wait(WAIT_S)
        is_made.set()
        return 1

    it, told = Loading(make), []
    it.when_over(told.append)
    it.begin()
    it.give_up()
    goes_on.set()
    assert is_made.wait(WAIT_S)
    assert (it.is_over, it.made, told) == (True, None, [])
    with pytest.raises(ServiceClosedError):
        it.result()


def test_an_opened_service_has_its_weights_unless_they_are_left_for_later(
    tmp_path: Path, tiny_llama: LoadedModel
) -> None:
    folder = save(tiny_llama, tmp_path / "model")
    (folder / "model.safetensors").write_bytes(b"damaged")
    config = ServiceConfig(model=str(folder), data_dir=tmp_path / "data", device="cpu")
    with pytest.raises(ModelLoadError, match="cannot be loaded"):
        ChatService.open(config)
    service = ChatService.open(config, loads=False)
    told: SimpleQueue[BaseException | None] = SimpleQueue()
    try:
        loading = service.loading
        assert loading is not None
        assert loading.seconds == 0
        service.load(told.put)
        with pytest.raises(ModelLoadError, match="cannot be loaded"):
            service.cache_report(service.create_session().id)
        assert isinstance(told.get(timeout=WAIT_S), ModelLoadError)
    finally:
        service.close()
