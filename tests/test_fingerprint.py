"""What decides whether a stored cache fits: anything else than the same model, computed the same way, reuses nothing,
breaks nothing, and finds its own again afterwards."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from examples import few_quick
from safetensors.torch import load_file, save_file
from services import GREEDY, open_service
from tiny_models import save

from chatcache.chat import ChatService
from chatcache.config import ServiceConfig
from chatcache.loader import LoadedModel, load_model
from chatcache.prefix import common_length
from chatcache.stats import MissReason, TurnStats

TIMEOUT_S = 60


@pytest.fixture
def folder(tiny_llama: LoadedModel, tmp_path: Path) -> Path:
    return save(tiny_llama, tmp_path / "model")


@dataclass(frozen=True)
class Setting:
    """How the service is opened: over which folder, and what is different."""

    folder: Path
    dtype: str = "float32"
    cache: str = "auto"
    attention: str | None = None
    owner: str = "local"


@contextmanager
def opened(setting: Setting, data_dir: Path) -> Iterator[ChatService]:
    config = ServiceConfig(model=str(setting.folder), data_dir=data_dir, device="cpu", dtype=setting.dtype)
    loaded = load_model(config)
    if setting.attention:
        loaded.model.set_attn_implementation(setting.attention)
    with open_service(loaded, data_dir, cache=setting.cache) as service:
        yield service.for_owner(setting.owner)


def change_one_weight(setting: Setting) -> Setting:
    path = setting.folder / "model.safetensors"
    weights = load_file(path)
    name = max(name for name in weights if "down_proj" in name)
    weights[name][0, 0] = torch.nextafter(weights[name][0, 0], torch.tensor(torch.inf))
    save_file(weights, path, metadata={"format": "pt"})
    return setting


def change_rope(setting: Setting) -> Setting:
    path = setting.folder / "config.json"
    config = json.loads(path.read_text())
    config["rope_parameters"]["rope_theta"] *= 2
    path.write_text(json.dumps(config))
    return setting


CHANGES: dict[str, Callable[[Setting], Setting]] = {
    "one weight": change_one_weight,
    "owner": lambda setting: replace(setting, owner="somebody else"),
    "rope": change_rope,
    "dtype": lambda setting: replace(setting, dtype="bfloat16"),
    "attention": lambda setting: replace(setting, attention="eager"),
    "cache kind": lambda setting: replace(setting, cache="quantized-int8"),
}


def talk(service: ChatService, text: str) -> TurnStats:
    """A new chat with the same system prompt every time: it finds whatever may be found."""
    session = service.create_session(system_prompt="You are a careful assistant. " * 5)
    return service.send(session.id, text, GREEDY).result(TIMEOUT_S).stats


def segment_names(data_dir: Path) -> set[str]:
    return {path.name for path in (data_dir / "segments").glob("*.safetensors")}


@pytest.mark.parametrize("change", few_quick(list(CHANGES), 2))
def test_another_model_owner_or_way_of_computing_reuses_nothing_and_costs_nothing(
    change: str, folder: Path, tmp_path: Path
) -> None:
    data_dir, own = tmp_path / "data", Setting(folder)
    kept = {path.name: path.read_bytes() for path in folder.iterdir()}
    with opened(own, data_dir) as service:
        first = talk(service, "Hello")
    names = segment_names(data_dir)
    with opened(CHANGES[change](own), data_dir) as service:
        other = talk(service, "Hello")
        assert other.reuse == ()
        assert other.num_computed_tokens == first.num_prompt_tokens
        again = talk(service, "Hello")
        assert again.num_computed_tokens == 1, "it has a place of its own"
    assert names < segment_names(data_dir)
    for name, data in kept.items():
        (folder / name).write_bytes(data)
    with opened(own, data_dir) as service:
        back = talk(service, "Hello")
        assert back.num_computed_tokens == 1
        assert [reuse.source for reuse in back.reuse] == ["disk"]


@pytest.mark.parametrize("library", ["torch", "transformers"])
def test_another_release_of_a_library_makes_old_caches_misses_and_a_bug_fix_release_does_not(
    library: str, tiny_llama: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_service(tiny_llama, tmp_path) as service:
        talk(service, "Hello")
    version = __import__(library).__version__
    major, minor, *_ = version.split(".")
    monkeypatch.setattr(f"{library}.__version__", f"{major}.{minor}.99")
    with open_service(tiny_llama, tmp_path) as service:
        assert talk(service, "Hello").num_computed_tokens == 1
    monkeypatch.setattr(f"{library}.__version__", f"{major}.{int(minor) + 1}.0")
    with open_service(tiny_llama, tmp_path) as service:
        assert talk(service, "Hello").reuse == ()


def test_an_edited_message_is_reused_up_to_the_first_token_that_differs(
    tiny_llama: LoadedModel, tmp_path: Path
) -> None:
    with open_service(tiny_llama, tmp_path) as service:
        session = service.create_session(system_prompt="You are brief.")
        first = service.send(session.id, "The quick brown fox jumps", GREEDY).result(TIMEOUT_S)
        service.send(session.id, "Go on", GREEDY).result(TIMEOUT_S)
        before = fed_ids(service, session.id)
    with open_service(tiny_llama, tmp_path) as service:
        assert first.message.parent_id is not None
        edited = service.edit(first.message.parent_id, "The quick brown dog sleeps", GREEDY).result(TIMEOUT_S)
        num_common = common_length(before, fed_ids(service, session.id))
        assert num_common > 20
        assert edited.stats.num_cached_tokens == num_common
        assert edited.stats.reuse[0].source == "disk"
        assert edited.stats.miss_reason is None, "the edited part was never computed"


def test_a_changed_template_is_reused_up_to_the_first_token_that_differs(
    tiny_llama: LoadedModel, tmp_path: Path
) -> None:
    with open_service(tiny_llama, tmp_path) as service:
        session = service.create_session(system_prompt="You are brief.")
        service.send(session.id, "Hello", GREEDY).result(TIMEOUT_S)
        before = fed_ids(service, session.id)
    changed = replace(tiny_llama, chat_template=tiny_llama.chat_template.replace("<|im_end|>\n", "<|im_end|>"))
    with open_service(changed, tmp_path) as service:
        reply = service.send(session.id, "Go on", GREEDY).result(TIMEOUT_S)
        num_common = common_length(before, fed_ids(service, session.id))
        assert reply.stats.num_cached_tokens == num_common > 10
        assert reply.stats.miss_reason is MissReason.NO_CACHE


def fed_ids(service: ChatService, session_id: str) -> tuple[int, ...]:
    return service._starter.fed_ids(service.get_session(session_id), service.messages(session_id))
