"""The right column without a browser: the settings as a form, bars, the gauge of a running reply, storage, the plan."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from services import open_service
from test_ui import HOSTILE, MODEL, REPORT, TURN, Elements, actions_of, figures, panel, reply, session

from chatcache.cache_problems import FORGOTTEN
from chatcache.chat import ChatService
from chatcache.engine import CANNOT_GUESS
from chatcache.events import CacheEvent, DoneEvent, Phase, Reply, StatusEvent
from chatcache.loader import LoadedModel
from chatcache.model_outline import NO_TEMPLATE_NOTICE
from chatcache.reports import LiveChat, ModelInfo, StorageReport
from chatcache.stats import FinishReason, Sampling, TurnStats
from chatcache.turn import Turn
from chatcache.ui.cache_panel import render_cache_panel
from chatcache.ui.chat_figures import ChatFigures
from chatcache.ui.gauge import Gauge
from chatcache.ui.plan_panel import render_plan
from chatcache.ui.settings_form import FIELDS, Form, Loaded, read_changes
from chatcache.ui.settings_handlers import stored_mark
from chatcache.ui.storage_panel import StoredChat, render_storage, say_verified
from chatcache.ui.texts import ENGLISH as texts
from chatcache.ui.turkish import TURKISH
from storage.records import MessageStatus
from storage.segment_check import Damage, VerifyReport
from storage.segment_report import SegmentReport

THINKER = replace(MODEL, supports_thinking_switch=True, cache_kinds=("dynamic", "quantized-int8"))
EVERYTHING = Form(
    system_prompt="Be brief.",
    temperature=0.5,
    top_p=0.8,
    top_k=40,
    min_p=0.1,
    repetition_penalty=1.1,
    max_new_tokens=64,
    seed="9007199254740993",
    stop="\\n\nEND\\\\n",
    cache="quantized-int8",
    context_full="stop",
    thinking="off",
    prompt_lookup=True,
)


# ------------------------------------------------------------------- settings


def stored_after(form: Form, model: ModelInfo = THINKER) -> dict[str, object]:
    """A session's fields once all of the form is stored."""
    changes = read_changes(texts, model, form, FIELDS, None)
    assert changes.problems == {}
    values = dict(changes.values)
    return values | {"sampling": values["sampling"].to_json()}


def test_what_is_stored_comes_back_into_the_fields() -> None:
    stored = session("x", **stored_after(EVERYTHING))
    assert Form.of(stored, THINKER) == EVERYTHING
    sampling = Sampling.from_json(stored.sampling)
    assert sampling.stop == ("\n", "END\\n")
    assert sampling.seed == 9007199254740993, "a number of JavaScript would have lost its last digit"
    assert Form.of(session("x", **stored_after(Form())), THINKER) == Form()


@given(stop=st.lists(st.text(st.characters(exclude_categories=("Cs", "Cc"), include_characters="\n\t\\"), min_size=1)))
def test_any_stop_strings_survive_the_field(stop: list[str]) -> None:
    shown = Form.of(session("x", sampling=Sampling(stop=tuple(stop)).to_json()), MODEL)
    kept = read_changes(texts, MODEL, shown, ["stop"], None).values["sampling"]
    assert (kept.stop or ()) == tuple(stop)


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("temperature", 11, "Temperature must be a number from 0 to 10, not 11."),
        ("top_p", -1, "Top-p must be a number from 0 to 1, not -1."),
        ("top_k", 1.5, "Top-k must be a whole number of at least 0, not 1.5."),
        ("max_new_tokens", 0, "Max tokens must be a whole number of at least 1, not 0."),
        ("seed", "seven", "Seed must be a whole number of at least 0, not 'seven'."),
        ("seed", str(2**64), f"Seed must be below 2**63, not {2**64}."),
    ],
)
def test_a_value_that_cannot_be_is_answered_at_its_field_and_the_others_are_stored(
    name: str, value: object, said: str
) -> None:
    form = replace(Form(min_p=0.2), **{name: value})  # type: ignore[arg-type]
    changes = read_changes(texts, MODEL, form, [name, "min_p"], None)
    assert changes.problems == {name: said}
    assert changes.values == {"sampling": Sampling(min_p=0.2)}


