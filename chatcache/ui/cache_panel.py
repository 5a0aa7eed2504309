"""What the cache did and what it takes, in words and in pictures: `ChatFigures` → HTML."""

from __future__ import annotations

import html

from chatcache.reports import CacheReport, LiveChat
from chatcache.reuse_total import ReuseTotal
from chatcache.stats import TurnStats
from chatcache.ui.bars import Part, render_account, render_bar, render_legend, sized
from chatcache.ui.chart import Line, render_chart
from chatcache.ui.chat_figures import ChatFigures
from chatcache.ui.facts import render_facts
from chatcache.ui.texts import Texts

CHART_HEIGHT = 44.0


def render_cache_panel(texts: Texts, figures: ChatFigures) -> str:
    """The whole region."""
    report = figures.report
    pictures = _render_memory(texts, report, figures.session_id) if report is not None else ""
    pictures += _render_context(texts, figures) if figures.use is not None else ""
    facts = render_facts(_reply_rows(texts, figures.stats) + _cache_rows(texts, figures))
    told = [*figures.model.notices, *([report.problem] if report is not None and report.problem else [])]
    notices = "".join(f"<li>{html.escape(texts.said(notice))}</li>" for notice in told)
    notices = f'<ul class="model-notices">{notices}</ul>' if told else ""
    account = _render_prefetch(texts, figures) + _render_turn(texts, figures) + _render_total(texts, figures.total)
    return (
        f'<section role="region" aria-labelledby="cache-heading"><h2 id="cache-heading">{texts.CACHE}</h2>'
        f"{account}{_render_whereabouts(texts, figures)}"
        '<button type="button" class="control details-toggle" data-action="details" aria-expanded="false">'
        f"<span>{texts.SHOW_DETAILS}</span><span>{texts.CLOSE}</span></button>{pictures}{facts}{notices}</section>"
    )


def render_cache_opening(texts: Texts) -> str:
    """The place of the region, until the chat is known."""
    return f'<div class="skeleton" aria-hidden="true"><h2>{texts.CACHE}</h2><p></p><p></p><p></p></div>'


def describe(texts: Texts, stats: TurnStats, *, is_first: bool, began_shared: bool = False) -> list[str]:
    """The turn's account in sentences: what was reused and from where, what was computed and why."""
    reused, total = stats.num_cached_tokens, stats.num_prompt_tokens
    sentences = []
    num_from_disk = sum(reuse.num_tokens for reuse in stats.reuse if reuse.source == "disk")
    if num_from_disk and stats.restore_s is not None:
        sentences.append(texts.resumed(num_from_disk, stats.restore_s, stats.num_computed_tokens, num_reused=reused))
    if num_from_disk < reused:
        sources = [(reuse.source, reuse.num_tokens) for reuse in stats.reuse if reuse.num_tokens]
        sentences.append(texts.reused(reused, total, stats.num_computed_tokens, sources))
    elif not reused:
        sentences.append(texts.first_turn(total) if is_first else texts.all_computed(total))
    if began_shared:
        sentences.append(texts.BEGAN_SHARED)
    if stats.miss_reason is not None and not (is_first and not reused):
        sentences.append(texts.miss(stats.miss_reason, stats.miss_index, num_reused=reused))
    if stats.num_recomputed_tokens:
        sentences.append(texts.recomputed(stats.num_recomputed_tokens))
    sentences.extend(map(texts.said, stats.fallbacks))
    return sentences


def _render_prefetch(texts: Texts, figures: ChatFigures) -> str:
    """What came from disk since the last reply; nothing where nothing did, and once the next one is asked for."""
    report = figures.report
    if report is None or figures.status is not None or not report.num_prefetched_tokens:
        return ""
    said = texts.prefetched(report.num_prefetched_tokens, report.prefetch_s)
    return f'<p class="quiet last-turn">{texts.PREFETCHED}</p><p class="account prefetched">{said}</p>'


