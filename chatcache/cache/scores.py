"""How many attention scores may be held at once: what attention keeps to, and a plan counts with."""

from __future__ import annotations

MAX_SCORES = 2**24
"""More would take too much memory: beyond, a kernel that holds none computes them."""
