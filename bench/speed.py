"""Rows: how fast a new prompt is read, and how fast a reply is written after contexts of several lengths."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from bench.line import Line, Ratio
from bench.subjects import Subject
from bench.workbench import Workbench

CONTEXTS = (512, 2048, 4096)
NUM_NEW_TOKENS = 32

_READ_GOALS = {"llama.cpp": {2048: 2.5}, "transformers": {512: 1.0, 2048: 1.0, 4096: 1.0}}
_WRITE_GOALS = {"llama.cpp": {512: 0.42, 4096: 0.75}, "transformers": {512: 2.0, 4096: 3.8}}


def measure_prefill(bench: Workbench) -> Iterator[Line]:
    """Tokens per second of a prompt that nothing is known of."""
    for num_tokens in contexts(bench):
        text = bench.prompt(num_tokens)
        with bench.ours() as ours:
            subjects = (ours, *bench.peers)
            speeds = bench.alternate({s.name: partial(s.read, text) for s in subjects})
        yield _line(f"prefill {num_tokens:,}", speeds, {n: goals.get(num_tokens) for n, goals in _READ_GOALS.items()})


def measure_decode(bench: Workbench) -> Iterator[Line]:
    """Tokens per second of a greedy reply, without speculation, whose prompt is in the cache."""
    for num_tokens in contexts(bench):
        text = bench.prompt(num_tokens)
        with bench.ours() as ours:
            subjects: tuple[Subject, ...] = (ours, *bench.peers)
            for subject in subjects:
                subject.read(text)
            speeds = bench.alternate({s.name: partial(s.write, NUM_NEW_TOKENS) for s in subjects})
        goals = {n: goals.get(num_tokens) for n, goals in _WRITE_GOALS.items()}
        yield _line(f"decode at {num_tokens:,}", speeds, goals)


def contexts(bench: Workbench) -> tuple[int, ...]:
    """Context lengths to measure at, as far as the time given and the model allow."""
    return CONTEXTS[:1] if bench.is_quick else CONTEXTS


def _line(what: str, speeds: dict[str, float], goals: dict[str, float | None]) -> Line:
    ours = speeds.pop("chatcache")
    ratios = tuple(Ratio(name, ours / speed, at_least=goals.get(name)) for name, speed in speeds.items())
    return Line(what, "tokens/s", ours, speeds, ratios)
