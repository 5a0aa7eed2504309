"""The bench measures, compares and prints; what it prints on a real model is not a test's business."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path

import pytest
from databases import open_database

from bench import llama_cpp
from bench.__main__ import main
from bench.line import Line, Ratio
from bench.rows import ROWS
from bench.sight import chat_file
from bench.subjects import BenchError, PlainTransformers
from bench.table import as_json, figure, markdown
from bench.workbench import Workbench
from bench.worker import Worker
from chatcache.chat import LOCAL_OWNER, ChatService
from chatcache.config import ServiceConfig
from chatcache.loader import LoadedModel
from chatcache.runtime import Runtime
from storage.transfer import read_json

LINES = [
    Line("decode", "tokens/s", 43.21, {"transformers": 21.0}, (Ratio("transformers", 43.21 / 21, at_least=2.0),)),
    Line("restore", "s", 0.01234, {"cold": 1234.5}, (Ratio("cold", 0.2, at_most=0.06), Ratio("warm", 1.0))),
]


def test_a_table_has_a_column_for_every_program_and_says_which_ratio_is_missed() -> None:
    head, rule, *rows = markdown(LINES).splitlines()
    assert [cell.strip() for cell in head.split("|")[1:-1]] == [
        "",
        "unit",
        "chatcache",
        "transformers",
        "cold",
        "ratio",
    ]
    assert set(rule) == set("|- ")
    cells = [[cell.strip() for cell in row.split("|")[1:-1]] for row in rows]
    assert cells == [
        ["decode", "tokens/s", "43.2", "21", "", "2.06 × transformers (≥ 2)"],
        ["restore", "s", "0.0123", "", "1,234", "0.2 × cold (≤ 0.06: missed); 1 × warm"],
    ]
    assert len({len(row) for row in [head, rule, *rows]}) == 1


def test_the_json_says_what_the_table_says() -> None:
    data = json.loads(json.dumps(as_json(LINES, {"model": "m"})))
    assert data["model"] == "m"
    assert [line["what"] for line in data["lines"]] == ["decode", "restore"]
    assert [ratio["is_met"] for line in data["lines"] for ratio in line["ratios"]] == [True, False, True]
    assert data["lines"][0]["chatcache"] == 43.21
    assert data["lines"][0]["transformers"] == 21.0


@pytest.mark.parametrize(("value", "text"), [(None, ""), (0.012345, "0.0123"), (99.94, "99.9"), (12345.6, "12,346")])
def test_a_figure_has_three_digits_that_count(value: float | None, text: str) -> None:
    assert figure(value) == text


def test_an_unknown_row_is_refused_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--rows", "decode,flight"])
    assert "there is no row flight" in capsys.readouterr().err


class InThisProcess:
    """What `Worker` would start another process for."""

    name = PlainTransformers.name

    def __init__(self, loaded: LoadedModel) -> None:
        self._plain, self._tokenizer = PlainTransformers(loaded.model), loaded.tokenizer

    def read(self, text: str) -> float:
        return self._plain.read(self._tokenizer.encode(text, add_special_tokens=False))

    def write(self, num_tokens: int) -> float:
        return self._plain.write(num_tokens)

    def close(self) -> None:
        """It goes with the test."""


@pytest.fixture
def tiny_bench(tiny_llama: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workbench:
    """A bench on a model that takes no time; its figures mean nothing, but all that makes them runs."""
    monkeypatch.setattr("bench.subjects.SETTLED_S", 0.001)

    def open_service(config: ServiceConfig) -> ChatService:
        runtime = Runtime(open_database(config.data_dir), tiny_llama, lambda _note: tiny_llama, config)
        service = ChatService(runtime, LOCAL_OWNER)
        service.load()
        return service

    return Workbench(
        config=ServiceConfig(data_dir=tmp_path),
        peers=(InThisProcess(tiny_llama),),
        tokenizer=tiny_llama.tokenizer,
        text="The quick brown fox jumps over the lazy dog. " * 10,
        num_runs=1,
        is_quick=True,
        open_service=open_service,
        load_model=lambda _config: tiny_llama,
    )


@pytest.mark.parametrize("name", ["prefill", "decode"])
def test_a_row_compares_us_with_every_peer(name: str, tiny_bench: Workbench) -> None:
    (line,) = ROWS[name](tiny_bench)
    assert line.ours > 0
    assert line.others["transformers"] > 0
    assert line.ratios[0].value == pytest.approx(line.ours / line.others["transformers"])


@pytest.mark.slow
@pytest.mark.parametrize(("name", "num_lines"), [("resume", 1), ("disk", 3)])
def test_a_row_about_the_disk_measures_all_it_names(name: str, num_lines: int, tiny_bench: Workbench) -> None:
    lines = list(ROWS[name](tiny_bench))
    assert len(lines) == num_lines
    assert all(line.ours > 0 and line.ratios for line in lines)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sampling", "turns", "lookup", "sessions", "quality", "caches"])
def test_a_row_of_our_own_gives_lines_with_what_is_wanted_of_them(name: str, tiny_bench: Workbench) -> None:
    lines = list(ROWS[name](tiny_bench))
    assert lines
    assert all(line.ours >= 0 for line in lines)
    assert name == "quality" or any(line.ratios for line in lines)


@pytest.mark.slow
def test_a_start_is_measured_beside_the_imports_alone(
    tiny_bench: Workbench, tiny_llama: LoadedModel, tmp_path: Path
) -> None:
    tiny_llama.model.save_pretrained(tmp_path / "tiny")
    tiny_bench.tokenizer.save_pretrained(tmp_path / "tiny")
    config = ServiceConfig(model=str(tmp_path / "tiny"), data_dir=tmp_path / "data")
    page, model = ROWS["startup"](dataclasses.replace(tiny_bench, config=config))
    assert page.others == model.others
    for line in (page, model):
        assert line.ours > 0
        assert line.others["the imports"] > 0
        assert line.ratios[0].value == pytest.approx(line.ours / line.others["the imports"])


@pytest.mark.slow
def test_a_start_that_fails_is_told_with_what_was_said(tiny_bench: Workbench, tmp_path: Path) -> None:
    config = ServiceConfig(model=str(tmp_path / "nosuch"), data_dir=tmp_path / "data")
    with pytest.raises(BenchError, match="nosuch"):
        list(ROWS["startup"](dataclasses.replace(tiny_bench, config=config)))


WORKER = """
import json, sys
for line in sys.stdin:
    command = json.loads(line)
    number = len(command["read"]) if "read" in command else command["write"]
    print(json.dumps({"tokens_per_s": 2 * number}), flush=True)
    if number == 7:
        sys.stderr.write("no memory left")
        sys.exit(3)
