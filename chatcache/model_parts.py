"""`ModelParts`: all that needs the model's weights: how turns are fed, the live caches, what is saved of them.

It knows how these fit together. It does not know chats, nor who owns them.
"""

from __future__ import annotations

import dataclasses
import logging
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from chatcache.cache.attention import use_grouped_attention
from chatcache.cache.kinds import convert_session_cache, make_session_cache
from chatcache.cache_form import CacheForm, CacheForms
from chatcache.config import ServiceConfig
from chatcache.decode_step import DecodeStep
from chatcache.engine import TurnRun
from chatcache.loader import LoadedModel
from chatcache.memory.available import measure_usable_memory
from chatcache.memory.budget import Budget
from chatcache.memory.cache_sizes import CacheSizes
from chatcache.memory.model_shape import ModelShape
from chatcache.memory.rehearsal import rehearse
from chatcache.memory.room import Room
from chatcache.persistence import Persistence
from chatcache.prefill_chunks import ChunkSchedule
from chatcache.prompt import PromptBuilder
from chatcache.session_pool import SessionPool
from chatcache.shared_decode import feed_together
from chatcache.turn import Turn
from chatcache.turn_request import TurnRequest
from chatcache.weights.weight_form import held_bytes
from storage.byte_sizes import format_size
from storage.segment_store import SegmentStore

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class ModelParts:
    """Made and used on the model thread, but for `persistence`, which says of each of its methods where it belongs."""

    loaded: LoadedModel
    prompts: PromptBuilder
    decode_step: DecodeStep | None
    chunks: ChunkSchedule
    persistence: Persistence
    pool: SessionPool

    @classmethod
    def assemble(
        cls,
        loaded: LoadedModel,
        config: ServiceConfig,
        prompts: PromptBuilder,
        forms: CacheForms,
        segments: SegmentStore,
        is_busy: Callable[[], bool],
    ) -> ModelParts:
        """The parts for a model that was just loaded. Forwards a few tokens, to learn what they take."""
        model = loaded.model
        use_grouped_attention(model)
        make_cache = partial(make_session_cache, model)
        persistence = Persistence(segments, loaded, forms.default.kind, make_cache, is_busy)
        room = Room(
            _budget(config, model.device),
            CacheSizes.of(model),
            lambda cache, kind: convert_session_cache(cache, model, kind),
        )
        return cls(
            loaded,
            prompts,
            DecodeStep.of(model),
            ChunkSchedule.of(model),
            persistence,
            SessionPool(make_cache, forms.default, persistence, room),
        )

    def make_run(self, turn: Turn, request: TurnRequest) -> TurnRun:
        """What computes a turn."""
        return TurnRun(
            self.loaded,
            self.prompts,
            self.pool,
            request,
            emit=turn.emit,
            should_stop=lambda: turn.stop_requested,
            decode_step=self.decode_step,
            chunks=self.chunks,
        )

    def feed_together(self, runs: Sequence[TurnRun]) -> None:
        """What several turns have in common of their next steps."""
        if self.decode_step is not None:
            feed_together(self.decode_step, runs)

    @property
    def budget_bytes(self) -> int:
        """What all live caches together may take. Any thread."""
        return self.pool.live.room.budget.limit_bytes

    def most_tokens(self, form: CacheForm) -> int:
        """How many tokens fit into memory in one chat whose cache has this form. Any thread."""
        return self.pool.live.room.most_tokens(form, self.loaded.max_context_tokens)

    def shape(self) -> ModelShape:
        """The model's sizes. Raises UnsupportedOptionError where its cache cannot be planned.

        Weights in another form than in full are not to be quantized again.
        """
        model = self.loaded.model
        shape = rehearse(model.config, model.dtype, self.loaded.name)
        return dataclasses.replace(
            shape,
            weight_bytes=held_bytes(model),
            max_context_tokens=self.loaded.max_context_tokens,
            num_quantizable_parameters=shape.num_quantizable_parameters if self.loaded.weights == "full" else 0,
        )


def _budget(config: ServiceConfig, device: torch.device) -> Budget:
    """What all live caches together may take: as configured, else what is free now, less a reserve. What offloaded ones
    take of RAM stays within what is free there."""
    host_bytes = sys.maxsize if device.type == "cpu" else measure_usable_memory(torch.device("cpu")).usable_bytes
    if config.memory_budget_bytes is not None:
        return Budget(config.memory_budget_bytes, host_bytes)
    memory = measure_usable_memory(device)
    logger.info(
        "Memory for live caches: %s (%s free on %s, less a reserve of %s%s)",
        format_size(memory.usable_bytes),
        format_size(memory.free_bytes),
        memory.device,
        format_size(memory.reserve_bytes),
        f"; limited by {memory.limited_by}" if memory.limited_by else "",
    )
    return Budget(memory.usable_bytes, host_bytes)
