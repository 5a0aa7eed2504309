"""`ChatFigures`: what is true of a chat's cache at one moment. Whatever the page says of it in numbers, in the cache
panel, beside the line of the last reply and below the message box, is taken from here, so it is the same everywhere.

Pure: it is told what the service says, and asks nobody.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from enum import StrEnum

from chatcache.context_window import ContextWindow
from chatcache.reports import CacheReport, ModelInfo
from chatcache.stats import FinishReason, Sampling, TurnStats
from chatcache.ui.view import CacheLook, View
from storage.records import Message, MessageStatus


class Uncounted(StrEnum):
    """Why nothing is known of what a reply cost."""

    BY_HAND = "by-hand"
    INTERRUPTED = "interrupted"
    NOTHING_READ = "nothing-read"
    """The turn ended before the model had read anything."""
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class ChatFigures:
    """`reply` is the last one shown (None: there is none; the first one is being written where the chat `is_begun`),
    `stats` what its last turn cost (None: see `uncounted`).

    `num_used_tokens` are those of the model's window that the next turn finds taken, `num_kept_tokens` those that are
    kept free for its reply, `num_free_tokens` what is left. None: not known yet, as `report` before it was asked for.
    `num_disk_bytes`: what of this chat's cache is stored, told where nothing is in memory.
    """

    model: ModelInfo
    room_tokens: int
    session_id: str | None = None
    is_begun: bool = False
    reply: Message | None = None
    stats: TurnStats | None = None
    uncounted: Uncounted | None = None
    report: CacheReport | None = None
    num_disk_bytes: int = 0
    num_used_tokens: int | None = None

    @classmethod
    def of(cls, model: ModelInfo, view: View, look: CacheLook | None = None) -> ChatFigures:
        """Of the chat that `view` shows; `look` is None before the service was asked, which has to wait its turn."""
        reply = view.last_reply
        stats = view.stats.get(reply.id) if reply is not None else None
        uncounted = None if reply is None else _why_uncounted(reply, stats)
        figures = cls(
            model,
            _room(model, Sampling.from_json(view.session.sampling)),
            session_id=view.session.id,
            is_begun=bool(view.messages),
            reply=reply,
            stats=stats if uncounted is None else None,
            uncounted=uncounted,
            num_used_tokens=0 if reply is None else None,
        )
        if look is None:
            return figures
        return dataclasses.replace(
            figures,
            report=look.report,
            num_disk_bytes=look.num_disk_bytes,
            num_used_tokens=look.num_used_tokens,
        )

    @classmethod
    def of_new_chat(cls, model: ModelInfo, sampling: Sampling) -> ChatFigures:
        """Of a chat that has not begun and would begin with `sampling`."""
        return cls(model, _room(model, sampling), num_used_tokens=0)

    @property
    def is_first(self) -> bool:
        """The reply is to the chat's first message."""
        return self.reply is not None and self.reply.position <= 1

    @property
    def began_shared(self) -> bool:
        """The chat's first reply found its beginning read already, for another chat."""
        if self.stats is None or self.reply is None or not self.is_first:
            return False
        sources = {reuse.source for reuse in self.stats.reuse if reuse.num_tokens}
        return "prefix" in sources or ("disk" in sources and self.reply.num_alternatives == 1)

    @property
    def num_kept_tokens(self) -> int:
        return min(self.room_tokens, max(0, self.model.max_context_tokens - (self.num_used_tokens or 0)))

    @property
    def num_free_tokens(self) -> int:
        return max(0, self.model.max_context_tokens - (self.num_used_tokens or 0) - self.num_kept_tokens)


def _room(model: ModelInfo, sampling: Sampling) -> int:
    """What the model's window keeps free for a reply."""
    most = sampling.merged(model.default_sampling).max_new_tokens
    return ContextWindow.of(model.max_context_tokens, most).room_tokens


def _why_uncounted(reply: Message, stats: TurnStats | None) -> Uncounted | None:
    if stats is not None and stats.num_prompt_tokens:
        return None
    if reply.status is MessageStatus.INTERRUPTED:
        return Uncounted.INTERRUPTED
    if stats is not None and stats.finish_reason in (FinishReason.CANCELLED, FinishReason.ERROR):
        return Uncounted.NOTHING_READ
    return Uncounted.BY_HAND if reply.edited else Uncounted.UNKNOWN
