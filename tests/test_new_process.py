"""The cache survives the process: a chat goes on in a new one, with another process's memory, as if nothing had been.

One child process opens, by the service's front door, what this one left behind, for all architectures at once.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from endings import ENDINGS, TIMEOUT_S
from services import GREEDY, counted_forwards, open_service, runtime_of
from tiny_models import FULL_ATTENTION, RECURRENT, SLIDING, tiny_model
from transformers import GenerationConfig, PreTrainedTokenizerFast

from chatcache.cache.token_range import TokenRange
from chatcache.chat import ChatService
from chatcache.config import ServiceConfig
from chatcache.engine import SAVE_EVERY_TOKENS
from chatcache.loader import load_model
from chatcache.session_key import SessionKey
from chatcache.stats import Sampling

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent
ARCHITECTURES = (*FULL_ATTENTION, *SLIDING, *RECURRENT)
LONGER = replace(GREEDY, max_new_tokens=64)
SYSTEM_PROMPT = "You answer in a word or two, and you never repeat yourself. " * 4

CHILD = """
import json, sys
from functools import partial
from pathlib import Path
sys.path[:0] = [sys.argv[1], sys.argv[1] + "/tests"]
import torch
torch.set_num_threads(1)
from test_new_process import answer

for line in sys.stdin:
    print(json.dumps(answer(**json.loads(line))), flush=True)
"""


@dataclass(frozen=True)
class Left:
    """What a session was when its process ended, and how its next reply would have gone there."""

    session_id: str
    num_held_tokens: int
    held: str
    num_reused_tokens: int
    reply_ids: tuple[int, ...]
    next_ids: tuple[int, ...]


def config_of(folder: str, data_dir: str, dtype: str = "float32") -> ServiceConfig:
    return ServiceConfig(model=folder, data_dir=Path(data_dir), device="cpu", dtype=dtype)


def digest_of(tokens: TokenRange) -> str:
    """Of everything a cache holds, byte for byte."""
    digest = hashlib.sha256(repr(tokens.token_ids).encode())
    for layer in tokens.layers:
        for name in sorted(layer):
            digest.update(layer[name].reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def held_by(service: ChatService, session_id: str) -> tuple[int, str]:
    runtime = runtime_of(service)

    def look() -> tuple[int, str]:
        (cache,) = (cache for key, cache in runtime.parts.pool.live.caches.items() if key.session_id == session_id)
        return cache.num_tokens, digest_of(cache.export(0, cache.num_tokens)) if cache.is_croppable else ""

    return runtime.scheduler.call(look)


def begin(service: ChatService, *about: str) -> str:
    """A new chat. No two begin alike, so that none finds what another stored."""
    return service.create_session(system_prompt=f"{about} {SYSTEM_PROMPT}").id


def leave(service: ChatService, ending: str, about: str = "") -> Left:
    """A chat whose first reply ended in this way; its second reply is written in a fork that leaves nothing behind."""
    session_id = begin(service, ending, about)
    reply = ENDINGS[ending](service, session_id)
    num_held, held = held_by(service, session_id)
    fork = service.fork(reply.message.id)
    following = service.send(fork.id, "Go on", LONGER).result(TIMEOUT_S)
    service.drop_cache(fork.id)
    return Left(
        session_id,
        num_held,
        held,
        following.stats.num_cached_tokens,
        reply.message.token_ids or (),
        following.message.token_ids or (),
    )


def answer(folder: str, data_dir: str, dtype: str, session_ids: list[str], regenerate_id: str | None) -> dict[str, Any]:
    """In the new process: what each session holds once it is restored, and how its chat goes on."""
    service = ChatService.open(config_of(folder, data_dir, dtype))
    runtime = runtime_of(service)
    with counted_forwards(runtime.parts.loaded) as forwarded:
        regenerated = {}
        if regenerate_id is not None:
            again = service.regenerate(regenerate_id, sampling=GREEDY).result(TIMEOUT_S)
            regenerated = {"ids": again.message.token_ids, "forwarded": list(forwarded)}
        answers = {}
        for session_id in session_ids:
            service.prefetch(session_id)
            num_held, held = held_by(service, session_id)
            runtime.scheduler.call(partial(runtime.parts.pool.drop, SessionKey("local", session_id)))
            forwarded.clear()
            reply = service.send(session_id, "Go on", LONGER).result(TIMEOUT_S)
            answers[session_id] = {
                "num_held": num_held,
                "held": held,
                "ids": reply.message.token_ids,
                "forwarded": sum(forwarded),
                "stats": reply.stats.to_json(),
            }
    service.close()
    return {"regenerated": regenerated, "answers": answers}


def ask(tasks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Have all tasks answered in one new process."""
    child = subprocess.run(
        [sys.executable, "-c", CHILD, str(ROOT)],
        input="\n".join(json.dumps(task) for task in tasks),
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        timeout=1200,
        check=True,
    )
    return [json.loads(line) for line in child.stdout.splitlines()]


