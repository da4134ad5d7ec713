"""Columns of any type through a store: whatever set of them comes back to the byte, in every format, sharded or not."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from packstore import verify
from packstore.stores import StoreBuilder, format_of, open_store
from packstore.testing.records import assert_holds, make_records, write
from tests.internals import (
    CHECKSUM,
    ITEM_SIZE,
    KEY,
    NUMPY_DTYPE,
    ROW_CHECKSUM,
    Column,
    LazyArray,
    LazyRagged,
    Origin,
    Ragged,
    StoreError,
    shape_to_stored,
    to_stored,
)
from tests.internals import base as columns_module
from tests.makers.stores import content
from tests.makers.tiers import examples

SUFFIXES = (".lmdb", ".h5", ".pth")
IMAGE = Column("image", "ragged", "uint8", type="image")
BOXES = Column("boxes", "ragged", "float32", (4,), type="boxes", coordinates="xyxy")
CLASSES = ("ant", "bee")


def boxed(dtype: str, *rows: int) -> st.SearchStrategy[Any]:
    return hnp.arrays(NUMPY_DTYPE[dtype], rows)


def upright(corners: Any) -> Any:
    """Boxes with these corners."""
    return np.sort(np.nan_to_num(corners).reshape(-1, 2, 2), axis=1).reshape(-1, 4)


@st.composite
def column_and_values(draw: st.DrawFn, name: str, count: int) -> tuple[Column, list[Any]]:
    """A column of any type but those that go with boxes, and a value a record."""
    kind = draw(
        st.sampled_from(["text", "json", "bytes", "file", "mask", "image", "label", "labels", "fixed", "ragged"])
    )
    nullable = draw(st.booleans())
    dtype, shape = draw(st.sampled_from(sorted(ITEM_SIZE))), draw(hnp.array_shapes(min_dims=0, max_dims=2, max_side=3))
    sizes = st.integers(0, 5)
    numbers = st.integers(0, len(CLASSES) - 1)
    columns: dict[str, tuple[Column, st.SearchStrategy[Any]]] = {
        "text": (Column(name, "ragged", "uint8", type="text", nullable=nullable), st.text(max_size=20)),
        "json": (
            Column(name, "ragged", "uint8", type="json", nullable=nullable),
            st.recursive(st.integers() | st.text(max_size=5), st.lists, max_leaves=4),
        ),
        "bytes": (Column(name, "ragged", "uint8", type="bytes", nullable=nullable), st.binary(max_size=5000)),
        "file": (
            Column(name, "ragged", "uint8", type=draw(st.sampled_from(["image", "mask"])), nullable=nullable),
            st.binary(max_size=50),
        ),
        "mask": (
            Column(name, "ragged", "uint16", layout="HW", type="mask", nullable=nullable),
            st.tuples(sizes, sizes).flatmap(lambda shape: boxed("uint16", *shape)),
        ),
        "image": (
            Column(name, "ragged", "uint8", layout="HWC", type="image", nullable=nullable),
            st.tuples(sizes, sizes).flatmap(lambda shape: boxed("uint8", *shape, 3)),
        ),
        "label": (Column(name, "fixed", "int64", classes=CLASSES, type="label", nullable=nullable), numbers),
        "labels": (
            Column(name, "ragged", "int64", classes=CLASSES, type="labels", nullable=nullable),
            st.lists(numbers, max_size=4),
        ),
        "fixed": (Column(name, "fixed", dtype, shape, nullable=nullable), boxed(dtype, *shape)),
        "ragged": (
            Column(name, "ragged", dtype, shape, nullable=nullable),
            sizes.flatmap(lambda rows: boxed(dtype, rows, *shape)),
        ),
    }
    column, values = columns[kind]
    if nullable:
        values = st.none() | values
    return column, draw(st.lists(values, min_size=count, max_size=count))


@pytest.mark.slow
@pytest.mark.parametrize(("suffix", "large"), [*((suffix, False) for suffix in SUFFIXES), (".lmdb", True)])
def test_any_columns_come_back(
    tmp_path_factory: pytest.TempPathFactory, suffix: str, large: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``large``: every column that can lies record by record."""
    if large:
        monkeypatch.setattr(columns_module, "_WHOLE_BYTES", 0)

    @examples(20)
    @given(data=st.data())
    def check(data: st.DataObject) -> None:
        count = data.draw(st.integers(1, 5))
        found = [data.draw(column_and_values(f"c{i}", count)) for i in range(data.draw(st.integers(0, 6)))]
        rows = data.draw(st.lists(st.integers(0, 3), min_size=count, max_size=count))
        if data.draw(st.booleans()):
            points = Column("points", "ragged", "float32", (2,), type="keypoints", coordinates="xy", parallel="boxes")
            found += [(c, [data.draw(boxed("float32", n, *c.shape)) for n in rows]) for c in (BOXES, points)]
            found[-2][1][:] = map(upright, found[-2][1])
        path = tmp_path_factory.mktemp("any") / f"out{suffix}"
        build(path, found, count, data.draw(st.sampled_from([None, 1, 60])))
        with open_store(path) as reader:
            assert list(reader.check_structure()) == []
            for column, values in found:
                for record, value in enumerate(values):
                    assert reader.has_value(column.name, record) == (value is not None)
                    assert same(reader.item(column.name, record), value, column)
                if column.kind == "fixed":
                    chosen = reader.values(column.name, np.arange(count))
                    assert reader.fixed_column(column.name).tobytes() == chosen.tobytes()  # a NaN does not equal itself
        assert verify(path).ok

    check()


