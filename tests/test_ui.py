"""What the page shows, as text: rendering of messages, chats and the cache, without a browser."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import re
from dataclasses import replace
from typing import Any

import pytest
from gradio.utils import diff
from hypothesis import given
from hypothesis import strategies as st
from markup import HOSTILE, NOW, Elements, actions_of, assert_harmless, plain, reply, session, user

from chatcache.events import CacheEvent, DoneEvent, Phase, Reply, StatusEvent, TextEvent
from chatcache.reports import CacheReport, ContextUse, ModelInfo, TurnDetails
from chatcache.reuse_total import ReuseTotal
from chatcache.stats import FinishReason, MissReason, Reuse, Sampling, TurnStats
from chatcache.turn import Turn
from chatcache.ui.cache_panel import describe, render_cache_panel
from chatcache.ui.chat_days import ChatGroup, Span
from chatcache.ui.chat_figures import ChatFigures, Uncounted
from chatcache.ui.chat_list import Listed, render_bin, render_chat_list, render_found, render_title
from chatcache.ui.formulas import render_formula
from chatcache.ui.markdown import GrowingMarkdown, render_markdown
from chatcache.ui.notice import Notice, Offer, render_notice
from chatcache.ui.place import Destination, Place, Seen
from chatcache.ui.texts import ENGLISH as texts
from chatcache.ui.texts import Texts
from chatcache.ui.transcript import LiveReply, render_transcript, render_welcome
from chatcache.ui.turkish import TURKISH
from chatcache.ui.view import CacheLook, View
from chatcache.ui.watch import Watch, tail
from storage.records import Message, MessageStatus

# ------------------------------------------------------------------- Markdown


@pytest.mark.parametrize("text", HOSTILE)
def test_nothing_a_model_writes_becomes_an_element_of_its_own(text: str) -> None:
    assert_harmless(render_markdown(text, texts))
    growing = GrowingMarkdown(texts)
    for character in text:
        growing.push(character)
        assert_harmless("".join(growing.closed) + growing.open)


@pytest.mark.parametrize("text", HOSTILE)
def test_nothing_a_person_writes_becomes_an_element_of_its_own(text: str) -> None:
    assert assert_harmless(render_transcript(texts, [user(text)], {})).text == text
    assert Elements(render_title(texts, text)).text == text
    assert "script" not in Elements(render_notice(texts, Notice(text))).tags
    assert text in Elements(render_found(texts, [], Listed(query=text))).text
    for markup in (
        render_chat_list(texts, [ChatGroup(Span.TODAY, (session(text),))], Listed()),
        render_bin(texts, [session(text)], Listed(), doubted=None),
        render_bin(texts, [session(text)], Listed(), doubted="s1"),
    ):
        assert text in assert_harmless(markup).text


def test_html_in_a_reply_is_shown_as_it_was_written() -> None:
    assert Elements(render_markdown("Use <b>bold</b> & <br>.", texts)).text.strip() == "Use <b>bold</b> & <br>."


def test_an_image_is_a_link_that_nothing_fetches() -> None:
    found = assert_harmless(render_markdown("![a cat](http://elsewhere.example/cat.png)", texts))
    assert "img" not in found.tags
    assert ("href", "http://elsewhere.example/cat.png") in found.attributes
    assert ("rel", "noopener noreferrer nofollow") in found.attributes


def test_code_keeps_its_text_and_can_be_copied() -> None:
    markup = render_markdown("```python\nif a < b:\n    print('<&>')\n```", texts)
    assert "if a < b:\n    print('<&>')\n" in Elements(markup).text
    assert '<span class="hl-k">if</span>' in markup
    assert ">python<" in markup
    assert actions_of(markup) == ["copy-code"]


def test_tables_lists_and_line_breaks_are_rendered() -> None:
    assert "<table>" in render_markdown("| a | b |\n|---|---|\n| 1 | 2 |", texts)
    assert "<ol" in render_markdown("1. one\n2. two", texts)
    assert "<br" in render_markdown("one\ntwo", texts)


@pytest.mark.parametrize(
    "text",
    ["$a_1^2$", r"\(a_1^2\)", "$$a_1^2$$", r"\[a_1^2\]", "Before\n$$\na_1^2\n$$\nafter", "- item\n  $$\n  a_1^2\n  $$"],
)
def test_formulas_are_drawn_by_the_browser_itself(text: str) -> None:
    markup = render_markdown(text, texts)
    assert "<msubsup><mi>a</mi><mn>1</mn><mn>2</mn></msubsup>" in markup
    assert not re.search(r"[$\\]", Elements(markup).text)


@pytest.mark.parametrize(
    "text",
    ["It costs $5, not $10.", "a $ b $ c", "US$5 and US$6", "`$a$`", r"\$a\$", "$$ is all", "${A}/x:$B", "${a} `${b}`"],
)
def test_money_and_variables_are_no_formulas(text: str) -> None:
    assert "<math" not in render_markdown(text, texts)
    assert "formula" not in render_markdown(text, texts)


@pytest.mark.parametrize("source", [r"\frac{", "a_{" * 900, "x" * 5000, r"\left( a", ""])
def test_what_is_no_formula_is_shown_as_it_was_written(source: str) -> None:
    markup = render_formula(source, is_display=True)
    assert Elements(markup).text == source
    assert Elements(markup).tags == {"code"}


def test_a_line_of_code_is_coloured_once_it_is_whole_and_never_changes_after_that() -> None:
    growing = GrowingMarkdown(texts)
    growing.push("Look:\n\n```python\nif a:\n    ret")
    assert '<span class="hl-k">if</span>' in "".join(growing.closed)
    assert growing.open == "    ret"
    before = list(growing.closed)
    growing.push("urn b\n```\nDone.")
    assert growing.closed[: len(before)] == before
    assert '<span class="hl-k">return</span>' in "".join(growing.closed)
    assert growing.open == "<p>Done."


BLOCKS = [
    "A line with **bold** and `code`.",
    "- one\n- two\n  more",
    "```py\nx = 1\n\ny = 2\n```",
    "~~~\n```\n~~~",
    "# Title",
    "> quote",
    "A sum $a_1 + b$ and \\(c\\), for $5 or $6.",
    "$$\nx\n- y\n= z\n$$",
    "\\[ x^2 \\]",
    "\\begin{align}\na &= b \\\\\nc &= d\n\\end{align}",
    "Text that ends in \\[ a \\]",
]
DOCUMENTS = st.lists(st.sampled_from(BLOCKS), min_size=1, max_size=6).map("\n\n".join)


@given(text=DOCUMENTS, size=st.integers(1, 9))
def test_growing_text_ends_as_the_whole_text_is_rendered(text: str, size: int) -> None:
    growing = GrowingMarkdown(texts)
    for start in range(0, len(text), size):
        growing.push(text[start : start + size])
    grown, whole = Elements("".join(growing.closed) + growing.open), Elements(render_markdown(text, texts))
    assert grown.text.split() == whole.text.split()
    assert grown.tags == whole.tags


@given(text=st.text(max_size=80))
def test_any_text_can_grow_without_harm(text: str) -> None:
    growing = GrowingMarkdown(texts)
    for character in text:
        growing.push(character)
    assert_harmless("".join(growing.closed) + growing.open)


def test_an_update_costs_what_is_new_however_long_the_reply_is() -> None:
    paragraph = "The cache keeps what was computed, and the next turn computes only what is new. " * 4 + "\n\n"
    live, before, sizes = LiveReply(texts), None, []
    for piece in [paragraph[i : i + 8] for i in range(0, len(paragraph), 8)] * 60:
        live.add_text(piece, is_reasoning=False)
        now = live.to_json()
        if before is not None:
            sizes.append(len(json.dumps(diff(before, now))))
        before = now
    per_paragraph = len(paragraph) // 8 + 1
    first, last = sizes[: 5 * per_paragraph], sizes[-5 * per_paragraph :]
    assert sum(last) <= 1.2 * sum(first)
    assert sorted(sizes)[len(sizes) // 2] < 100, "most updates hold a few new characters and a path"
    assert max(sizes) < 3 * len(paragraph)


def test_an_update_of_code_costs_what_is_new_however_long_the_block_is() -> None:
    line = "    total = total + value * 2  # and so on\n"
    live, before, sizes = LiveReply(texts), None, []
    for piece in ["```python\n", *[line[:20], line[20:]] * 150]:
        live.add_text(piece, is_reasoning=False)
        now = live.to_json()
        if before is not None:
            sizes.append(len(json.dumps(diff(before, now))))
        before = now
    assert sum(sizes[-100:]) <= 1.2 * sum(sizes[:100])
    assert max(sizes) < 800


def test_closed_blocks_are_never_sent_again() -> None:
    growing = GrowingMarkdown(texts)
    growing.push("One.\n\nTwo.\n\n")
    closed = list(growing.closed)
    growing.push("Three, **with more**.\n\nFour")
    assert growing.closed[: len(closed)] == closed
    assert "Four" in growing.open
    assert "Three" not in growing.open


# ----------------------------------------------------------------- transcript


def test_any_reply_can_be_regenerated_and_only_the_tip_rolled_back() -> None:
    messages = [user("a"), reply("b"), user("c", id="u2", parent_id="r1"), reply("d", id="r2", parent_id="u2")]
    markup = render_transcript(texts, messages, {})
    question = ["copy", "edit"]
    above, tip = ["copy", "edit", "fork", "regenerate"], ["regenerate", "rollback", "copy", "edit", "fork"]
    assert actions_of(markup) == [*question, *above, *question, *tip]
    assert markup.count(f'title="{texts.REGENERATE}"') == 1, "only the tip's button has that name"


def test_what_was_rolled_back_is_offered_at_the_tip_alone_and_instead_of_going_on_with_it() -> None:
    messages = [user("a"), reply("b"), user("c", id="u2", parent_id="r1"), reply("d", id="r2", parent_id="u2")]
    stopped = {"r2": TurnStats(finish_reason=FinishReason.CANCELLED)}
    markup = render_transcript(texts, messages, stopped, undone_id="r3")
    assert re.findall(r'data-action="forward" data-message="(\w+)"', markup) == ["r3"]
    assert markup.index('data-action="rollback"') < markup.index('data-action="forward"')
    assert "continue" not in actions_of(markup), "a reply that was answered cannot be continued"
    assert "forward" not in actions_of(render_transcript(texts, messages, stopped))
    assert actions_of(render_welcome(texts, undone_id="r1"))[0] == "forward"
    assert "forward" not in actions_of(render_welcome(texts))


@pytest.mark.parametrize("language", [texts, TURKISH], ids=lambda language: language.LANGUAGE)
def test_the_word_beside_an_icon_is_part_of_the_buttons_name(language: Texts) -> None:
    messages = [user("a"), reply("b", id="r1"), user("c", id="u2", position=2), reply("d", id="r2", position=3)]
    buttons = re.findall(r'data-word="(.*?)".*?aria-label="(.*?)"', render_transcript(language, messages, {}))
    assert len(buttons) == 2 + 4 + 2 + 3
    assert [name for word, name in buttons if word.lower() not in name.lower()] == []


def test_while_a_turn_runs_nothing_can_be_done_to_the_branch() -> None:
    markup = render_transcript(texts, [user("a"), reply("b", num_alternatives=2)], {}, is_busy=True)
    assert actions_of(markup) == ["copy", "copy"]


def test_a_reply_carries_what_was_written_for_copying_and_editing() -> None:
    source = '**bold** "quoted" & <b>\n\n$x^2$'
    found = Elements(render_transcript(texts, [user("a"), reply(source)], {}))
    assert ("data-source", source) in found.attributes


@pytest.mark.parametrize(("text", "is_folded"), [("short\n" * 5, False), ("x" * 2000, True), ("line\n" * 30, True)])
def test_a_long_message_of_ones_own_can_be_unfolded(text: str, is_folded: bool) -> None:
    markup = render_transcript(texts, [user(text)], {})
    assert (texts.SHOW_ALL in markup) is is_folded
    assert text in markup


def test_details_tell_what_a_reply_cost() -> None:
    stats = TurnStats(
        num_prompt_tokens=1200, num_cached_tokens=1000, num_computed_tokens=200, num_completion_tokens=31,
        num_drafted_tokens=12, num_accepted_tokens=7, ttft_s=0.25, decode_tokens_per_s=17.25,
        reuse=(Reuse("live", 600), Reuse("disk", 400)), restore_s=0.5, finish_reason=FinishReason.STOP, seed=42,
        cache_kind="quantized-int8",
    )  # fmt: skip
    said = plain(Elements(render_transcript(texts, [user("a"), reply("b")], {"r1": stats})).text)
    for part in (
        "1,200 tokens", "1,000 (600 from memory, 400 from disk)", "Computed200", "31 tokens", "7 of 12 tokens accepted",
        "0.25 s", "0.5 s", "17.2 tokens/s", "quantized-int8", "Seed42", "by itself", "Written at",
    ):  # fmt: skip
        assert part in said


def test_details_tell_how_a_reply_was_asked_for() -> None:
    sampling = Sampling(temperature=0.7, top_k=40, stop=("<b>",), seed=1)
    made = TurnDetails(sampling, {"prompt_lookup": True, "context_full": "stop"}, TurnStats(), NOW, NOW)
    stats = {"r1": TurnStats(num_prompt_tokens=5, num_computed_tokens=5)}
    said = Elements(render_transcript(texts, [user("a"), reply("b")], stats, details={"r1": made})).text
    assert (
        'SamplingTemperature: 0.7 · Top-k: 40 · Stop strings: ["<b>"] · Prompt lookup: on'
        " · When the context is full: Stop the reply"
    ) in said


def test_details_name_every_sampling_field_as_the_settings_do() -> None:
    assert {field.name for field in dataclasses.fields(Sampling)} <= set(texts.SETTING_NAMES)


def test_a_reply_of_which_nothing_was_counted_has_no_details() -> None:
    assert "figures" not in render_transcript(texts, [user("a"), reply("b", edited=True)], {})


@pytest.mark.parametrize(
    ("status", "reason", "can_continue"),
    [
        (MessageStatus.COMPLETE, FinishReason.STOP, False),
        (MessageStatus.COMPLETE, FinishReason.LENGTH, True),
        (MessageStatus.COMPLETE, FinishReason.CANCELLED, True),
        (MessageStatus.COMPLETE, FinishReason.INTERRUPTED, True),
        (MessageStatus.COMPLETE, FinishReason.CONTEXT_FULL, False),
        (MessageStatus.COMPLETE, FinishReason.ERROR, False),
        (MessageStatus.INTERRUPTED, None, True),
    ],
)
def test_continue_is_offered_where_a_reply_broke_off(
    status: MessageStatus, reason: FinishReason | None, can_continue: bool
) -> None:
    stats = {"r1": TurnStats(finish_reason=reason)} if reason else {}
    markup = render_transcript(texts, [user("a"), reply("b", status=status)], stats)
    assert ("continue" in actions_of(markup)) is can_continue
    said = Elements(markup).text
    assert any(sentence in said for sentence in texts.FINISHED.values()) is (reason is not FinishReason.STOP)


BROKEN_OFF = [reason for reason in FinishReason if reason is not FinishReason.STOP]


@pytest.mark.parametrize("reason", BROKEN_OFF)
@pytest.mark.parametrize("at", ["the tip", "an answered reply", "a tip that was rolled back to", "a busy chat"])
def test_what_can_be_done_about_a_reply_is_said_where_its_button_is(reason: FinishReason, at: str) -> None:
    messages = [user("a"), reply("b")]
    if at == "an answered reply":
        messages += [user("c", id="u2", parent_id="r1"), reply("d", id="r2", parent_id="u2")]
    undone_id = "r9" if at == "a tip that was rolled back to" else None
    ended = {"r1": TurnStats(finish_reason=reason)}
    markup = render_transcript(texts, messages, ended, is_busy=at == "a busy chat", undone_id=undone_id)
    said, next_step = Elements(markup).text, texts.WHAT_NEXT[reason]
    assert texts.FINISHED[reason] in said
    button = next((name for name in ("Continue", "Regenerate", "Roll back") if name in next_step), None)
    assert button is not None
    assert (next_step in said) == (f'title="{button}"' in markup.split('data-id="r2"')[0])


@pytest.mark.parametrize(("number", "disabled"), [(1, ["previous"]), (2, []), (3, ["next"])])
def test_alternatives_are_counted_and_end_where_they_end(number: int, disabled: list[str]) -> None:
    markup = render_transcript(texts, [user("a"), reply("b", alternative_number=number, num_alternatives=3)], {})
    assert f"{number} of 3" in markup
    for action in ("previous", "next"):
        found = re.search(rf'<button[^>]*data-action="{action}"[^>]*>', markup)
        assert found
        assert (" disabled" in found[0]) is (action in disabled)


def test_a_single_reply_has_no_arrows() -> None:
    assert "1 of 1" not in render_transcript(texts, [user("a"), reply("b")], {})


def test_an_empty_reply_says_so_and_thoughts_are_folded_away() -> None:
    markup = render_transcript(texts, [user("a"), reply("", reasoning="<i>hm</i>")], {})
    assert texts.EMPTY_REPLY in markup
    assert "&lt;i&gt;hm&lt;/i&gt;" in markup
    assert "<details" in markup


def test_an_empty_reply_that_was_stopped_says_one_thing() -> None:
    stopped = {"r1": TurnStats(finish_reason=FinishReason.CANCELLED)}
    markup = render_transcript(texts, [user("a"), reply("")], stopped)
    assert texts.FINISHED[FinishReason.CANCELLED] in markup
    assert texts.EMPTY_REPLY not in markup


def test_versions_of_a_message_and_of_its_reply_are_named_apart() -> None:
    markup = render_transcript(texts, [user("a", num_alternatives=2), reply("b", num_alternatives=2)], {})
    assert f'title="{texts.PREVIOUS_QUESTION}"' in markup
    assert f'title="{texts.PREVIOUS_REPLY}"' in markup


def test_a_line_shows_what_the_model_no_longer_reads() -> None:
    messages = [
        user("a"),
        reply("b"),
        user("c", id="u2", parent_id="r1", position=2),
        reply("d", id="r2", parent_id="u2", position=3),
    ]
    markup = render_transcript(texts, messages, {"r1": TurnStats(), "r2": TurnStats(context_start=2)})
    assert markup.index('data-id="r1"') < markup.index(texts.LEFT_OUT) < markup.index('data-id="u2"')
    assert markup.count(texts.LEFT_OUT) == 1
    assert texts.LEFT_OUT not in render_transcript(texts, messages, {"r2": TurnStats()})


def test_hidden_messages_are_offered() -> None:
    assert actions_of(render_transcript(texts, [user("a")], {}, num_hidden=2))[0] == "earlier"
    assert "earlier" not in actions_of(render_transcript(texts, [user("a")], {}))


# ---------------------------------------------------------------------- cache

MODEL = ModelInfo(
    name="tiny",
    digest="00",
    device="cpu",
    dtype="float32",
    weights="full",
    cache_kind="dynamic",
    max_context_tokens=2048,
    default_sampling=Sampling(),
    supports_thinking_switch=False,
    notices=("No template of its own.",),
)
REPORT = CacheReport(
    kind="dynamic",
    is_live=True,
    num_tokens=430,
    num_bytes=45 * 1024,
    num_sessions=2,
    total_bytes=90 * 1024,
    budget_bytes=2 * 2**30,
    reserved_bytes=2**20,
    max_context_tokens=2048,
    problem=None,
)
TURN = TurnStats(
    num_prompt_tokens=430,
    num_cached_tokens=412,
    num_computed_tokens=18,
    num_completion_tokens=20,
    ttft_s=0.21,
    decode_tokens_per_s=45.13,
    reuse=(Reuse("live", 412),),
    finish_reason=FinishReason.STOP,
)

USE = ContextUse(num_fed_tokens=450, num_frame_tokens=9)


def figures(
    stats: TurnStats | None = TURN,
    report: CacheReport | None = REPORT,
    *,
    last: Message | None = None,
    num_disk_bytes: int = 0,
    use: ContextUse | None = USE,
    **of_chat: Any,
) -> ChatFigures:
    """Of the chat `s1`, whose last reply cost `stats`."""
    last = last or reply("b", position=3)
    look = None if report is None else CacheLook(report, num_disk_bytes, use)
    view = View(session("A chat", **of_chat), (user("a"), last), 0, {last.id: stats} if stats else {}, None)
    return ChatFigures.of(MODEL, view, look)


def panel(*args: Any, **kwargs: Any) -> str:
    """What the cache region says of `figures`."""
    return " ".join(Elements(render_cache_panel(texts, figures(*args, **kwargs))).text.split())


def test_the_panel_says_what_was_reused_from_where_and_what_was_computed() -> None:
    text = panel()
    for words in (
        "412 of 430 tokens reused from memory, 18 computed",
        "0.21 s",
        "45.1 tokens/s",
        "430 tokens, 45.0 KiB",
        "90.0 KiB of 2.0 GiB in 2 chats",
        "450 of 2,048 tokens",
        "No template of its own.",
    ):
        assert words in text, text


def test_the_panel_says_what_the_cache_saved_in_all_turns_together() -> None:
    total = ReuseTotal(num_turns=9, num_prompt_tokens=13_300, num_reused_tokens=12_345, saved_s=41.2)
    said = "In this chat: 12,345 tokens (93 %) reused instead of read again"
    chat = figures()
    assert said not in plain(render_cache_panel(texts, chat))
    assert f"{said}, about 41.2 s saved." in plain(render_cache_panel(texts, replace(chat, total=total)))
    assert f"{said}." in plain(render_cache_panel(texts, replace(chat, total=replace(total, saved_s=None))))
    turkish = plain(render_cache_panel(TURKISH, replace(chat, total=total)))
    assert "12.345 token (%93) yeniden okunmadan kullanıldı, yaklaşık 41,2 sn kazanıldı." in turkish
    assert texts.IN_THIS_CHAT not in render_cache_panel(texts, replace(chat, total=replace(total, num_turns=1)))


def test_while_a_reply_is_written_what_was_saved_before_it_stays() -> None:
    total = ReuseTotal(num_turns=9, num_prompt_tokens=100, num_reused_tokens=60)
    before = CacheLook(REPORT, 0, USE, total)
    messages = (user("a"), reply("", status=MessageStatus.GENERATING))
    running = ChatFigures.of(MODEL, View(session("A chat"), messages, 0, {}, None), before)
    assert "In this chat: 60 tokens (60 %)" in plain(render_cache_panel(texts, running))


def test_what_keeps_the_cache_from_being_stored_is_told() -> None:
    report = replace(REPORT, problem="The disk <is> full.")
    assert "The disk <is> full." in panel(report=report)


def test_two_sources_are_told_apart() -> None:
    stats = replace(TURN, reuse=(Reuse("disk", 400), Reuse("prefix", 12)), restore_s=0.4)
    assert "0.4 s" in panel(stats)
    headline, account = map(plain, describe(texts, stats, is_first=False))
    assert headline == "Reused 412 tokens, 400 of them resumed from disk in 0.4 s; computed 18."
    assert "(400 from disk, 12 from a shared beginning)" in account
    turkish, _ = describe(TURKISH, stats, is_first=False)
    assert plain(turkish).startswith("412 token yeniden kullanıldı, 400 tanesi 0,4 sn içinde diskten geri yüklendi;")


def test_a_resumed_chat_says_so_in_words() -> None:
    stats = replace(TURN, reuse=(Reuse("disk", 412),), restore_s=0.09)
    (said,) = describe(texts, stats, is_first=False)
    assert plain(said) == "Resumed 412 tokens from disk in 0.09 s; computed 18."


def test_what_was_read_from_disk_ahead_of_a_reply_stands_before_what_the_last_one_cost() -> None:
    report = replace(REPORT, num_prefetched_tokens=4096, prefetch_s=0.09)
    said = panel(report=report)
    assert "Resumed 4,096 tokens from disk in 0.09 s." in said
    assert said.index(texts.PREFETCHED) < said.index(texts.LAST_REPLY)
    assert texts.PREFETCHED not in panel()
    turkish = plain(render_cache_panel(TURKISH, figures(report=report)))
    assert "4.096 token 0,09 sn içinde diskten geri yüklendi." in turkish
    running = View(session("A chat"), (user("a"), reply("", status=MessageStatus.GENERATING)), 0, {}, None)
    assert texts.PREFETCHED not in render_cache_panel(texts, ChatFigures.of(MODEL, running, CacheLook(report)))


@pytest.mark.parametrize("reason", list(MissReason))
def test_every_reason_for_a_miss_is_a_sentence(reason: MissReason) -> None:
    sentences = describe(texts, replace(TURN, miss_reason=reason, miss_index=1311), is_first=False)
    assert len(sentences) == 2
    assert sentences[1].endswith(".")
    assert reason not in sentences[1] or reason == "template"


def test_a_first_turn_is_not_called_a_miss() -> None:
    stats = TurnStats(num_prompt_tokens=30, num_computed_tokens=30, miss_reason=MissReason.NO_CACHE, miss_index=0)
    (said,) = describe(texts, stats, is_first=True)
    assert plain(said) == "The first turn of a chat: all 30 tokens were computed, once."
    assert len(describe(texts, stats, is_first=False)) == 2


@pytest.mark.parametrize("source", ["live", "disk", "prefix"])
def test_of_what_was_found_in_part_it_is_not_said_that_it_was_not_in_memory(source: str) -> None:
    stats = replace(TURN, reuse=(Reuse(source, 412),), miss_reason=MissReason.NO_CACHE, miss_index=412)
    said = describe(texts, stats, is_first=False)[-1]
    assert said == "Neither memory nor disk had more of the present text, so the rest was computed from token 412 on."


def test_repairs_and_fallbacks_are_told() -> None:
    stats = replace(TURN, num_recomputed_tokens=7, fallbacks=("Memory was short.",))
    assert [plain(said) for said in describe(texts, stats, is_first=False)[1:]] == [
        "7 tokens had to be computed again after a repair.",
        "Memory was short.",
    ]


GONE = replace(REPORT, is_live=False, num_tokens=0, num_bytes=0, num_sessions=0)


def test_a_chat_without_a_cache_is_told_plainly() -> None:
    assert texts.CACHE_EMPTY in render_cache_panel(texts, ChatFigures.of_new_chat(MODEL, Sampling(), None))
    said = panel(report=GONE)
    assert texts.CACHE_NOWHERE in said
    assert "412 of 430" in said, "the last turn's figures stay"


def test_a_cache_that_waits_on_disk_is_told_with_its_size() -> None:
    said = panel(report=GONE, num_disk_bytes=3 * 2**20)
    assert texts.CACHE_ON_DISK in said
    assert "3.0 MiB" in said
    assert texts.CACHE_ON_DISK not in panel()
    assert texts.CACHE_NOWHERE not in panel()


@pytest.mark.parametrize("report", [None, GONE, REPORT])
@pytest.mark.parametrize("num_disk_bytes", [0, 100])
def test_of_a_chat_without_a_reply_nothing_is_said_that_is_not_so(
    report: CacheReport | None, num_disk_bytes: int
) -> None:
    look = None if report is None else CacheLook(report, num_disk_bytes, ContextUse(0, 31))
    view = View(session("A chat"), (), 0, {"r1": TURN}, None)
    said = Elements(render_cache_panel(texts, ChatFigures.of(MODEL, view, look))).text
    if report is REPORT:
        assert texts.CACHE_IDLE in said
    else:
        assert (texts.CACHE_ON_DISK if report and num_disk_bytes else texts.CACHE_EMPTY) in said
    assert texts.CACHE_NOWHERE not in said
    assert texts.LAST_REPLY not in said
    assert "412" not in said


def test_of_a_turn_that_has_just_begun_it_is_said_that_it_waits() -> None:
    messages = (user("a"), reply("", status=MessageStatus.GENERATING))
    said = Elements(
        render_cache_panel(texts, ChatFigures.of(MODEL, View(session("A chat"), messages, 0, {}, None)))
    ).text
    assert f"{texts.THIS_REPLY}{texts.status(StatusEvent(Phase.QUEUED))}" in said
    assert texts.CACHE_EMPTY not in said
    assert texts.CACHE_IDLE not in said


INTERRUPTED = TurnStats(finish_reason=FinishReason.INTERRUPTED)
STOPPED_AT_ONCE = TurnStats(finish_reason=FinishReason.CANCELLED)


@pytest.mark.parametrize(
    ("fields", "stats", "why"),
    [
        ({"edited": True}, None, Uncounted.BY_HAND),
        ({"status": MessageStatus.INTERRUPTED}, INTERRUPTED, Uncounted.INTERRUPTED),
        ({"status": MessageStatus.INTERRUPTED, "edited": True}, INTERRUPTED, Uncounted.INTERRUPTED),
        ({}, STOPPED_AT_ONCE, Uncounted.NOTHING_READ),
        ({}, None, Uncounted.UNKNOWN),
    ],
)
def test_of_a_reply_that_was_not_counted_that_is_said_and_no_other_replys_figures(
    fields: dict[str, Any], stats: TurnStats | None, why: Uncounted
) -> None:
    last = reply("d", id="r2", position=3, **fields)
    counted = {"r1": TURN} | ({"r2": stats} if stats else {})
    view = View(session("A chat"), (user("a"), reply("b"), user("c", id="u2"), last), 0, counted, None)
    said = Elements(
        render_cache_panel(texts, ChatFigures.of(MODEL, view, CacheLook(REPORT, 0, ContextUse(512, 9))))
    ).text
    assert f"{texts.LAST_REPLY}{texts.UNCOUNTED[why]}" in said
    assert "512 of 2,048 tokens" in plain(said)
    for figure in ("412", "45.1 tokens/s", "0.21 s"):
        assert figure not in plain(said)


def test_a_reply_that_is_being_written_is_not_the_last_one() -> None:
    messages = (user("a"), reply("b"), user("c", id="u2"), reply("", id="r2", status=MessageStatus.GENERATING))
    assert View(session("x"), messages, 0, {}, None).last_reply == messages[1]
    assert View(session("x"), messages[:1], 0, {}, None).last_reply is None


@pytest.mark.parametrize(
    ("fields", "reuse", "is_said"),
    [
        ({"position": 1}, Reuse("prefix", 412), True),
        ({"position": 1}, Reuse("disk", 412), True),
        ({"position": 1, "num_alternatives": 2}, Reuse("disk", 412), False),
        ({"position": 1}, Reuse("live", 412), False),
        ({"position": 3}, Reuse("prefix", 412), False),
    ],
)
def test_where_a_new_chat_has_its_reused_tokens_from_is_said(
    fields: dict[str, Any], reuse: Reuse, is_said: bool
) -> None:
    said = panel(replace(TURN, reuse=(reuse,), restore_s=0.1), last=reply("b", **fields))
    assert (texts.BEGAN_SHARED in said) is is_said


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        (texts.tokens(1), "1 token"),
        (texts.tokens(1024), "1,024 tokens"),
        (texts.size(0), "0 B"),
        (texts.size(1023), "1023 B"),
        (texts.size(1024), "1.0 KiB"),
        (texts.size(5 * 2**30), "5.0 GiB"),
        (texts.size(3 * 2**50), "3,072.0 TiB"),
        (texts.seconds(0), "0 s"),
        (texts.seconds(0.0004), "0 s"),
        (texts.seconds(0.0183), "0.018 s"),
        (texts.seconds(0.0854), "0.085 s"),
        (texts.seconds(0.35), "0.35 s"),
        (texts.seconds(1.42), "1.4 s"),
        (texts.seconds(125), "2 min 5 s"),
        (texts.speed(8.24), "8.2 tokens/s"),
        (texts.speed(412.6), "413 tokens/s"),
        (texts.percent(0, 0), 0),
        (texts.percent(1, 1000), 1),
        (texts.percent(999, 1000), 99),
        (texts.percent(1000, 1000), 100),
    ],
)
def test_figures_are_rounded_without_lying(said: object, meant: object) -> None:
    assert (plain(said) if isinstance(said, str) else said) == meant


@pytest.mark.parametrize("language", [texts, TURKISH])
def test_no_line_ends_between_a_number_and_its_unit(language: Texts) -> None:
    stats = replace(TURN, reuse=(Reuse("disk", 412),), restore_s=0.005, miss_reason=MissReason.HISTORY, miss_index=7)
    total = ReuseTotal(num_turns=9, num_prompt_tokens=100, num_reused_tokens=60, saved_s=125)
    report = replace(REPORT, problem="The file of 3 MiB took 5 s.", num_prefetched_tokens=9, prefetch_s=0.1)
    markup = render_cache_panel(language, replace(figures(stats, report), total=total))
    markup += render_transcript(language, [user("a"), reply("b")], {"r1": stats})
    said = Elements(markup).text
    assert said.count("\N{NO-BREAK SPACE}") > 20
    assert re.findall(r"\d (?:tokens?|s|sn|min|dk|[KMG]iB|%)(?!\w)", said) == []


# -------------------------------------------------------------- notice, place


def test_an_error_interrupts_and_other_sentences_wait() -> None:
    assert 'role="alert"' in render_notice(texts, Notice("x", is_error=True))
    assert 'role="status"' in render_notice(texts, Notice("x"))
    assert actions_of(render_notice(texts, Notice("x", offer=Offer("Undo", "select", "r1")))) == ["select", "dismiss"]
    assert 'class="notice while-busy"' in render_notice(texts, Notice("x", while_busy=True))
    assert render_notice(texts, None) == ""


JSON_VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.lists(st.integers(), max_size=2)
)
PLACES = st.dictionaries(
    st.sampled_from(["session", "tip", "version", "shown", "visit", "message", "asked", "draft", "other"]), JSON_VALUES
)


@given(sent=st.one_of(JSON_VALUES, PLACES.map(json.dumps), st.just("[" * 100_000)))
def test_whatever_a_browser_sends_can_be_read(sent: object) -> None:
    place, seen, destination = Place.from_json(sent), Seen.from_json(sent), Destination.from_json(sent)
    assert Place.from_json(place.to_json()) == place
    assert Seen.from_json(seen.to_json()) == seen
    assert Destination.from_json(destination.to_json()) == destination
    assert place.num_shown >= 1
    assert "<" not in place.to_json() + seen.to_json() + destination.to_json()


def test_every_move_begins_a_new_visit() -> None:
    place = Place().at("s1")
    assert place == Place(session_id="s1", visit=1)
    assert place.showing_more().visit == 2
    assert place.showing_more().num_shown > place.num_shown
    assert place.showing_more().at(None) == Place(visit=3)


def test_every_move_tells_how_often_the_person_had_asked_to_go_elsewhere_by_then() -> None:
    place = Place(asked=3)
    assert [moved.asked for moved in (place.at("s1"), place.showing_more(), place.showing("m1", 3))] == [3, 3, 3]
    assert Place.from_json(place.to_json()).asked == 3


# ----------------------------------------------------------------------- tail


def followed(turn: Turn, leave_after: int | None = None) -> list[dict[str, object]]:
    async def follow() -> list[dict[str, object]]:
        watch, seen = Watch(Place()), []
        async for live in tail(turn, watch, texts, interval_s=0.001):
            seen += live.to_json()
            if leave_after is not None and len(seen) == leave_after:
                watch.left.set()
        return seen

    return asyncio.run(asyncio.wait_for(follow(), 5))


@pytest.fixture
def turn() -> Turn:
    turn = Turn(turn_id="t1", session_id="s1", reply_id="r1")
    turn.emit(StatusEvent(Phase.QUEUED))
    turn.emit(StatusEvent(Phase.PREFILL, 16, 64))
    return turn


def test_a_late_reader_sees_the_text_so_far_at_once(turn: Turn) -> None:
    turn.emit(TextEvent("hm", is_reasoning=True))
    turn.emit(TextEvent("Hello "))
    turn.emit(TextEvent("you"))
    (seen,) = followed(turn, leave_after=1)
    assert seen["thought"] == "hm"
    assert seen["open"] == "<p>Hello you"
    assert seen["thinking"] is False


def test_the_status_says_how_far_reading_is_and_what_the_cache_did(turn: Turn) -> None:
    assert plain(followed(turn, leave_after=1)[0]["status"]) == "Reading 16 of 64 tokens…"
    turn.emit(CacheEvent("spill", 3, "Moved <an idle chat> to disk."))
    assert followed(turn, leave_after=1)[0]["status"] == "Moved &lt;an idle chat&gt; to disk."


def test_following_ends_with_the_turn_and_with_the_tab(turn: Turn) -> None:
    assert len(followed(turn, leave_after=1)) == 1
    turn.emit(DoneEvent(Reply(reply("Hello"), TurnStats())))
    assert followed(turn) == []
