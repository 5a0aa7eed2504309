"""`MemoryOutlook`: what the loaded model takes at a context and with every cache kind, what helps, and how it grows.

Pure, like the planner whose figures these are: a shape and a request in, values for pages and scripts out.
"""

from __future__ import annotations

from dataclasses import dataclass

from chatcache.memory.advice import Advice, advise
from chatcache.memory.model_shape import ModelShape
from chatcache.memory.planner import MemoryPlan, PlanRequest, plan_memory, total_bytes

NUM_CURVE_STEPS = 12


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """`total_bytes` is the whole bill when every session holds `context_tokens` tokens."""

    context_tokens: int
    total_bytes: int


@dataclass(frozen=True, slots=True)
class Curve:
    """The bill of one cache kind over the context, from the shortest to the longest."""

    kind: str
    points: tuple[CurvePoint, ...]


@dataclass(frozen=True, slots=True)
class MemoryOutlook:
    """`kind` is the one that `advice` is about. There is a curve for each kind that this model and device allow."""

    plan: MemoryPlan
    kind: str
    advice: tuple[Advice, ...]
    curves: tuple[Curve, ...]


def look_ahead(shape: ModelShape, request: PlanRequest, kind: str, max_context_tokens: int) -> MemoryOutlook:
    """The outlook for `request`, with curves up to `max_context_tokens`. Raises InvalidInputError for no such kind."""
    plan = plan_memory(shape, request)
    steps = sorted({max(1, max_context_tokens * step // NUM_CURVE_STEPS) for step in range(NUM_CURVE_STEPS + 1)})
    curves = tuple(
        Curve(each, tuple(CurvePoint(num, total_bytes(shape, request, each, num)) for num in steps))
        for each in (fit.cache.kind for fit in plan.kinds if fit.refusal is None)
    )
    return MemoryOutlook(plan, kind, advise(plan, kind), curves)
