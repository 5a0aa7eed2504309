"""Figures and facts, each under its name; and what the names mean, to be unfolded."""

from __future__ import annotations

import html
from collections.abc import Iterable

from chatcache.ui.texts import Texts


def render_facts(facts: Iterable[tuple[str, str]]) -> str:
    """Names with what they say, as text, in this order."""
    rows = "".join(f"<div><dt>{html.escape(name)}</dt><dd>{html.escape(said)}</dd></div>" for name, said in facts)
    return f"<dl>{rows}</dl>"


def render_meanings(texts: Texts, names: Iterable[str]) -> str:
    """What figures mean, by the names of their texts: a fold that can be reached by key and touch, and is never
    painted anew."""
    meanings = render_facts((getattr(texts, name), texts.MEANINGS[name]) for name in names)
    return f'<details class="meanings"><summary>{texts.WHAT_FIGURES_MEAN}</summary>{meanings}</details>'
