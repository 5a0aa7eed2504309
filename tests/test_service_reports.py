"""What the service tells of memory and disk: each chat's caches, the plan, and the check of what is stored."""

from __future__ import annotations

import copy
import dataclasses
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from services import GREEDY, open_service, runtime_of
from statements import noted_statements
from torch import nn

from chatcache import writer_pace
from chatcache.chat import ChatService
from chatcache.errors import InvalidInputError, NotFoundError, UnsupportedOptionError
from chatcache.loader import LoadedModel
from chatcache.memory.model_shape import ModelShape
from chatcache.memory.planner import plan_cache, plan_memory
from chatcache.memory.rehearsal import rehearse
from chatcache.verification import Verification
from chatcache.weights.weight_form import apply_form
from chatcache.writer_pace import WriterPace
from storage.segment_check import VerifyReport
from storage.segment_files import FOLDER_NAME


@pytest.fixture
def service(tiny_llama: LoadedModel, tmp_path: Path) -> Iterator[ChatService]:
    with open_service(tiny_llama, tmp_path, memory_budget_bytes=8 * 2**20) as service:
        yield service


def chat(service: ChatService, text: str = "The quick brown fox.") -> str:
    session = service.create_session(sampling=GREEDY)
    service.send(session.id, text).result(30)
    return session.id


def stored(service: ChatService) -> None:
    """Wait until what was handed to the writer is on disk."""
    runtime_of(service).persistence.flush()


def test_the_report_names_each_chat_of_the_owner_and_no_one_elses(service: ChatService) -> None:
    first, second = chat(service), chat(service, "Numbers such as 333.")
    chat(service.for_owner("other"))
    report = service.cache_report(first)
    assert [c.session_id for c in report.chats] == [second, first]
    mine = report.chats[1]
    assert (mine.kind, mine.num_tokens, mine.num_bytes) == (report.kind, report.num_tokens, report.num_bytes)
    assert sum(c.num_bytes for c in report.chats) == report.total_bytes < report.reserved_bytes


def num_fed(service: ChatService, session_id: str) -> int:
    return service.context_use(session_id).num_fed_tokens


def test_what_a_chat_takes_of_the_context_is_what_its_next_turn_is_fed(service: ChatService) -> None:
    session_id = chat(service)
    first = num_fed(service, session_id)
    assert service.continue_reply(session_id).result(30).stats.num_prompt_tokens == first
    longer = num_fed(service, session_id)
    assert longer > first
    service.edit(service.messages(session_id)[-1].id, "Written by hand, and so counted by no turn.")
    by_hand = num_fed(service, session_id)
    assert service.continue_reply(session_id).result(30).stats.num_prompt_tokens == by_hand != longer
    written_on = num_fed(service, session_id)
    service.update_session(session_id, system_prompt="Speak of numbers only.")
    assert num_fed(service, session_id) > written_on
    service.rollback(session_id)
    assert num_fed(service, session_id) == 0
    with pytest.raises(NotFoundError):
        service.for_owner("other").context_use(session_id)


def test_what_is_left_of_the_context_is_not_less_than_a_message_finds(service: ChatService) -> None:
    text = "Numbers such as 333."
    promised = service.context_use_of_new_chat("Be brief.")
    session = service.create_session(system_prompt="Be brief.", sampling=GREEDY)
    for _ in range(3):
        use = service.context_use(session.id)
        assert use.num_tokens == promised.num_tokens or use.num_fed_tokens
        assert use.num_frame_tokens > 0
        stats = service.send(session.id, text).result(30).stats
        assert stats.num_prompt_tokens == use.num_tokens + service.count_tokens(text)
    assert service.context_use_of_new_chat().num_tokens < promised.num_tokens


def test_what_a_chat_takes_is_read_anew_only_when_the_chat_has_changed(service: ChatService) -> None:
    session_id = chat(service)
    use = service.context_use(session_id)
    runtime_of(service).persistence.flush()  # so that its writer asks nothing meanwhile
    with noted_statements() as statements:
        assert service.context_use(session_id) == use
    assert len(statements) == 1, "the session alone"
    service.send(session_id, "More.").result(30)
    assert service.context_use(session_id) != use


