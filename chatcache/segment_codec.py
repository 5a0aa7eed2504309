"""`SegmentCodec`: what a cache holds for a run of tokens ↔ the named buffers of a stored segment.

It knows how tensors are named, which dtypes can be stored and where segments are cut. It does not know files, owners,
sessions or threads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from chatcache.cache.session_cache import SessionCache, TokenRange
from chatcache.loader import LoadedModel
from storage.segment_format import StoredTensor, TensorLayout
from storage.segment_store import NewSegment

MAX_SEGMENT_TOKENS = 256
MAX_SEGMENT_BYTES = 8 * 2**20

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
_DTYPES = {name: dtype for dtype, name in _DTYPE_NAMES.items()}


@dataclass(frozen=True, slots=True)
class SegmentCodec:
    """`layout` names every tensor that is stored for a token: its layer's number, a dot, its name in the layer."""

    layout: tuple[TensorLayout, ...]
    num_layers: int
    device: torch.device

    @classmethod
    @torch.inference_mode()
    def learn(cls, loaded: LoadedModel, make_cache: Callable[[], SessionCache]) -> SegmentCodec | None:
        """The codec for caches of this model, learnt from a forward of one token; None where layers hold anything that
        does not belong to a single token. Raises KeyError on a dtype that has no name."""
        cache = make_cache()
        if cache.cache is None or not cache.is_croppable:
            return None
        device = loaded.model.device
        token = torch.zeros((1, 1), dtype=torch.long, device=device)
        loaded.model(input_ids=token, cache=cache.cache, use_cache=True)
        cache.advance([0])
        one = cache.export(0, 1)
        layout = (
            TensorLayout(name, _DTYPE_NAMES[tensor.dtype], tuple(tensor.shape), token_axis=0)
            for name, tensor in _named(one)
        )
        return cls(tuple(layout), len(one.layers), device)

    @property
    def bytes_per_token(self) -> int:
        return sum(tensor.num_bytes_for(1) for tensor in self.layout)

    @property
    def max_segment_tokens(self) -> int:
        return max(1, min(MAX_SEGMENT_TOKENS, MAX_SEGMENT_BYTES // max(1, self.bytes_per_token)))

    def segments(self, tokens: TokenRange, start: int, cuts: Sequence[int]) -> Iterator[NewSegment]:
        """The tokens from `start` on, in segments that end at `cuts`; `tokens` are on the CPU."""
        stop = tokens.start + len(tokens.token_ids)
        for begin, end in segment_bounds(start, stop, cuts, self.max_segment_tokens):
            first, last = begin - tokens.start, end - tokens.start
            buffers = {name: _bytes(tensor[first:last]) for name, tensor in _named(tokens)}
            yield NewSegment(begin, tokens.token_ids[first:last], buffers)

    def tokens(
        self, tensors: Mapping[str, StoredTensor], start: int, begin: int, token_ids: Sequence[int]
    ) -> TokenRange:
        """The tokens `token_ids`, which stand at `begin`, of a loaded segment that starts at `start`; on the device."""
        layers: list[dict[str, torch.Tensor]] = [{} for _ in range(self.num_layers)]
        for name, stored in tensors.items():
            data = torch.frombuffer(stored.data, dtype=_DTYPES[stored.dtype]).reshape(stored.shape)
            index, _, own_name = name.partition(".")
            layers[int(index)][own_name] = data[begin - start : begin - start + len(token_ids)].to(self.device)
        return TokenRange(begin, tuple(token_ids), tuple(layers))

    def part(self, tokens: TokenRange, begin: int, end: int) -> TokenRange:
        """Tokens `[begin, end)` of a run, on the device."""
        first, last = begin - tokens.start, end - tokens.start
        layers = ({name: rows[first:last].to(self.device) for name, rows in layer.items()} for layer in tokens.layers)
        return TokenRange(begin, tokens.token_ids[first:last], tuple(layers))


def on_cpu(tokens: TokenRange) -> TokenRange:
    """The same, where a writer can read it."""
    layers = tuple({name: tensor.cpu() for name, tensor in layer.items()} for layer in tokens.layers)
    return TokenRange(tokens.start, tokens.token_ids, layers)


def segment_bounds(start: int, stop: int, cuts: Sequence[int], max_tokens: int) -> list[tuple[int, int]]:
    """Tokens `[start, stop)` as runs of at most `max_tokens` that end at every cut between them."""
    ends = sorted({cut for cut in cuts if start < cut < stop} | {stop})
    bounds: list[tuple[int, int]] = []
    for end in ends:
        while start < end:
            bounds.append((start, min(start + max_tokens, end)))
            start = bounds[-1][1]
    return bounds


def _named(tokens: TokenRange) -> Iterator[tuple[str, torch.Tensor]]:
    for index, layer in enumerate(tokens.layers):
        for name, tensor in layer.items():
            yield f"{index}.{name}", tensor


def _bytes(tensor: torch.Tensor) -> memoryview:
    return memoryview(tensor.reshape(-1).view(torch.uint8).numpy().data)
