"""The right column without a browser: the settings as a form, bars, the gauge of a running turn, storage, the plan."""

from __future__ import annotations

import re
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markup import plain
from services import open_service
from test_ui import HOSTILE, MODEL, REPORT, TURN, Elements, actions_of, figures, panel, reply, session, user

from chatcache.cache_problems import FORGOTTEN
from chatcache.chat import ChatService
from chatcache.engine import CANNOT_GUESS
from chatcache.errors import InvalidInputError
from chatcache.events import CacheEvent, DoneEvent, Phase, Reply, StatusEvent
from chatcache.loader import LoadedModel
from chatcache.model_outline import NO_TEMPLATE_NOTICE
from chatcache.reports import CacheReport, ContextUse, LiveChat, ModelInfo, StorageReport
from chatcache.stats import SAMPLING_LIMITS, FinishReason, Sampling, TurnStats
from chatcache.turn import Turn
from chatcache.ui.cache_panel import render_cache_panel
from chatcache.ui.chat_figures import ChatFigures, Progress
from chatcache.ui.facts import render_meanings
from chatcache.ui.gauge import Gauge
from chatcache.ui.plan_panel import render_plan
from chatcache.ui.settings_form import FIELDS, Form, Loaded, read_changes
from chatcache.ui.settings_handlers import stored_mark
from chatcache.ui.side import MEANT_OF_CACHE, MEANT_OF_STORAGE
from chatcache.ui.storage_panel import StoredChat, render_storage, say_verified
from chatcache.ui.texts import ENGLISH as texts
from chatcache.ui.turkish import TURKISH
from chatcache.ui.view import CacheLook, View
from storage.records import Message, MessageStatus
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
        ("temperature", 9, "Temperature must be a number from 0 to 2, not 9."),
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


@pytest.mark.parametrize("name", SAMPLING_LIMITS)
def test_what_a_field_says_that_it_takes_is_what_the_service_takes(name: str) -> None:
    limits = SAMPLING_LIMITS[name]
    ends = [limits.low, limits.high] if limits.high is not None else [limits.low]
    for end in ends:
        assert f"{end:g}" in texts.limits(limits)
        assert getattr(Sampling(**{name: end}), name) == end  # type: ignore[arg-type]
    for beyond in [limits.low - 1, *([limits.high + 1] if limits.high is not None else [])]:
        with pytest.raises(InvalidInputError, match="must be"):
            Sampling(**{name: beyond})  # type: ignore[arg-type]


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
    assert "Free 2.0 GiB" in plain(label)


def test_the_context_shows_what_a_reply_has_kept_free_and_what_was_left_out() -> None:
    stats = replace(TURN, context_start=6)
    said = panel(stats, sampling={"max_new_tokens": 100})
    for words in ("Used450", "Around the next message9", "Kept free for the reply100", "Free1,489"):
        assert words in said
    assert "6 older messages are left out." in said


def test_a_context_that_is_nearly_full_keeps_what_there_is_and_a_template_may_take_thoughts_away() -> None:
    full = figures(use=ContextUse(2040, 9))
    assert (full.num_used_tokens, full.num_frame_tokens, full.num_kept_tokens, full.num_free_tokens) == (2040, 9, 0, 0)
    shorter = figures(use=ContextUse(900, -300))
    assert (shorter.num_used_tokens, shorter.num_frame_tokens) == (600, 0)


def test_why_memory_holds_more_than_a_chat_that_went_back_is_said() -> None:
    assert texts.MORE_IN_MEMORY not in panel()
    assert texts.MORE_IN_MEMORY in panel(use=ContextUse(200, 9))


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


def test_every_figure_that_is_explained_has_its_name_and_one_fold() -> None:
    assert {*MEANT_OF_CACHE, *MEANT_OF_STORAGE} == texts.MEANINGS.keys()
    for language in (texts, TURKISH):
        folded = Elements(render_meanings(language, MEANT_OF_CACHE))
        assert folded.text.startswith(language.WHAT_FIGURES_MEAN)
        for name in MEANT_OF_CACHE:
            assert f"{getattr(language, name)}{language.MEANINGS[name]}" in folded.text


