"""What the cache did, in words and in a picture: `TurnStats` and `CacheReport` → HTML."""

from __future__ import annotations

import html

from chatcache.reports import CacheReport, ModelInfo
from chatcache.stats import TurnStats
from chatcache.ui.texts import Texts


def render_cache_panel(
    texts: Texts,
    model: ModelInfo,
    report: CacheReport | None,
    stats: TurnStats | None,
    *,
    is_first: bool,
    num_disk_bytes: int = 0,
) -> str:
    """The whole region. `stats` are those of the last finished turn; `is_first`: that turn was the chat's first.

    `num_disk_bytes`: what is stored of this chat's cache; it is told where nothing is in memory.
    """
    if stats is None or not stats.num_prompt_tokens:
        account = f'<p class="quiet">{texts.CACHE_EMPTY if report is None else texts.CACHE_IDLE}</p>'
    else:
        account = f'<p class="quiet last-turn">{texts.LAST_TURN}</p>{_render_account(texts, stats, is_first=is_first)}'
    if report is not None and stats is not None and not report.is_live:
        account += f'<p class="quiet">{texts.CACHE_ON_DISK if num_disk_bytes else texts.CACHE_NOWHERE}</p>'
    rows = _reply_rows(texts, stats) + _cache_rows(texts, model, report, stats, num_disk_bytes)
    details = "".join(f"<div><dt>{html.escape(name)}</dt><dd>{html.escape(value)}</dd></div>" for name, value in rows)
    told = [*model.notices, *([report.problem] if report is not None and report.problem else [])]
    notices = "".join(f"<li>{html.escape(notice)}</li>" for notice in told)
    return (
        f'<section role="region" aria-labelledby="cache-heading"><h2 id="cache-heading">{texts.CACHE}</h2>{account}'
        '<button type="button" class="control details-toggle" data-action="details" aria-expanded="false">'
        f"{texts.SHOW_DETAILS}</button>"
        f"<dl>{details}</dl>" + (f'<ul class="model-notices">{notices}</ul>' if notices else "") + "</section>"
    )


def describe(texts: Texts, stats: TurnStats, *, is_first: bool) -> list[str]:
    """The turn's account in sentences: what was reused and from where, what was computed and why."""
    reused, total = stats.num_cached_tokens, stats.num_prompt_tokens
    sentences = []
    num_from_disk = sum(reuse.num_tokens for reuse in stats.reuse if reuse.source == "disk")
    if num_from_disk and stats.restore_s is not None:
        sentences.append(texts.resumed(num_from_disk, stats.restore_s, stats.num_computed_tokens))
    if num_from_disk < reused:
        sources = [(reuse.source, reuse.num_tokens) for reuse in stats.reuse if reuse.num_tokens]
        sentences.append(texts.reused(reused, total, stats.num_computed_tokens, sources))
    elif not reused:
        sentences.append(texts.first_turn(total) if is_first else texts.all_computed(total))
    if stats.miss_reason is not None and not (is_first and not reused):
        num_computed = stats.num_computed_tokens
        sentences.append(texts.miss(stats.miss_reason, stats.miss_index, num_reused=reused, num_computed=num_computed))
    if stats.num_recomputed_tokens:
        sentences.append(texts.recomputed(stats.num_recomputed_tokens))
    sentences.extend(stats.fallbacks)
    return sentences


def _render_account(texts: Texts, stats: TurnStats, *, is_first: bool) -> str:
    first, *others = describe(texts, stats, is_first=is_first)
    return f'<p class="account">{html.escape(first)}</p>{_render_bar(texts, stats)}' + "".join(
        f'<p class="quiet">{html.escape(sentence)}</p>' for sentence in others
    )


def _render_bar(texts: Texts, stats: TurnStats) -> str:
    share = texts.percent(stats.num_cached_tokens, stats.num_prompt_tokens)
    reused = f"{texts.number(stats.num_cached_tokens)} {texts.REUSED}"
    computed = f"{texts.number(stats.num_computed_tokens)} {texts.COMPUTED}"
    return (
        f'<div class="bar" role="img" aria-label="{reused}, {computed}">'
        f'<span class="reused" style="width:{share}%"></span>'
        f'<span class="computed" style="width:{100 - share}%"></span></div>'
        f'<p class="legend"><span class="reused">{reused}</span><span class="computed">{computed}</span></p>'
    )


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


def _cache_rows(
    texts: Texts, model: ModelInfo, report: CacheReport | None, stats: TurnStats | None, num_disk_bytes: int
) -> list[tuple[str, str]]:
    kind = report.kind if report is not None else stats.cache_kind if stats else model.cache_kind
    rows = [(texts.KIND, kind)]
    if report is not None:
        held = f"{texts.tokens(report.num_tokens)}, {texts.size(report.num_bytes)}"
        rows.append((texts.IN_MEMORY, held if report.is_live else texts.NOTHING))
        if not report.is_live:
            rows.append((texts.ON_DISK, texts.size(num_disk_bytes) if num_disk_bytes else texts.NOTHING))
        use = texts.budget_use(report.total_bytes, report.budget_bytes, report.num_sessions)
        rows.append((texts.ALL_CACHES, use))
    num_used = stats.num_prompt_tokens + stats.num_completion_tokens if stats and stats.num_prompt_tokens else 0
    rows.append((texts.CONTEXT, texts.context_use(num_used, model.max_context_tokens)))
    rows.append((texts.MODEL_NAME, model.name))
    return rows
