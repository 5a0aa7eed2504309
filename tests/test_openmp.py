"""How threads wait for each other: said before what asks for it is imported, unless a person has said it already."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from chatcache.openmp import SETTINGS, let_threads_wait_awake_briefly

ROOT = Path(__file__).parent.parent
SPINS, BLOCKS = SETTINGS


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, SETTINGS),
        ({"PATH": "/bin"}, {"PATH": "/bin", **SETTINGS}),
        ({"OMP_WAIT_POLICY": "passive"}, {"OMP_WAIT_POLICY": "passive"}),
        ({SPINS: "7"}, {SPINS: "7", BLOCKS: SETTINGS[BLOCKS]}),
    ],
)
def test_threads_wait_awake_briefly_unless_a_person_has_said_how(
    given: dict[str, str], expected: dict[str, str]
) -> None:
    let_threads_wait_awake_briefly(given)
    assert given == expected


@pytest.mark.parametrize("module", ["app", "bench"])
def test_what_says_how_threads_wait_has_not_imported_what_asks_for_it(module: str) -> None:
    program = f"import sys, {module}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    imported = done.stdout.split()
    assert "chatcache.openmp" in imported
    assert not {"torch", "transformers", "gradio"} & set(imported)
