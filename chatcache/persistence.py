"""`Persistence`: live caches ↔ segments on disk: saved in the background, restored where a session lacks them.

It knows which of a session's tokens are stored and what decides whether a stored segment fits this model. It does not
know sessions' texts, turns or what a file looks like (`storage`). A problem here is never a problem of the chat: it
costs computing, and is told by `problem`.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch
import transformers

from chatcache.cache.errors import CacheStateError
from chatcache.cache.session_cache import SessionCache, TokenRange, common_length
from chatcache.loader import LoadedModel
from storage.errors import SegmentDamagedError, StoreError
from storage.segment_chain import StoredPrefix
from storage.segment_format import StoredTensor, TensorLayout
from storage.segment_store import Namespace, NewSegment, ParentSegment, SegmentStore

logger = logging.getLogger(__name__)

MAX_SEGMENT_TOKENS = 256
MAX_SEGMENT_BYTES = 8 * 2**20
MAX_PENDING_BYTES = 512 * 2**20
"""Copies that wait to be written. A save that would go beyond is left to the next turn."""

_DTYPE_NAMES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
}


@dataclass(frozen=True, slots=True)
class _Key:
    owner: str
    session_id: str


class Persistence:
    """Joins `SessionCache` and `SegmentStore`. `extend` and `save` belong to the model thread, the rest to any."""

    def __init__(
        self, store: SegmentStore, loaded: LoadedModel, kind: str, make_cache: Callable[[], SessionCache]
    ) -> None:
        """Caches of `kind` are stored. Forwards one token, to learn what a token takes: on the model thread."""
        self._store = store
        self._device = loaded.model.device
        self._fingerprint = fingerprint(loaded, kind)
        self._kind = kind
        one_token = _probe(loaded, make_cache())
        self._num_layers = len(one_token.layers) if one_token else 0
        self._layout = tuple(
            TensorLayout(name, _DTYPE_NAMES[tensor.dtype], tuple(tensor.shape), token_axis=0)
            for name, tensor in (_named(one_token) if one_token else ())
        )
        self._writer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="chatcache-writer")
        self._lock = threading.Lock()
        self._pending_bytes = 0
        self._stored_ids: dict[_Key, Sequence[int]] = {}
        """What is stored, or on its way, of each session's present cache."""
        self._problems: dict[_Key, str] = {}
        self._num_wanted_tokens = self._num_restored_tokens = 0
        self._namespaces: dict[str, Namespace] = {}  # by owner

    @property
    def is_possible(self) -> bool:
        """Whether caches of this model and kind can be stored token by token."""
        return bool(self._layout)

    @property
    def hit_rate(self) -> float | None:
        """Of the tokens that sessions lacked and asked for since the start, the part that was stored; None before."""
        with self._lock:
            return self._num_restored_tokens / self._num_wanted_tokens if self._num_wanted_tokens else None

    def problem(self, owner: str, session_id: str) -> str | None:
        """Why the session's cache is not stored to its end, as a sentence; None where it is, or will be."""
        with self._lock:
            return self._problems.get(_Key(owner, session_id))

    @torch.inference_mode()
    def extend(self, owner: str, session_id: str, cache: SessionCache, wanted_ids: Sequence[int]) -> int:
        """Append to `cache`, which holds a beginning of `wanted_ids`, what is stored of the rest; how many tokens.

        Every segment is read and verified before it is appended. At a damaged one it ends: the longest valid prefix
        stays. The cache never holds less than before.
        """
        key = _Key(owner, session_id)
        num_before = cache.num_tokens
        if not self._can_be_stored(cache):
            return 0
        try:
            namespace = self._namespace(owner)
            prefix = self._store.lookup(namespace, wanted_ids)
            for part in prefix.parts:
                begin, end = cache.num_tokens, part.start + part.num_tokens
                if end > begin:
                    tensors = self._store.load(namespace, part.key)
                    cache.import_(self._token_range(tensors, part.start, begin, wanted_ids[begin:end]))
        except SegmentDamagedError as error:
            self._note_problem(key, f"Saved cache data was damaged and set aside; it is computed again. ({error})")
        except (StoreError, CacheStateError, RuntimeError) as error:
            logger.exception("A cache could not be restored; its tokens are computed again")
            self._note_problem(key, f"The saved cache could not be read: {error}")
            cache.repair()
        with self._lock:
            self._stored_ids[key] = tuple(wanted_ids[: cache.num_tokens])
            self._num_wanted_tokens += len(wanted_ids) - num_before
            self._num_restored_tokens += cache.num_tokens - num_before
        return cache.num_tokens - num_before

    def save(self, owner: str, session_id: str, cache: SessionCache, cuts: Sequence[int] = ()) -> None:
        """Have the tokens of `cache` that are not stored yet written in the background; segments end at `cuts`.

        The copies are made here, so the cache may change at once.
        """
        key = _Key(owner, session_id)
        if not self._can_be_stored(cache):
            return
        ids = tuple(cache.token_ids)
        with self._lock:
            num_stored = common_length(self._stored_ids.get(key, ()), ids)
            estimate = cache.num_bytes * (len(ids) - num_stored) // max(1, len(ids))
            if self._pending_bytes + estimate > MAX_PENDING_BYTES and self._pending_bytes:
                self._problems[key] = "The disk is slower than the chat; this cache is saved at the next turn."
                return
            if num_stored == len(ids):
                return
        tokens = _on_cpu(cache.export(num_stored, len(ids)))
        with self._lock:
            self._stored_ids[key] = ids
            self._pending_bytes += tokens.num_bytes
        self._writer.submit(self._write, key, ids, tokens, tuple(cuts))

    def release(self, owner: str, session_id: str) -> None:
        """Forget the session's hold on its segments and free what nobody else holds. Waits for a running write."""
        key = _Key(owner, session_id)

        def release() -> None:
            with self._lock:
                self._stored_ids.pop(key, None)
                self._problems.pop(key, None)
            self._store.release(owner, session_id)

        self._writer.submit(release).result()

    def flush(self) -> None:
        """Wait until everything handed to `save` so far is written."""
        self._writer.submit(lambda: None).result()

    def close(self) -> None:
        """Write what is pending, end the writer. Nothing may be saved afterwards."""
        self._writer.shutdown(wait=True)

    # ------------------------------------------------------------ writer thread

    def _write(self, key: _Key, ids: tuple[int, ...], tokens: TokenRange, cuts: tuple[int, ...]) -> None:
        try:
            num_stored, problem = self._store_tokens(key, ids, tokens, cuts)
        except StoreError as error:
            logger.exception("A cache could not be saved; the next turn tries again")
            num_stored, problem = 0, f"This chat's cache could not be saved: {error}"
        with self._lock:
            self._pending_bytes -= tokens.num_bytes
            if num_stored < len(ids):
                self._stored_ids[key] = ids[:num_stored]
            if problem is None:
                self._problems.pop(key, None)
            else:
                self._problems[key] = problem

    def _store_tokens(
        self, key: _Key, ids: tuple[int, ...], tokens: TokenRange, cuts: tuple[int, ...]
    ) -> tuple[int, str | None]:
        """How many leading tokens of `ids` are stored now, and why not all, if not."""
        namespace = self._namespace(key.owner)
        prefix = self._store.lookup(namespace, ids)
        if prefix.num_tokens < tokens.start:
            # Evicted meanwhile: what was handed over does not follow what is left. The next save hands over more.
            return prefix.num_tokens, None
        bounds = segment_bounds(prefix.num_tokens, len(ids), cuts, _max_tokens(tokens))
        segments = (_new_segment(tokens, ids, start, stop) for start, stop in bounds)
        report = self._store.save(namespace, key.session_id, _parent(prefix), segments)
        return report.num_tokens, report.refused

    # ---------------------------------------------------------------- private

    def _note_problem(self, key: _Key, sentence: str) -> None:
        with self._lock:
            self._problems[key] = sentence

    def _can_be_stored(self, cache: SessionCache) -> bool:
        return self.is_possible and cache.kind == self._kind

    def _namespace(self, owner: str) -> Namespace:
        with self._lock:
            known = self._namespaces.get(owner)
        if known is None:
            known = self._store.namespace(owner, self._fingerprint, self._layout)
            with self._lock:
                self._namespaces[owner] = known
        return known

    def _token_range(
        self, tensors: Mapping[str, StoredTensor], start: int, begin: int, ids: Sequence[int]
    ) -> TokenRange:
        """The tokens `ids`, which stand at `begin`, of a segment that starts at `start`."""
        layers: list[dict[str, torch.Tensor]] = [{} for _ in range(self._num_layers)]
        for name, stored in tensors.items():
            rows = _tensor(stored)[begin - start : begin - start + len(ids)]
            index, _, own_name = name.partition(".")
            layers[int(index)][own_name] = rows.to(self._device)
        return TokenRange(begin, tuple(ids), tuple(layers))


