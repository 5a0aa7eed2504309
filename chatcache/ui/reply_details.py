"""What one reply cost and how it was asked for, folded away below it: `TurnStats` → HTML."""

from __future__ import annotations

import json

from chatcache.reports import TurnDetails
from chatcache.stats import TurnStats
from chatcache.ui.facts import render_facts
from chatcache.ui.message_controls import finish_reason
from chatcache.ui.texts import Texts
from storage.records import Message


def render_details(texts: Texts, message: Message, stats: TurnStats | None, made: TurnDetails | None = None) -> str:
    """A line with the figures that matter, which opens to all of them; nothing where nothing was counted."""
    if stats is None or not stats.num_prompt_tokens:
        return ""
    facts = render_facts(_rows(texts, message, stats, made))
    return (
        f'<details class="figures"><summary title="{texts.SHOW_DETAILS}">{_summary(texts, stats)}'
        f'<span class="sr-only">{texts.SHOW_DETAILS}</span></summary>{facts}</details>'
    )


def _summary(texts: Texts, stats: TurnStats) -> str:
    reused, computed = texts.number(stats.num_cached_tokens), texts.number(stats.num_computed_tokens)
    words = f"<span>{reused} {texts.REUSED} · {computed} {texts.COMPUTED}"
    speed = (
        f'<span class="speed"> · {texts.speed(stats.decode_tokens_per_s)}</span>' if stats.decode_tokens_per_s else ""
    )
    return f"{words}{speed}</span>"


def _rows(texts: Texts, message: Message, stats: TurnStats, made: TurnDetails | None) -> list[tuple[str, str]]:
    sources = [(reuse.source, reuse.num_tokens) for reuse in stats.reuse if reuse.num_tokens]
    rows = [
        (texts.PROMPT, texts.tokens(stats.num_prompt_tokens)),
        (texts.REUSED_TOKENS, texts.counted_sources(stats.num_cached_tokens, sources)),
        (texts.COMPUTED_TOKENS, texts.number(stats.num_computed_tokens + stats.num_recomputed_tokens)),
        (texts.WRITTEN, texts.tokens(stats.num_completion_tokens)),
    ]
    if stats.num_drafted_tokens:
        accepted = texts.accepted(stats.num_accepted_tokens, stats.num_drafted_tokens)
        rows.append((texts.GUESSED, accepted))
    if stats.ttft_s is not None:
        rows.append((texts.TTFT, texts.seconds(stats.ttft_s)))
    if stats.restore_s:
        rows.append((texts.RESTORED_IN, texts.seconds(stats.restore_s)))
    if stats.decode_tokens_per_s:
        rows.append((texts.SPEED, texts.speed(stats.decode_tokens_per_s)))
    rows += [(texts.CACHE_KIND, stats.cache_kind), (texts.SEED, str(stats.seed))]
    if made is not None:
        rows.append((texts.SAMPLING, " · ".join(_asked_for(texts, made))))
    if (reason := finish_reason(message, stats)) is not None:
        rows.append((texts.ENDED, texts.FINISH_NAMES[reason]))
    rows.append((texts.WRITTEN_AT, f"{message.created_at.astimezone():%Y-%m-%d %H:%M:%S}"))
    return rows


def _asked_for(texts: Texts, made: TurnDetails) -> list[str]:
    """Sampling and settings as the settings panel names them; what an import brought besides, as it is called there."""
    sampling = {name: value for name, value in made.sampling.to_json().items() if name != "seed"}
    asked = {**sampling, **{name: value for name, value in made.settings.items() if name != "cache"}}
    said = {name: _word(texts, name, value) for name, value in asked.items() if value not in (None, [], ())}
    return [f"{texts.SETTING_NAMES.get(name, name)}: {word}" for name, word in said.items()]


def _word(texts: Texts, name: str, value: object) -> str:
    if isinstance(value, bool):
        return (texts.ON if value else texts.OFF).lower()
    if name == "context_full" and isinstance(value, str):
        return texts.CONTEXT_FULL_CHOICES.get(value, value)
    return json.dumps(value, ensure_ascii=False)
