"""What the caches take on disk, chat by chat, and what can be done about it: `StorageReport` → HTML."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass

from chatcache.reports import StorageReport
from chatcache.ui.bars import render_account, sized
from chatcache.ui.facts import render_facts
from chatcache.ui.texts import Texts
from chatcache.verification import VerifyProgress
from storage.segment_check import VerifyReport

NUM_CHATS_SHOWN = 12


@dataclass(frozen=True, slots=True)
class StoredChat:
    """A chat that has its cache on disk."""

    session_id: str
    title: str
    num_bytes: int
    is_deleted: bool = False


def render_storage(
    texts: Texts,
    report: StorageReport,
    chats: Sequence[StoredChat],
    *,
    num_others: int = 0,
    other_bytes: int = 0,
    current_id: str | None = None,
    said: str = "",
    is_asking: bool = False,
    is_busy: bool = False,
) -> str:
    """The panel. `chats` are the largest; there are `num_others` smaller ones.

    `said`: what the last action came to. `is_asking`: whether all caches are to be dropped; `is_busy`: a check runs.
    """
    cache = report.cache
    own = sized(texts, texts.THIS_CHAT, cache.session_bytes.get(current_id or "", 0), "mine", texts.THIS_CHAT)
    rest = max(0, cache.used_bytes - own.amount)
    parts = [own] if own.amount else []
    parts += [
        sized(texts, texts.OTHER_CACHES, rest, "other", texts.OTHER_CACHES),
        sized(texts, texts.FREE, max(0, cache.quota_bytes - cache.used_bytes)),
    ]
    figure = texts.quota_use(cache.used_bytes, cache.quota_bytes)
    bar = render_account(texts.ON_DISK, figure, parts, cache.quota_bytes)
    items = "".join(_render_chat(texts, chat, is_current=chat.session_id == current_id) for chat in chats)
    if num_others:
        items += f"<li><span>{texts.smaller_chats(num_others)}</span><span>{texts.size(other_bytes)}</span></li>"
    listed = f'<ul class="stored">{items}</ul>' if items else f'<p class="quiet">{texts.STORAGE_EMPTY}</p>'
    told = f'<p class="quiet" role="status">{html.escape(said)}</p>' if said else ""
    facts = render_facts(_rows(texts, report))
    return f"{bar}{listed}{facts}{told}{_render_buttons(texts, is_asking=is_asking, is_busy=is_busy)}"


def render_waiting(texts: Texts) -> str:
    """The panel until it is known what is stored."""
    return f'<p class="quiet">{texts.STORAGE_WAITS}</p>'


def say_progress(texts: Texts, progress: VerifyProgress) -> str:
    return texts.verifying(progress.num_checked, progress.num_files) if progress.num_files else texts.VERIFY_STARTS


def say_verified(texts: Texts, report: VerifyReport) -> str:
    """What a check has found, in words."""
    if report.damage:
        return texts.damaged(len(report.damage), report.num_files)
    return texts.verified(report.num_files, report.num_bytes)


def _rows(texts: Texts, report: StorageReport) -> list[tuple[str, str]]:
    rows = [(texts.DATABASE, texts.size(report.database_bytes))]
    if report.cache.shared_bytes:
        rows.append((texts.SHARED, texts.size(report.cache.shared_bytes)))
    if report.cache.set_aside_bytes:
        rows.append((texts.SET_ASIDE, texts.size(report.cache.set_aside_bytes)))
    if report.hit_rate is not None:
        rows.append((texts.HIT_RATE, texts.share(report.hit_rate)))
    return rows


def _render_chat(texts: Texts, chat: StoredChat, *, is_current: bool) -> str:
    title = html.escape(chat.title or texts.UNTITLED)
    note = f" ({texts.IN_THE_BIN})" if chat.is_deleted else ""
    name = html.escape(f"{texts.DROP_CACHE}: {chat.title or texts.UNTITLED}")
    current = ' class="current"' if is_current else ""
    about = f' data-message="{html.escape(chat.session_id)}" aria-label="{name}"'
    return (
        f'<li{current}><span title="{title}">{title}{note}</span><span>{texts.size(chat.num_bytes)}</span>'
        f"{_button('drop', texts.DROP_CACHE, more=about)}</li>"
    )


def _render_buttons(texts: Texts, *, is_asking: bool, is_busy: bool) -> str:
    if is_asking:
        return (
            f'<div class="ask" role="group" aria-label="{texts.DROP_ALL}"><p>{texts.DROP_ALL_QUESTION}</p>'
            f"{_button('drop-all', texts.DROP_ALL, 'danger')}{_button('refresh', texts.CANCEL)}</div>"
        )
    busy = ' aria-disabled="true"' if is_busy else ""  # the focus stays on it
    buttons = (_button(action, name, more=busy) for action, name in (("verify", texts.VERIFY), ("ask", texts.DROP_ALL)))
    return f'<p class="buttons">{"".join(buttons)}</p>'


def _button(action: str, name: str, style: str = "", more: str = "") -> str:
    return f'<button type="button" class="control framed {style}" data-action="{action}"{more}>{name}</button>'
