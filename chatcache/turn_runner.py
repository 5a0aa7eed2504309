"""`TurnRunner`: turns begun in the store, run on the model thread, written down while they run and when they end.

It knows which session has a turn running. It does not know what a message may follow, nor who may ask: that is
`chat.py`. It joins the engine's `TurnRun`, the `Turn` people read and the store's rows.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import CancelledError
from functools import partial
from typing import TYPE_CHECKING

from chatcache.errors import ChatCacheError
from chatcache.events import DoneEvent, Phase, Reply, StatusEvent
from chatcache.first_sentence import first_sentence
from chatcache.reply_stream import StreamedReply
from chatcache.scheduler import Scheduler
from chatcache.stats import FinishReason, TurnStats
from chatcache.told import Told, ended_early
from chatcache.turn import Turn
from chatcache.turn_request import TurnOutcome, TurnRequest
from storage.chat_store import ChatStore
from storage.errors import InvalidRecordError, RowNotFoundError, StoreError
from storage.records import BegunTurn, ChatSession, Message, MessageStatus
from storage.sentence import Sentence

if TYPE_CHECKING:
    from chatcache.engine import TurnRun

logger = logging.getLogger(__name__)

SAVE_INTERVAL_S = 1.0

MakeRun = Callable[[Turn, TurnRequest], "TurnRun"]


class TurnRunner:
    """Starts turns and knows the running ones. Thread-safe; at most one turn per session (the caller sees to that)."""

    def __init__(
        self,
        *,
        store: ChatStore,
        scheduler: Scheduler,
        make_run: MakeRun,
        is_loading: Callable[[], bool],
        on_stored: Callable[[ChatSession], None],
    ) -> None:
        """`make_run` is called on the model thread, when a turn begins; while the model `is_loading`, none does."""
        self._store = store
        self._is_loading = is_loading
        self._scheduler = scheduler
        self._make_run = make_run
        self._on_stored = on_stored
        self._active: dict[str, Turn] = {}
        self._unsaved: dict[str, Callable[[], tuple[Message, ChatSession]]] = {}
        self._lock = threading.Lock()
        self._closing = False

    def start(self, begun: BegunTurn, request: TurnRequest) -> Turn:
        """Queue a turn whose rows are stored; returns its handle at once."""
        turn = Turn(
            turn_id=begun.turn.id,
            session_id=begun.session.id,
            reply_id=begun.reply.id,
            request_id=begun.turn.request_id,
            on_stop=lambda: self._scheduler.withdraw(job),
        )
        turn.emit(StatusEvent(Phase.LOADING if self._is_loading() else Phase.QUEUED))
        turn.emit_written(begun.reply)
        with self._lock:
            self._active[turn.session_id] = turn
        self._on_stored(begun.session)
        job = TurnJob(
            partial(self._make_run, turn, request),
            save_partial=partial(self._save_partial, begun),
            finish=partial(self._finish, turn, begun),
            finish_failed=lambda reply, error: self._finish(
                turn, begun, _failed(reply or _written(begun.reply), error, request.sampling.seed)
            ),
        )
        try:
            self._scheduler.submit(job)
        except RuntimeError as error:  # the service is being closed
            job.fail(CancelledError(str(error)))
        return turn

    def active(self, session_id: str) -> Turn | None:
        """The turn that runs or waits in this session, if any."""
        with self._lock:
            return self._active.get(session_id)

    def stop_and_wait(self, session_id: str) -> None:
        """End the session's turn, if one runs, and wait until its reply is stored."""
        turn = self.active(session_id)
        if turn is not None:
            turn.stop()
            turn.result()

    def save_pending(self, session_id: str) -> None:
        """Store the session's reply if that failed when its turn ended. Raises StoreError when it fails again."""
        with self._lock:
            save = self._unsaved.get(session_id)
        if save is None:
            return
        session: ChatSession | None = None
        try:
            _, session = save()
        except (InvalidRecordError, RowNotFoundError):
            # It was stored although its commit was reported as failed, or its chat is gone: nothing is left to do.
            logger.warning("The reply of session %s needs no saving any more", session_id, exc_info=True)
        except Exception as error:
            raise StoreError(
                f"The last reply of this chat is not saved yet: {first_sentence(error)} The reply is kept in memory; "
                "make room on the disk and try again."
            ) from error
        with self._lock:
            self._unsaved.pop(session_id, None)
        if session is not None:
            self._on_stored(session)

    def close(self) -> None:
        """Stop every turn and wait until their replies are stored."""
        with self._lock:
            self._closing = True
            turns = list(self._active.values())
        for turn in turns:
            turn.stop()
        for turn in turns:
            turn.result()
        for session_id in list(self._unsaved):
            with contextlib.suppress(StoreError):
                self.save_pending(session_id)

    def _save_partial(self, begun: BegunTurn, reply: StreamedReply) -> None:
        try:
            self._store.save_partial(
                begun.session.owner,
                begun.reply.id,
                text=reply.text,
                reasoning=reply.reasoning,
                token_ids=reply.token_ids,
            )
        except Exception:
            logger.exception("The reply so far of turn %s could not be saved; it goes on", begun.turn.id)

    def _finish(self, turn: Turn, begun: BegunTurn, outcome: TurnOutcome) -> None:
        stats, reply = outcome.stats, outcome.reply
        if self._closing and stats.finish_reason is FinishReason.CANCELLED:
            stats = dataclasses.replace(stats, finish_reason=FinishReason.INTERRUPTED)
        message: Message = dataclasses.replace(
            begun.reply,
            text=reply.text,
            reasoning=reply.reasoning,
            token_ids=reply.token_ids,
            status=MessageStatus.COMPLETE,
        )
        session = begun.session

        def save() -> tuple[Message, ChatSession]:
            return self._store.finish_turn(
                begun.session.owner,
                begun.turn.id,
                text=reply.text,
                reasoning=reply.reasoning,
                token_ids=reply.token_ids,
                stats=stats.to_json(),
            )

        try:
            message, session = save()
        except Exception as error:  # whatever it is: a turn that does not end would block its chat for good
            logger.exception("The reply of turn %s could not be saved", turn.id)
            with self._lock:
                self._unsaved[turn.session_id] = save
            reason = first_sentence(error)
            sentence = f"The reply is not saved yet: {reason} It is tried again when you go on with this chat."
            told = Sentence(sentence, Told.REPLY_NOT_SAVED, failure=reason)
            stats = dataclasses.replace(stats, fallbacks=(*stats.fallbacks, told))
        with self._lock:
            self._active.pop(turn.session_id, None)
        turn.emit(DoneEvent(Reply(message, stats)))
        self._on_stored(session)