# ---------------------------------------------------------------------- gauge


class Bench:
    """A gauge of a turn of the chat `s1`, whose clock and answers the test sets."""

    def __init__(self) -> None:
        self.now = 100.0
        self.turn = Turn(turn_id="t1", session_id="s1", reply_id="r1")
        self.num_asked = self.num_tokens = 0
        self.gauge = Gauge(self.turn, self._ask, clock=lambda: self.now)

    def _ask(self) -> Any:
        self.num_asked += 1
        answer: Future[CacheReport] = Future()
        answer.set_result(replace(REPORT, num_tokens=self.num_tokens, num_bytes=self.num_tokens * 1024))
        return answer

    def read(self, done: int, total: int, num_reused: int = 0) -> None:
        self.turn.emit(StatusEvent(Phase.PREFILL, done, total, num_reused))
        self.num_tokens = num_reused + done

    def run(self, seconds: float, tokens_per_s: int = 0, step_s: float = 0.0625) -> list[Progress]:
        """What is seen meanwhile, while so many tokens a second are written."""
        begun_s, num_before, seen = self.now, self.num_tokens, []
        for _ in range(int(seconds / step_s)):
            self.now += step_s
            self.num_tokens = num_before + int((self.now - begun_s) * tokens_per_s)
            seen.append(self.gauge.look())
        return seen

    def shown(self, look: CacheLook | None = None) -> str:
        """What the panel says of it."""
        return " ".join(Elements(self.markup(look)).text.split())

    def markup(self, look: CacheLook | None = None) -> str:
        view = View(session("A chat"), (user("a"),), 0, {"r0": TURN}, self.turn)
        return render_cache_panel(texts, self.figures(view, look))

    def figures(self, view: View, look: CacheLook | None = None) -> ChatFigures:
        return ChatFigures.of(MODEL, view, look, self.gauge.look())


def test_the_panel_follows_the_turn_that_runs_from_waiting_to_its_last_token() -> None:
    bench = Bench()
    before = CacheLook(REPORT, 0, ContextUse(450, 9))
    said = bench.shown(before)
    assert f"{texts.THIS_REPLY}Waiting for its turn…" in said
    assert "Used450" in said
    assert "412" not in said, "that was the turn before"
    bench.read(16, 64, num_reused=400)
    bench.run(2)
    said, markup = bench.shown(before), bench.markup(before)
    assert 'class="mine" style="width:86.21%"' in markup, "the bar is filled as the prompt is read"
    for words in ("Reading 16 of 64 tokens…", "400 reused16 computed", "Used416", "In memory416 tokens, 416.0 KiB"):
        assert words in said, said
    bench.read(63, 64, num_reused=400)
    bench.turn.emit(StatusEvent(Phase.DECODE))
    bench.num_tokens = 464
    bench.run(5, tokens_per_s=16)
    said = bench.shown(before)
    written = re.search(r"Written by this turn(\d+) tokens", said)
    assert written is not None
    for words in (texts.WRITING, "400 reused64 computed", f"Used{464 + int(written[1])}"):
        assert words in said, said
    assert re.search(r"Speed1[5-8]\.\d tokens/s", said), said


def test_after_the_turn_the_panel_says_what_it_cost_once() -> None:
    bench = Bench()
    bench.read(0, 18, num_reused=412)
    bench.turn.emit(StatusEvent(Phase.DECODE))
    bench.run(10, tokens_per_s=9)
    last = reply("b", position=3)
    bench.turn.emit(DoneEvent(Reply(last, TURN)))
    num_asked = bench.num_asked
    bench.run(5, tokens_per_s=9)
    assert bench.num_asked == num_asked
    shown = bench.figures(
        View(session("A chat"), (user("a"), last), 0, {last.id: TURN}, None), CacheLook(REPORT, 0, ContextUse(449, 9))
    )
    markup = render_cache_panel(texts, shown)
    said = " ".join(Elements(markup).text.split())
    assert said.count(texts.LAST_REPLY) == 1
    assert texts.THIS_REPLY not in said
    label = re.search(rf'aria-label="{texts.SPEEDS}: (\S+) to (\S+). {texts.SPEED}: 45.1\stokens/s."', markup)
    assert label, "the chart is told in words, too"
    lowest, highest = label.groups()
    assert 8 <= float(lowest) <= float(highest) <= 10
    axes = f"{texts.SPEEDS}{lowest} to {highest}" + f"{highest}0" + f"{texts.earlier(8)}{texts.AT_THE_END}"
    assert plain(axes) in said
    for words in ("412 of 430 tokens reused from memory", "Speed45.1 tokens/s", "Written by this turn20 tokens"):
        assert words in said, said


