"""How a live cache is brought into the form its chat is to have: a decision. It touches no tensor."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, auto

from chatcache.cache.session_cache import SessionCache
from chatcache.cache_form import CacheForm
from chatcache.stats import MissReason


class FormChange(Enum):
    """What is to be done."""

    CONVERT = auto()
    REPLACE = auto()
    """Another kind was asked for: a new cache."""
    GROW = auto()
    """It had become smaller for want of memory, and there is room again: a new cache."""

    @property
    def reason(self) -> MissReason:
        """Why what it held is not there any more, where it is not."""
        return MissReason.SMALLER_FORM if self is FormChange.GROW else MissReason.CACHE_KIND


def change_of_form(
    cache: SessionCache,
    form: CacheForm,
    *,
    was_asked_for: str,
    can_grow: Callable[[], bool],
    can_convert: Callable[[], bool],
) -> FormChange | None:
    """What brings `cache`, which was to be of the kind `was_asked_for`, into `form`; None where it has it, or has a
    smaller one that it must keep, because it cannot grow."""
    if cache.kind == form.kind and not cache.is_mixed:
        return None
    if form.smaller_kinds and (cache.is_mixed or cache.kind in form.smaller_kinds):
        if not can_grow():
            return None
    elif not cache.is_mixed and can_convert():
        return FormChange.CONVERT
    return FormChange.REPLACE if was_asked_for != form.kind else FormChange.GROW
