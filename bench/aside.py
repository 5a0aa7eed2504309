"""`aside`: a function that computes here, in the bench, and leaves nothing behind that slows down what it measures.

Each thread that computes in several threads of OpenMP keeps its helpers until it ends. Once there are more of these
than processors, GNU's library lets none of them wait awake, and every small step of the model waits for one to wake up:
a token then takes up to half as long again. chatcache has one thread that computes. So nobody else in the process may
keep helpers.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import wraps
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


def aside(function: Callable[P, T]) -> Callable[P, T]:
    """Run `function` in a thread that ends with it."""

    @wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        with ThreadPoolExecutor(1, "bench") as thread:
            return thread.submit(function, *args, **kwargs).result()

    return run