def fingerprint(loaded: LoadedModel, kind: str) -> dict[str, Any]:
    """What decides whether a stored segment fits: any difference makes another namespace, never an error."""
    config = loaded.model.config
    return {
        "model": loaded.digest,
        "weights": "full",
        "dtype": str(loaded.model.dtype).removeprefix("torch."),
        "cache": kind,
        "architecture": type(loaded.model).__name__,
        "attention": config._attn_implementation,
        "rope": getattr(config, "rope_parameters", None),
        "torch": _minor(torch.__version__),
        "transformers": _minor(transformers.__version__),
    }


def segment_bounds(start: int, stop: int, cuts: Sequence[int], max_tokens: int) -> list[tuple[int, int]]:
    """Tokens `[start, stop)` as runs of at most `max_tokens` that end at every cut between them."""
    ends = sorted({cut for cut in cuts if start < cut < stop} | {stop})
    bounds: list[tuple[int, int]] = []
    for end in ends:
        while start < end:
            bounds.append((start, min(start + max_tokens, end)))
            start = bounds[-1][1]
    return bounds


@torch.inference_mode()
def _probe(loaded: LoadedModel, cache: SessionCache) -> TokenRange | None:
    """What one token takes in every layer, learnt from a forward of a single token; None where layers hold more."""
    if cache.cache is None or not cache.is_croppable:
        return None
    token = torch.zeros((1, 1), dtype=torch.long, device=loaded.model.device)
    loaded.model(input_ids=token, cache=cache.cache, use_cache=True)
    cache.advance([0])
    return cache.export(0, 1)


