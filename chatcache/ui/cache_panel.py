"""What the cache did, in words and in a picture: `TurnStats` and `CacheReport` → HTML."""

from __future__ import annotations

import html

from chatcache.reports import CacheReport, ModelInfo
from chatcache.stats import TurnStats
from chatcache.ui import figures, texts


def render_cache_panel(
    model: ModelInfo, report: CacheReport | None, stats: TurnStats | None, *, is_first: bool, num_disk_bytes: int = 0
) -> str:
    """The panel's inside. `stats` are those of the last finished turn; `is_first`: that turn was the chat's first.

    `num_disk_bytes`: what is stored of this chat's cache; it is told where nothing is in memory.
    """
    if stats is None or not stats.num_prompt_tokens:
        account = f'<p class="quiet">{texts.CACHE_EMPTY if report is None else texts.CACHE_IDLE}</p>'
    else:
        account = f'<p class="quiet last-turn">{texts.LAST_TURN}</p>{_render_account(stats, is_first=is_first)}'
    if report is not None and stats is not None and not report.is_live:
        account += f'<p class="quiet">{texts.CACHE_ON_DISK if num_disk_bytes else texts.CACHE_NOWHERE}</p>'
    rows = _reply_rows(stats) + _cache_rows(model, report, stats, num_disk_bytes)
    details = "".join(f"<div><dt>{html.escape(name)}</dt><dd>{html.escape(value)}</dd></div>" for name, value in rows)
    told = [*model.notices, *([report.problem] if report is not None and report.problem else [])]
    notices = "".join(f"<li>{html.escape(notice)}</li>" for notice in told)
    return (
        f'{account}<button type="button" class="control details-toggle" data-action="details" aria-expanded="false">'
        f"{texts.SHOW_DETAILS}</button>"
        f"<dl>{details}</dl>" + (f'<ul class="model-notices">{notices}</ul>' if notices else "")
    )


def describe(stats: TurnStats, *, is_first: bool) -> list[str]:
    """The turn's account in sentences: what was reused and from where, what was computed and why."""
    reused, total = stats.num_cached_tokens, stats.num_prompt_tokens
    sentences = []
    num_from_disk = sum(reuse.num_tokens for reuse in stats.reuse if reuse.source == "disk")
    if num_from_disk and stats.restore_s is not None:
        sentences.append(
            f"Resumed {figures.count(num_from_disk, 'token')} from disk in {figures.seconds(stats.restore_s)}; "
            f"computed {stats.num_computed_tokens:,}."
        )
    if num_from_disk < reused:
        share = figures.percent(reused, total)
        sentences.append(
            f"{share} % of what the model needed was already there: {reused:,} of {figures.count(total, 'token')} "
            f"reused{_sources(stats)}, {stats.num_computed_tokens:,} computed."
        )
    elif not reused and is_first:
        sentences.append(f"The first turn of a chat: all {figures.count(total, 'token')} were computed, once.")
    elif not reused:
        sentences.append(f"All {figures.count(total, 'token')} were computed.")
    if stats.miss_reason is not None and not (is_first and not reused):
        sentences.append(
            texts.miss(
                stats.miss_reason,
                stats.miss_index,
                num_reused=reused,
                num_computed=stats.num_computed_tokens,
            )
        )
    if stats.num_recomputed_tokens:
        sentences.append(
            f"{figures.count(stats.num_recomputed_tokens, 'token')} had to be computed again after a repair."
        )
    sentences.extend(stats.fallbacks)
    return sentences


def _render_account(stats: TurnStats, *, is_first: bool) -> str:
    first, *others = describe(stats, is_first=is_first)
    return f'<p class="account">{html.escape(first)}</p>{_render_bar(stats)}' + "".join(
        f'<p class="quiet">{html.escape(sentence)}</p>' for sentence in others
    )


def _render_bar(stats: TurnStats) -> str:
    reused = figures.percent(stats.num_cached_tokens, stats.num_prompt_tokens)
    label = f"{stats.num_cached_tokens:,} {texts.REUSED}, {stats.num_computed_tokens:,} {texts.COMPUTED}"
    return (
        f'<div class="bar" role="img" aria-label="{label}"><span class="reused" style="width:{reused}%"></span>'
        f'<span class="computed" style="width:{100 - reused}%"></span></div>'
        f'<p class="legend"><span class="reused">{stats.num_cached_tokens:,} {texts.REUSED}</span>'
        f'<span class="computed">{stats.num_computed_tokens:,} {texts.COMPUTED}</span></p>'
    )


def _sources(stats: TurnStats) -> str:
    names = [texts.SOURCES.get(reuse.source, reuse.source) for reuse in stats.reuse if reuse.num_tokens]
    if len(names) == 1:
        return f" {names[0]}"
    parts = [f"{r.num_tokens:,} {texts.SOURCES.get(r.source, r.source)}" for r in stats.reuse if r.num_tokens]
    return f" ({', '.join(parts)})" if parts else ""


def _reply_rows(stats: TurnStats | None) -> list[tuple[str, str]]:
    if stats is None:
        return []
    rows: list[tuple[str, str]] = []
    if stats.ttft_s is not None:
        rows.append(("First token after", figures.seconds(stats.ttft_s)))
    if stats.restore_s:
        rows.append(("Fetched from disk in", figures.seconds(stats.restore_s)))
    if stats.decode_tokens_per_s:
        rows.append(("Speed", figures.speed(stats.decode_tokens_per_s)))
    if stats.num_completion_tokens:
        rows.append(("Written by this turn", figures.count(stats.num_completion_tokens, "token")))
    return rows


def _cache_rows(
    model: ModelInfo, report: CacheReport | None, stats: TurnStats | None, num_disk_bytes: int
) -> list[tuple[str, str]]:
    rows = [("Kind", report.kind if report is not None else stats.cache_kind if stats else model.cache_kind)]
    if report is not None:
        held = f"{figures.count(report.num_tokens, 'token')}, {figures.size(report.num_bytes)}"
        rows.append(("In memory", held if report.is_live else "nothing"))
        if not report.is_live:
            rows.append(("On disk", figures.size(num_disk_bytes) if num_disk_bytes else "nothing"))
        chats = f" in {report.num_sessions} chats" if report.num_sessions > 1 else ""
        total, budget = figures.size(report.total_bytes), figures.size(report.budget_bytes)
        rows.append(("All caches", f"{total} of {budget}{chats}"))
    if stats is not None and stats.num_prompt_tokens:
        used = stats.num_prompt_tokens + stats.num_completion_tokens
        rows.append(("Context", f"{used:,} of {figures.count(model.max_context_tokens, 'token')}"))
    else:
        rows.append(("Context", f"up to {figures.count(model.max_context_tokens, 'token')}"))
    rows.append(("Model", model.name))
    return rows
