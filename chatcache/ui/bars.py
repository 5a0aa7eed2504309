"""Bars that show how a whole is divided, each with its legend. The words say what the picture says."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass

from chatcache.ui.texts import Texts


@dataclass(frozen=True, slots=True)
class Part:
    """A part of the whole. `style` is the class that colours it: "mine", "other", "computed", "kept"; empty leaves the
    bar's ground to be seen. `detail` is said where the bar is pointed at."""

    name: str
    amount: int
    figure: str
    style: str = ""
    detail: str = ""


def render_bar(parts: Sequence[Part], whole: int, label: str) -> str:
    """The bar alone; `label` says all of it. What is not of the parts stays empty."""
    spans = "".join(
        f'<span class="{part.style}" style="width:{100 * part.amount / whole:.2f}%"'
        + (f' title="{html.escape(part.detail)}"' if part.detail else "")
        + "></span>"
        for part in parts
        if part.style and part.amount > 0 and whole > 0
    )
    return f'<div class="bar" role="img" aria-label="{html.escape(label)}">{spans}</div>'


def render_legend(parts: Sequence[Part]) -> str:
    """One line for each part: its colour, its name, its figure."""
    items = "".join(
        f'<li><span class="{part.style or "rest"}">{html.escape(part.name)}</span>'
        f"<span>{html.escape(part.figure)}</span></li>"
        for part in parts
    )
    return f'<ul class="legend">{items}</ul>'


def render_account(title: str, figure: str, parts: Sequence[Part], whole: int) -> str:
    """A heading with its figure, the bar, and the legend."""
    label = f"{title}: {figure}. " + ", ".join(f"{part.name} {part.figure}" for part in parts)
    return (
        f'<div class="account-bar"><h3>{html.escape(title)}<span>{html.escape(figure)}</span></h3>'
        f"{render_bar(parts, whole, label)}{render_legend(parts)}</div>"
    )


def sized(texts: Texts, name: str, num_bytes: int, style: str = "", detail: str = "") -> Part:
    """A part that is measured in bytes."""
    return Part(name, num_bytes, texts.size(num_bytes), style, detail)