class TurnJob:
    """One turn on the model thread; see `scheduler.Job`. `make_run` is called when it leaves the queue.

    `save_partial` is given the reply so far about once a second, `finish` how the turn ended, `finish_failed` the text
    so far, if there is any, and why there is no better end.
    """

    def __init__(
        self,
        make_run: Callable[[], TurnRun],
        *,
        save_partial: Callable[[StreamedReply], None],
        finish: Callable[[TurnOutcome], None],
        finish_failed: Callable[[StreamedReply | None, BaseException], None],
    ) -> None:
        self.run: TurnRun | None = None
        self._make_run = make_run
        self._save_partial = save_partial
        self._finish = finish
        self._finish_failed = finish_failed
        self._saved_at = time.monotonic()

    def start(self) -> None:
        self.run = self._make_run()

    def step(self) -> bool:
        run = self.run
        assert run is not None
        ended = run.step()
        if ended:
            assert run.outcome is not None
            self._finish(run.outcome)
        elif time.monotonic() - self._saved_at >= SAVE_INTERVAL_S:
            self._save_partial(run.partial())
            self._saved_at = time.monotonic()
        return ended

    def fail(self, error: BaseException) -> None:
        run = self.run
        if run is None:
            if not isinstance(error, CancelledError | ChatCacheError):
                logger.error("A turn could not be set up", exc_info=error)
            self._finish_failed(None, error)
            return
        try:
            outcome = run.abandon(error)
        except Exception as failure:
            logger.exception("A turn could not be ended in order")
            self._finish_failed(_partial(run), failure)
        else:
            self._finish(outcome)


def _partial(run: TurnRun) -> StreamedReply | None:
    try:
        return run.partial()
    except Exception:
        logger.exception("The text so far could not be had; what was saved of it stays")
        return None


def _written(reply: Message) -> StreamedReply:
    """What a reply held when its turn began."""
    return StreamedReply((), reply.text, reply.reasoning, reply.token_ids or ())


def _failed(reply: StreamedReply, error: BaseException, seed: int | None) -> TurnOutcome:
    stats = TurnStats(finish_reason=FinishReason.CANCELLED, seed=seed or 0)
    if not isinstance(error, CancelledError):
        stats = dataclasses.replace(stats, finish_reason=FinishReason.ERROR, fallbacks=(ended_early(error),))
    return TurnOutcome(reply, stats)