def test_only_what_was_changed_is_stored() -> None:
    stored = session("x", **stored_after(EVERYTHING))
    typed = replace(Form(), temperature=0.1)
    changes = read_changes(texts, THINKER, typed, ["temperature"], stored)
    assert set(changes.values) == {"sampling"}
    assert changes.values["sampling"] == replace(Sampling.from_json(stored.sampling), temperature=0.1)


def test_a_setting_that_this_model_does_not_have_is_left_out_of_what_is_stored() -> None:
    stored = session("x", settings={"thinking": False, "cache": "quantized-hqq4", "context_full": "stop"})
    shown = Form.of(stored, MODEL)
    assert (shown.thinking, shown.cache) == ("", "")
    changes = read_changes(texts, MODEL, replace(shown, prompt_lookup=True), ["prompt_lookup"], stored)
    settings = {"cache": None, "context_full": "stop", "thinking": None, "prompt_lookup": True}
    assert changes.values == {"settings": settings}


def test_fields_are_told_apart_by_what_they_were_filled_with_and_for_which_chat() -> None:
    loaded = Loaded("s1", Form(temperature=0.5))
    assert Loaded.from_json(loaded.to_json()) == loaded
    assert loaded.typed("s1", Form(temperature=0.5)) == ()
    assert loaded.typed("s1", Form(temperature=0.6, seed="1")) == ("temperature", "seed")
    assert loaded.typed("s2", Form()) is None
    assert Loaded().typed(None, Form()) is None, "fields that were never filled hold nothing that was typed"
    assert "<" not in Loaded("s1", Form(system_prompt="<script>")).to_json()


@given(sent=st.one_of(st.none(), st.text(), st.just("[" * 9000), st.just('{"form": {}, "session": 1}')))
def test_whatever_a_browser_sends_of_the_fields_can_be_read(sent: object) -> None:
    assert Loaded.from_json(sent) == Loaded()
    assert Form.from_values([sent] * len(FIELDS)).temperature is None


def test_the_mark_changes_with_the_settings_and_only_with_them() -> None:
    plain = session("x")
    assert stored_mark(plain, MODEL) == stored_mark(replace(plain, title="y", version=9), MODEL)
    others = [replace(plain, id="s2"), replace(plain, system_prompt="Be brief."), replace(plain, sampling={"top_k": 3})]
    marks = {stored_mark(each, MODEL) for each in [plain, None, *others]}
    assert len(marks) == 5


def test_every_field_has_a_name() -> None:
    assert set(texts.SETTING_NAMES) == {field.name for field in fields(Form)}


# --------------------------------------------------------------- cache region


def test_the_budget_is_shown_by_chat_and_kind() -> None:
    report = replace(
        REPORT,
        total_bytes=90 * 1024,
        chats=(LiveChat("s1", "dynamic", 430, 45 * 1024), LiveChat("s2", "quantized-int8", 900, 45 * 1024)),
    )
    markup = render_cache_panel(texts, figures(report=report))
    said = " ".join(Elements(markup).text.split())
    assert "This chat · dynamic45.0 KiB" in said
    assert "1 other chat · quantized-int845.0 KiB" in said
    assert "Reserved934.0 KiB" in said
    label = next(value for name, value in Elements(markup).attributes if value.startswith("Memory:"))
    assert "Free 2.0 GiB" in label


def test_the_context_shows_what_a_reply_has_kept_free_and_what_was_left_out() -> None:
    stats = replace(TURN, context_start=6)
    said = panel(stats, sampling={"max_new_tokens": 100})
    assert "Used450" in said
    assert "Kept free for the reply100" in said
    assert "Free1,498" in said
    assert "6 older messages are left out." in said


