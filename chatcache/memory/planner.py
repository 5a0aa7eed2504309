"""Bytes before they exist: what a model, its sessions' caches and its forwards take, for every cache kind.

Pure: sizes in, sizes out. What is planned for the cache is exact, it follows from how the layers store their tokens.
The workspace of a forward is an estimate from above, by the formula at `workspace_bytes`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from chatcache.cache.kinds import KINDS, ModelFacts, codec_of, installed_packages, table_of_kinds
from chatcache.cache.quantized_layer import MAX_TAIL_TOKENS
from chatcache.cache.scores import block_tokens
from chatcache.cache.states import NUM_KEPT_STATES
from chatcache.cache.token_buffer import capacity_for
from chatcache.errors import InvalidInputError
from chatcache.memory.model_shape import LayerShape, ModelShape

OFFLOADED_KINDS = frozenset({"offloaded", "offloaded-non-sliding"})

_UNLIMITED_TOKENS = 2**40
_SAMPLER_BYTES_PER_LOGIT = 24
"""float32 logits, sorted logits, probabilities and their sum, and the 8-byte indices of the sort."""


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """`num_sessions` sessions at `context_tokens` each, on a device of type `device_type` ("cpu", "cuda", "mps").

    `memory_bytes` is what may be used on that device; None leaves the question open whether it fits. A prompt is read
    `prefill_chunk_tokens` at a time; None: as many as the engine takes at most. Raises InvalidInputError for counts
    below 1.
    """

    context_tokens: int
    num_sessions: int = 1
    memory_bytes: int | None = None
    prefill_chunk_tokens: int | None = None
    device_type: str = "cpu"

    def __post_init__(self) -> None:
        for name in ("context_tokens", "num_sessions", "prefill_chunk_tokens"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InvalidInputError(f"{name} must be at least 1, not {value}.")
        if self.memory_bytes is not None and self.memory_bytes < 0:
            raise InvalidInputError(f"memory_bytes must not be negative, not {self.memory_bytes}.")


@dataclass(frozen=True, slots=True)
class CachePlan:
    """The cache of one session in one kind.

    `used_bytes` are held by its tokens and its state, wherever they lie. `reserved_bytes` are taken on the model's
    device, spare room and the states kept for rollback included; `host_bytes` likewise in RAM beside an accelerator.
    `windowed_bytes` is `used_bytes` if sliding layers kept their window only; None without sliding layers.
    """

    kind: str
    bytes_per_token: int
    used_bytes: int
    reserved_bytes: int
    host_bytes: int
    windowed_bytes: int | None


@dataclass(frozen=True, slots=True)
class Placement:
    """What a cache takes on the model's device, and in RAM beside an accelerator."""

    device_bytes: int
    host_bytes: int


@dataclass(frozen=True, slots=True)
class KindPlan:
    """The whole bill in one cache kind. `total_bytes` = weights + sessions x reserved + workspace, on the device.

    `max_context_tokens` is the longest context that fits, 0 if none does; None without a limit of memory or tokens.
    `refusal` says why this kind cannot be had with this model on this device.
    """

    cache: CachePlan
    workspace_bytes: int
    total_bytes: int
    fits: bool | None
    max_context_tokens: int | None
    refusal: str | None


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """The bill in every cache kind, for prompts that are read `chunk_tokens` at a time."""

    shape: ModelShape
    request: PlanRequest
    chunk_tokens: int
    kinds: tuple[KindPlan, ...]

    def of(self, kind: str) -> KindPlan:
        """The plan for `kind`. Raises InvalidInputError if there is no such kind."""
        for plan in self.kinds:
            if plan.cache.kind == kind:
                return plan
        raise InvalidInputError(f"There is no cache kind {kind!r}. Choose one of: {', '.join(KINDS)}.")


def plan_memory(shape: ModelShape, request: PlanRequest) -> MemoryPlan:
    """The bill for `request` in every cache kind."""
    facts = ModelFacts(shape.layer_types, request.device_type, installed_packages())
    kinds = tuple(_plan_kind(shape, request, fit.kind, fit.refusal) for fit in table_of_kinds(facts))
    return MemoryPlan(shape, request, chunk_tokens_of(shape, request), kinds)


