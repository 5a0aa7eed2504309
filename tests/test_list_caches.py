"""What a person is told about the cache kinds: by `--list-caches`, by a refusal, and in the README."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from tiny_models import tiny_model

import app
from chatcache.cache.kinds import KINDS, facts_of, resolve_kind, table_of_kinds
from chatcache.errors import UnsupportedOptionError


def test_list_caches_prints_a_line_for_each_kind_without_reading_weights(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny_model("mamba2").config.save_pretrained(tmp_path)
    assert app.main(["--list-caches", "--model", str(tmp_path), "--device", "cpu"]) == 0
    first, *lines = capsys.readouterr().out.splitlines()
    assert f"{tmp_path} on cpu" in first
    assert [line.split()[0] for line in lines] == list(KINDS)
    told = {line.split()[0]: line.split(maxsplit=1)[1] for line in lines}
    assert told["dynamic"] == told["none"] == "yes"
    assert told["quantized-int8"].startswith("no: the model has no attention layers")
    assert told["offloaded"].startswith("no: offloading moves the cache")


def test_list_caches_of_no_model_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert app.main(["--list-caches", "--model", str(tmp_path)]) == 1
    assert "config.json" in capsys.readouterr().err


def test_an_unknown_kind_is_refused_with_the_names_of_all() -> None:
    with pytest.raises(UnsupportedOptionError) as refused:
        resolve_kind(facts_of(tiny_model("llama-gqa").config, "cpu"), "paged")
    assert all(kind in str(refused.value) for kind in KINDS)


def test_the_readme_names_every_kind_that_some_machine_can_have() -> None:
    readme = (Path(app.__file__).parent / "README.md").read_text("utf-8")
    section = readme.split("## Cache kinds")[1].split("\n## ")[0]
    named = {name for line in section.splitlines() for name in re.findall(r"`([a-z0-9-]+)`", line.split(" | ")[0])}
    named &= set(KINDS)
    packages = frozenset({"hqq", "optimum-quanto"})
    facts = [facts_of(tiny_model(name).config, "cuda") for name in ("llama-gqa", "gemma3")]
    tables = [table_of_kinds(replace(each, packages=packages)) for each in facts]
    assert named == {row.kind for table in tables for row in table if row.refusal is None}