def test_the_plan_is_the_planners_own(service: ChatService, tiny_llama: LoadedModel) -> None:
    outlook = service.memory_plan(1000, num_sessions=3)
    shape = rehearse(tiny_llama.model.config, tiny_llama.model.dtype, "tiny-llama")
    assert outlook.plan == plan_memory(shape, outlook.plan.request)
    assert outlook.plan.of("dynamic").cache == plan_cache(shape, "dynamic", 1000)
    assert outlook.plan.request.memory_bytes == shape.weight_bytes + 8 * 2**20
    assert outlook.kind == service.model_info.cache_kind
    assert {curve.kind for curve in outlook.curves} == {k.cache.kind for k in outlook.plan.kinds if k.refusal is None}
    for curve in outlook.curves:
        sizes = [point.total_bytes for point in curve.points]
        assert sizes == sorted(sizes)
        assert curve.points[-1].context_tokens == 2048
    end = next(c for c in service.memory_plan().curves if c.kind == "dynamic").points[-1]
    assert end.total_bytes == service.memory_plan().plan.of("dynamic").total_bytes


def test_the_plan_counts_weights_as_they_are_held(tiny_llama: LoadedModel, tmp_path: Path) -> None:
    model = copy.deepcopy(tiny_llama.model)
    apply_form(model, "int8")
    in_8_bits = dataclasses.replace(tiny_llama, model=model, weights="int8")
    full_bytes = rehearse(model.config, model.dtype, "tiny-llama").weight_bytes
    linears = [each.weight for each in tiny_llama.model.modules() if isinstance(each, nn.Linear)]
    packed_bytes = sum(weight.numel() + 4 * weight.shape[0] for weight in linears)  # a byte each, and scales
    with open_service(in_8_bits, tmp_path) as service:
        held_bytes = service.memory_plan().plan.shape.weight_bytes
    # The output head, which the embedding does not share here, is held in 8 bits alone.
    assert held_bytes == full_bytes + packed_bytes - tiny_llama.model.lm_head.weight.nbytes


def test_a_plan_that_cannot_be_made_is_tried_once(service: ChatService, monkeypatch: pytest.MonkeyPatch) -> None:
    tries: list[str] = []

    def fail(_config: object, _dtype: object, name: str) -> ModelShape:
        tries.append(name)
        raise UnsupportedOptionError("injected")

    monkeypatch.setattr("chatcache.model_parts.rehearse", fail)
    depths: set[int] = set()
    for _ in range(3):
        with pytest.raises(UnsupportedOptionError, match="injected") as refused:
            service.memory_plan()
        depths.add(len(refused.traceback))
    assert len(tries) == 1
    assert len(depths) == 1, "an error that is kept does not keep what it met"


def test_what_does_not_fit_is_told_with_what_helps(service: ChatService) -> None:
    outlook = service.memory_plan(2048, num_sessions=100)
    assert not outlook.plan.of("dynamic").fits
    assert outlook.advice
    assert not service.memory_plan(100).advice


@pytest.mark.parametrize(
    "arguments", [{"context_tokens": 0}, {"num_sessions": 0}, {"context_tokens": 1.5}, {"kind": "x"}]
)
def test_a_plan_for_nothing_is_refused(service: ChatService, arguments: dict[str, object]) -> None:
    with pytest.raises(InvalidInputError):
        service.memory_plan(**arguments)  # type: ignore[arg-type]


def test_whole_files_are_found_whole_and_a_changed_one_is_named(service: ChatService, tmp_path: Path) -> None:
    chat(service)
    stored(service)
    check = service.verify_caches()
    report = check.result(30)
    assert report.num_files > 0
    assert report.num_bytes == service.storage_report().cache.num_bytes
    assert (report.damage, report.orphans) == ((), ())
    assert check.progress.num_checked == check.progress.num_files == report.num_files
    file = next((tmp_path / FOLDER_NAME).glob("*.safetensors"))
    file.write_bytes(file.read_bytes()[:-1] + b"?")
    (damage,) = service.verify_caches().result(30).damage
    assert file.name in damage.reason


def test_a_check_reads_only_what_is_the_owners(service: ChatService) -> None:
    chat(service)
    stored(service)
    assert service.for_owner("other").verify_caches().result(30).num_files == 0


def test_a_check_that_runs_is_joined_and_ends_with_the_service(service: ChatService) -> None:
    chat(service)
    stored(service)
    first = service.verify_caches()
    assert service.verify_caches() is first or first.done
    service.close()
    assert first.done


def test_a_check_rests_while_turns_run_and_goes_on_at_once_when_they_have_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(writer_pace, "SHARE", 1e-5)
    is_busy = threading.Event()
    is_busy.set()

    def check(progress: Callable[[int, int], None]) -> VerifyReport:
        for number in range(3):
            progress(number, 3)
            burn = time.thread_time() + 0.02
            while time.thread_time() < burn:
                pass
        return VerifyReport(3, 0, (), ())

    verification = Verification(check, WriterPace(is_busy.is_set))
    with pytest.raises(TimeoutError):
        verification.result(0.3)
    is_busy.clear()
    assert verification.result(30).num_files == 3