def plan_cache(shape: ModelShape, kind: str, num_tokens: int) -> CachePlan:
    """What the cache of one session takes that holds `num_tokens` tokens."""
    if kind == "none":
        return CachePlan(kind, 0, 0, 0, 0, None)
    layers, states = shape.attention_layers, shape.state_bytes
    used = sum(_layer_bytes(layer, kind, num_tokens) for layer in layers) + states
    placed = place(shape.layers, kind, [reserved_layer_bytes(layer, kind, num_tokens) for layer in shape.layers])
    windowed = None
    if shape.has_sliding_layers:
        windowed = sum(_layer_bytes(x, kind, _windowed_tokens(x, num_tokens)) for x in layers) + states
    per_token = sum(_row_bytes(layer, kind) for layer in layers)
    return CachePlan(kind, per_token, used, placed.device_bytes, placed.host_bytes, windowed)


def place(layers: Sequence[LayerShape], kind: str, each: Sequence[int]) -> Placement:
    """Where a cache of `kind` lies whose `layers` take the bytes `each`.

    Of an offloaded one, what slides stays on the device; of the others, the one at work and the one fetched next are
    there, and all of them lie in RAM.
    """
    if kind not in OFFLOADED_KINDS:
        return Placement(sum(each), 0)
    staying = [size for size, layer in zip(each, layers, strict=True) if layer.sliding_window is not None]
    travelling = [size for size, layer in zip(each, layers, strict=True) if layer.sliding_window is None]
    return Placement(sum(staying) + 2 * max(travelling, default=0), sum(travelling))


def reserved_layer_bytes(layer: LayerShape, kind: str, num_tokens: int) -> int:
    """What a layer takes when its cache holds `num_tokens` tokens: spare room and kept states included."""
    room = num_tokens if kind == "static" else capacity_for(num_tokens)
    tokens = _layer_bytes(layer, kind, room) if layer.num_heads else 0
    if codec_of(kind):
        # Room for all of them quantized, beside the last ones that are not yet.
        tokens += _row_bytes(layer, kind) * min(room, MAX_TAIL_TOKENS)
    return tokens + layer.state_bytes * (1 + NUM_KEPT_STATES)


def total_bytes(shape: ModelShape, request: PlanRequest, kind: str, num_tokens: int) -> int:
    """The whole bill with sessions of `num_tokens` tokens instead of those of `request`."""
    caches = plan_cache(shape, kind, num_tokens).reserved_bytes * request.num_sessions
    return shape.weight_bytes + caches + workspace_bytes(shape, kind, num_tokens, chunk_tokens_of(shape, request))


def chunk_tokens_of(shape: ModelShape, request: PlanRequest) -> int:
    """How many prompt tokens are read at a time."""
    return request.prefill_chunk_tokens or shape.chunk_tokens.get(request.device_type, request.context_tokens)


