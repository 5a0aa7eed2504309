"""`Runtime`: what the services of all owners share, put together once.

It knows how the parts fit (store, model, prompts, pool, scheduler) and in which order they open and close. What a
person may do with them is `chat.py`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, TypeVar

from chatcache.cache.kinds import ModelFacts, installed_packages, resolve_kind, table_of_kinds
from chatcache.cache_form import CacheForm, CacheForms
from chatcache.changes import ChangeBoard
from chatcache.config import ServiceConfig
from chatcache.errors import ServiceClosedError, UnsupportedOptionError
from chatcache.loading import Loading
from chatcache.memory.ladder import smaller_kinds
from chatcache.memory.model_shape import ModelShape
from chatcache.model_outline import ModelOutline, read_outline
from chatcache.prompt import PromptBuilder
from chatcache.reports import ModelInfo
from chatcache.scheduler import Job, Scheduler
from chatcache.session_key import SessionKey
from chatcache.session_locks import SessionLocks
from chatcache.store_errors import translated_store_errors
from chatcache.turn_runner import TurnJob, TurnRunner
from chatcache.turn_starter import TurnStarter
from chatcache.verification import Verification
from chatcache.writer_pace import WriterPace
from storage.chat_store import ChatStore
from storage.database import Database
from storage.segment_store import SegmentStore
from storage.temporary_database import TemporaryDatabase

if TYPE_CHECKING:
    from chatcache.loader import LoadedModel
    from chatcache.model_parts import ModelParts
    from chatcache.persistence import Persistence

logger = logging.getLogger(__name__)

T = TypeVar("T")
Say = Callable[[str], None]
Load = Callable[[Say], "LoadedModel"]


class Runtime:
    """One open data directory, one model, one model thread: everything but the owner."""

    def __init__(self, database: Database, outline: ModelOutline, load: Load, config: ServiceConfig) -> None:
        """`load` gives the model of this outline, with its weights; `loading` begins when it is told to."""
        self.database = database
        self._temporary = TemporaryDatabase()
        self.store = ChatStore(database, self._temporary)
        with translated_store_errors():
            num_interrupted = self.store.mark_interrupted()
        if num_interrupted:
            logger.info("%d replies were being written when chatcache last ended", num_interrupted)
        self.outline = outline
        self.prompts = PromptBuilder(outline.tokenizer, outline.chat_template, outline.eos_token_ids)
        self.forms = _forms(config, outline)
        with translated_store_errors():
            self.segments = SegmentStore(database, config.disk_quota_bytes)
        self.model_info = ModelInfo(
            name=outline.name,
            digest=outline.digest,
            device=str(outline.device),
            dtype=str(outline.dtype).removeprefix("torch."),
            weights=config.weights,
            cache_kind=self.forms.default.kind,
            cache_kinds=self.forms.kinds,
            max_context_tokens=outline.max_context_tokens,
            default_sampling=outline.default_sampling,
            supports_thinking_switch=self.prompts.supports_thinking_switch,
            notices=outline.notices,
        )
        self._verifications: dict[str, Verification] = {}  # by owner, the last of each
        self._verifications_lock = threading.Lock()
        self.locks = SessionLocks()
        self._close_lock = threading.Lock()
        self.changes = ChangeBoard()
        with contextlib.ExitStack() as on_error:
            self.scheduler = Scheduler(config.max_concurrent_turns, before_round=self._feed_together, is_held=True)
            on_error.callback(self.scheduler.close)
            self.runner = TurnRunner(
                store=self.store,
                scheduler=self.scheduler,
                make_run=lambda turn, request: self.parts.make_run(turn, request),
                is_loading=lambda: not self.loading.is_over,
                on_stored=lambda session: self.changes.publish(SessionKey.of(session), session.version),
            )
            self.starter = TurnStarter(
                self.store,
                outline,
                self.prompts,
                self.runner,
                self.forms,
                most_live_tokens=lambda form: self.parts.most_tokens(form),
            )
            on_error.pop_all()
        self.loading = Loading(lambda note: self._make_parts(load, note, config))
        self.loading.when_over(lambda _failure: self.scheduler.release())

    @classmethod
    def open(cls, config: ServiceConfig, progress: Say) -> Runtime:
        """Lock the data directory, read what is small of the model, start the model thread. On an error nothing stays
        open."""
        with translated_store_errors():
            database = Database.open(config.data_dir)
        try:
            outline = read_outline(config, progress)

            def load(note: Say) -> LoadedModel:
                # What computes takes a second to import, which nobody who opens the page need wait for.
                from chatcache.loader import load_weights

                def say(sentence: str) -> None:
                    progress(sentence)
                    note(sentence)

                return load_weights(outline, config, say)

            return cls(database, outline, load, config)
        except BaseException:
            database.close()
            raise

    @property
    def parts(self) -> ModelParts:
        """What needs the weights. Waits for them; raises what loading them raised, or ServiceClosedError."""
        return self.loading.result()

    @property
    def persistence(self) -> Persistence:
        """Waits for the weights, as `parts` does."""
        return self.parts.persistence

    @property
    def model_shape(self) -> ModelShape:
        """The model's sizes; waits for its weights. Raises UnsupportedOptionError where its cache cannot be planned."""
        shape = self._shape_or_refusal
        if isinstance(shape, UnsupportedOptionError):
            raise shape.with_traceback(None)  # else it would grow with each time, and hold what was at hand then
        return shape

    @cached_property
    def _shape_or_refusal(self) -> ModelShape | UnsupportedOptionError:
        """Learnt when first asked for: on the model thread, which waits a moment for it."""
        try:
            return self.call(lambda parts: parts.shape())
        except UnsupportedOptionError as error:
            return error

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

    def close(self) -> None:
        """Stop running turns, store their replies, end the model thread, let the data directory go. Weights that are
        still being loaded are not waited for.

        Who calls it while another does waits for the end as well.
        """
        self.loading.give_up()
        self.runner.close()
        self.changes.close()
        parts = self.loading.made
        with self._close_lock:
            if parts is not None and not self.scheduler.is_closed:
                self.scheduler.call(parts.pool.live.save_all)
            self.scheduler.close()
        if parts is not None:
            parts.persistence.close()
        with self._verifications_lock:
            verifications = list(self._verifications.values())
        for verification in verifications:
            verification.stop()
        self.database.close()
        self._temporary.close()

    def call(self, fn: Callable[[ModelParts], T]) -> T:
        """Run `fn` on the model thread, once the weights are there; see `Scheduler.call` and `parts`."""
        parts = self.parts
        with self.while_open():
            return self.scheduler.call(lambda: fn(parts))

    @contextlib.contextmanager
    def while_open(self) -> Iterator[None]:
        """For what needs the threads that `close` ends. Raises ServiceClosedError where they are gone."""
        try:
            yield
        except RuntimeError as error:
            if self.changes.is_closed:
                raise ServiceClosedError from error
            raise

    def _make_parts(self, load: Load, note: Say, config: ServiceConfig) -> ModelParts:
        try:
            return self._assemble(load(note), config)
        except Exception as error:
            failure = error
        from chatcache.memory.no_memory import explained  # here, as the loader is

        raise explained(failure, self.outline, config.weights)

    def _assemble(self, loaded: LoadedModel, config: ServiceConfig) -> ModelParts:
        from chatcache.model_parts import ModelParts  # here, as the loader is

        parts = self.scheduler.call(
            lambda: ModelParts.assemble(
                loaded, config, self.prompts, self.forms, self.segments, lambda: self.scheduler.is_busy
            )
        )
        self.model_info = dataclasses.replace(self.model_info, weights=loaded.weights)
        return parts

    def _feed_together(self, jobs: Sequence[Job]) -> None:
        runs = [job.run for job in jobs if isinstance(job, TurnJob) and job.run is not None]
        self.parts.feed_together(runs)


def _forms(config: ServiceConfig, outline: ModelOutline) -> CacheForms:
    """What chats' caches may be, and what they are where nothing is chosen. What a person chose never gets smaller."""
    facts = ModelFacts(outline.layer_types, outline.device.type, installed_packages())
    kind = resolve_kind(facts, config.cache)
    possible = tuple(fit.kind for fit in table_of_kinds(facts) if fit.refusal is None)
    smaller = smaller_kinds(kind, possible) if config.cache == "auto" else ()
    return CacheForms(CacheForm(kind, smaller), possible)
