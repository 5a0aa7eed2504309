"""What a turn is asked to compute, and how it ended: plain values."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from chatcache.cache_form import CacheForm
from chatcache.reply_stream import StreamedReply
from chatcache.stats import Sampling, TurnStats


@dataclass(frozen=True, slots=True)
class TurnRequest:
    """What a turn is to compute. Every field of `sampling` is set, the seed included.

    `prior_reply_ids`: the reply is continued, these ids of it exist; `rewrite_index` and `starts_in_reasoning` are the
    prompt's. `num_known_tokens`: so many leading ids were fed by earlier turns of this chat, as far as its messages
    tell; only these can be missed. The prompt begins at the message at position `context_start`; `num_left_out`
    messages before it were still in the prompt of the turn before. `prompt_lookup`: tokens are guessed from what was
    said before and checked several at a time; the reply is the same. `form` is how the cache is held; None means the
    pool's own. `num_shared_tokens` tells how many leading ids other chats begin with, too; it takes a moment.
    `submitted_s` (of `time.perf_counter`) is when the person asked: the time to the first token counts from there.
    """

    owner: str
    session_id: str
    prompt_ids: tuple[int, ...]
    prior_reply_ids: tuple[int, ...]
    sampling: Sampling
    rewrite_index: int | None = None
    starts_in_reasoning: bool = False
    num_known_tokens: int = 0
    context_start: int = 0
    num_left_out: int = 0
    prompt_lookup: bool = False
    form: CacheForm | None = None
    num_shared_tokens: Callable[[], int] = lambda: 0
    submitted_s: float = field(default_factory=time.perf_counter)


@dataclass(frozen=True, slots=True)
class TurnOutcome:
    """How a turn ended: the whole reply (a continued one from its beginning) and what it cost."""

    reply: StreamedReply
    stats: TurnStats
