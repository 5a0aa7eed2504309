"""What is known of a model before its weights: found out once, remembered as long as its files stay as they are."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tiny_models import save

from chatcache import checkpoint_reader
from chatcache.checkpoint.json_memory import JsonMemory
from chatcache.config import ServiceConfig
from chatcache.errors import ModelLoadError
from chatcache.loader import LoadedModel
from chatcache.model_outline import ModelOutline, read_outline

ROOT = Path(__file__).parent.parent


@pytest.fixture
def folder(tmp_path: Path, tiny_llama: LoadedModel) -> Path:
    return save(tiny_llama, tmp_path / "model")


@pytest.fixture
def times_read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the models whose files were read the long way."""
    names: list[str] = []
    real = checkpoint_reader.read_checkpoint
    monkeypatch.setattr(checkpoint_reader, "read_checkpoint", lambda files: names.append(files.name) or real(files))
    return names


def outline_of(folder: Path) -> ModelOutline:
    return read_outline(ServiceConfig(model=str(folder), data_dir=folder.parent / "data", device="cpu"))


def memory_of(folder: Path) -> Path:
    return folder.parent / "data" / "models" / "checkpoints.json"


def as_values(outline: ModelOutline) -> dict[str, object]:
    """All of it that can be compared; of the tokenizer what it makes of a text."""
    values = {field.name: getattr(outline, field.name) for field in dataclasses.fields(outline)}
    tokenizer = values.pop("tokenizer")
    return values | {
        "class": type(tokenizer),
        "ids": tokenizer.encode("Grüße, naïve café. <|im_end|>"),
        "special": tokenizer.special_tokens_map,
    }


def test_a_model_that_was_read_before_is_the_same_without_being_read_again(
    folder: Path, times_read: list[str], tiny_llama: LoadedModel
) -> None:
    first, second = outline_of(folder), outline_of(folder)
    assert as_values(first) == as_values(second)
    assert times_read == ["model"]
    assert second.layer_types == ("full_attention",) * 2
    assert second.num_token_ids == tiny_llama.model.get_input_embeddings().num_embeddings
    assert second.tokenizer_digest == tiny_llama.tokenizer_digest


def test_the_embedded_model_is_the_same_when_it_is_remembered(embedded: LoadedModel, test_data_dir: Path) -> None:
    config = ServiceConfig(data_dir=test_data_dir, device="cpu", dtype="float32")
    remembered = as_values(read_outline(config))
    known = as_values(embedded)
    assert {name: known[name] for name in remembered} == remembered


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json"])
def test_a_file_that_changed_is_read_again(folder: Path, times_read: list[str], name: str) -> None:
    outline_of(folder)
    path = folder / name
    path.write_text(json.dumps(json.loads(path.read_text("utf-8")), indent=7), "utf-8")
    os.utime(path, ns=(1, 1))
    outline_of(folder)
    assert times_read == ["model", "model"]


def test_a_link_to_nothing_in_the_folder_is_no_obstacle(folder: Path, times_read: list[str]) -> None:
    (folder / ".#config.json").symlink_to("someone@somewhere")  # an editor's lock
    assert as_values(outline_of(folder)) == as_values(outline_of(folder))
    assert times_read == ["model"]


def test_a_model_that_cannot_be_used_any_more_is_refused_although_it_is_remembered(folder: Path) -> None:
    outline_of(folder)
    (folder / "tokenizer.json").write_text("{}", "utf-8")
    with pytest.raises(ModelLoadError, match="tokenizer"):
        outline_of(folder)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda _entry: None,
        lambda entry: entry | {"facts": None},
        lambda entry: entry | {"facts": entry["facts"] | {"layer_types": "full_attention"}},
        lambda entry: entry | {"facts": entry["facts"] | {"num_token_ids": "many"}},
        lambda entry: entry | {"facts": entry["facts"] | {"max_context_tokens": [1]}},
        lambda entry: entry | {"facts": entry["facts"] | {"tokenizer_class": "NoSuchTokenizer"}},
        lambda entry: entry | {"stamp": 5},
    ],
)
def test_a_memory_that_holds_anything_else_costs_time_only(
    folder: Path, times_read: list[str], spoil: Callable[[dict], object]
) -> None:
    first = outline_of(folder)
    memory = JsonMemory(memory_of(folder))
    memory.store({key: spoil(entry) for key, entry in memory.load().items()})
    assert as_values(outline_of(folder)) == as_values(first)
    memory_of(folder).write_text("[broken")
    assert as_values(outline_of(folder)) == as_values(first)
    assert len(times_read) == 3


@pytest.mark.slow
def test_to_read_a_remembered_model_nothing_is_imported_that_computes(folder: Path) -> None:
    outline_of(folder)
    program = (
        "import sys; from pathlib import Path; from chatcache.config import ServiceConfig;"
        "from chatcache.model_outline import read_outline;"
        "read_outline(ServiceConfig(model=sys.argv[1], data_dir=Path(sys.argv[2]), device='cpu'));"
        "print(*sys.modules)"
    )
    command = [sys.executable, "-c", program, str(folder), str(folder.parent / "data")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    imported = done.stdout.split()
    assert "transformers" in imported
    assert not {"transformers.modeling_utils", "transformers.conversion_mapping", "sympy"} & set(imported)
