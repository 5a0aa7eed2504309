"""Lines over an axis, as inline SVG: small, without a script, in the page's own colours."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass

WIDTH, HEIGHT = 280.0, 96.0


@dataclass(frozen=True, slots=True)
class Line:
    """Points (x, y), both from 0 to 1, y upwards. `style` is the class that colours it."""

    points: Sequence[tuple[float, float]]
    style: str


def render_chart(
    lines: Sequence[Line], label: str, *, marks: Sequence[tuple[float, str]] = (), height: float = HEIGHT
) -> str:
    """The lines, drawn into a box of equal proportions at any width. `marks` are lines across, at y, with a name.

    `label` says in words what the picture shows.
    """
    drawn = "".join(
        f'<line class="mark" x1="0" x2="{WIDTH:g}" y1="{_y(y, height)}" y2="{_y(y, height)}"/>'
        f'<text x="2" y="{float(_y(y, height)) - 4:.1f}">{html.escape(name)}</text>'
        for y, name in marks
    )
    for line in lines:
        points = " ".join(f"{WIDTH * x:.1f},{_y(y, height)}" for x, y in line.points)
        drawn += f'<polyline class="{line.style}" points="{points}"/>'
    return (
        f'<svg class="chart" viewBox="0 0 {WIDTH:g} {height:g}" role="img" aria-label="{html.escape(label)}">'
        f"{drawn}</svg>"
    )


def _y(share: float, height: float) -> str:
    """Half a line's width stays free at both ends, so that nothing is cut off."""
    return f"{1 + (height - 2) * (1 - min(1.0, max(0.0, share))):.1f}"
