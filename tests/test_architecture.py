"""Imports point one way (DESIGN section 4)."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
LAYERS = (
    ("app",),
    ("chatcache.ui",),
    ("chatcache.chat",),
    ("chatcache.runtime",),
    ("chatcache.turn_starter",),
    ("chatcache.turn_runner", "chatcache.changes"),
    ("chatcache.turn", "chatcache.reports", "chatcache.text_input", "chatcache.scheduler", "chatcache.engine"),
    ("chatcache.relief",),
    ("chatcache.session_pool", "chatcache.sampler", "chatcache.prefill_chunks"),
    ("chatcache.persistence",),
    ("chatcache.restore", "chatcache.segment_codec"),
    ("chatcache.memory",),
    ("chatcache.cache",),
    ("chatcache.loader",),
    ("chatcache.model_files",),
    ("chatcache.gguf_conversion", "chatcache.hub_download"),
    ("chatcache.weight_files", "chatcache.file_digests", "chatcache.library_calls"),
    ("chatcache.prompt",),
    ("chatcache.reply_stream",),
    ("chatcache.chat_template",),
    ("chatcache.token_text",),
    ("chatcache.events", "chatcache.config"),
    ("chatcache.stats",),
    ("chatcache.errors",),
    ("storage",),
)
"""Top to bottom: a module imports from lower layers, and within its own group only from its own package."""

MODULES = sorted(
    path
    for path in [ROOT / "app.py", *(ROOT / "chatcache").rglob("*.py"), *(ROOT / "storage").rglob("*.py")]
    if path.name != "__init__.py" or path.stat().st_size
)


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def imported(path: Path) -> set[str]:
    """Every module the file imports, at the top or inside functions."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names |= {node.module or ""} | {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def layer(name: str) -> int | None:
    for number, group in enumerate(LAYERS):
        if any(name == entry or name.startswith(entry + ".") for entry in group):
            return number
    return None


def package(name: str) -> str:
    return next(e for group in LAYERS for e in group if name == e or name.startswith(e + "."))


@pytest.mark.parametrize("path", MODULES, ids=module_name)
def test_imports_point_down(path: Path) -> None:
    name = module_name(path)
    if name == "chatcache":
        return
    mine = layer(name)
    assert mine is not None, f"{name} stands in no layer: add it to LAYERS"
    for other in imported(path):
        theirs = layer(other)
        if theirs is None:
            continue
        assert theirs > mine or package(other) == package(name), f"{name} imports {other}, which stands above it"


@pytest.mark.parametrize("path", [p for p in MODULES if "storage" in p.parts], ids=module_name)
def test_storage_knows_no_model_and_no_interface(path: Path) -> None:
    tops = {name.split(".")[0] for name in imported(path)}
    assert not tops & {"chatcache", "transformers", "gradio", "accelerate"}


@pytest.mark.parametrize("path", [p for p in MODULES if "ui" in p.parts], ids=module_name)
def test_the_page_knows_no_tensor_and_no_sql(path: Path) -> None:
    tops = {name.split(".")[0] for name in imported(path)}
    assert not tops & {"torch", "transformers", "sqlalchemy", "safetensors"}


@pytest.mark.parametrize("path", MODULES, ids=module_name)
def test_only_the_cache_package_touches_the_librarys_cache_classes(path: Path) -> None:
    if not module_name(path).startswith("chatcache.cache"):
        assert not any(name.startswith("transformers.cache_utils") for name in imported(path))


@pytest.mark.parametrize("path", MODULES, ids=module_name)
def test_only_app_reads_arguments_and_the_environment(path: Path) -> None:
    if path.name == "app.py" and path.parent == ROOT:
        return
    source = path.read_text(encoding="utf-8")
    assert "sys.argv" not in source or path.name == "__main__.py"
    assert "os.environ" not in source
    assert "getenv" not in source