def workspace_bytes(shape: ModelShape, kind: str, num_tokens: int, chunk_tokens: int) -> int:
    """What one forward needs beside weights and cache, from above; turns are stepped one at a time.

    With c tokens in the chunk, n in the cache after it, i bytes per value:
    - stream: c x hidden x (4i + 8), the residual and normed copies, two of them in float32;
    - the larger of: MLP, c x widest projection x 3i; and attention, c x query heads x (key + value) x 2i, plus
      n x query heads (in 16 bits, key heads, where these are as many) x (key + value) x i where keys are copied, plus
      c x n x query heads x (3i + 4) where all scores are tensors, x 2i for a block's tokens in 16 bits; and a
      recurrent scan, c (in whole scan chunks) x scan width x 24;
    - the mask, c x n x (2 + i), or x 2 where only matrices in 16 bits need one, and the block-wise growth of one layer,
      n x the larger of its rows;
    - quantized kinds: one layer in full precision, and the chunk in all of them until the forward is over;
    - the logits of the last token with what sampling makes of them.
    In sliding layers n is what the chunk can see. Without a cache the chunk is the whole context. Where full attention
    starts at the first token, the kernel needs neither mask nor repeated keys.
    """
    c = num_tokens if kind == "none" else min(chunk_tokens, num_tokens)
    i = shape.itemsize
    stream = c * shape.hidden_size * (4 * i + 8)
    mlp = c * shape.widest_projection * 3 * i
    layers = shape.attention_layers
    has_mask = c < num_tokens or shape.has_sliding_layers or shape.has_eager_attention
    attention = max((_attention_bytes(shape, layer, c, num_tokens, has_mask) for layer in layers), default=0)
    scan = 0
    if shape.scan_chunk_tokens:
        whole_chunks = -(-c // shape.scan_chunk_tokens) * shape.scan_chunk_tokens
        scan = whole_chunks * shape.scan_width * 24
    num_visible = max((_visible_tokens(layer, c, num_tokens) for layer in layers), default=0)
    mask = c * num_visible * (2 + i if has_mask else 2 if i == 2 else 0)
    largest_layer = max((layer.bytes_per_token for layer in layers), default=0) * num_tokens
    growth = 0 if kind in ("none", "static") else largest_layer // 2
    exact_chunk = c * sum(layer.bytes_per_token for layer in layers)
    unpacked = largest_layer + exact_chunk if codec_of(kind) else 0
    logits = shape.vocab_size * (i + _SAMPLER_BYTES_PER_LOGIT)
    return stream + max(mlp, attention, scan) + mask + growth + unpacked + logits


def _plan_kind(shape: ModelShape, request: PlanRequest, kind: str, refusal: str | None) -> KindPlan:
    total = total_bytes(shape, request, kind, request.context_tokens)
    fits = None if request.memory_bytes is None else refusal is None and total <= request.memory_bytes
    return KindPlan(
        cache=plan_cache(shape, kind, request.context_tokens),
        workspace_bytes=workspace_bytes(shape, kind, request.context_tokens, chunk_tokens_of(shape, request)),
        total_bytes=total,
        fits=fits,
        max_context_tokens=_max_context(shape, request, kind),
        refusal=refusal,
    )


def _max_context(shape: ModelShape, request: PlanRequest, kind: str) -> int | None:
    """By bisection: the total never falls when the context grows."""
    if request.memory_bytes is None:
        return shape.max_context_tokens
    limit = shape.max_context_tokens or _UNLIMITED_TOKENS
    low, high = 0, limit
    while low < high:
        middle = (low + high + 1) // 2
        if total_bytes(shape, request, kind, middle) <= request.memory_bytes:
            low = middle
        else:
            high = middle - 1
    return None if low == _UNLIMITED_TOKENS else low


def _layer_bytes(layer: LayerShape, kind: str, num_tokens: int) -> int:
    """What a layer takes for `num_tokens` tokens, its state aside."""
    if kind == "static":
        window = layer.sliding_window
        return layer.bytes_per_token * (num_tokens if window is None else min(num_tokens, window))
    if codec_of(kind) is None:
        return layer.bytes_per_token * num_tokens
    # Of a running turn, the last tokens are not quantized yet.
    num_exact = min(num_tokens, MAX_TAIL_TOKENS)
    return layer.bytes_per_token * num_exact + _row_bytes(layer, kind) * (num_tokens - num_exact)


def _row_bytes(layer: LayerShape, kind: str) -> int:
    """What one token takes in a layer, once quantized."""
    codec = codec_of(kind)
    if codec is None or layer.num_heads == 0:
        return layer.bytes_per_token
    return layer.num_heads * sum(codec.num_row_bytes(dim) for dim in (layer.key_dim, layer.value_dim))


def _windowed_tokens(layer: LayerShape, num_tokens: int) -> int:
    """A window includes the token that looks, so one fewer has to be kept."""
    return num_tokens if layer.sliding_window is None else min(num_tokens, layer.sliding_window - 1)


def _visible_tokens(layer: LayerShape, chunk_tokens: int, num_tokens: int) -> int:
    """What the tokens of a chunk see together, themselves included."""
    return num_tokens if layer.sliding_window is None else min(num_tokens, layer.sliding_window - 1 + chunk_tokens)


def _attention_bytes(shape: ModelShape, layer: LayerShape, chunk_tokens: int, num_tokens: int, has_mask: bool) -> int:
    q, i, dims = shape.num_attention_heads, shape.itemsize, layer.key_dim + layer.value_dim
    num_visible = _visible_tokens(layer, chunk_tokens, num_tokens)
    states = chunk_tokens * q * dims * 2 * i
    # Where heads share keys the library repeats them; in 16 bits, on a CPU, they are laid side by side.
    num_copied_heads = q if has_mask and layer.num_heads < q else layer.num_heads if i == 2 else 0
    copied = num_visible * num_copied_heads * dims * i
    if shape.has_eager_attention:
        return states + copied + chunk_tokens * num_visible * q * (3 * i + 4)
    # On a CPU the scores of a block are a tensor in bfloat16, too; its room is a power of two.
    block = min(chunk_tokens, block_tokens(q, num_visible))
    return states + copied + (block * num_visible * q * 2 * i if i == 2 else 0)
