"""Imports point one way (DESIGN section 4)."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
LAYERS = (
    ("app",),
    ("chatcache.ui",),
    (
        "chatcache.chat",
        "chatcache.chat_reading",
        "chatcache.chat_sessions",
        "chatcache.chat_caches",
        "chatcache.owned_sessions",
    ),
    ("chatcache.runtime", "chatcache.turn_starter", "chatcache.turn_runner"),
    ("chatcache.model_parts", "chatcache.shared_decode"),
    (
        "chatcache.engine",
        "chatcache.turn_cache",
        "chatcache.turn_feed",
        "chatcache.reuse_report",
        "chatcache.decode_step",
        "chatcache.relief",
        "chatcache.scheduler",
        "chatcache.session_pool",
        "chatcache.cache_sources",
        "chatcache.acquired",
        "chatcache.prefetches",
        "chatcache.form_change",
        "chatcache.live_caches",
        "chatcache.cache_saving",
    ),
    (
        "chatcache.persistence",
        "chatcache.pending_saves",
        "chatcache.restore",
        "chatcache.segment_codec",
        "chatcache.stored_forms",
        "chatcache.segment_reader",
        "chatcache.stored_tokens",
    ),
    ("chatcache.memory",),
    (
        "chatcache.cache",
        "chatcache.loader",
        "chatcache.model_outline",
        "chatcache.checkpoint_reader",
        "chatcache.fingerprint",
    ),
    ("chatcache",),
    ("storage",),
)
"""Top to bottom: a module imports nothing from a layer above its own. The longest name that it begins with counts, so
`chatcache` stands for all that has no line of its own: model, prompt and values."""


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


SOURCES = {
    module_name(path): path.read_text("utf-8")
    for path in (ROOT / "app.py", *(ROOT / "chatcache").rglob("*.py"), *(ROOT / "storage").rglob("*.py"))
}


def imports_of(name: str) -> Iterator[str]:
    """Every module that `name` imports, at the top or inside functions; of ours and of others."""
    for node in ast.walk(ast.parse(SOURCES[name])):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name}: relative import"
            parts = (f"{node.module}.{alias.name}" for alias in node.names)
            yield from (part if part in SOURCES else str(node.module) for part in parts)


IMPORTS = {name: set(imports_of(name)) for name in SOURCES}


def is_in(name: str, package: str) -> bool:
    return name == package or name.startswith(f"{package}.")


def layer(name: str) -> int:
    entries = [(len(entry), number) for number, group in enumerate(LAYERS) for entry in group if is_in(name, entry)]
    return max(entries)[1]


def imports_from(package: str, *forbidden: str) -> list[str]:
    """What modules of `package` import from `forbidden`, as sentences."""
    return [
        f"{name} imports {other}"
        for name in SOURCES
        if is_in(name, package)
        for other in IMPORTS[name]
        if any(is_in(other, top) for top in forbidden)
    ]


def test_a_module_imports_nothing_that_stands_above_it() -> None:
    ours = [(name, other) for name in SOURCES for other in IMPORTS[name] & SOURCES.keys()]
    assert [f"{name} imports {other}" for name, other in ours if layer(other) < layer(name)] == []


def test_no_imports_go_in_a_circle() -> None:
    TopologicalSorter(IMPORTS).prepare()  # CycleError names the circle


def test_storage_knows_no_model_and_no_interface() -> None:
    assert imports_from("storage", "chatcache", "torch", "transformers", "gradio", "accelerate") == []


def test_the_page_knows_no_tensor_and_no_sql() -> None:
    assert imports_from("chatcache.ui", "torch", "transformers", "sqlalchemy", "safetensors") == []


def test_only_the_cache_package_touches_the_librarys_cache_classes() -> None:
    found = imports_from("chatcache", "transformers.cache_utils")
    assert found
    assert [sentence for sentence in found if not sentence.startswith("chatcache.cache.")] == []


def test_only_app_reads_arguments_and_the_environment() -> None:
    for name, source in SOURCES.items():
        if name != "app":
            assert "sys.argv" not in source or name.endswith("__main__"), name
            assert "os.environ" not in source, name
            assert "getenv" not in source, name


@pytest.mark.slow
def test_what_the_page_needs_imports_nothing_that_computes() -> None:
    """The half of the library that models are made of takes a second, and nobody can write a message before."""
    program = "import sys, chatcache.chat, chatcache.ui.app; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    imported = done.stdout.split()
    assert "chatcache.runtime" in imported
    assert not {"transformers.modeling_utils", "chatcache.loader", "chatcache.engine"} & set(imported)
