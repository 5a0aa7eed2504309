"""`StoredForms`: in which forms caches are stored, and what each takes: how a token becomes bytes, and its namespace.

It knows kinds, the model's fingerprint and the store's namespaces. It does not know sessions, nor what is stored.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from chatcache.cache.kinds import codec_of
from chatcache.cache.session_cache import SessionCache
from chatcache.fingerprint import fingerprint
from chatcache.loader import LoadedModel
from chatcache.segment_codec import SegmentCodec
from storage.segment_save import Namespace
from storage.segment_store import SegmentStore

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StoredForm:
    """A kind, as it is stored. `is_converted`: the kind is lossy, and tokens were computed in an exact one before they
    were rounded; the same tokens, computed in this kind, are other bytes."""

    kind: str
    is_converted: bool = False

    @classmethod
    def of(cls, cache: SessionCache) -> StoredForm | None:
        """How `cache` is stored; None where it must not be: it is half converted, or rounded and looks exact."""
        if cache.is_mixed or (not cache.is_pure and codec_of(cache.kind) is None):
            return None
        return cls(cache.kind, is_converted=not cache.is_pure)

    @classmethod
    def all_for(cls, cache: SessionCache) -> tuple[StoredForm, ...]:
        """What `cache` can take in, the best first. With anything that was converted, it counts as converted itself."""
        form = cls.of(cache)
        if form is None:
            return ()
        is_rounded = codec_of(form.kind) is not None
        return (form, cls(form.kind, is_converted=True)) if is_rounded and not form.is_converted else (form,)

    @property
    def name(self) -> str:
        return f"{self.kind}, converted" if self.is_converted else self.kind


class StoredForms:
    """For one model. Learns on the model thread; the rest may be asked by any."""

    def __init__(self, store: SegmentStore, loaded: LoadedModel, make_cache: Callable[[str], SessionCache]) -> None:
        self._store = store
        self._loaded = loaded
        self._make_cache = make_cache
        self._codecs: dict[str, SegmentCodec | None] = {}  # by kind
        self._lock = threading.Lock()
        self._namespaces: dict[tuple[str, StoredForm], Namespace] = {}  # by owner and form

    def cannot_store(self, kind: str) -> bool:
        """Whether it is known that caches of this kind cannot be stored."""
        return kind in self._codecs and self._codecs[kind] is None

    def learn(self, kind: str) -> SegmentCodec | None:
        """How caches of `kind` are stored, None where they cannot be. The first time, a token is forwarded."""
        if kind not in self._codecs:
            codec = None
            try:
                codec = SegmentCodec.learn(self._loaded, partial(self._make_cache, kind))
            except Exception:
                logger.exception("Caches of this model and of kind %s cannot be stored", kind)
            self._codecs[kind] = codec
        return self._codecs[kind]

    def codec(self, kind: str) -> SegmentCodec:
        """How caches of `kind`, of which some were stored already, are stored."""
        codec = self._codecs[kind]
        assert codec is not None
        return codec

    def namespace(self, owner: str, form: StoredForm) -> Namespace:
        """Where the owner's caches of this form are stored, once its kind is learnt. Raises StoreError."""
        with self._lock:
            known = self._namespaces.get((owner, form))
        if known is None:
            codec = self.codec(form.kind)
            description = fingerprint(self._loaded, form.name)
            known = self._store.namespace(owner, description, codec.layout, codec.state_layout)
            with self._lock:
                self._namespaces[owner, form] = known
        return known
