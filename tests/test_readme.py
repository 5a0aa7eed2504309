"""The README's commands, options and paths are the project's."""

import ast
import re
from pathlib import Path

import pytest

import app
from chatcache.chat import ChatService

ROOT = Path(app.__file__).parent
README = (ROOT / "README.md").read_text("utf-8")
MAKEFILE = (ROOT / "Makefile").read_text("utf-8")


def test_every_make_command_is_a_target() -> None:
    named = set(re.findall(r"\bmake (\w+)", README))
    assert {"run", "test", "check", "setup"} <= named
    for target in named:
        assert re.search(rf"^{target}:", MAKEFILE, re.MULTILINE), f"make {target} is not in the Makefile"


def test_the_table_of_options_is_what_app_takes(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        app.parse_arguments(["--help"])
    taken = set(re.findall(r"--[a-z-]+", capsys.readouterr().out)) - {"--help", "--version"}
    assert set(re.findall(r"^\| `(--[a-z-]+)`", README, re.MULTILINE)) == taken


def test_the_address_is_the_default_one() -> None:
    assert app.parse_arguments([])[1].url in README


def test_every_path_in_the_tree_exists() -> None:
    tree = re.search(r"## How it is built\n\n((?: {4}.*\n)+)", README)
    assert tree is not None
    names = [re.match(r" {4}( *)(\S+)", line) for line in tree[1].splitlines()]
    parent = ""
    for name in names:
        parent = parent if name[1] else name[2]
        path = ROOT / (parent + name[2] if name[1] else name[2])
        assert path.exists(), path


def test_the_script_uses_methods_that_exist() -> None:
    (script,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    methods = {
        node.func.attr
        for node in ast.walk(ast.parse(script))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and isinstance(node.func.value, ast.Name)
        and node.func.value.id == "service"
    }
    assert methods
    assert all(hasattr(ChatService, name) for name in methods)


def test_every_requirement_is_pinned_exactly() -> None:
    for path in ROOT.glob("requirements*.txt"):
        lines = [line for line in path.read_text("utf-8").splitlines() if line and not line.startswith("#")]
        assert lines
        for line in lines:
            assert re.fullmatch(r"[A-Za-z0-9_.-]+==[0-9][0-9.]*(post[0-9]+)?", line), f"{path.name}: {line}"
