"""`Runtime`: what the services of all owners share, put together once.

It knows how the parts fit (store, model, prompts, pool, scheduler) and in which order they open and close. What a
person may do with them is `chat.py`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, partial
from typing import TypeVar

import torch

from chatcache.cache.attention import use_grouped_attention
from chatcache.cache.kinds import (
    convert_session_cache,
    facts_of,
    make_session_cache,
    resolve_kind,
    table_of_kinds,
)
from chatcache.cache_form import CacheForm, CacheForms
from chatcache.changes import ChangeBoard
from chatcache.config import ServiceConfig
from chatcache.decode_step import DecodeStep
from chatcache.engine import TurnRun
from chatcache.errors import (
    DataDirLockedError,
    InvalidInputError,
    NotFoundError,
    Reason,
    ServiceClosedError,
    StaleTipError,
    StorageError,
    UnsupportedOptionError,
)
from chatcache.loader import LoadedModel, load_model
from chatcache.memory.available import measure_usable_memory
from chatcache.memory.budget import Budget
from chatcache.memory.cache_sizes import CacheSizes
from chatcache.memory.ladder import smaller_kinds
from chatcache.memory.model_shape import ModelShape
from chatcache.memory.rehearsal import rehearse
from chatcache.memory.room import Room
from chatcache.persistence import Persistence
from chatcache.prefill_chunks import ChunkSchedule
from chatcache.prompt import PromptBuilder
from chatcache.reports import ModelInfo
from chatcache.scheduler import Job, Scheduler
from chatcache.session_key import SessionKey
from chatcache.session_pool import SessionPool
from chatcache.shared_decode import feed_together
from chatcache.turn import Turn
from chatcache.turn_request import TurnRequest
from chatcache.turn_runner import TurnJob, TurnRunner
from chatcache.turn_starter import TurnStarter
from chatcache.verification import Verification
from chatcache.weights.weight_form import held_bytes
from chatcache.writer_pace import WriterPace
from storage import errors as store_errors
from storage.byte_sizes import format_size
from storage.chat_store import ChatStore
from storage.database import Database
from storage.segment_store import SegmentStore
from storage.temporary_database import TemporaryDatabase

logger = logging.getLogger(__name__)

T = TypeVar("T")
Progress = Callable[[str], None]


class Runtime:
    """One open data directory, one loaded model, one model thread: everything but the owner."""

    def __init__(self, database: Database, loaded: LoadedModel, config: ServiceConfig) -> None:
        self.database = database
        self._temporary = TemporaryDatabase()
        self.store = ChatStore(database, self._temporary)
        with translated_store_errors():
            num_interrupted = self.store.mark_interrupted()
        if num_interrupted:
            logger.info("%d replies were being written when chatcache last ended", num_interrupted)
        self.loaded = loaded
        use_grouped_attention(loaded.model)
        self.decode_step = DecodeStep.of(loaded.model)
        self._chunks = ChunkSchedule.of(loaded.model)
        self.prompts = PromptBuilder(loaded.tokenizer, loaded.chat_template, loaded.eos_token_ids)
        self.forms = _forms(config, loaded)
        kind = self.forms.default.kind
        with translated_store_errors():
            self.segments = SegmentStore(database, config.disk_quota_bytes)
        self.model_info = ModelInfo(
            name=loaded.name,
            digest=loaded.digest,
            device=str(loaded.model.device),
            dtype=str(loaded.model.dtype).removeprefix("torch."),
            weights=loaded.weights,
            cache_kind=kind,
            cache_kinds=self.forms.kinds,
            max_context_tokens=loaded.max_context_tokens,
            default_sampling=loaded.default_sampling,
            supports_thinking_switch=self.prompts.supports_thinking_switch,
            notices=loaded.notices,
        )
        self._verifications: dict[str, Verification] = {}  # by owner, the last of each
        self._verifications_lock = threading.Lock()
        self._session_locks: weakref.WeakValueDictionary[SessionKey, _SessionLock] = weakref.WeakValueDictionary()
        self._locks_lock = threading.Lock()
        self._close_lock = threading.Lock()
        self.changes = ChangeBoard()
        with contextlib.ExitStack() as on_error:
            self.scheduler = Scheduler(config.max_concurrent_turns, before_round=self._feed_together)
            on_error.callback(self.scheduler.close)
            make_cache = partial(make_session_cache, loaded.model)
            self.persistence = self.scheduler.call(
                lambda: Persistence(self.segments, loaded, kind, make_cache, lambda: self.scheduler.is_busy)
            )
            on_error.callback(self.persistence.close)
            sizes = self.scheduler.call(lambda: CacheSizes.of(loaded.model))
            room = Room(
                _budget(config, loaded), sizes, lambda cache, kind: convert_session_cache(cache, loaded.model, kind)
            )
            self.pool = SessionPool(make_cache, self.forms.default, self.persistence, room)
            self.runner = TurnRunner(
                store=self.store,
                scheduler=self.scheduler,
                make_run=self._make_run,
                on_stored=lambda session: self.changes.publish(SessionKey.of(session), session.version),
            )
            self.starter = TurnStarter(
                self.store,
                loaded,
                self.prompts,
                self.runner,
                self.forms,
                most_live_tokens=lambda form: room.most_tokens(form, loaded.max_context_tokens),
            )
            on_error.pop_all()

    @classmethod
    def open(cls, config: ServiceConfig, progress: Progress) -> Runtime:
        """Lock the data directory, load the model, start the model thread. On an error nothing stays open."""
        with translated_store_errors():
            database = Database.open(config.data_dir)
        try:
            return cls(database, load_model(config, progress), config)
        except BaseException:
            database.close()
            raise

    @property
    def model_shape(self) -> ModelShape:
        """The loaded model's sizes. Raises UnsupportedOptionError where its cache cannot be planned."""
        shape = self._shape_or_refusal
        if isinstance(shape, UnsupportedOptionError):
            raise shape.with_traceback(None)  # else it would grow with each time, and hold what was at hand then
        return shape

    @cached_property
    def _shape_or_refusal(self) -> ModelShape | UnsupportedOptionError:
        """Learnt when first asked for: on the model thread, which waits a moment for it. Weights in another form than
        in full are not to be quantized again."""
        model = self.loaded.model
        try:
            shape = self.call(lambda: rehearse(model.config, model.dtype, self.loaded.name))
        except UnsupportedOptionError as error:
            return error
        return dataclasses.replace(
            shape,
            weight_bytes=held_bytes(model),
            max_context_tokens=self.loaded.max_context_tokens,
            num_quantizable_parameters=shape.num_quantizable_parameters if self.loaded.weights == "full" else 0,
        )

    def verify(self, owner: str) -> Verification:
        """The check of the owner's stored caches that runs, or a new one. Raises ServiceClosedError."""
        with self._verifications_lock:
            if self.changes.is_closed:
                raise ServiceClosedError
            running = self._verifications.get(owner)
            if running is None or running.done:
                running = Verification(partial(self.segments.verify, owner), WriterPace(lambda: self.scheduler.is_busy))
                self._verifications[owner] = running
            return running

    def session_lock(self, key: SessionKey) -> _SessionLock:
        """The lock under which an owner's session is changed, or one that the owner names and that may not exist;
        re-entrant. Nobody can hold another's."""
        with self._locks_lock:
            return self._session_locks.setdefault(key, _SessionLock())

    def close(self) -> None:
        """Stop running turns, store their replies, end the model thread, let the data directory go.

        Who calls it while another does waits for the end as well.
        """
        self.runner.close()
        self.changes.close()
        with self._close_lock:
            if not self.scheduler.is_closed:
                self.scheduler.call(self.pool.live.save_all)
            self.scheduler.close()
        self.persistence.close()
        with self._verifications_lock:
            verifications = list(self._verifications.values())
        for verification in verifications:
            verification.stop()
        self.database.close()
        self._temporary.close()

    def call(self, fn: Callable[[], T]) -> T:
        """Run `fn` on the model thread; see `Scheduler.call`. Raises ServiceClosedError."""
        with self.while_open():
            return self.scheduler.call(fn)

    @contextlib.contextmanager
    def while_open(self) -> Iterator[None]:
        """For what needs the threads that `close` ends. Raises ServiceClosedError where they are gone."""
        try:
            yield
        except RuntimeError as error:
            if self.changes.is_closed:
                raise ServiceClosedError from error
            raise

    def _feed_together(self, jobs: Sequence[Job]) -> None:
        if self.decode_step is not None:
            feed_together(self.decode_step, [job.run for job in jobs if isinstance(job, TurnJob)])

    def _make_run(self, turn: Turn, request: TurnRequest) -> TurnRun:
        return TurnRun(
            self.loaded,
            self.prompts,
            self.pool,
            request,
            emit=turn.emit,
            should_stop=lambda: turn.stop_requested,
            decode_step=self.decode_step,
            chunks=self._chunks,
        )