@dataclass(frozen=True)
class Case:
    """A model folder, what was left of its chats by their ending, and what the new process made of them."""

    folder: Path
    data_dir: Path
    left: dict[str, Left]
    regenerated: Left | None
    """A chat whose reply is to be written anew; none where all replies must end by the end-of-text id."""

    @property
    def task(self) -> dict[str, Any]:
        return {
            "folder": str(self.folder),
            "data_dir": str(self.data_dir),
            "dtype": "float32",
            "session_ids": [left.session_id for left in self.left.values()],
            "regenerate_id": self.regenerated and self.regenerated.session_id,
        }


def case_of(folder: Path, data_dir: Path, endings: Iterable[str], dtype: str = "float32") -> Case:
    with open_service(load_model(config_of(str(folder), str(data_dir), dtype)), data_dir) as service:
        left = {ending: leave(service, ending) for ending in endings}
        regenerated = None if "eos" in left else leave(service, "length", "again")
        return Case(folder, data_dir, left, regenerated)


def set_eos(folder: Path, data_dir: Path) -> None:
    """Give the model an end-of-text id that it says in the middle of the reply that is to end by it."""
    with open_service(load_model(config_of(str(folder), str(data_dir))), data_dir) as service:
        said = ENDINGS["length"](service, begin(service, "eos", "")).message.token_ids
    GenerationConfig(eos_token_id=said[3]).save_pretrained(folder)


@pytest.fixture(scope="module")
def cases(
    tiny_tokenizer: PreTrainedTokenizerFast, tmp_path_factory: pytest.TempPathFactory
) -> dict[tuple[str, str], tuple[Case, dict[str, Any]]]:
    """By architecture and ending, what was left and what the new process made of it."""
    made: dict[tuple[str, bool], Case] = {}
    for name in ARCHITECTURES:
        for by_eos in (False, True):
            folder, data_dir = (tmp_path_factory.mktemp(what) for what in ("model", "data"))
            tiny_model(name, len(tiny_tokenizer)).save_pretrained(folder)
            tiny_tokenizer.save_pretrained(folder)
            if by_eos:
                set_eos(folder, tmp_path_factory.mktemp("probe"))
            endings = [ending for ending in ENDINGS if (ending == "eos") == by_eos]
            made[name, by_eos] = case_of(folder, data_dir, endings)
    answers = dict(zip(made, ask([case.task for case in made.values()]), strict=True))
    places = {(name, ending): (name, ending == "eos") for name in ARCHITECTURES for ending in ENDINGS}
    return {which: (made[place], answers[place]) for which, place in places.items()}


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_chat_goes_on_in_a_new_process_as_it_would_have_in_the_old_one(
    name: str, ending: str, cases: dict[tuple[str, str], tuple[Case, dict[str, Any]]]
) -> None:
    case, answers = cases[name, ending]
    left = case.left[ending]
    answered = answers["answers"][left.session_id]
    stats = answered["stats"]
    assert tuple(answered["ids"]) == left.next_ids
    assert stats["num_cached_tokens"] == left.num_reused_tokens
    assert stats["reuse"][-1]["source"] == "disk"
    assert answered["forwarded"] == stats["num_computed_tokens"] + stats["num_completion_tokens"] - 1
    if name not in RECURRENT:  # whose end may lie behind the last state that can be gone back to
        assert (answered["num_held"], answered["held"]) == (left.num_held_tokens, left.held)
        assert stats["num_cached_tokens"] == left.num_held_tokens
        assert stats["miss_reason"] is None


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_regenerating_in_a_new_process_forwards_one_token_of_the_prompt(
    name: str, cases: dict[tuple[str, str], tuple[Case, dict[str, Any]]]
) -> None:
    case, answers = cases[name, "length"]
    assert case.regenerated is not None
    assert tuple(answers["regenerated"]["ids"]) == case.regenerated.reply_ids
    assert answers["regenerated"]["forwarded"] == [1] * GREEDY.max_new_tokens


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_embedded_model_goes_on_in_a_new_process_token_for_token(
    dtype: str, embedded_model_dir: Path, tmp_path: Path
) -> None:
    """In bfloat16, too: the same bytes and the same chunks give the same tokens."""
    case = case_of(embedded_model_dir, tmp_path, ["length"], dtype)
    (answers,) = ask([case.task | {"dtype": dtype}])
    left = case.left["length"]
    assert case.regenerated is not None
    answered = answers["answers"][left.session_id]
    assert answered["held"] == left.held
    assert tuple(answered["ids"]) == left.next_ids
    assert answered["stats"]["num_cached_tokens"] == left.num_held_tokens
    assert tuple(answers["regenerated"]["ids"]) == case.regenerated.reply_ids
    assert answers["regenerated"]["forwarded"] == [1] * GREEDY.max_new_tokens


