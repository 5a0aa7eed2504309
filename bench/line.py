"""`Line`: one line of the bench's table, as a value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Ratio:
    """Our figure divided by that of `against` in the same run, and what is wanted of it; None where nothing is."""

    against: str
    value: float
    at_least: float | None = None
    at_most: float | None = None

    @property
    def is_met(self) -> bool:
        return (self.at_least is None or self.value >= self.at_least) and (
            self.at_most is None or self.value <= self.at_most
        )

    def __str__(self) -> str:
        """As in "2.1 × transformers (≥ 2)"; "missed" is said, met is not."""
        bounds = [f"≥ {self.at_least:g}"] if self.at_least is not None else []
        bounds += [f"≤ {self.at_most:g}"] if self.at_most is not None else []
        wanted = f" ({', '.join(bounds)}{'' if self.is_met else ': missed'})" if bounds else ""
        return f"{self.value:.3g} × {self.against}{wanted}"


@dataclass(frozen=True, slots=True)
class Line:
    """What was measured ("decode at 512 tokens"), in which unit, ours, and that of others by their names.

    Every figure is the median of the runs.
    """

    what: str
    unit: str
    ours: float
    others: Mapping[str, float] = field(default_factory=dict)
    ratios: tuple[Ratio, ...] = ()