def build(path: Path, given: list[tuple[Column, list[Any]]], count: int, shard_size: int | None) -> None:
    columns, at_rest = [IMAGE], {"key": [str(i) for i in range(count)]}
    for column, values in given:
        columns += [column, *column.companions]
        raw: Any = [to_stored(column, value) for value in values]
        at_rest[column.name] = raw if column.kind == "ragged" else np.stack(raw)
        for companion in column.companions:
            is_shape = companion.name == column.shape_name
            at_rest[companion.name] = np.array(  # type: ignore[assignment]
                [shape_to_stored(column, v) if is_shape else v is not None for v in values]
            )
    format = format_of(path)
    assert format is not None
    options: dict[str, Any] = {"encoding": "original", "shard_size": shard_size}
    with StoreBuilder(path, format=format, columns=[*columns, KEY, CHECKSUM, ROW_CHECKSUM], **options) as builder:
        builder.append([b"%d" % i for i in range(count)], at_rest, "")
        builder.commit(origin=Origin("made", "any"))


def same(found: Any, wanted: Any, column: Column) -> bool:
    if not isinstance(wanted, (np.ndarray, list, np.generic)) or column.type == "json":
        return bool(found == wanted)
    array = np.asarray(wanted, NUMPY_DTYPE[column.dtype])
    return bool((found.dtype, found.shape) == (array.dtype, array.shape) and found.tobytes() == array.tobytes())


WRONG: dict[str, tuple[str, Any, str]] = {
    "half a row": ("track", bytes(7), "record 3 has 7 bytes of 'track', not a multiple of 12"),
    "a class too many": (
        "tags",
        np.array([3], "<i8").tobytes(),
        r"column 'tags' has 3 classes .* got labels from . to 3",
    ),
    "labels of fewer boxes": ("boxes", bytes(16 * 9), "has . rows of 'names', and 9 of 'boxes'"),
    "another shape": ("raw_mask", bytes(2), r"record 3 has 2 bytes of 'raw_mask', not shape \[6 3\]"),
    "a missing value that is there": (
        "a_text_valid",
        False,
        "has a value of 'a_text', which 'a_text_valid' says is missing",
    ),
    "a missing number that is there": ("a_float64_valid", False, "which 'a_float64_valid' says is missing"),
    "a negative shape": ("raw_mask_shape", [-6, -3], r"not shape \[-6 -3\]"),
    "an enormous shape": ("raw_image_shape", [2**31 - 1] * 3, "not shape"),
}


