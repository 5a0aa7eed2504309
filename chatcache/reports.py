"""What the service tells about itself: plain values for pages and scripts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from chatcache.stats import Sampling, TurnStats
from storage.records import ChatSession, Message
from storage.segment_report import SegmentReport


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """The model. `weights`: the form of its matrices, as it was asked for until they are loaded; `notices` are
    sentences a person should see.

    `cache_kind` is what a chat has where its settings name none of the `cache_kinds` it may have. Every field of
    `default_sampling` but the seed is set: what a chat's sampling leaves open comes from there.
    """

    name: str
    digest: str
    device: str
    dtype: str
    weights: str
    cache_kind: str
    max_context_tokens: int
    default_sampling: Sampling
    supports_thinking_switch: bool
    notices: tuple[str, ...]
    cache_kinds: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LoadingReport:
    """The model's weights are not there yet; they have been loading for so many seconds by now. `step`: what takes long
    just now, as a sentence."""

    seconds: float
    step: str | None = None


@dataclass(frozen=True, slots=True)
class LiveChat:
    """What one chat's live cache takes."""

    session_id: str
    kind: str
    num_tokens: int
    num_bytes: int


@dataclass(frozen=True, slots=True)
class CacheReport:
    """A session's live cache (zeros where there is none) beside all live caches of its owner.

    `chats` are those of the owner that have one, the last used first. `budget_bytes` is what the live caches of all
    owners together may take, `reserved_bytes` what they have reserved.
    `problem`: why the cache is not stored on disk to its end, as a sentence. `num_prefetched_tokens` of what it holds
    came from disk since the chat's last turn, in `prefetch_s`.
    """

    kind: str
    is_live: bool
    num_tokens: int
    num_bytes: int
    num_sessions: int
    total_bytes: int
    budget_bytes: int
    reserved_bytes: int
    max_context_tokens: int
    problem: str | None
    chats: tuple[LiveChat, ...] = ()
    num_prefetched_tokens: int = 0
    prefetch_s: float = 0.0


@dataclass(frozen=True, slots=True)
class ContextUse:
    """What a chat takes of the model's context before its next message is written.

    `num_fed_tokens`: what the model has been fed and has said by the end of the current branch. `num_frame_tokens`:
    what the next turn is fed besides that and the words of its message: the end of the last reply, what the template
    puts around a message, in a chat not begun the system prompt. Negative where the template takes more away of what
    was said, such as thoughts, than it adds.
    """

    num_fed_tokens: int
    num_frame_tokens: int

    @property
    def num_tokens(self) -> int:
        """Both together: what the next turn finds taken."""
        return self.num_fed_tokens + self.num_frame_tokens


@dataclass(frozen=True, slots=True)
class StorageReport:
    """What the owner's chats take on disk. `database_bytes` is the whole file, all owners together.

    `hit_rate`: of the tokens that these chats lacked since the start, the part that was found on disk; None before.
    """

    num_sessions: int
    num_deleted_sessions: int
    num_messages: int
    database_bytes: int
    cache: SegmentReport
    hit_rate: float | None


@dataclass(frozen=True, slots=True)
class DroppedCaches:
    """What dropping all of an owner's caches did. `num_bytes` of the disk became free; in `num_running` chats a reply
    is being written, and their caches leave memory when it ends."""

    num_bytes: int
    num_running: int


@dataclass(frozen=True, slots=True)
class TurnDetails:
    """How a reply was made: by its last turn, where it was continued. Every field of `sampling` that was used is set,
    the seed among them; `settings` are the chat's as they were then. `stats` are all zero while the turn runs."""

    sampling: Sampling
    settings: Mapping[str, Any]
    stats: TurnStats
    started_at: datetime
    finished_at: datetime | None


@dataclass(frozen=True, slots=True)
class Rollback:
    """What a rollback did. `select(undone.id, to_leaf=False)` is redo; `prompt` is the undone message whose text can be
    sent anew. `num_undone_turns`: as often can the chat be taken forward now, one turn at a time."""

    session: ChatSession
    undone: Message
    prompt: Message
    num_undone_turns: int