def test_what_happened_to_the_cache_stays_readable_after_the_turn() -> None:
    sentence = "Memory was short at token 3,210: this chat's cache is now 8-bit."
    assert sentence in panel(replace(TURN, fallbacks=(sentence,)))


def test_notices_problems_and_what_happened_are_in_the_pages_language() -> None:
    lookup = replace(TURN, fallbacks=(CANNOT_GUESS,))
    shown = replace(
        figures(lookup, replace(REPORT, problem=FORGOTTEN)), model=replace(MODEL, notices=(NO_TEMPLATE_NOTICE,))
    )
    for sentence in (CANNOT_GUESS, NO_TEMPLATE_NOTICE, FORGOTTEN):
        in_english = Elements(render_cache_panel(texts, shown)).text
        in_turkish = Elements(render_cache_panel(TURKISH, shown)).text
        assert sentence in in_english
        assert sentence not in in_turkish
        assert TURKISH.said(sentence) in in_turkish


# ---------------------------------------------------------------------- gauge


class Bench:
    """A gauge whose clock and answers the test sets."""

    def __init__(self) -> None:
        self.now = 100.0
        self.turn = Turn(turn_id="t1", session_id="s1", reply_id="r1")
        self.num_asked = self.num_tokens = 0
        self.turn.emit(StatusEvent(Phase.DECODE))
        self.gauge = Gauge(texts, self.turn, self._ask, clock=lambda: self.now)

    def _ask(self) -> asyncio.Future[object]:
        self.num_asked += 1
        answer = asyncio.get_running_loop().create_future()
        answer.set_result(replace(REPORT, num_tokens=self.num_tokens, num_bytes=self.num_tokens * 1024))
        return answer

    def run(self, seconds: float, tokens_per_s: int, step_s: float = 0.0625) -> list[str]:
        async def look() -> list[str]:
            seen = []
            for _ in range(int(seconds / step_s)):
                self.now += step_s
                self.num_tokens = int((self.now - 100) * tokens_per_s)
                seen.append(self.gauge.look())
            return seen

        return asyncio.run(look())


def test_the_gauge_asks_once_a_second_and_draws_the_speed() -> None:
    bench = Bench()
    seen = bench.run(10, tokens_per_s=32)
    assert bench.num_asked <= 11
    assert len(set(seen)) <= 12
    assert "32.0 tokens/s" in seen[-1]
    assert all(28 <= speed <= 36 for _, speed in bench.gauge.speeds())


def test_reading_a_prompt_is_not_drawn_as_writing() -> None:
    bench = Bench()
    bench.turn = Turn(turn_id="t2", session_id="s1", reply_id="r1")
    bench.gauge = Gauge(texts, bench.turn, bench._ask, clock=lambda: bench.now)
    bench.turn.emit(StatusEvent(Phase.PREFILL, 0, 900))
    assert "tokens/s" not in bench.run(5, tokens_per_s=300)[-1]
    assert "tokens, " in bench.gauge.look()
    bench.turn.emit(StatusEvent(Phase.DECODE))
    assert "tokens/s" in bench.run(5, tokens_per_s=300)[-1]