def reply_at_length(folder: str, data_dir: str) -> None:
    """In a process that is to be killed: begin a long reply, and say when 700 tokens of it are computed."""
    service = ChatService.open(config_of(folder, data_dir))
    session = service.create_session()
    turn = service.send(session.id, "Hello", Sampling(temperature=0.0, max_new_tokens=3000))
    while service.cache_report(session.id).num_tokens < 700 and not turn.done:
        time.sleep(0.01)
    runtime_of(service).persistence.flush()  # how far a busy disk is behind is not what is tested
    sys.stdout.write(f"{session.id}\n")
    sys.stdout.flush()
    turn.result()


def killed_in(begin: str, folder: Path, data_dir: Path) -> str:
    """The session of which `begin`, in a process of its own that is killed then, has spoken."""
    script = CHILD[: CHILD.index("from test_new_process")]
    script += f"from test_new_process import {begin}\n{begin}({str(folder)!r}, {str(data_dir)!r})"
    with subprocess.Popen(
        [sys.executable, "-c", script, str(ROOT)], stdout=subprocess.PIPE, text=True, cwd=ROOT
    ) as child:
        assert child.stdout is not None
        session_id = child.stdout.readline().strip()
        child.kill()
    return session_id


def test_a_process_killed_in_a_long_reply_loses_the_computing_of_its_last_part_only(
    tiny_tokenizer: PreTrainedTokenizerFast, tmp_path: Path
) -> None:
    folder, data_dir = tmp_path / "model", tmp_path / "data"
    tiny_model("llama-gqa", len(tiny_tokenizer)).save_pretrained(folder)
    tiny_tokenizer.save_pretrained(folder)
    session_id = killed_in("reply_at_length", folder, data_dir)
    with open_service(load_model(config_of(str(folder), str(data_dir))), data_dir) as service:
        more = service.continue_reply(session_id, GREEDY).result(TIMEOUT_S)
        assert more.stats.num_cached_tokens >= min(more.stats.num_prompt_tokens - 1, 2 * SAVE_EVERY_TOKENS)
        assert more.stats.reuse[0].source == "disk"


def long_prompt(folder: str, data_dir: str) -> None:
    """In a process that is to be killed: read a long prompt, and stand still at the fourth token of its reply."""
    service = ChatService.open(config_of(folder, data_dir))
    session = service.create_session()
    num_single = 0

    def stand_still(_module: object, args: tuple[torch.Tensor, ...], _output: object) -> None:
        nonlocal num_single
        num_single += args[0].numel() == 1
        if num_single == 4:
            runtime_of(service).persistence.flush()
            sys.stdout.write(f"{session.id}\n")
            sys.stdout.flush()
            threading.Event().wait()

    runtime_of(service).parts.loaded.model.get_input_embeddings().register_forward_hook(stand_still)
    service.send(session.id, "word " * 2 * SAVE_EVERY_TOKENS, LONGER).result()


@pytest.mark.parametrize("architecture", ["llama-gqa", RECURRENT[0], SLIDING[0]])
def test_a_process_killed_after_it_has_read_a_long_prompt_need_not_read_it_again(
    architecture: str, tiny_tokenizer: PreTrainedTokenizerFast, tmp_path: Path
) -> None:
    folder, data_dir = tmp_path / "model", tmp_path / "data"
    tiny_model(architecture, len(tiny_tokenizer)).save_pretrained(folder)
    tiny_tokenizer.save_pretrained(folder)
    session_id = killed_in("long_prompt", folder, data_dir)
    loaded = load_model(config_of(str(folder), str(data_dir)))
    with open_service(loaded, data_dir) as service, counted_forwards(loaded) as counts:
        again = service.regenerate(session_id, sampling=GREEDY).result(TIMEOUT_S)
        assert counts == [1] * GREEDY.max_new_tokens
        assert again.stats.reuse[0].source == "disk"


def test_keys_do_not_depend_on_the_process() -> None:
    script = """
import sys
sys.path.insert(0, sys.argv[1])
from storage.segment_keys import namespace_root, segment_key
root = namespace_root({"model": "m", "rope": {"b": [1, 2], "a": None}, "layout": [["keys", "F32", [0, 8], 0]]})
print(root, segment_key(root, 3, bytes(range(16))), {"a", "b", "c", "d"})
"""
    lines = [
        subprocess.run(
            [sys.executable, "-c", script, str(ROOT)],
            env={"PYTHONHASHSEED": seed},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        ).stdout.split(maxsplit=2)
        for seed in ("1", "2")
    ]
    assert lines[0][:2] == lines[1][:2]
    assert lines[0][2] != lines[1][2], "the two processes hash alike, so the test says nothing"