class _SessionLock:
    """A re-entrant lock that can be weakly referenced: it lives while somebody holds or awaits it."""

    def __init__(self) -> None:
        self._lock = threading.RLock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *exc: object) -> None:
        self._lock.release()


def _forms(config: ServiceConfig, loaded: LoadedModel) -> CacheForms:
    """What chats' caches may be, and what they are where nothing is chosen. What a person chose never gets smaller."""
    kind = resolve_kind(loaded.model, config.cache)
    table = table_of_kinds(facts_of(loaded.model.config, loaded.model.device.type))
    possible = tuple(fit.kind for fit in table if fit.refusal is None)
    smaller = smaller_kinds(kind, possible) if config.cache == "auto" else ()
    return CacheForms(CacheForm(kind, smaller), possible)


def _budget(config: ServiceConfig, loaded: LoadedModel) -> Budget:
    """What all live caches together may take: as configured, else what is free now, less a reserve. What offloaded ones
    take of RAM stays within what is free there."""
    device = loaded.model.device
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


@contextlib.contextmanager
def translated_store_errors() -> Iterator[None]:
    """Storage's errors as the ones people and scripts know."""
    try:
        yield
    except store_errors.RowNotFoundError as error:
        raise NotFoundError(str(error)) from error
    except store_errors.StaleVersionError as error:
        raise StaleTipError(str(error)) from error
    except store_errors.FileRefusedError as error:
        raise InvalidInputError(str(error), Reason(error.fault), **error.facts) from error
    except store_errors.InvalidRecordError as error:
        raise InvalidInputError(str(error)) from error
    except store_errors.DatabaseClosedError as error:
        raise ServiceClosedError from error
    except store_errors.DataDirLockedError as error:
        raise DataDirLockedError(str(error)) from error
    except store_errors.DiskFullError as error:
        raise StorageError(str(error), Reason.DISK_FULL) from error
    except store_errors.StoreError as error:
        raise StorageError(str(error)) from error
