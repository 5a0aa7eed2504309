"""`ChatFigures`: what is true of a chat's cache at one moment. Whatever the page says of it in numbers, in the cache
panel and below the message box, is taken from here, so it is the same everywhere.

Pure: it is told what the service says, and asks nobody.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from enum import StrEnum

from chatcache.context_window import ContextWindow
from chatcache.events import Phase, StatusEvent
from chatcache.reports import CacheReport, ContextUse, ModelInfo
from chatcache.reuse_total import ReuseTotal
from chatcache.stats import FinishReason, Sampling, TurnStats
from chatcache.ui.view import CacheLook, View
from storage.records import Message, MessageStatus

QUEUED, NOTHING_DONE, NOTHING_SAVED = StatusEvent(Phase.QUEUED), TurnStats(), ReuseTotal()


class Uncounted(StrEnum):
    """Why nothing is known of what a reply cost."""

    BY_HAND = "by-hand"
    INTERRUPTED = "interrupted"
    NOTHING_READ = "nothing-read"
    """The turn ended before the model had read anything."""
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Progress:
    """How far the turn that writes `reply_id` is. `stats`: what it has read and written so far, its present speed and
    what has happened to its cache. `speeds`: tokens per second over the last minute of writing, each with its age in
    seconds, oldest first."""

    reply_id: str
    status: StatusEvent = QUEUED
    stats: TurnStats = NOTHING_DONE
    speeds: tuple[tuple[float, float], ...] = ()
    report: CacheReport | None = None

    def seen_from(self, look: CacheLook | None) -> CacheLook | None:
        """What is known of the cache, where `look` was known before the turn."""
        report = self.report or (look.report if look is not None else None)
        if report is None:
            return None
        before = look.use if look is not None else None
        total = look.total if look is not None else NOTHING_SAVED
        num_fed = self.stats.num_prompt_tokens + self.stats.num_completion_tokens
        frame = before.num_frame_tokens if before is not None else 0
        return CacheLook(report, 0, ContextUse(num_fed, frame) if num_fed else before, total)


@dataclass(frozen=True, slots=True)
class ChatFigures:
    """Of the turn that runs in the chat, if one does: `status` says what it is doing, `stats` are those of its
    `Progress`. Else of `reply`, the last one shown (None: there is none), `stats` is what its last turn cost (None: see
    `uncounted`). `speeds` are that turn's, where it was followed here.

    Of the model's window `num_used_tokens` are taken by the chat, `num_frame_tokens` by what comes around its next
    message, `num_kept_tokens` are kept free for the reply, `num_free_tokens` are left. `use` and `report` are None
    before they were asked for. `num_disk_bytes`: what of this chat's cache is stored, told where nothing is in memory.
    `total`: what the cache saved in the turns that have ended.
    """

    model: ModelInfo
    room_tokens: int
    session_id: str | None = None
    status: StatusEvent | None = None
    reply: Message | None = None
    stats: TurnStats | None = None
    uncounted: Uncounted | None = None
    speeds: tuple[tuple[float, float], ...] = ()
    report: CacheReport | None = None
    num_disk_bytes: int = 0
    use: ContextUse | None = None
    total: ReuseTotal = NOTHING_SAVED

    @classmethod
    def of(
        cls, model: ModelInfo, view: View, look: CacheLook | None = None, progress: Progress | None = None
    ) -> ChatFigures:
        """Of the chat that `view` shows. `look` is the last one that was had of its cache, None before the first;
        `progress` that of the last turn that was followed."""
        chat = cls(model, _room(model, Sampling.from_json(view.session.sampling)), session_id=view.session.id)
        if view.busy_id is not None:
            if progress is None or progress.reply_id != view.busy_id:
                progress = Progress(view.busy_id)
            running = dataclasses.replace(chat, status=progress.status, stats=progress.stats, speeds=progress.speeds)
            return running._with(progress.seen_from(look))
        reply = view.last_reply
        stats = view.stats.get(reply.id) if reply is not None else None
        uncounted = None if reply is None else _why_uncounted(reply, stats)
        stats = stats if uncounted is None else None
        followed = progress if progress is not None and reply is not None and progress.reply_id == reply.id else None
        ended = dataclasses.replace(
            chat,
            reply=reply,
            stats=stats,
            uncounted=uncounted,
            speeds=followed.speeds if followed is not None and stats is not None else (),
        )
        return ended._with(look)

    @classmethod
    def of_new_chat(cls, model: ModelInfo, sampling: Sampling, use: ContextUse | None) -> ChatFigures:
        """Of a chat that has not begun and would begin with `sampling`, and take as much as `use` says."""
        return cls(model, _room(model, sampling), use=use)

    def _with(self, look: CacheLook | None) -> ChatFigures:
        if look is None:
            return self
        return dataclasses.replace(
            self,
            report=look.report,
            num_disk_bytes=look.num_disk_bytes,
            use=look.use,
            total=look.total,
        )

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
    def num_to_read(self) -> int:
        """Of how many tokens `stats` tells: while the prompt is being read, all that it has."""
        num_asked_for = self.status.num_reused + self.status.total if self.status is not None else 0
        return max(num_asked_for, self.stats.num_prompt_tokens if self.stats is not None else 0)

    @property
    def num_used_tokens(self) -> int:
        return min(self.use.num_fed_tokens, self.use.num_tokens) if self.use is not None else 0

    @property
    def num_frame_tokens(self) -> int:
        return max(0, self.use.num_frame_tokens) if self.use is not None else 0

    @property
    def num_kept_tokens(self) -> int:
        num_written = self.stats.num_completion_tokens if self.stats is not None and self.status is not None else 0
        return max(0, min(self.room_tokens - num_written, self._num_left_tokens))

    @property
    def num_free_tokens(self) -> int:
        return max(0, self._num_left_tokens - self.num_kept_tokens)

    @property
    def _num_left_tokens(self) -> int:
        return self.model.max_context_tokens - self.num_used_tokens - self.num_frame_tokens

    @property
    def is_more_in_memory(self) -> bool:
        """The cache in memory holds more than the chat has, now that it went back."""
        if self.status is not None or self.report is None or self.use is None:
            return False
        return self.report.num_tokens > self.use.num_fed_tokens


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