def _render_turn(texts: Texts, figures: ChatFigures) -> str:
    """What the last reply cost, or has cost so far, or why nobody knows; nothing where there is none."""
    if figures.reply is None and figures.status is None:
        return ""
    title = texts.THIS_REPLY if figures.status is not None else texts.LAST_REPLY
    heading = f'<p class="quiet last-turn">{title}</p>'
    if figures.stats is not None:
        return heading + _render_account(texts, figures, figures.stats) + _render_speeds(texts, figures)
    return heading + (f'<p class="account">{texts.UNCOUNTED[figures.uncounted]}</p>' if figures.uncounted else "")


def _render_total(texts: Texts, total: ReuseTotal) -> str:
    """What the cache saved in the chat; nothing as long as the last turn says it all."""
    if total.num_turns < 2 or not total.num_reused_tokens:
        return ""
    said = texts.saved_in_chat(total.num_reused_tokens, total.num_prompt_tokens, total.saved_s)
    return f'<p class="quiet total">{said}</p>'


def _render_whereabouts(texts: Texts, figures: ChatFigures) -> str:
    """Where the chat's cache is, if not in memory, and why there is more of it than the chat has."""
    report, sentence = figures.report, ""
    if figures.status is not None:
        return ""
    if figures.reply is None:
        sentence = texts.CACHE_IDLE if report is not None and report.is_live else texts.CACHE_EMPTY
    if report is not None and not report.is_live:
        if figures.num_disk_bytes:
            sentence = texts.CACHE_ON_DISK
        elif figures.reply is not None:
            sentence = texts.CACHE_NOWHERE
    sentences = [sentence, texts.MORE_IN_MEMORY if figures.is_more_in_memory else ""]
    return "".join(f'<p class="quiet">{each}</p>' for each in sentences if each)


def _render_account(texts: Texts, figures: ChatFigures, stats: TurnStats) -> str:
    if figures.status is not None:
        first, others = texts.status(figures.status) or texts.WRITING, list(map(texts.said, stats.fallbacks))
    else:
        first, *others = describe(texts, stats, is_first=figures.is_first, began_shared=figures.began_shared)
    reused = f"{texts.number(stats.num_cached_tokens)} {texts.REUSED}"
    computed = f"{texts.number(stats.num_computed_tokens)} {texts.COMPUTED}"
    parts = [
        Part("", stats.num_cached_tokens, "", "mine"),
        Part("", stats.num_computed_tokens, "", "computed"),
    ]
    bar = render_bar(parts, figures.num_to_read, f"{reused}, {computed}")
    legend = f'<p class="legend"><span class="mine">{reused}</span><span class="computed">{computed}</span></p>'
    return f'<p class="account">{html.escape(first)}</p>{bar}{legend}' + "".join(
        f'<p class="quiet told">{html.escape(sentence)}</p>' for sentence in others
    )


def _render_speeds(texts: Texts, figures: ChatFigures) -> str:
    """How quickly the reply is, or was, written, as a line over its axes; nothing where it would be none."""
    speeds, stats = figures.speeds, figures.stats
    if len(speeds) < 2 or stats is None or not stats.decode_tokens_per_s or not any(speed for _, speed in speeds):
        return ""
    lowest, top, span_s = min(speed for _, speed in speeds), max(speed for _, speed in speeds), speeds[0][0]
    points = [(1 - age_s / span_s, speed / top) for age_s, speed in speeds]
    told = texts.speeds(lowest, top)
    label = f"{texts.SPEEDS}: {told}. {texts.SPEED}: {texts.speed(stats.decode_tokens_per_s)}."
    chart = render_chart([Line(points, "mine")], label, height=CHART_HEIGHT)
    scale = f"<span>{texts.number(top, int(top < 10))}</span><span>0</span>"
    end = texts.NOW if figures.status is not None else texts.AT_THE_END
    return (
        f'<div class="speeds"><p class="axis"><span>{texts.SPEEDS}</span><span>{told}</span></p>'
        f'<div class="plot">{chart}<p class="scale" aria-hidden="true">{scale}</p></div>'
        f'<p class="axis"><span>{texts.earlier(span_s)}</span><span>{end}</span></p></div>'
    )