@pytest.mark.parametrize("what", WRONG)
def test_values_that_do_not_fit_each_other(tmp_path: Path, what: str) -> None:
    records, (name, value, message) = make_records("typed"), WRONG[what]
    images, values = records.part(0, 7)
    values = {key: value for key, value in values.items() if key not in ("checksum", "row_checksum")}
    values[name] = values[name].copy()
    values[name][3] = value
    with StoreBuilder(tmp_path / "x.h5", format="hdf5", encoding="original", columns=records.columns) as builder:
        with pytest.raises(StoreError, match=message):
            builder.append(images, values, "")
        assert builder.records == 0


@pytest.mark.slow
def test_a_large_column_lies_record_by_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of any type, where it is too large to be written as one value."""
    records = make_records("typed", 40)
    write(tmp_path / "whole.lmdb", records)
    monkeypatch.setattr(columns_module, "_WHOLE_BYTES", 900)
    write(tmp_path / "apart.lmdb", records)
    with open_store(tmp_path / "apart.lmdb") as reader:
        assert_holds(reader, records)
        assert list(reader.check_structure()) == []
        assert reader.value("a_float32", 3).tolist() == records.values["a_float32"][3].tolist()
        chosen = np.array([39, 0, 3])
        assert reader.values("square", chosen).tolist() == records.values["square"][chosen].tolist()
        assert isinstance(reader.column("a_float32"), LazyArray)
        assert isinstance(reader.column("square"), LazyArray)
        assert isinstance(reader.column("a_bfloat16"), np.ndarray)
        assert bytes(reader.value("a_text", 3)) == records.values["a_text"][3]
        assert reader.key(3) == records.values["key"][3]
        assert isinstance(reader.column("a_text"), LazyRagged)
        assert isinstance(reader.column("a_json"), Ragged)
    assert verify(tmp_path / "apart.lmdb").ok
    assert content(tmp_path / "whole.lmdb") != content(tmp_path / "apart.lmdb")


@pytest.mark.slow
@pytest.mark.sampled(1, per="kind")
@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("kind", ["fixed", "ragged"])
def test_memory_while_a_column_is_large(
    tmp_path: Path, kind: str, suffix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither writing, reading one record, checking nor mending holds a column of 96 MiB in memory."""
    monkeypatch.setattr(columns_module, "_WHOLE_BYTES", 64 << 20)
    array = Column("large", "fixed", "float32", (128, 128))
    column = array if kind == "fixed" else Column("large", "ragged", "uint8", type="mask")
    path = tmp_path / f"x{suffix}"
    tracemalloc.start()
    try:
        columns = [IMAGE, column, KEY, CHECKSUM, ROW_CHECKSUM]
        with StoreBuilder(path, format=str(format_of(path)), encoding="original", columns=columns) as builder:
            for i in range(96):
                values: Any = np.full((16, 128, 128), i, np.float32) if column is array else [bytes([i]) * 65536] * 16
                builder.append([b"x"] * 16, {"key": [f"{i}/{j}" for j in range(16)], "large": values}, "")
            builder.commit(origin=Origin("made", "large"))
        assert tracemalloc.get_traced_memory()[1] < 40 << 20
        tracemalloc.reset_peak()
        for checksums in ("never", "auto"):
            with open_store(path, checksums) as reader:
                found = np.frombuffer(bytes(reader.value("large", 1000)), array.dtype if column is array else "uint8")
                assert (found == 1000 // 16).all()
                if column is array:
                    assert isinstance(reader.column("large"), LazyArray) == (suffix == ".lmdb")
                    assert (reader.values("large", np.array([1000, 1001])) == 1000 // 16).all()
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
        assert verify(path).ok
        assert tracemalloc.get_traced_memory()[1] < 80 << 20 + 64 << 20
    finally:
        tracemalloc.stop()
