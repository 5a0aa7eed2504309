"""What is said before there is a page, in each language. Part of `texts.Texts` and `turkish.Turkish`.

Apart, because the other texts need what takes long to import.
"""

from __future__ import annotations


class StartingTexts:
    """English."""

    LANGUAGE = "en"
    STARTING = "chatcache is starting"
    STARTING_DETAIL = "Its page opens here by itself as soon as it is there."


class TurkishStarting(StartingTexts):
    """Türkçe."""

    LANGUAGE = "tr"
    STARTING = "chatcache başlıyor"
    STARTING_DETAIL = "Sayfa hazır olur olmaz burada kendiliğinden açılır."
