"""The memory plan of the loaded model: `MemoryOutlook` → HTML. Every figure is the planner's."""

from __future__ import annotations

import html

from chatcache.memory.outlook import MemoryOutlook
from chatcache.memory.planner import KindPlan
from chatcache.ui.chart import Line, render_chart
from chatcache.ui.texts import Texts

NUM_STYLES = 5


def render_plan_waiting(texts: Texts) -> str:
    """The panel until the model is loaded."""
    return f'<p class="quiet" role="status">{texts.PLAN_WAITS}</p>'


def render_plan(texts: Texts, outlook: MemoryOutlook) -> str:
    """Verdict, advice, a plot with its table, the bill in every kind that can be had, and why the others cannot."""
    plan, memory = outlook.plan, outlook.plan.request.memory_bytes or 0
    chosen = plan.of(outlook.kind)
    possible = [each for each in plan.kinds if each.refusal is None]
    if chosen.fits:
        verdict = texts.plan_fits(outlook.kind, memory - chosen.total_bytes)
    else:
        verdict = texts.plan_fits_not(outlook.kind, chosen.total_bytes - memory)
    bills = "".join(_render_bill(texts, each, outlook, index) for index, each in enumerate(possible))
    heads = "".join(
        f'<th scope="col">{name}</th>' for name in (texts.WEIGHTS, texts.CACHE, texts.WORKSPACE, texts.TOTAL)
    )
    notes = "".join(f'<p class="quiet">{html.escape(texts.said(note))}</p>' for note in plan.shape.notes)
    return (
        f'<p class="verdict {"fits" if chosen.fits else "fits-not"}" role="status">{html.escape(verdict)}</p>'
        f'<p class="quiet">{texts.plan_memory(memory)}</p>{_render_advice(texts, outlook)}'
        f"{_render_curves(texts, outlook)}"
        f'<table class="plan"><thead><tr>{heads}</tr></thead>{bills}</table>{notes}{_render_refusals(texts, outlook)}'
    )


def _render_bill(texts: Texts, each: KindPlan, outlook: MemoryOutlook, index: int) -> str:
    sizes = (
        outlook.plan.shape.weight_bytes,
        each.cache.reserved_bytes * outlook.plan.request.num_sessions,
        each.workspace_bytes,
        each.total_bytes,
    )
    cells = "".join(f"<td>{texts.size(size)}</td>" for size in sizes)
    fit = texts.FITS if each.fits else texts.FITS_NOT
    return (
        f'<tbody><tr><th scope="rowgroup" colspan="4"><span class="kind {_style(index)}">{each.cache.kind}</span>'
        f'<span class="{"fits" if each.fits else "fits-not"}">{fit}</span> '
        f"<small>{texts.plan_up_to(each.max_context_tokens)}</small></th></tr><tr>{cells}</tr></tbody>"
    )


def _render_advice(texts: Texts, outlook: MemoryOutlook) -> str:
    items = "".join(
        f"<li>{html.escape(texts.said(advice.text))}{f' {texts.IT_FITS_THEN}' if advice.fits else ''}</li>"
        for advice in outlook.advice
    )
    return f"<h3>{texts.PLAN_ADVICE}</h3><ol>{items}</ol>" if items else ""


def _render_curves(texts: Texts, outlook: MemoryOutlook) -> str:
    """The plot, with what may be used as a line across where it is near, and the same as a table."""
    ends = [(curve.kind, curve.points[-1].total_bytes) for curve in outlook.curves]
    longest = outlook.curves[0].points[-1].context_tokens
    memory = outlook.plan.request.memory_bytes or 0
    top = max(size for _, size in ends)
    marks = []
    if memory <= 1.5 * top:
        top = max(top, memory)
        marks = [(memory / top, texts.size(memory))]
    lines = [
        Line([(p.context_tokens / longest, p.total_bytes / top) for p in curve.points], _style(index))
        for index, curve in enumerate(outlook.curves)
    ]
    label = f"{texts.PLAN_CURVES}. {texts.curves_in_words(ends, longest)}"
    steps = range(0, len(outlook.curves[0].points), 4)
    heads = "".join(
        f'<th scope="col">{texts.number(outlook.curves[0].points[step].context_tokens)}</th>' for step in steps
    )
    rows = "".join(
        f'<tr><th scope="row">{curve.kind}</th>'
        + "".join(f"<td>{texts.size(curve.points[step].total_bytes)}</td>" for step in steps)
        + "</tr>"
        for curve in outlook.curves
    )
    return (
        f"<h3>{texts.PLAN_CURVES}<span>{texts.size(top)}</span></h3>{render_chart(lines, label, marks=marks)}"
        f'<p class="axis"><span>0</span><span>{texts.tokens(longest)}</span></p>'
        f'<details><summary>{texts.PLAN_TABLE}</summary><div class="table-scroll" tabindex="0"><table class="plan">'
        f"<thead><tr><td></td>{heads}</tr></thead><tbody>{rows}</tbody></table></div></details>"
    )


def _render_refusals(texts: Texts, outlook: MemoryOutlook) -> str:
    items = "".join(
        f"<li><strong>{each.cache.kind}</strong>: {html.escape(texts.said(each.refusal))}</li>"
        for each in outlook.plan.kinds
        if each.refusal is not None
    )
    return f"<details><summary>{texts.PLAN_NOT_POSSIBLE}</summary><ul>{items}</ul></details>" if items else ""


def _style(index: int) -> str:
    return f"line-{index % NUM_STYLES}"
