"""Which language a browser gets, and that no text of the page is missing in any."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from markup import plain

from chatcache.errors import ChatCacheError, ContextFullError, SessionBusyError
from chatcache.stats import Sampling
from chatcache.store_errors import translated_store_errors
from chatcache.text_input import clean_message
from chatcache.ui.figures import Figures
from chatcache.ui.language import preferred_language
from chatcache.ui.texts import ENGLISH, Texts
from chatcache.ui.turkish import TURKISH, Turkish
from storage.errors import DiskFullError
from storage.transfer import read_json


@pytest.mark.parametrize(
    ("accepted", "language"),
    [
        ("", "en"),
        ("tr", "tr"),
        ("tr-TR,tr;q=0.9,en-US;q=0.8,en;q=0.7", "tr"),
        ("en-US,en;q=0.9,tr;q=0.8", "en"),
        ("de-DE,de;q=0.9", "en"),
        ("de, tr;q=0.5", "tr"),
        ("TR-tr ; q=0.4, en;q=0.3", "tr"),
        ("tr;q=0, en", "en"),
        ("tr;q=much, ,;;=", "en"),
        ("*", "en"),
    ],
)
def test_a_browser_gets_the_language_it_ranks_highest(accepted: str, language: str) -> None:
    assert preferred_language(accepted, ("en", "tr")) == language


REFUSED = [
    (lambda: Sampling(temperature=99), "0 ile 2 arasında bir sayı olmalı."),
    (lambda: Sampling(repetition_penalty=0), "0,5 ile 2 arasında bir sayı olmalı."),
    (lambda: Sampling(max_new_tokens=0), "Bir tam sayı olmalı; en az 1."),
    (lambda: clean_message(" "), "İleti boş. Göndermek için bir şey yazın."),
    (
        lambda: refuse(ContextFullError("Full.", num_prompt_tokens=12345, max_context_tokens=8192)),
        "12.345 token olur; modelin bağlamı yanıtla birlikte 8.192 token alır",
    ),
    (lambda: read_json("{", "me", clean=str), "Bu dosya JSON değil."),
    (
        lambda: read_json('{"format": "chatcache.chat", "format_version": 1, "session": 5}', "me", clean=str),
        "Dosya bozuk: bir “session” nesne değil. Hiçbir şey içe aktarılmadı",
    ),
    (lambda: read_json("{}", "me", clean=str), "chatcache’ten dışa aktarılmış bir sohbet değil"),
    (lambda: refuse(DiskFullError("Full.")), "Disk dolu"),
    (lambda: refuse(SessionBusyError("Busy.")), "Bu sohbette bir yanıt yazılıyor."),
]


def refuse(error: Exception) -> None:
    raise error


@pytest.mark.parametrize(("action", "said"), REFUSED)
def test_what_the_service_refuses_is_said_in_turkish_and_in_english_as_it_says_it(
    action: Callable[[], object], said: str
) -> None:
    with pytest.raises(ChatCacheError) as caught, translated_store_errors():
        action()
    assert said in plain(TURKISH.refused(caught.value))
    assert plain(ENGLISH.refused(caught.value)) == str(caught.value) != ""


def test_a_setting_that_is_refused_is_named_as_its_field_is() -> None:
    with pytest.raises(ChatCacheError) as caught:
        Sampling(top_k=-1)
    assert ENGLISH.refused_setting("top_k", caught.value) == "Top-k must be a whole number of at least 0, not -1."
    assert TURKISH.refused_setting("top_k", caught.value) == "Top-k: Bir tam sayı olmalı; en az 0."


def test_where_tokens_came_from_stands_where_turkish_has_it() -> None:
    said = plain(TURKISH.reused(326, 327, 1, [("live", 326)]))
    assert "327 token içinden 326 tanesi bellekten alındı, 1 tanesi hesaplandı." in said
    said = TURKISH.reused(1326, 1400, 74, [("live", 1000), ("disk", 326)])
    assert "1.326 tanesi yeniden kullanıldı (1.000 bellekten, 326 diskten), 74 tanesi hesaplandı." in said


SAID_ALIKE = {"APP_NAME", "month", "not_imported", "counted_sources"}
"""What holds no word of its own."""


def test_every_text_of_the_page_is_there_in_turkish() -> None:
    english = {name for name in dir(Texts) if not name.startswith("_")} - set(dir(Figures)) - SAID_ALIKE
    turkish = {name for cls in Turkish.__mro__ if cls not in Texts.__mro__ for name in vars(cls)}
    assert english
    assert not english - turkish
    for name in english:
        ours, theirs = getattr(Texts, name), getattr(Turkish, name)
        if isinstance(ours, dict):
            assert theirs.keys() == ours.keys(), name
        elif isinstance(ours, (list, tuple)):
            assert len(theirs) == len(ours), name


def test_a_message_has_one_name_in_turkish() -> None:
    said = [repr(value) for cls in Turkish.__mro__ if cls not in Texts.__mro__ for value in vars(cls).values()]
    assert any("ileti" in each for each in said)
    assert not [each for each in said if "mesaj" in each.lower()]
