"""`SegmentCodec`: what a cache holds for a run of tokens ↔ the named buffers of a stored segment.

It knows how tensors are named, which dtypes can be stored and where segments are cut. It does not know files, owners,
sessions or threads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from chatcache.cache.session_cache import SessionCache
from chatcache.cache.states import KeptState, LayerState, StateRole
from chatcache.cache.token_range import TokenRange
from chatcache.loader import LoadedModel
from chatcache.tensor_bytes import bytes_of
from storage.segment_format import StoredTensor, TensorLayout
from storage.segment_save import NewSegment

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
_TURN = TensorLayout("turn", "I32", (2,), token_axis=None)
"""Beside the tensors of a recurrent state: the turn it was taken in, and its role's number."""
_ROLES = tuple(StateRole)
_DTYPES = {name: dtype for dtype, name in _DTYPE_NAMES.items()}


@dataclass(frozen=True, slots=True)
class SegmentCodec:
    """`layout` names every tensor that is stored for a token: its layer's number, a dot, its name in the layer.

    `state_layout` names those of a recurrent state, and is empty where there is none; `state` is an example of it.
    """

    layout: tuple[TensorLayout, ...]
    num_layers: int
    device: torch.device
    state_layout: tuple[TensorLayout, ...] = ()
    state: tuple[LayerState, ...] = ()

    @classmethod
    @torch.inference_mode()
    def learn(cls, loaded: LoadedModel, make_cache: Callable[[], SessionCache]) -> SegmentCodec | None:
        """The codec for caches of this model, learnt from a forward of one token; None where layers hold anything that
        is neither a token's nor recurrent state. Raises KeyError on a dtype that has no name."""
        cache = make_cache()
        if not cache.keeps_tokens or not cache.is_exportable:
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
        if not one.states:
            return cls(tuple(layout), len(one.layers), device)
        state = one.states[0].layers
        state_layout = (
            TensorLayout(name, _DTYPE_NAMES[tensor.dtype], tuple(tensor.shape), token_axis=None)
            for name, tensor in _named_state(state)
        )
        return cls(tuple(layout), len(one.layers), device, (*state_layout, _TURN), state)

    @property
    def bytes_per_token(self) -> int:
        return sum(tensor.num_bytes_for(1) for tensor in self.layout)

    @property
    def max_segment_tokens(self) -> int:
        return max(1, min(MAX_SEGMENT_TOKENS, MAX_SEGMENT_BYTES // max(1, self.bytes_per_token)))

    def ends(self, tokens: TokenRange, cuts: Sequence[int]) -> tuple[int, ...]:
        """Where segments of these tokens end, `cuts` among them, and others can go on: with recurrent layers at a state
        only."""
        if self.state_layout:
            return tuple(state.num_tokens for state in tokens.states)
        stop = tokens.start + len(tokens.token_ids)
        return tuple(end for _, end in segment_bounds(tokens.start, stop, cuts, self.max_segment_tokens))

    def segments(self, tokens: TokenRange, start: int, cuts: Sequence[int]) -> Iterator[NewSegment]:
        """The tokens from `start` on, in segments that end at `cuts` and states; `tokens` are on the CPU."""
        stop = tokens.start + len(tokens.token_ids)
        states = {state.num_tokens: state for state in tokens.states}
        for begin, end in segment_bounds(start, stop, (*cuts, *states), self.max_segment_tokens):
            first, last = begin - tokens.start, end - tokens.start
            buffers = {name: bytes_of(tensor[first:last]) for name, tensor in _named(tokens)}
            state = _state_buffers(states[end]) if end in states else None
            yield NewSegment(begin, tokens.token_ids[first:last], buffers, state)

    def tokens(
        self,
        tensors: Mapping[str, StoredTensor],
        start: int,
        begin: int,
        token_ids: Sequence[int],
        states: tuple[KeptState, ...] = (),
    ) -> TokenRange:
        """The tokens `token_ids`, which stand at `begin`, of a loaded segment that starts at `start`; on the device."""
        layers: list[dict[str, torch.Tensor]] = [{} for _ in range(self.num_layers)]
        for name, stored in tensors.items():
            data = _tensor(stored)
            index, own_name = _layer_and_name(name)
            layers[index][own_name] = data[begin - start : begin - start + len(token_ids)].to(self.device)
        return TokenRange(begin, tuple(token_ids), tuple(layers), states)

    def targets(self, room: Sequence[Mapping[str, memoryview]]) -> dict[str, memoryview] | None:
        """Where each stored tensor can be read to, by its name; None where the room does not serve for all of them."""
        named = {f"{index}.{name}": data for index, layer in enumerate(room) for name, data in layer.items()}
        return named if named.keys() == {tensor.name for tensor in self.layout} else None

    def no_tokens(self, start: int) -> TokenRange:
        """None, at `start`: what a cache needs to know of tokens before it can reserve room for them."""
        layers: list[dict[str, torch.Tensor]] = [{} for _ in range(self.num_layers)]
        for tensor in self.layout:
            index, own_name = _layer_and_name(tensor.name)
            layers[index][own_name] = torch.empty(tensor.shape_for(0), dtype=_DTYPES[tensor.dtype], device=self.device)
        return TokenRange(start, (), tuple(layers))

    def part(self, tokens: TokenRange, begin: int, end: int) -> TokenRange:
        """Tokens `[begin, end)` of a run, on the device."""
        first, last = begin - tokens.start, end - tokens.start
        layers = ({name: rows[first:last].to(self.device) for name, rows in layer.items()} for layer in tokens.layers)
        states = tuple(_moved(state, self.device) for state in tokens.states if begin < state.num_tokens <= end)
        return replace(tokens, start=begin, token_ids=tokens.token_ids[first:last], layers=tuple(layers), states=states)

    def state_of(self, stored: Mapping[str, StoredTensor], num_tokens: int) -> KeptState:
        """A loaded recurrent state, which stands behind the first `num_tokens` tokens; on the device."""
        tensors = {name: _tensor(each).to(self.device) for name, each in stored.items()}
        turn, role = tensors[_TURN.name].tolist()
        layers = tuple(
            replace(
                layer,
                conv={i: None if old is None else tensors[f"{index}.conv.{i}"] for i, old in layer.conv.items()},
                recurrent={
                    i: None if old is None else tensors[f"{index}.recurrent.{i}"] for i, old in layer.recurrent.items()
                },
            )
            for index, layer in enumerate(self.state)
        )
        return KeptState(num_tokens, turn, _ROLES[role], layers)


def on_cpu(tokens: TokenRange) -> TokenRange:
    """The same, where a writer can read it."""
    layers = tuple({name: tensor.cpu() for name, tensor in layer.items()} for layer in tokens.layers)
    states = tuple(_moved(state, torch.device("cpu")) for state in tokens.states)
    return replace(tokens, layers=layers, states=states)


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


def _layer_and_name(name: str) -> tuple[int, str]:
    index, _, own_name = name.partition(".")
    return int(index), own_name


def _named_state(layers: Sequence[LayerState]) -> Iterator[tuple[str, torch.Tensor]]:
    for index, layer in enumerate(layers):
        for sort, tensors in (("conv", layer.conv), ("recurrent", layer.recurrent)):
            for number, tensor in tensors.items():
                if tensor is not None:
                    yield f"{index}.{sort}.{number}", tensor


def _state_buffers(state: KeptState) -> dict[str, memoryview]:
    turn = torch.tensor([state.turn, _ROLES.index(state.role)], dtype=torch.int32)
    return {name: bytes_of(tensor) for name, tensor in (*_named_state(state.layers), (_TURN.name, turn))}


def _moved(state: KeptState, device: torch.device) -> KeptState:
    def to(tensors: Mapping[int, torch.Tensor | None]) -> dict[int, torch.Tensor | None]:
        return {number: None if tensor is None else tensor.to(device) for number, tensor in tensors.items()}

    layers = (replace(layer, conv=to(layer.conv), recurrent=to(layer.recurrent)) for layer in state.layers)
    return replace(state, layers=tuple(layers))


def _tensor(stored: StoredTensor) -> torch.Tensor:
    return torch.frombuffer(stored.data, dtype=_DTYPES[stored.dtype]).reshape(stored.shape)