def _render_memory(texts: Texts, report: CacheReport, session_id: str | None) -> str:
    """The budget by chat and kind: this one, the owner's others, what is reserved beyond them, what is free."""
    others = [chat for chat in report.chats if chat.session_id != session_id]
    parts = []
    if report.is_live:
        parts.append(sized(texts, f"{texts.THIS_CHAT} · {report.kind}", report.num_bytes, "mine", report.kind))
    bar = [*parts, *(_other(texts, chat) for chat in others)]
    num_reserved = max(0, report.reserved_bytes - report.total_bytes)
    reserved = sized(texts, texts.RESERVED, num_reserved, "kept", texts.RESERVED)
    num_free = max(0, report.budget_bytes - report.total_bytes - num_reserved)
    if others:
        kinds = ", ".join(dict.fromkeys(chat.kind for chat in others))
        name = f"{texts.other_chats(len(others))} · {kinds}"
        parts.append(sized(texts, name, sum(chat.num_bytes for chat in others), "other"))
    parts += [reserved, sized(texts, texts.FREE, num_free)]
    figure = texts.budget_use(report.total_bytes, report.budget_bytes, report.num_sessions)
    label = f"{texts.MEMORY}: {figure}. " + ", ".join(f"{part.name} {part.figure}" for part in parts)
    return (
        f'<div class="account-bar"><h3>{texts.MEMORY}<span>{figure}</span></h3>'
        f"{render_bar([*bar, reserved], report.budget_bytes, label)}{render_legend(parts)}</div>"
    )


def _other(texts: Texts, chat: LiveChat) -> Part:
    return sized(texts, "", chat.num_bytes, "other", f"{chat.kind} · {texts.size(chat.num_bytes)}")


def _render_context(texts: Texts, figures: ChatFigures) -> str:
    """The model's window: what of it the chat takes and the next message and its reply will take, and what is free."""
    whole = figures.model.max_context_tokens
    amounts = [(texts.USED, figures.num_used_tokens, "mine"), (texts.FRAME, figures.num_frame_tokens, "other")]
    amounts += [(texts.RESERVED_FOR_REPLY, figures.num_kept_tokens, "kept"), (texts.FREE, figures.num_free_tokens, "")]
    parts = [Part(name, amount, texts.number(amount), style, name) for name, amount, style in amounts]
    left_out = ""
    if figures.stats is not None and figures.stats.context_start:
        left_out = f'<p class="quiet">{texts.left_out_messages(figures.stats.context_start)}</p>'
    return render_account(texts.CONTEXT, texts.context_use(figures.num_used_tokens, whole), parts, whole) + left_out


def _reply_rows(texts: Texts, stats: TurnStats | None) -> list[tuple[str, str]]:
    if stats is None:
        return []
    rows: list[tuple[str, str]] = []
    if stats.ttft_s is not None:
        rows.append((texts.TTFT, texts.seconds(stats.ttft_s)))
    if stats.restore_s:
        rows.append((texts.RESTORED_IN, texts.seconds(stats.restore_s)))
    if stats.decode_tokens_per_s:
        rows.append((texts.SPEED, texts.speed(stats.decode_tokens_per_s)))
    if stats.num_completion_tokens:
        rows.append((texts.WRITTEN, texts.tokens(stats.num_completion_tokens)))
    return rows


def _cache_rows(texts: Texts, figures: ChatFigures) -> list[tuple[str, str]]:
    report, stats = figures.report, figures.stats
    kind = report.kind if report is not None else stats.cache_kind if stats is not None else figures.model.cache_kind
    rows = [(texts.KIND, kind)]
    if report is not None:
        held = f"{texts.tokens(report.num_tokens)}, {texts.size(report.num_bytes)}"
        rows.append((texts.IN_MEMORY, held if report.is_live else texts.NOTHING))
        if not report.is_live:
            rows.append(
                (texts.ON_DISK, texts.size(figures.num_disk_bytes) if figures.num_disk_bytes else texts.NOTHING)
            )
    rows.append((texts.MODEL_NAME, figures.model.name))
    return rows
