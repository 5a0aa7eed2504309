"""`ChatCaches`: what the caches of chats take, in memory and on disk, and what can be done with them."""

from __future__ import annotations

from collections.abc import Set
from typing import TYPE_CHECKING

from chatcache.memory.outlook import MemoryOutlook, look_ahead
from chatcache.memory.planner import PlanRequest
from chatcache.owned_sessions import OwnedSessions, whole_number
from chatcache.prefetches import IsWanted
from chatcache.reports import CacheReport, DroppedCaches, LiveChat, StorageReport
from chatcache.store_errors import translated_store_errors
from chatcache.verification import Verification

if TYPE_CHECKING:
    from chatcache.model_parts import ModelParts


class ChatCaches(OwnedSessions):
    """Loses no word: caches can be computed again. What is said of caches in memory waits for the model's weights."""

    def cache_report(self, session_id: str) -> CacheReport:
        """The session's live cache beside all live caches of this owner."""
        runtime = self._runtime
        form = self._starter.cache_form(self.get_session(session_id))
        caches, reserved_bytes, prefetched = runtime.call(
            lambda parts: (
                parts.pool.report(),
                parts.pool.budget.reserved_bytes,
                parts.pool.prefetched(self._key(session_id)),
            )
        )
        mine = [c for c in caches if c.owner == self._owner]
        live = next((c for c in mine if c.session_id == session_id), None)
        return CacheReport(
            kind=live.kind if live else form.kind,
            is_live=live is not None,
            num_tokens=live.num_tokens if live else 0,
            num_bytes=live.num_bytes if live else 0,
            num_sessions=len(mine),
            total_bytes=sum(c.num_bytes for c in mine),
            budget_bytes=runtime.parts.budget_bytes,
            reserved_bytes=reserved_bytes,
            max_context_tokens=runtime.model_info.max_context_tokens,
            problem=form.problem or runtime.persistence.problem(self._key(session_id), form.kind),
            chats=tuple(LiveChat(c.session_id, c.kind, c.num_tokens, c.num_bytes) for c in reversed(mine)),
            num_prefetched_tokens=prefetched.num_tokens if live and prefetched else 0,
            prefetch_s=prefetched.seconds if live and prefetched else 0.0,
        )

    def memory_plan(
        self, context_tokens: int | None = None, num_sessions: int = 1, kind: str | None = None
    ) -> MemoryOutlook:
        """What `num_sessions` chats of `context_tokens` tokens (default: all that the model supports) would take in
        every cache kind, what fits, and what would help `kind` (default: the service's).

        The memory it is held against is the budget of live caches, and what the weights take beside it. Raises
        InvalidInputError for counts below 1 and unknown kinds, UnsupportedOptionError for a model whose cache cannot be
        planned.
        """
        info = self._runtime.model_info
        most = info.max_context_tokens
        shape = self._runtime.model_shape
        request = PlanRequest(
            most if context_tokens is None else whole_number("context_tokens", context_tokens),
            whole_number("num_sessions", num_sessions),
            shape.weight_bytes + self._runtime.parts.budget_bytes,
            device_type=info.device.partition(":")[0],
        )
        return look_ahead(shape, request, kind or info.cache_kind, most)

    def storage_report(self) -> StorageReport:
        """What this owner's chats take on disk. Does not wait for the weights."""
        runtime = self._runtime
        parts = runtime.loading.made
        with translated_store_errors():
            counts = self._store.counts(self._owner)
            return StorageReport(
                num_sessions=counts.num_sessions,
                num_deleted_sessions=counts.num_deleted_sessions,
                num_messages=counts.num_messages,
                database_bytes=runtime.database.num_bytes,
                cache=runtime.segments.report(self._owner),
                hit_rate=None if parts is None else parts.persistence.hit_rate(self._owner),
            )

    def prefetch(self, session_id: str, is_wanted: IsWanted = lambda: True) -> int:
        """Read what memory lacks of the session's cache from disk before it is needed; how many tokens are held.

        A convenience, which is to cost nobody anything. It computes nothing, waits for no room and has nothing written:
        it takes what room is free, and that of caches which were read ahead before and not used since. What lacks room
        is left to the next turn. Returns at once while a turn runs; a turn that begins meanwhile takes over. It ends
        soon when no call for the session `is_wanted` any more: asked on the model thread, again and again.
        """
        runtime = self._runtime
        runtime.loading.result()  # before the session is held: others may want it while the weights are loaded
        is_under_way = is_wanted() and self._begin_prefetch(session_id, is_wanted)
        while is_under_way:
            is_under_way = runtime.call(lambda parts: parts.pool.prefetch_more(self._key(session_id)))
        return self.cache_report(session_id).num_tokens

    def _begin_prefetch(self, session_id: str, is_wanted: IsWanted) -> bool:
        runtime = self._runtime
        with self._exclusive(session_id) as session:
            if runtime.runner.active(session_id) is not None:
                return False
            fed_ids = self._starter.fed_ids(session, self._store.branch(self._owner, session_id))
            form = self._starter.cache_form(session)
            return runtime.call(lambda parts: parts.pool.prefetch(self._key(session_id), fed_ids, is_wanted, form))

    def drop_cache(self, session_id: str) -> int:
        """Free the session's cache in memory and on disk; its text stays. Waits for a running turn.

        Returns how many bytes of the disk became free: what other chats share stays.
        """
        self.get_session(session_id)
        runtime = self._runtime
        while True:
            if (turn := runtime.runner.active(session_id)) is not None:
                turn.result()  # before the session is held: meanwhile others may stop it, or change the chat
            with runtime.locks.of(self._key(session_id)), translated_store_errors():
                if runtime.runner.active(session_id) is None:
                    return self._forget({session_id})

    def drop_all_caches(self) -> DroppedCaches:
        """Free the caches of all of the owner's chats, in memory and on disk, at once. What a reply that is being
        written needs in memory is freed when it ends; nothing of it is saved."""
        num_running = 0
        if self._runtime.loading.made is not None:
            num_running = self._runtime.call(lambda parts: parts.pool.drop_all(self._owner))
        with translated_store_errors():
            return DroppedCaches(self._release(), num_running)

    def verify_caches(self) -> Verification:
        """Read and check all that is stored of this owner's caches, in the background, or join the check that runs."""
        return self._runtime.verify(self._owner)

    def _forget(self, session_ids: Set[str]) -> int:
        """Free the caches of chats in which no turn runs nor can begin. Returns the bytes of the disk freed."""
        self._drop(session_ids)
        return self._release(session_ids)

    def _leave_memory(self, session_id: str) -> None:
        """What was saved of the chat's cache is on disk, and nothing of it anywhere else. No turn runs nor can begin,
        and it is no temporary chat."""
        parts = self._runtime.loading.made
        if parts is not None:
            self._drop({session_id})
            parts.persistence.flush()

    def _drop(self, session_ids: Set[str]) -> None:
        def drop(parts: ModelParts) -> None:
            for session_id in session_ids:
                parts.pool.drop(self._key(session_id))

        if self._runtime.loading.made is not None:  # before that nothing is in memory
            self._runtime.call(drop)

    def _release(self, session_ids: Set[str] | None = None) -> int:
        """From the disk: by whoever writes there, so that nothing is on its way any more."""
        parts = self._runtime.loading.made
        store = self._runtime.segments if parts is None else parts.persistence
        with self._runtime.while_open():
            return store.release(self._owner, session_ids)
