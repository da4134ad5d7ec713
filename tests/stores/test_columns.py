"""Columns of stores: values that do not fit each other, and columns too large to be written as one value."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from packstore import Manifest, verify
from packstore.stores import StoreBuilder, format_of, open_store
from packstore.testing.records import ORIGIN, assert_holds, begin, make_records, write
from tests.internals import (
    CHECKSUM,
    KEY,
    ROW_CHECKSUM,
    Column,
    LazyArray,
    LazyRagged,
    Ragged,
    StoreError,
)
from tests.internals import base as columns_module
from tests.makers.stores import content

SUFFIXES = (".lmdb", ".h5", ".pth")
IMAGE = Column("image", "ragged", "uint8", type="image")
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
    with begin(tmp_path / "x.h5", records) as builder:
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
        with StoreBuilder(path, Manifest(str(format_of(path)), "original", 0, tuple(columns), ORIGIN)) as builder:
            for i in range(96):
                values: Any = np.full((16, 128, 128), i, np.float32) if column is array else [bytes([i]) * 65536] * 16
                builder.append([b"x"] * 16, {"key": [f"{i}/{j}" for j in range(16)], "large": values}, "")
            builder.commit()
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