def test_the_gauge_asks_once_a_second_and_draws_the_speed() -> None:
    bench = Bench()
    bench.turn.emit(StatusEvent(Phase.DECODE))
    seen = bench.run(10, tokens_per_s=32)
    assert bench.num_asked <= 11
    assert len(set(map(id, seen))) <= 12
    assert all(28 <= speed <= 36 for _, speed in seen[-1].speeds)
    assert "polyline" in render_cache_panel(texts, bench.figures(View(session("x"), (), 0, {}, bench.turn)))


def test_reading_a_prompt_is_not_drawn_as_writing() -> None:
    bench = Bench()
    bench.read(0, 900)
    assert bench.run(5, tokens_per_s=300)[-1].speeds == ()
    bench.turn.emit(StatusEvent(Phase.DECODE))
    assert bench.run(5, tokens_per_s=300)[-1].speeds


def test_what_the_panel_sends_stays_the_same_however_long_a_reply_is() -> None:
    bench = Bench()
    bench.turn.emit(StatusEvent(Phase.DECODE))
    view = View(session("x"), (), 0, {}, bench.turn)
    bench.run(70, tokens_per_s=9)
    size = len(render_cache_panel(texts, bench.figures(view)))
    bench.run(130, tokens_per_s=9)
    assert len(render_cache_panel(texts, bench.figures(view))) <= 1.05 * size


def test_what_happens_to_the_cache_is_told_with_the_turn() -> None:
    bench = Bench()
    bench.turn.emit(CacheEvent("int8", 9, "Memory was <short>."))
    bench.run(3)
    assert "Memory was <short>." in bench.shown()


def test_a_cache_that_memory_took_away_takes_nothing_from_what_was_written() -> None:
    bench = Bench()
    bench.read(0, 30)
    bench.turn.emit(StatusEvent(Phase.DECODE))
    bench.num_tokens = 30
    num_written = bench.run(10, tokens_per_s=9)[-1].stats.num_completion_tokens
    bench.num_tokens = 0
    assert bench.run(3)[-1].stats.num_completion_tokens == num_written > 80


def test_a_reply_that_was_written_in_a_moment_has_no_line() -> None:
    bench = Bench()
    bench.turn.emit(StatusEvent(Phase.DECODE))
    bench.run(1.5, tokens_per_s=9)
    assert len(bench.gauge.look().speeds) == 1
    assert "polyline" not in render_cache_panel(texts, bench.figures(View(session("x"), (), 0, {}, bench.turn)))


@pytest.mark.parametrize(
    ("last", "stats"),
    [
        (reply("x", id="r2"), TURN),
        (reply("x", edited=True), None),
        (reply("x", status=MessageStatus.INTERRUPTED), TurnStats(finish_reason=FinishReason.INTERRUPTED)),
    ],
)
def test_no_line_stands_where_its_reply_is_not_shown_or_was_not_counted(last: Message, stats: TurnStats | None) -> None:
    bench = Bench()
    bench.turn.emit(StatusEvent(Phase.DECODE))
    bench.run(10, tokens_per_s=9)
    shown = bench.figures(View(session("x"), (user("a"), last), 0, {last.id: stats} if stats else {}, None))
    assert shown.speeds == ()


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
    well = say_verified(texts, VerifyReport(3, 2048, (), ()))
    assert plain(well) == "All is well: 3 files, 2.0 KiB, each as it was written."
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
        assert advice.text in plain(Elements(markup).text)


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
