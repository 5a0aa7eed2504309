"""Figures and facts, each under its name."""

from __future__ import annotations

import html
from collections.abc import Iterable


def render_facts(facts: Iterable[tuple[str, str]]) -> str:
    """Names with what they say, as text, in this order."""
    rows = "".join(f"<div><dt>{html.escape(name)}</dt><dd>{html.escape(said)}</dd></div>" for name, said in facts)
    return f"<dl>{rows}</dl>"
