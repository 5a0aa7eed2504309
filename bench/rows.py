"""The rows of the bench, by the names that `--rows` takes, in the order of the table."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from bench import lookup, page, quality, resume, sessions, sight, speed, startup, turns
from bench.line import Line
from bench.workbench import Workbench

Row = Callable[[Workbench], Iterator[Line]]

ROWS: dict[str, Row] = {
    "prefill": speed.measure_prefill,
    "decode": speed.measure_decode,
    "sampling": turns.measure_sampling,
    "turns": turns.measure_turns,
    "resume": resume.measure_resume,
    "disk": resume.measure_disk,
    "quality": quality.measure_quality,
    "caches": quality.measure_cache_kinds,
    "lookup": lookup.measure_lookup,
    "sessions": sessions.measure_sessions,
    "page": page.measure_page,
    "sight": sight.measure_sight,
    "startup": startup.measure_startup,
}
