"""How many examples a property is tried on: a quarter where slow tests are left out. And which of several cases."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import settings

MOST = 100


def examples(num: int) -> int:
    """`num` of them, where all are wanted. `conftest` has said by then whether they are."""
    return max(1, num * settings().max_examples // MOST)


def few_quick(cases: Sequence[Any], num_quick: int = 1) -> list[Any]:
    """The cases of a parametrized test: the first are quick ones, the others, which say the same of more, are slow."""
    return [*cases[:num_quick], *(pytest.param(case, marks=pytest.mark.slow) for case in cases[num_quick:])]
