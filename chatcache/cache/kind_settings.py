"""What a quantization backend can be asked for by name (`quantized-hqq4`, `quantized-hqq4-axis1`), and why not.

Pure: names in, a reason out.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_NAME = re.compile(r"quantized-(?P<backend>[a-z]+)(?P<bits>\d*)(?:-axis(?P<axis>-?\d+))?(?:-group(?P<group>\d+))?")


@dataclass(frozen=True, slots=True)
class _Backend:
    """`axes` are those the backend knows; `axis` is the one along head_dim, which it recommends as well."""

    bits: tuple[int, ...]
    axes: tuple[int, ...] = ()
    axis: int | None = None


_BACKENDS = {
    "int": _Backend((4, 8)),
    "fp": _Backend((8,)),
    "hqq": _Backend((1, 2, 3, 4, 8), axes=(0, 1), axis=1),
    "quanto": _Backend((2, 4), axes=(0, -1), axis=0),
}


def refusal_of_settings(kind: str) -> str | None:
    """Why a name of the form above asks for something its backend cannot do; None if it can, or is of another form."""
    asked = _NAME.fullmatch(kind)
    if asked is None or (backend := _BACKENDS.get(asked["backend"])) is None:
        return None
    name = asked["backend"]
    if name == "fp" and (asked["axis"] or asked["group"] or asked["bits"] != "8"):
        return "fp8 takes no number of bits, axis or group: it has 8 bits, and one scale along head_dim"
    if not asked["bits"] or int(asked["bits"]) not in backend.bits:
        return f"{name} has {_listed(backend.bits)} bits; choose quantized-{name}{backend.bits[-1]}"
    if asked["group"]:
        return "the group is the largest divisor of head_dim up to 64 and cannot be chosen"
    return None if asked["axis"] is None else _refusal_of_axis(name, backend, int(asked["axis"]), asked["bits"])


def _refusal_of_axis(name: str, backend: _Backend, axis: int, bits: str) -> str:
    plain = f"quantized-{name}{bits}"
    if not backend.axes:
        return f"{name}{bits} takes no axis; choose {plain}"
    if axis not in backend.axes:
        return f"{name} has no axis {axis}, only {_listed(backend.axes)}"
    if axis != backend.axis:
        return f"along axis {axis} of {name} many tokens share a scale, so that none could be cropped; choose {plain}"
    return f"axis {axis} is what {plain} uses; choose that name"


def _listed(numbers: tuple[int, ...]) -> str:
    *others, last = map(str, numbers)
    return f"{', '.join(others)} and {last}" if others else last
