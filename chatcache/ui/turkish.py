"""The page's texts in Turkish."""

from __future__ import annotations

from chatcache.ui.texts import Texts


class Turkish(Texts):
    """Türkçe."""

    LANGUAGE = "tr"
    THOUSANDS = "."
    POINT = ","


TURKISH = Turkish()