def test_what_the_gauge_sends_stays_the_same_however_long_a_reply_is() -> None:
    bench = Bench()
    sizes = [len(markup) for markup in bench.run(200, tokens_per_s=9)]
    assert max(sizes[-300:]) <= 1.1 * max(sizes[len(sizes) // 2 - 300 : len(sizes) // 2])
    assert max(sizes) < 2500


def test_what_happens_to_the_cache_is_told_beside_the_gauge() -> None:
    bench = Bench()
    bench.turn.emit(CacheEvent("int8", 9, "Memory was <short>."))
    assert "Memory was &lt;short&gt;." in bench.run(3, tokens_per_s=5)[-1]
    bench.turn.emit(DoneEvent(Reply(reply("x"), TurnStats())))
    rest = bench.gauge.rest(figures(last=reply("x")))
    assert texts.LAST_REPLY in rest
    assert "short" not in rest, "the figures of the turn tell it now"
    num_asked = bench.num_asked
    bench.run(5, tokens_per_s=5)
    assert bench.num_asked == num_asked


def test_the_line_of_the_last_reply_stands_beside_the_figures_that_the_panel_has() -> None:
    bench = Bench()
    assert "9.0 tokens/s" in bench.run(10, tokens_per_s=9)[-1]
    shown = figures(last=reply("x"))
    rest = bench.gauge.rest(shown)
    assert f"{texts.LAST_REPLY}45.1 tokens/s · 430 tokens, 45.0 KiB" in Elements(rest).text
    assert f'aria-label="{texts.LAST_MINUTE}: 45.1 tokens/s"' in rest
    said = Elements(render_cache_panel(texts, shown)).text
    assert f"{texts.SPEED}45.1 tokens/s" in said
    assert f"{texts.IN_MEMORY}430 tokens, 45.0 KiB" in said
    gone = replace(shown, report=replace(REPORT, is_live=False, num_tokens=0, num_bytes=0))
    assert "0 tokens" not in bench.gauge.rest(gone)


def test_a_reply_that_was_written_in_a_moment_has_no_line() -> None:
    bench = Bench()
    bench.run(1.5, tokens_per_s=9)
    assert len(bench.gauge.speeds()) == 1
    assert bench.gauge.rest(figures(last=reply("x"))) == ""


@pytest.mark.parametrize(
    "shown",
    [
        figures(last=reply("x", id="r2")),
        figures(None, last=reply("x", edited=True)),
        figures(TurnStats(finish_reason=FinishReason.INTERRUPTED), last=reply("x", status=MessageStatus.INTERRUPTED)),
        ChatFigures.of_new_chat(MODEL, Sampling()),
    ],
)
def test_no_line_stands_where_its_reply_is_not_shown_or_was_not_counted(shown: ChatFigures) -> None:
    bench = Bench()
    bench.run(10, tokens_per_s=9)
    assert bench.gauge.rest(shown) == ""


# -------------------------------------------------------------------- storage

STORED = StorageReport(
    num_sessions=3,
    num_deleted_sessions=0,
    num_messages=12,
    database_bytes=9 * 1024,
    cache=SegmentReport(
        quota_bytes=2**30,
        used_bytes=2**20,
        set_aside_bytes=512,
        num_segments=4,
        num_bytes=2**20,
        shared_bytes=1024,
        session_bytes={"s1": 2**19, "s2": 2**19},
    ),
    hit_rate=0.93,
)


def test_the_storage_panel_shows_each_chat_and_what_can_be_done() -> None:
    chats = [StoredChat("s1", "One", 2**19), StoredChat("s2", "", 2**19, is_deleted=True)]
    markup = render_storage(texts, STORED, chats, num_others=2, other_bytes=100, current_id="s1")
    said = " ".join(Elements(markup).text.split())
    for words in (
        "1.0 MiB of 1.0 GiB",
        "One512.0 KiB",
        "in the bin",
        "2 smaller chats100 B",
        "93 %",
        "9.0 KiB",
        "512 B",
    ):
        assert words in said, said
    assert actions_of(markup) == ["drop", "drop", "verify", "ask"]


@pytest.mark.parametrize("text", HOSTILE)
def test_a_chats_title_is_text_in_the_storage_panel(text: str) -> None:
    found = Elements(render_storage(texts, STORED, [StoredChat("s1", text, 1)]))
    assert text in found.text
    assert found.tags <= {"div", "h3", "span", "ul", "li", "button", "dl", "dt", "dd", "p"}
    assert not [name for name, _ in found.attributes if name.startswith("on")]


def test_all_caches_are_dropped_only_after_a_question() -> None:
    asked = render_storage(texts, STORED, [], is_asking=True)
    assert actions_of(asked) == ["drop-all", "refresh"]
    assert texts.DROP_ALL_QUESTION in Elements(asked).text
    assert "drop-all" not in actions_of(render_storage(texts, STORED, []))


def test_while_a_check_runs_nothing_is_asked_that_its_progress_would_take_away() -> None:
    for is_busy in (True, False):
        markup = render_storage(texts, STORED, [], is_busy=is_busy)
        assert actions_of(markup) == ["verify", "ask"]
        assert markup.count('aria-disabled="true"') == (2 if is_busy else 0)


def test_what_a_check_has_found_is_said_in_words() -> None:
    assert (
        say_verified(texts, VerifyReport(3, 2048, (), ())) == "All is well: 3 files, 2.0 KiB, each as it was written."
    )
    damaged = VerifyReport(3, 2048, (Damage("a", "a was changed."),), ())
    assert say_verified(texts, damaged).startswith("1 of 3 files is damaged. No text is lost")


# ----------------------------------------------------------------------- plan


@pytest.fixture(scope="module")
def service(tiny_llama: LoadedModel, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ChatService]:
    directory: Path = tmp_path_factory.mktemp("plan")
    with open_service(tiny_llama, directory, memory_budget_bytes=2**23) as service:
        yield service


def test_the_plan_shows_the_planners_figures_for_each_kind_that_can_be_had(service: ChatService) -> None:
    outlook = service.memory_plan(1000)
    said = Elements(render_plan(texts, outlook)).text
    for kind in outlook.plan.kinds:
        assert kind.cache.kind in said
        if kind.refusal is None:
            for size in (kind.cache.reserved_bytes, kind.workspace_bytes, kind.total_bytes):
                assert texts.size(size) in said
        else:
            assert kind.refusal in said
    num_left = (outlook.plan.request.memory_bytes or 0) - outlook.plan.of("dynamic").total_bytes
    assert texts.plan_fits("dynamic", num_left) in said


def test_a_plan_that_does_not_fit_says_what_is_missing_and_what_would_help(service: ChatService) -> None:
    outlook = service.memory_plan(2048, num_sessions=50)
    markup = render_plan(texts, outlook)
    assert "It does not fit with a dynamic cache" in markup
    assert outlook.advice
    for advice in outlook.advice:
        assert advice.text in Elements(markup).text


def test_advice_and_reasons_of_a_plan_are_in_the_pages_language_and_its_notation(service: ChatService) -> None:
    outlook = service.memory_plan(2048, num_sessions=50)
    said = Elements(render_plan(TURKISH, outlook)).text
    refusals = [kind.refusal for kind in outlook.plan.kinds if kind.refusal is not None]
    advice = [each.text for each in outlook.advice]
    assert refusals
    assert advice
    for sentence in (*refusals, *advice):
        assert sentence not in said
        assert TURKISH.said(sentence) in said
    for each in outlook.advice:
        if each.total_bytes is not None and "total_bytes" in each.text.facts:
            assert TURKISH.size(each.total_bytes) in TURKISH.said(each.text)


def test_the_plot_is_also_words_and_a_table(service: ChatService) -> None:
    outlook = service.memory_plan(1000)
    markup = render_plan(texts, outlook)
    assert markup.count("<polyline") == len(outlook.curves)
    label = next(value for name, value in Elements(markup).attributes if value.startswith(texts.PLAN_CURVES))
    for curve in outlook.curves:
        assert f"{curve.kind} {texts.size(curve.points[-1].total_bytes)}" in label
    drawn = [float(y) for y in re.findall(r"[\d.]+,([\d.]+)", markup[markup.index("<svg") : markup.index("</svg>")])]
    assert drawn
    assert all(0 <= y <= 96 for y in drawn)
