"""Columns: what each type may be at rest, and one value to its bytes and back."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tests.internals import (
    ITEM_SIZE,
    NUMPY_DTYPE,
    Column,
    LazyArray,
    ManifestError,
    StoreError,
    column_digest,
    from_stored,
    list_user_columns,
    shape_to_stored,
    to_stored,
    without_companions,
)

LABEL = Column("label", "fixed", "int64", classes=("ant", "bee"), type="label")
LABELS = Column("labels", "ragged", "int64", classes=("ant", "bee"), type="labels", parallel="boxes")
BOXES = Column("boxes", "ragged", "float32", (4,), type="boxes", coordinates="xyxy")
POINTS = Column("points", "ragged", "float32", (17, 3), type="keypoints", coordinates="xyv")
TEXT = Column("caption", "ragged", "uint8", type="text")
JSON = Column("about", "ragged", "uint8", type="json")
BYTES = Column("raw", "ragged", "uint8", type="bytes", nullable=True)
MASK = Column("mask", "ragged", "uint16", layout="HW", type="mask", nullable=True)
IMAGE = Column("depth", "ragged", "uint8", layout="HWC", type="image")


@pytest.mark.parametrize(
    "call",
    [
        lambda: Column("x", "fixed", "int64", type="number"),
        lambda: Column("x", "fixed", "float32", type="label"),
        lambda: Column("x", "fixed", "int64", (2,), type="label"),
        lambda: Column("x", "ragged", "int32", type="labels"),
        lambda: Column("x", "ragged", "float32", (5,), type="boxes", coordinates="xyxy"),
        lambda: Column("x", "ragged", "float32", (4,), type="boxes", coordinates="xywh"),
        lambda: Column("x", "ragged", "float32", (4,), type="boxes"),
        lambda: Column("x", "ragged", "float32", (4,), type="keypoints", coordinates="xyxy"),
        lambda: Column("x", "ragged", "float32", (3,), type="keypoints", coordinates="xy"),
        lambda: Column("x", "ragged", "int16", type="text"),
        lambda: Column("x", "fixed", "uint8", type="json"),
        lambda: Column("x", "fixed", "uint8", (3,), type="bytes"),
        lambda: Column("x", "fixed", "uint8", (3,), type="images"),
        lambda: Column("x", "ragged", "uint8", layout="HWC", type="images"),
        lambda: Column("x", "ragged", "int32", type="mask"),
        lambda: Column("x", "fixed", "int64", (3, 4), "HW", type="mask"),
        lambda: Column("x", "fixed", "uint8", (3, 4, 3), "HW", type="mask"),
        lambda: Column("x", "fixed", "uint8", (3, 4), "HW"),
        lambda: Column("x", "ragged", "float32", (0, 3)),
        lambda: Column("x", "ragged", "float32", (2,), nbytes=12),
        lambda: Column("x", "fixed", "int64", classes=("a",)),
        lambda: Column("x", "fixed", "int64", type="label", parallel="boxes"),
        lambda: Column("x", "fixed", "int64", type="label", coordinates="xy"),
        lambda: Column("key", "ragged", "uint8", type="text", nullable=True),
        lambda: Column("checksum", "fixed", "uint64", nullable=True),
    ],
)
def test_impossible_columns(call: Any) -> None:
    with pytest.raises(ManifestError, match="impossible"):
        call()


def test_companions() -> None:
    valid, shape = Column("mask_valid", "fixed", "bool"), Column("mask_shape", "fixed", "int32", (2,))
    assert MASK.companions == (shape, valid)
    assert IMAGE.companions == (Column("depth_shape", "fixed", "int32", (3,)),)
    assert Column("image", "ragged", "uint8", layout="HWC", type="image").companions[0].name == "shape"
    assert BYTES.companions == (Column("raw_valid", "fixed", "bool"),)
    assert LABEL.companions == ()


def test_which_lie_one_by_one() -> None:
    assert MASK.one_by_one
    assert BYTES.one_by_one
    assert Column("view", "ragged", "uint8", type="image").one_by_one
    assert not TEXT.one_by_one
    assert Column("caption", "ragged", "uint8", type="text", nbytes=(1 << 30) + 1).one_by_one
    assert not Column("mask", "fixed", "uint8", (3, 4), "HW", type="mask").one_by_one


@pytest.mark.parametrize(
    ("dtype", "shape", "records", "apart"),
    [
        ("float32", (512, 512), 1 << 10, False),
        ("float32", (512, 512), (1 << 10) + 1, True),
        ("int8", (9,), 1 << 27, True),
        ("uint64", (), 1 << 28, False),
        ("float64", (1,), 1 << 28, False),
        ("bool", (8,), 1 << 28, False),
        ("int8", (0,), 1 << 40, False),
    ],
)
def test_which_fixed_ones_lie_one_by_one(dtype: str, shape: tuple[int, ...], records: int, apart: bool) -> None:
    """Of more than 1 GiB, unless a record has at most 8 bytes, as a checksum or a label has."""
    column = Column("array", "fixed", dtype, shape)
    assert dataclasses.replace(column, nbytes=records * column.record_nbytes).one_by_one is apart


def test_an_array_whose_values_lie_apart() -> None:
    column = Column("array", "fixed", "int16", (2, 3))
    whole = np.arange(24, dtype="<i2").reshape(4, 2, 3)
    asked: list[int] = []

    def read(record: int) -> bytes:
        asked.append(record)
        return whole[record].tobytes()

    data = LazyArray(column, 4, read)
    assert (len(data), data.shape, data.dtype, data.nbytes) == (4, (4, 2, 3), whole.dtype, whole.nbytes)
    assert asked == []
    assert data[2].tolist() == whole[2].tolist()
    assert asked == [2]
    assert not data[2].flags.writeable
    assert [value.tolist() for value in data] == whole.tolist()
    for index in (slice(None), slice(1, 3), slice(3, 0, -2), slice(4, 9), np.array([3, 0, 3]), np.array([], np.int64)):
        found = data[index]
        assert (found.dtype, found.shape) == (whole.dtype, whole[index].shape)
        assert found.tolist() == whole[index].tolist()
    for out in (4, -1, np.array([4])):
        with pytest.raises(IndexError):
            data[out]
    assert column_digest(data) == column_digest(whole)
    for wrong in (bytes(11), bytes(13), b""):
        with pytest.raises(StoreError, match=rf"a value of column 'array' has {len(wrong)} bytes, not 12"):
            LazyArray(column, 4, lambda _, wrong=wrong: wrong)[1]  # type: ignore[misc]


@pytest.mark.parametrize(
    ("column", "value"),
    [
        (LABEL, 1),
        (TEXT, "two dogs, 犬\udcff"),
        (TEXT, ""),
        (JSON, {"id": 3, "licence": None, "name": "犬", "scores": [0.1, True]}),
        (JSON, None),
        (BYTES, b"\x00\xff"),
        (Column("m", "ragged", "uint8", type="mask"), b"\x89PNG"),
    ],
)
def test_values_come_back(column: Column, value: Any) -> None:
    assert from_stored(column, to_stored(column, value)) == value


@pytest.mark.parametrize(
    ("column", "value", "expected"),
    [
        (LABELS, [1, 0, 1], np.array([1, 0, 1], np.int64)),
        (LABELS, [], np.empty(0, np.int64)),
        (LABELS, torch.tensor([1]), np.array([1], np.int64)),
        (BOXES, [[0, 0, 1.5, 2]], np.array([[0, 0, 1.5, 2]], np.float32)),
        (BOXES, [], np.empty((0, 4), np.float32)),
        (BOXES, torch.zeros(2, 4, dtype=torch.bfloat16), np.zeros((2, 4), np.float32)),
        (POINTS, np.ones((2, 17, 3)), np.ones((2, 17, 3), np.float32)),
        (Column("x", "fixed", "float32"), 3, np.float32(3)),
        (Column("x", "fixed", "bool", (2,)), [True, False], np.array([True, False])),
        (Column("x", "fixed", "uint8", (2,)), [0, 255], np.array([0, 255], np.uint8)),
        (Column("x", "fixed", "float16"), float("inf"), np.float16("inf")),
        (Column("x", "fixed", "bfloat16", (3,)), [1.0, -2.0, float("nan")], np.array([0x3F80, 0xC000, 0x7FC0], "u2")),
        (Column("x", "fixed", "bfloat16"), np.uint16(0x3F80), np.uint16(0x3F80)),
        (Column("x", "fixed", "float32", nullable=True), None, np.float32(0)),
    ],
)
def test_arrays_come_back(column: Column, value: Any, expected: Any) -> None:
    raw = to_stored(column, value)
    assert isinstance(raw, bytes) == (column.kind == "ragged")
    found = from_stored(column, raw)
    assert found.dtype == expected.dtype
    assert found.shape == expected.shape
    assert found.tobytes() == expected.tobytes()


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        (LABEL, 2, "2 classes, numbered from 0; got 2"),
        (LABEL, -1, "got -1"),
        (LABEL, 1.0, "needs numbers of int64, got float"),
        (LABEL, "ant", "got str"),
        (LABEL, [1], r"needs shape \(\), got list of 1"),
        (LABEL, None, "needs a value, got None; declare it optional"),
        (LABELS, [[1]], r"needs shape \(n, \)"),
        (BOXES, [1, 2, 3, 4], r"needs shape \(n, 4\), got list of 4"),
        (BOXES, np.zeros((2, 5)), r"got float64 \(2, 5\)"),
        (BOXES, [[1], [1, 2]], "needs numbers of float32"),
        (TEXT, b"bytes", "needs a str, got bytes"),
        (TEXT, "\ud800", "cannot be stored"),
        (JSON, {1, 2}, "cannot be JSON"),
        (JSON, float("nan"), "cannot be JSON"),
        (BYTES, "text", "needs bytes, got str"),
        (MASK, np.zeros((2, 3, 1), np.uint8), "needs an array HW"),
        (MASK, np.full((2, 3), -1), "out of its range"),
        (IMAGE, np.zeros((2, 3, 4), np.uint8), "needs an array HWC"),
        (Column("x", "fixed", "uint8"), 256, "out of its range"),
        (Column("x", "fixed", "bool"), 1, "needs numbers of bool"),
        (Column("x", "fixed", "float16"), 1e6, "out of its range"),
        (Column("x", "fixed", "bfloat16"), 3.4e38 * (1 + 1e-3), "out of its range"),
    ],
)
def test_values_that_do_not_fit(column: Column, value: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        to_stored(column, value)


def test_masks_need_their_shapes() -> None:
    mask = np.arange(6, dtype=np.int64).reshape(2, 3)
    raw, shape = to_stored(MASK, mask), shape_to_stored(MASK, mask)
    found = from_stored(MASK, raw, tuple(shape.tolist()))
    assert found.dtype == np.uint16
    assert np.array_equal(found, mask)
    assert (to_stored(MASK, None), shape_to_stored(MASK, None).tolist()) == (b"", [0, 0])


def test_damaged_values() -> None:
    with pytest.raises(StoreError, match="has 15 bytes, not a multiple of 16"):
        from_stored(BOXES, bytes(15))
    with pytest.raises(StoreError, match="not JSON"):
        from_stored(JSON, b"{")
    with pytest.raises(StoreError, match="not JSON"):
        from_stored(JSON, b"[" * 100_000)
    with pytest.raises(StoreError, match="has 3 elements"):
        from_stored(MASK, bytes(6), (2, 2))
    with pytest.raises(StoreError, match="has 1 elements"):
        from_stored(MASK, bytes(2), (-1, -1))


def test_no_copy_where_none_is_needed() -> None:
    raw = memoryview(np.arange(8, dtype=np.float32).tobytes())
    assert not from_stored(BOXES, raw).flags.writeable
    assert from_stored(BOXES, memoryview(b"x" + raw.tobytes())[1:]).flags.aligned


@given(st.data())
def test_any_array_comes_back(data: st.DataObject) -> None:
    dtype = data.draw(st.sampled_from(sorted(ITEM_SIZE)))
    shape = data.draw(hnp.array_shapes(min_dims=0, max_dims=3, max_side=3))
    ragged = data.draw(st.booleans())
    column = Column("x", "ragged" if ragged else "fixed", dtype, shape)
    rows = (data.draw(st.integers(0, 4)), *shape) if ragged else shape
    value = data.draw(hnp.arrays(NUMPY_DTYPE[dtype], rows))
    raw = to_stored(column, value)
    found = from_stored(column, raw)
    assert (found.dtype, found.shape) == (value.dtype, rows)
    assert found.tobytes() == value.tobytes()


def test_lists_leave_out_companions_and_packstore_s_own_columns() -> None:
    image, key = Column("image", "ragged", "uint8", type="image"), Column("key", "ragged", "uint8", type="text")
    companions = (*MASK.companions, *BYTES.companions)
    assert {each.name for each in companions} == {"mask_shape", "mask_valid", "raw_valid"}
    columns = (image, MASK, key, *companions, BYTES)
    assert without_companions(columns) == [image, MASK, key, BYTES]
    assert list_user_columns(columns) == [MASK, BYTES]
