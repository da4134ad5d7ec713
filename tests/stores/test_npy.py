"""The header of ``.npy`` values is read as numpy reads it, and without evaluating it."""

from __future__ import annotations

import ast
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import packstore
from packstore import PackedDataset
from tests.internals import HEADER_BYTES
from tests.internals import read_npy_header as read_header
from tests.makers.datasets import make_folder

DTYPES = st.sampled_from(["<u1", "<i2", "<i4", "<i8", "<u8", "<f2", "<f4", "<f8", ">i4", "|b1"])
SHAPES = st.lists(st.integers(0, 10**12), max_size=5).map(tuple)


def header(shape: tuple[int, ...], dtype: str, fortran: bool = False) -> bytes:
    file = io.BytesIO()
    described = {"descr": np.dtype(dtype).str, "fortran_order": fortran, "shape": shape}
    np.lib.format.write_array_header_1_0(file, described)
    return file.getvalue()


@given(SHAPES, DTYPES, st.booleans(), st.binary(max_size=9))
def test_what_numpy_writes(shape: tuple[int, ...], dtype: str, fortran: bool, after: bytes) -> None:
    written = header(shape, dtype, fortran)
    assert read_header((written + after)[:HEADER_BYTES]) == (shape, fortran, np.dtype(dtype), len(written))


@given(SHAPES, DTYPES, st.data())
def test_damage_is_refused_or_read_as_numpy_does(shape: tuple[int, ...], dtype: str, data: Any) -> None:
    written = bytearray(header(shape, dtype))
    written[data.draw(st.integers(0, len(written) - 1))] = data.draw(st.integers(0, 255))
    try:
        found = read_header(bytes(written))
    except ValueError:
        return
    file = io.BytesIO(written)
    np.lib.format.read_magic(file)
    expected = np.lib.format.read_array_header_1_0(file)
    assert found == (*expected, file.tell())


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{}",
        b"{'descr': '|O', 'fortran_order': False, 'shape': (3,), }, 1",
        b"{'descr': '<z9', 'fortran_order': False, 'shape': (3,), }",
        b"{'descr': '<a8', 'fortran_order': False, 'shape': (3,), }",
        b"{'descr': '<i9', 'fortran_order': False, 'shape': (3,), }",
        b"{'descr': [('a', '<i4')], 'fortran_order': False, 'shape': (3,), }",
        b"{'descr': '<i4', 'fortran_order': False, 'shape': (-3,), }",
        b"{'descr': '<i4', 'fortran_order': False, 'shape': (9" + b"9" * 60 + b",), }",
        b"{'descr': '<i4', 'fortran_order': False, 'shape':\x0b(3,), }",
        b"{'descr': '<i4', 'fortran_order': __import__('os'), 'shape': (3,), }",
    ],
)
def test_what_is_no_array_of_numbers(text: bytes) -> None:
    with pytest.raises(ValueError, match=r"its text does not describe|data type"):
        read_header(b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text)


def test_a_store_opens_while_python_cannot_be_parsed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """CPython 3.11 fails in it now and then when two threads parse at once; no store is damaged by that."""
    packstore.convert(make_folder(tmp_path / "photos"), tmp_path / "x.lmdb")

    def broken(*_: Any) -> Any:
        raise SystemError("AST constructor recursion depth mismatch (before=45, after=42)")

    monkeypatch.setattr(ast, "parse", broken)
    assert PackedDataset(tmp_path / "x.lmdb", "train")[3][1] == 0
    assert packstore.verify(tmp_path / "x.lmdb").ok
