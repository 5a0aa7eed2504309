"""One segment as one file in the safetensors format (https://huggingface.co/docs/safetensors): named buffers with a
dtype and a shape, the token ids they belong to, and who the segment is.

Knows bytes, no files and no tensors. A file is written as the pieces it consists of, so that its size is known and
nothing is copied before it is written. The library reads these files; they are read back here without a copy.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from storage.errors import InvalidRecordError, SegmentDamagedError

if TYPE_CHECKING:
    from typing_extensions import Buffer

FORMAT = "chatcache-segment-1"
TOKEN_IDS = "token_ids"
MAX_HEADER_BYTES = 16 * 2**20
ITEM_BYTES = {
    **dict.fromkeys(("F64", "I64", "U64"), 8),
    **dict.fromkeys(("F32", "I32", "U32"), 4),
    **dict.fromkeys(("F16", "BF16", "I16", "U16"), 2),
    **dict.fromkeys(("I8", "U8", "BOOL", "F8_E4M3", "F8_E5M2"), 1),
}


class FileKind(StrEnum):
    """What a file of a segment holds."""

    KV = "kv"
    """Keys and values of the segment's tokens; usable in part."""
    STATE = "state"
    """Recurrent state after the segment's last token; usable there only."""


@dataclass(frozen=True, slots=True)
class TensorLayout:
    """One tensor of a file: `shape` has the segment's number of tokens at `token_axis` (None: it has no such axis)."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    token_axis: int | None

    def __post_init__(self) -> None:
        if self.dtype not in ITEM_BYTES or self.name in ("", TOKEN_IDS, "__metadata__"):
            raise InvalidRecordError(f"A segment cannot hold a tensor {self.name!r} of {self.dtype}.")

    def shape_for(self, num_tokens: int) -> tuple[int, ...]:
        if self.token_axis is None:
            return self.shape
        return (*self.shape[: self.token_axis], num_tokens, *self.shape[self.token_axis + 1 :])

    def num_bytes_for(self, num_tokens: int) -> int:
        return math.prod(self.shape_for(num_tokens)) * ITEM_BYTES[self.dtype]


@dataclass(frozen=True, slots=True)
class SegmentHeader:
    """Who a segment is. `parent_key` is the namespace's root at the beginning. `token_ids` are u32le."""

    kind: FileKind
    root: str
    parent_key: str
    key: str
    start: int
    token_ids: bytes

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids) // 4


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor read back: `data` is a writable view into the file's bytes, aligned to the item size."""

    dtype: str
    shape: tuple[int, ...]
    data: memoryview


def encode_segment(
    header: SegmentHeader, layout: Sequence[TensorLayout], tensors: Mapping[str, Buffer]
) -> list[memoryview]:
    """The file's bytes, in pieces; the buffers themselves are not copied. Each must be contiguous, little-endian.

    Raises InvalidRecordError where the buffers are not those of the layout.
    """
    if set(tensors) != {tensor.name for tensor in layout}:
        raise InvalidRecordError(f"The tensors {sorted(tensors)} are not those of the segment's layout.")
    buffers = {TOKEN_IDS: memoryview(header.token_ids)}
    described: dict[str, tuple[str, tuple[int, ...]]] = {TOKEN_IDS: ("U32", (header.num_tokens,))}
    num_tokens = header.num_tokens
    for tensor in layout:
        name, shape = tensor.name, tensor.shape_for(num_tokens)
        buffers[name] = buffer = memoryview(tensors[name]).cast("B")
        described[name] = (tensor.dtype, shape)
        if len(buffer) != (num_bytes := math.prod(shape) * ITEM_BYTES[tensor.dtype]):
            raise InvalidRecordError(f"Tensor {name} has {len(buffer)} bytes; its layout says {num_bytes}.")
    # The widest items first: so every tensor lies aligned without gaps, which the format forbids.
    names = [name for _, name in sorted((-ITEM_BYTES[dtype], name) for name, (dtype, _) in described.items())]
    entries: dict[str, Any] = {"__metadata__": _metadata(header)}
    end = 0
    for name in names:
        dtype, shape = described[name]
        begin, end = end, end + len(buffers[name])
        entries[name] = {"dtype": dtype, "shape": shape, "data_offsets": (begin, end)}
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return [memoryview(len(text).to_bytes(8, "little") + text), *(buffers[name] for name in names)]


def decode_segment(data: bytearray) -> tuple[SegmentHeader, dict[str, StoredTensor]]:
    """The inverse of `encode_segment`, without a copy. Raises SegmentDamagedError on all that it never writes."""
    try:
        size = int.from_bytes(data[:8], "little")
        if len(data) < 8 or size > min(MAX_HEADER_BYTES, len(data) - 8):
            raise SegmentDamagedError("The segment's header is cut off.")
        entries = json.loads(data[8 : 8 + size].decode())
        metadata = entries.pop("__metadata__")
        if metadata["format"] != FORMAT:
            raise SegmentDamagedError(f"The segment has the unknown format {metadata['format']!r}.")
        payload = memoryview(data)[8 + size :]
        tensors = {name: _tensor(entry, payload) for name, entry in entries.items()}
        if sum(len(tensor.data) for tensor in tensors.values()) != len(payload):
            raise SegmentDamagedError("The segment's tensors do not fill its file.")
        token_ids = bytes(tensors.pop(TOKEN_IDS).data)
        header = SegmentHeader(
            FileKind(metadata["kind"]),
            metadata["root"],
            metadata["parent"],
            metadata["key"],
            int(metadata["start"]),
            token_ids,
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise SegmentDamagedError(f"The segment's header cannot be read: {error!r}.") from error
    return header, tensors


def check_layout(tensors: Mapping[str, StoredTensor], layout: Sequence[TensorLayout], num_tokens: int) -> None:
    """Raises SegmentDamagedError unless the tensors are exactly those of the layout."""
    found = {name: (tensor.dtype, tensor.shape) for name, tensor in tensors.items()}
    if found != {tensor.name: (tensor.dtype, tensor.shape_for(num_tokens)) for tensor in layout}:
        raise SegmentDamagedError("The segment's tensors are not those of its layout.")


def _metadata(header: SegmentHeader) -> dict[str, str]:
    return {
        "format": FORMAT,
        "kind": header.kind,
        "root": header.root,
        "parent": header.parent_key,
        "key": header.key,
        "start": str(header.start),
    }


def _tensor(entry: Mapping[str, Any], payload: memoryview) -> StoredTensor:
    dtype, shape = entry["dtype"], tuple(entry["shape"])
    begin, end = entry["data_offsets"]
    if not 0 <= begin <= end <= len(payload) or end - begin != math.prod(shape) * ITEM_BYTES[dtype]:
        raise SegmentDamagedError("A tensor of the segment lies outside its file.")
    return StoredTensor(dtype, shape, payload[begin:end])