"""


def test_llama_cpp_is_asked_in_a_process_of_its_own_and_its_end_is_told(
    tiny_llama: LoadedModel, tmp_path: Path
) -> None:
    worker = tmp_path / "worker.py"
    worker.write_text(WORKER)
    subject = Worker("llama.cpp", (sys.executable, worker), tiny_llama.tokenizer)
    num_tokens = len(tiny_llama.tokenizer.encode("Hello there", add_special_tokens=False))
    assert subject.read("Hello there") == 2 * num_tokens
    assert subject.write(32) == 64
    assert subject.write(7) == 14
    for _ in range(2):
        with pytest.raises(BenchError, match="status 3: no memory left"):
            subject.write(8)
    subject.close()


def test_the_worker_finds_the_package_and_not_the_module_of_its_name_beside_it(
    tiny_llama: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "llama_cpp.py"
    package.write_text("import sys\nsys.exit('the package was found')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    subject = llama_cpp.llama_cpp(Path(sys.executable), tmp_path / "model.gguf", tiny_llama.tokenizer)
    with pytest.raises(BenchError, match="the package was found"):
        subject.read("Hello there")
    subject.close()


@pytest.mark.slow
def test_a_peer_that_cannot_be_built_is_told_with_what_the_installer_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(llama_cpp, "PACKAGE", str(tmp_path / "no-such-package"))
    with pytest.raises(BenchError, match="no-such-package could not be installed"):
        llama_cpp.ensure_installed(tmp_path / "peers")
    assert "compiled" in capsys.readouterr().err


def test_the_figures_are_medians_without_the_warm_up_and_the_measures_take_turns(tiny_bench: Workbench) -> None:
    calls: list[str] = []
    values = {"a": iter([1000.0, 3.0]), "b": iter([0.0, 5.0])}

    def measure(name: str) -> float:
        calls.append(name)
        return next(values[name])

    figures = tiny_bench.alternate({"a": lambda: measure("a"), "b": lambda: measure("b")})
    assert figures == {"a": 3.0, "b": 5.0}
    assert calls == ["a", "b", "a", "b"]


def test_the_chats_that_a_browser_is_shown_are_whole() -> None:
    chat = read_json(chat_file("A chat", 3), "me", clean=str)
    assert [message.position for message in chat.tree.messages] == list(range(6))
    assert chat.tree.session.tip_id == chat.tree.messages[-1].id
    assert chat.notes == ()
