"""What holds for every process of a test run. The fixtures are in `shared_fixtures`."""

from __future__ import annotations

import gc
import os

import pytest
from hypothesis import settings
from shared_statements import share_statements

# Read when torch is imported: threads that spin while they wait make tests on few cores many times slower.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

# How long an example takes depends on what else the machine does: a deadline would fail for that alone.
settings.register_profile("all", deadline=None)
settings.register_profile("few", deadline=None, max_examples=settings().max_examples // 4)

# What is imported for tests is there to stay: to look for what is not takes a third of the time until the first one.
gc.disable()

GARBAGE_OBJECTS = 20_000
"""A test leaves little that needs collecting, and is over soon. Python's own 700 objects took a second of each run."""


def pytest_configure(config: pytest.Config) -> None:
    """The process that only hands out tests to others does without what takes seconds to import."""
    settings.load_profile("few" if "not slow" in config.getoption("markexpr") else "all")
    share_statements()
    if config.getoption("dist", "no") == "no":
        config.pluginmanager.import_plugin("shared_fixtures")


def pytest_collection_finish() -> None:
    """As in the app: what was imported is not looked at again by every collection. That is a fifth of the time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(GARBAGE_OBJECTS)
    gc.enable()
