"""What the service tells and refuses, in Turkish: every sentence that the code can say, with the facts it gives."""

from __future__ import annotations

import ast
import json
import pickle
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from string import Formatter

import pytest

from chatcache import errors
from chatcache.errors import ChatCacheError, ContextFullError, Reason
from chatcache.reuse_report import _MISSES
from chatcache.stats import TurnStats
from chatcache.told import Told
from chatcache.ui.texts import ENGLISH
from chatcache.ui.turkish import TURKISH, Turkish
from storage.errors import FileFault
from storage.sentence import Sentence, sentence_from_json, sentence_to_json
from storage.told import FileTold, SaveTold

ROOT = Path(__file__).parent.parent
ENUMS: dict[str, type[StrEnum]] = {each.__name__: each for each in (Reason, Told, FileTold, SaveTold, FileFault)}
IN_TURKISH = Turkish.TOLD | Turkish.REFUSALS


def needed(reason: str) -> set[str]:
    """The facts that the Turkish sentence has a place for."""
    return {name for _, name, _, _ in Formatter().parse(IN_TURKISH[reason]) if name}


def calls() -> Iterator[tuple[str, str, set[str]]]:
    """Every place where the code names a reason in a call: where, which one, and the facts it gives."""
    for path in (*(ROOT / "chatcache").rglob("*.py"), *(ROOT / "storage").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if not isinstance(node, ast.Call):
                continue
            for arg in node.args:
                if isinstance(arg, ast.Attribute) and isinstance(arg.value, ast.Name) and arg.value.id in ENUMS:
                    given = {keyword.arg for keyword in node.keywords if keyword.arg}
                    where = f"{path.relative_to(ROOT)}:{node.lineno}"
                    yield where, ENUMS[arg.value.id][arg.attr], given


CALLS = list(calls())


def test_every_reason_has_its_sentence_in_turkish_and_none_has_two() -> None:
    assert Turkish.REFUSALS.keys() == set(Reason)
    assert Turkish.TOLD.keys() == {*Told, *FileTold, *SaveTold}
    assert not Turkish.REFUSALS.keys() & Turkish.TOLD.keys()
    assert {Reason(fault) for fault in FileFault} < set(Reason)


def test_everything_that_can_be_told_is_told_somewhere() -> None:
    named = {reason for _, reason, _ in CALLS} | {told for told, _ in _MISSES.values()}
    assert {*Told, *FileTold, *SaveTold} <= named


@pytest.mark.parametrize(("where", "reason", "given"), CALLS, ids=[f"{where} {reason}" for where, reason, _ in CALLS])
def test_whoever_names_a_reason_gives_the_facts_of_its_turkish_sentence(
    where: str, reason: str, given: set[str]
) -> None:
    assert needed(reason) <= given, where


def test_what_is_told_of_a_miss_has_its_facts() -> None:
    for told, _ in _MISSES.values():
        assert needed(told) <= {"index", "num_left"}


def test_errors_that_name_no_reason_need_no_facts() -> None:
    own = [each for each in vars(errors).values() if isinstance(each, type) and issubclass(each, ChatCacheError)]
    assert len(own) > 10
    for error in own:
        if error is ContextFullError:
            facts = set(ContextFullError("Full.", num_prompt_tokens=2, max_context_tokens=1).facts)
            assert needed(error.REASON) <= facts
        else:
            assert needed(error.REASON) == set(), error


@pytest.mark.parametrize(
    "sentence",
    [
        "As it is.",
        Sentence("As it is."),
        Sentence("As it is.", "from-the-future"),
        Sentence("As it is.", Told.REPAIRED),
        Sentence("As it is.", Told.SPILLED, num_chats=10**400),
    ],
    ids=["plain", "no reason", "unknown", "no facts", "no number"],
)
def test_what_cannot_be_said_in_turkish_is_said_in_english(sentence: str) -> None:
    assert TURKISH.said(sentence) == "As it is."


def test_a_refusal_without_the_facts_of_its_sentence_is_said_in_english() -> None:
    assert TURKISH.refused(ChatCacheError("The number is wrong.", Reason.OUT_OF_RANGE)) == "The number is wrong."


STEP = Sentence("the cache of an idle chat was moved to disk.", Told.SPILLED, num_chats=1)
SHORT = Sentence(f"Memory was short at token 1,024: {STEP}", Told.MEMORY_SHORT, index=1024, step=STEP)


def test_a_sentence_within_a_sentence_is_said_in_the_same_language() -> None:
    assert TURKISH.said(SHORT) == "1.024. tokende bellek yetmedi: boştaki 1 sohbetin önbelleği diske taşındı."
    assert ENGLISH.said(SHORT) == "Memory was short at token 1,024: the cache of an idle chat was moved to disk."


def test_a_sentence_survives_the_store_and_a_copy_with_what_it_means() -> None:
    stored = json.loads(json.dumps(sentence_to_json(SHORT)))
    for read in (sentence_from_json(stored), pickle.loads(pickle.dumps(SHORT))):
        assert read == SHORT
        assert TURKISH.said(read) == TURKISH.said(SHORT)
    assert sentence_to_json("Plain.") == "Plain." == sentence_from_json("Plain.")


def test_a_turn_keeps_what_its_fallbacks_mean() -> None:
    stats = TurnStats(fallbacks=("Of an older version.", SHORT))
    read = TurnStats.from_json(json.loads(json.dumps(stats.to_json())))
    assert read == stats
    assert list(map(TURKISH.said, read.fallbacks)) == ["Of an older version.", TURKISH.said(SHORT)]


@pytest.mark.parametrize("data", [{"text": "a", "reason": 5}, {"text": "a", "reason": "b", "facts": [1]}])
def test_of_a_damaged_sentence_its_text_is_kept(data: object) -> None:
    assert sentence_from_json(data) == "a"


@pytest.mark.parametrize("data", [None, 5, [], {}, {"text": 5}])
def test_what_has_no_text_is_no_sentence(data: object) -> None:
    with pytest.raises(TypeError):
        sentence_from_json(data)
