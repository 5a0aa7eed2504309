"""Segment files: what is written is read back byte by byte, by us and by the safetensors library, or refused."""

from __future__ import annotations

import contextlib
import os
import random
import subprocess
import sys

import numpy as np
import pytest
import safetensors
from hypothesis import given
from hypothesis import strategies as st

from storage.errors import InvalidRecordError, SegmentDamagedError
from storage.models import pack_token_ids, unpack_token_ids
from storage.segment_format import (
    ITEM_BYTES,
    TOKEN_IDS,
    FileKind,
    SegmentHeader,
    TensorLayout,
    check_layout,
    decode_segment,
    encode_segment,
)
from storage.segment_keys import namespace_root, segment_key

LAYOUT = (
    TensorLayout("layers.0.scale", "F32", (1, 2, 0, 1), 2),
    TensorLayout("layers.0.codes", "I8", (1, 2, 0, 3), 2),
    TensorLayout("layers.1.keys", "BF16", (1, 2, 0, 3), 2),
    TensorLayout("layers.2.state", "F64", (1, 5), None),
)
HEADER = SegmentHeader(FileKind.KV, "a" * 64, "b" * 64, "c" * 64, 7, pack_token_ids([1, 2, 2**32 - 1]))


def tensors(seed: int = 0) -> dict[str, bytes]:
    source = random.Random(seed)
    return {t.name: source.randbytes(t.num_bytes_for(HEADER.num_tokens)) for t in LAYOUT}


def encoded(values: dict[str, bytes] | None = None) -> bytearray:
    return bytearray(b"".join(encode_segment(HEADER, LAYOUT, values or tensors())))


def test_a_segment_reads_back_as_it_was_written() -> None:
    header, read = decode_segment(encoded())
    assert header == HEADER
    assert {name: bytes(tensor.data) for name, tensor in read.items()} == tensors()
    assert read["layers.1.keys"].shape == (1, 2, 3, 3)
    check_layout(read, LAYOUT, header.num_tokens)


def test_the_safetensors_library_reads_the_same_bytes() -> None:
    entries = dict(safetensors.deserialize(bytes(encoded())))
    ids = entries.pop(TOKEN_IDS)
    assert (ids["dtype"], ids["shape"], bytes(ids["data"])) == ("U32", [3], HEADER.token_ids)
    assert {name: bytes(entry["data"]) for name, entry in entries.items()} == tensors()
    assert {name: (entry["dtype"], tuple(entry["shape"])) for name, entry in entries.items()} == {
        t.name: (t.dtype, t.shape_for(3)) for t in LAYOUT
    }


@pytest.mark.parametrize("dtype", sorted(ITEM_BYTES))
def test_every_dtype_that_may_be_stored_is_one_the_library_knows(dtype: str) -> None:
    layout = (TensorLayout("t", dtype, (0, 8), 0),)
    data = b"".join(encode_segment(HEADER, layout, {"t": bytes(3 * 8 * ITEM_BYTES[dtype])}))
    assert dict(safetensors.deserialize(data))["t"]["dtype"] == dtype


def test_every_tensor_lies_aligned_to_its_items_and_can_be_written_to() -> None:
    data = encoded()
    _, read = decode_segment(data)
    start = np.frombuffer(data, np.uint8).ctypes.data
    for tensor in read.values():
        view = np.frombuffer(tensor.data, np.uint8)
        assert view.flags.writeable
        assert (view.ctypes.data - start) % ITEM_BYTES[tensor.dtype] == 0


def test_buffers_that_do_not_fit_the_layout_are_refused() -> None:
    short = tensors() | {"layers.1.keys": b"x"}
    missing = {name: value for name, value in tensors().items() if name != "layers.1.keys"}
    for wrong in (short, missing, tensors() | {"more": b""}):
        with pytest.raises(InvalidRecordError):
            encode_segment(HEADER, LAYOUT, wrong)


@pytest.mark.parametrize(("name", "dtype"), [("", "F32"), (TOKEN_IDS, "F32"), ("__metadata__", "F32"), ("t", "C64")])
def test_a_layout_that_the_format_cannot_hold_is_refused(name: str, dtype: str) -> None:
    with pytest.raises(InvalidRecordError):
        TensorLayout(name, dtype, (1,), None)


def test_a_layout_of_another_dtype_shape_or_name_is_told() -> None:
    _, read = decode_segment(encoded())
    for other in (
        LAYOUT[1:],
        (*LAYOUT, TensorLayout("more", "F32", (1,), None)),
        (TensorLayout("layers.0.scale", "I32", (1, 2, 0, 1), 2), *LAYOUT[1:]),
        (TensorLayout("layers.0.scale", "F32", (2, 1, 0, 1), 2), *LAYOUT[1:]),
    ):
        with pytest.raises(SegmentDamagedError):
            check_layout(read, other, 3)
    with pytest.raises(SegmentDamagedError):
        check_layout(read, LAYOUT, 4)


@given(st.binary(max_size=200))
def test_what_is_no_segment_is_refused(data: bytes) -> None:
    with pytest.raises(SegmentDamagedError):
        decode_segment(bytearray(data))


@given(st.data())
def test_a_damaged_header_is_refused_or_read_as_another_segment_but_nothing_else(data: st.DataObject) -> None:
    """The payload is covered by the SHA-256 in the index; the header must never make reading fail in a new way."""
    good = encoded()
    header_end = 8 + int.from_bytes(good[:8], "little")
    good[data.draw(st.integers(0, header_end - 1))] ^= data.draw(st.integers(1, 255))
    cut = good[: data.draw(st.integers(0, len(good)))] if data.draw(st.booleans()) else good
    with contextlib.suppress(SegmentDamagedError):
        decode_segment(bytearray(cut))


def test_a_key_depends_on_everything_before_its_tokens_and_on_them() -> None:
    ids = pack_token_ids([1, 2, 3])
    root = namespace_root({"model": "m", "salt": "s"})
    key = segment_key(root, 0, ids)
    others = {
        segment_key(root, 1, ids),
        segment_key(key, 0, ids),
        segment_key(root, 0, pack_token_ids([1, 2])),
        segment_key(root, 0, pack_token_ids([1, 2, 4])),
        segment_key(namespace_root({"model": "m", "salt": "t"}), 0, ids),
    }
    assert len(others | {key}) == 6


def test_keys_do_not_depend_on_the_process() -> None:
    script = (
        "from storage.segment_keys import *\n"
        "root = namespace_root({'b': [1, 'é'], 'a': {'y': 1, 'x': None}})\n"
        "print(root, segment_key(root, 3, b'\\1\\0\\0\\0'))"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    root = namespace_root({"a": {"x": None, "y": 1}, "b": [1, "é"]})
    assert outputs == {f"{root} {segment_key(root, 3, bytes([1, 0, 0, 0]))}\n"}


@given(st.lists(st.integers(0, 2**32 - 1)))
def test_token_ids_survive_packing(ids: list[int]) -> None:
    packed = pack_token_ids(ids)
    assert packed == np.array(ids, "<u4").tobytes()
    assert unpack_token_ids(packed) == tuple(ids)
