"""The rows of the bench, by the names that `--rows` takes, in the order of the table."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from bench import resume, speed
from bench.line import Line
from bench.workbench import Workbench

Row = Callable[[Workbench], Iterator[Line]]

ROWS: dict[str, Row] = {
    "prefill": speed.measure_prefill,
    "decode": speed.measure_decode,
    "resume": resume.measure_resume,
    "disk": resume.measure_disk,
}
