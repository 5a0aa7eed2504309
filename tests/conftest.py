"""What holds for every process of a test run. The fixtures are in `shared_fixtures`."""

from __future__ import annotations

import os

import pytest
from hypothesis import settings

# Read when torch is imported: threads that spin while they wait make tests on few cores many times slower.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

# How long an example takes depends on what else the machine does: a deadline would fail for that alone.
settings.register_profile("no-deadline", deadline=None)
settings.load_profile("no-deadline")


def pytest_configure(config: pytest.Config) -> None:
    """The process that only hands out tests to others does without what takes seconds to import."""
    if config.getoption("dist", "no") == "no":
        config.pluginmanager.import_plugin("shared_fixtures")
