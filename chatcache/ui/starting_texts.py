"""What is said before there is a page, in each language. Part of `texts.Texts` and `turkish.Turkish`.

Apart, because the other texts need what takes long to import.
"""

from __future__ import annotations

from collections.abc import Mapping

from chatcache.told import Told
from storage.sentence import Sentence


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


TURKISH_STEPS: Mapping[str, str] = {
    Told.DOWNLOADING: "{name} bir kez indiriliyor…",
    Told.CONVERTING: "{name} bir kez dönüştürülüyor; sonraki başlangıçlar sonucu kullanır…",
    Told.CONVERTED_MODEL: "{seconds} saniyede dönüştürüldü.",
    Told.CONVERTED_AGAIN: "{folder} klasöründeki dönüştürülmüş model kullanılamıyor; yeniden dönüştürülüyor.",
    Told.CONVERTED_ELSEWHERE: "Bu modeli şu anda başka bir süreç dönüştürüyor; bitmesi bekleniyor.",
}
"""What can take long at a start. It is told in English."""

_STEPS = {TurkishStarting.LANGUAGE: TURKISH_STEPS}


def step_in(language: str, told: str) -> str | None:
    """What is told to take long, in this language; None where it has no words of its own for it."""
    if not isinstance(told, Sentence):
        return None
    words = _STEPS.get(language, {}).get(told.reason or "")
    return words.format_map(told.facts) if words else None
