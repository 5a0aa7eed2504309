"""Lines → a Markdown table for people and JSON for machines."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from bench.line import Line

OURS = "chatcache"


def markdown(lines: Sequence[Line]) -> str:
    """One column for each program that any line measured; an empty cell where a line did not."""
    others = list(dict.fromkeys(name for line in lines for name in line.others))
    head = ["", "unit", OURS, *others, "ratio"]
    rows = [
        [line.what, line.unit, figure(line.ours), *(figure(line.others.get(name)) for name in others), _ratios(line)]
        for line in lines
    ]
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]
    rule = ["-" * width for width in widths]
    return "\n".join(
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |"
        for row in [head, rule, *rows]
    )


def as_json(lines: Sequence[Line], facts: Mapping[str, Any]) -> dict[str, Any]:
    """`facts` (the machine, the settings) with the lines below them; every ratio says whether it is met."""
    return {**facts, "lines": [_line_as_json(line) for line in lines]}


def figure(value: float | None) -> str:
    """Three digits that count; nothing for None."""
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _ratios(line: Line) -> str:
    return "; ".join(map(str, line.ratios))


def _line_as_json(line: Line) -> dict[str, Any]:
    ratios = [{**dataclasses.asdict(ratio), "is_met": ratio.is_met} for ratio in line.ratios]
    return {"what": line.what, "unit": line.unit, OURS: line.ours, **line.others, "ratios": ratios}
