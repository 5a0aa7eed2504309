"""How the threads of OpenMP wait for each other, which its library decides when torch is imported.

By themselves they wait awake, for milliseconds or longer: beside one other busy program that makes decoding tens of
times slower. Asleep at once (OMP_WAIT_POLICY=passive), a second thread is worth nothing to a token: waking it takes
longer than what it would do. So they wait awake for a millisecond at most: from one multiplication of a step to the
next.
"""

from __future__ import annotations

from collections.abc import MutableMapping

SETTINGS = {"GOMP_SPINCOUNT": "4000", "KMP_BLOCKTIME": "1"}
"""For GNU's library, in rounds of a loop, and for LLVM's, in milliseconds."""


def let_threads_wait_awake_briefly(environment: MutableMapping[str, str]) -> None:
    """To be called with the process's own before torch is imported. What a person has set stays."""
    if "OMP_WAIT_POLICY" not in environment:
        for name, value in SETTINGS.items():
            environment.setdefault(name, value)