def _max_tokens(tokens: TokenRange) -> int:
    """How many tokens a segment may hold."""
    bytes_per_token = max(1, tokens.num_bytes // max(1, len(tokens.token_ids)))
    return max(1, min(MAX_SEGMENT_TOKENS, MAX_SEGMENT_BYTES // bytes_per_token))


def _parent(prefix: StoredPrefix) -> ParentSegment | None:
    if not prefix.parts:
        return None
    last = prefix.parts[-1]
    return ParentSegment(last.key, last.start, last.start + last.num_tokens)


def _new_segment(tokens: TokenRange, ids: Sequence[int], start: int, stop: int) -> NewSegment:
    first, last = start - tokens.start, stop - tokens.start
    buffers = {name: _bytes(tensor[first:last]) for name, tensor in _named(tokens)}
    return NewSegment(start, ids[start:stop], buffers)


def _named(tokens: TokenRange) -> Iterator[tuple[str, torch.Tensor]]:
    """Each tensor under a name of its own: the layer's number, a dot, its name in the layer."""
    for index, layer in enumerate(tokens.layers):
        for name, tensor in layer.items():
            yield f"{index}.{name}", tensor


def _on_cpu(tokens: TokenRange) -> TokenRange:
    layers = tuple({name: tensor.cpu() for name, tensor in layer.items()} for layer in tokens.layers)
    return TokenRange(tokens.start, tokens.token_ids, layers)


def _bytes(tensor: torch.Tensor) -> memoryview:
    return memoryview(tensor.reshape(-1).view(torch.uint8).numpy().data)


def _tensor(stored: StoredTensor) -> torch.Tensor:
    dtype = next(dtype for dtype, name in _DTYPE_NAMES.items() if name == stored.dtype)
    return torch.frombuffer(stored.data, dtype=dtype).reshape(stored.shape)


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])
