"""Reads MATLAB files (MAT-File Level 5; https://www.mathworks.com/help/pdf_doc/matlab/matfile_format.pdf).

Numbers, texts, cells and structs, which is what data sets have. scipy reads more, and ends the process for some files
that are damaged; here every size is checked, and nothing nests deeper than eight levels.
"""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packstore.core.errors import SourceError, printable

HEADER_BYTES = 128
_MATRIX, COMPRESSED = 14, 15
# Classes of arrays; others are objects, sparse arrays and functions.
_CELL, _STRUCT, _CHAR, _NUMBERS = 1, 2, 4, range(6, 16)
_DTYPES = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8", 13: "u8"}
_TEXTS = {1: "latin-1", 2: "latin-1", 4: "utf-16", 16: "utf-8", 17: "utf-16", 18: "utf-32"}
_COMPLEX = 0x800
_MAX_BYTES = 1 << 24
_MAX_DEPTH = _MAX_AXES = 8
_MAX_NAMES_BYTES = 1 << 12
# Value of an empty element.
_NO_NUMBERS = np.zeros(0)

Buffer = bytes | memoryview


def load_mat(name: str, data: bytes) -> dict[str, Any]:
    """Reads all variables of a MAT file, by name. Their values:

    - Numbers: a read-only array in the file's dtype.
    - Text: a string.
    - Cell: a list, in MATLAB's order.
    - Struct: a dict of such lists, by field.

    Args:
        name: Name of the file, for messages.
        data: Its content.

    Raises:
        SourceError: The file is damaged, or holds other types. Inflated, it has more than 16 MiB, or it has more than
            eight levels.
    """
    try:
        order = read_byte_order(data[:HEADER_BYTES])
        return dict(pair for element in _inflate_elements(data, order) for pair in _read_arrays(element, order, 0))
    except (ValueError, struct.error, zlib.error) as error:
        raise SourceError(f"{name} is no MAT file of level 5, or it is damaged: {printable(str(error))}") from None


def parse_array_start(start: bytes, order: str) -> tuple[str, tuple[tuple[int, ...], np.dtype[Any], int] | None]:
    """Parses the first bytes of an element, inflated. Returns the name of the array, and its shape, dtype and the
    offset of its numbers in the element.

    They are None for a cell, a struct, a text or complex numbers. Raises :class:`ValueError` or :class:`struct.error`
    for damage. ``order``: byte order.
    """
    kind, _, end, _ = _parse_tag(start, order, 0)
    if kind != _MATRIX:
        raise ValueError(f"an element of type {kind}, expected an array")
    flags, shape, name, at = _parse_header(start, order, 8)
    if flags & 0xFF not in _NUMBERS or flags & _COMPLEX:
        return name, None
    stored, begin, stop, _ = _parse_tag(start, order, at)
    dtype = _check_numbers(flags, stored, order, shape, min(stop, end) - begin)
    return name, (shape, dtype, begin)


def to_whole_numbers(name: str, value: Any) -> NDArray[np.int64]:
    """Converts whole numbers of any dtype, a row, a column or a list of single ones, to int64 ``(n,)``. Raises
    :class:`SourceError` for any other value.
    """
    parts = value if isinstance(value, list) else [value]
    if not all(isinstance(each, np.ndarray) and each.size in (max(each.shape), 0) for each in parts):
        raise SourceError(f"{name} has something else instead of a row of numbers")
    flat = np.concatenate([each.ravel() for each in parts]) if parts else np.zeros(0)
    with np.errstate(invalid="ignore"):
        whole = flat.astype(np.int64)
    if not np.array_equal(whole, flat) or (isinstance(value, list) and len(flat) != len(parts)):
        raise SourceError(f"{name} has something else instead of whole numbers")
    return whole


def to_texts(name: str, value: Any) -> list[str]:
    """Returns the strings of a cell, or of a field of structs, unchanged. Raises :class:`SourceError` for any other
    value."""
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise SourceError(f"{name} has something else instead of names")
    return value


def get_struct_fields(name: str, value: Any, wanted: tuple[str, ...]) -> list[list[Any]]:
    """Returns the fields ``wanted`` of an array of structs, each a list over all structs. Raises :class:`SourceError`
    if one is missing."""
    if not isinstance(value, dict) or not value.keys() >= set(wanted):
        raise SourceError(f"{name} has no structs with the fields {', '.join(wanted)}")
    return [value[field] for field in wanted]


def read_byte_order(header: bytes) -> str:
    """Returns the byte order in a file's header, ``<`` or ``>``. Raises :class:`ValueError` if it has none."""
    order = {b"IM": "<", b"MI": ">"}.get(header[126:])
    if order is None:
        raise ValueError("its header has no byte order")
    return order


def _inflate_elements(data: bytes, order: str) -> Iterator[Buffer]:
    """Yields the elements of a file, inflated."""
    at, room = HEADER_BYTES, _MAX_BYTES
    while at < len(data):
        kind, size = struct.unpack_from(f"{order}II", data, at)
        end = at + 8 + size
        if end > len(data):
            raise ValueError(f"it ends {end - len(data)} bytes too early")
        element, inflate = data[at:end], zlib.decompressobj()
        if kind == COMPRESSED:
            element = inflate.decompress(element[8:], room + 1)
        room -= len(element)
        if room < 0:
            raise ValueError(f"it has more than {_MAX_BYTES:,} bytes when inflated, too many for a list")
        if kind == COMPRESSED and not inflate.eof:
            raise ValueError(f"the element at byte {at} is cut off")
        yield memoryview(element)
        at = end


def _read_arrays(data: Buffer, order: str, depth: int) -> list[tuple[str, Any]]:
    """Reads name and value of each array in ``data``, below ``depth`` cells and structs."""
    if depth > _MAX_DEPTH:
        raise ValueError("it is nested too deeply")
    arrays, at = [], 0
    while at < len(data):
        kind, begin, end, after = _parse_tag(data, order, at)
        if kind != _MATRIX or end > len(data):
            raise ValueError(f"an element of type {kind} and {end - begin} bytes, expected an array")
        arrays.append(_read_array(data[begin:end], order, depth) if begin < end else ("", _NO_NUMBERS))
        at = after
    return arrays


def _read_array(data: Buffer, order: str, depth: int) -> tuple[str, Any]:
    """Reads name and value of an array from its bytes."""
    flags, shape, name, at = _parse_header(data, order, 0)
    kind, count = flags & 0xFF, math.prod(shape)
    if kind in (_CELL, _STRUCT):
        fields = [""]
        if kind == _STRUCT:
            _, begin, _, at = _parse_tag(data, order, at)
            (width,) = struct.unpack_from(f"{order}i", data, begin)
            _, begin, end, at = _parse_tag(data, order, at)
            if width < 1 or end - begin > _MAX_NAMES_BYTES:
                raise ValueError("a struct without field names")
            texts = (bytes(data[n : n + width]) for n in range(begin, end, width))
            fields = [text.partition(b"\0")[0].decode("latin-1") for text in texts]
        values = [value for _, value in _read_arrays(data[at:], order, depth + 1)]
        if len(values) != count * len(fields):
            raise ValueError(f"{len(values)} values, expected {count * len(fields)}")
        by_field = {field: values[n :: len(fields)] for n, field in enumerate(fields)}
        return name, by_field if kind == _STRUCT else values
    stored, begin, end, _ = _parse_tag(data, order, at)
    content = data[begin:end]
    if kind == _CHAR:
        if stored not in _TEXTS or (count and shape[0] != 1):
            raise ValueError(f"a text of type {stored} and shape {shape}")
        wide = {"<": "-le", ">": "-be"}[order] if stored in (4, 17, 18) else ""
        return name, bytes(content).decode(_TEXTS[stored] + wide)
    dtype = _check_numbers(flags, stored, order, shape, len(content))
    return name, np.frombuffer(content, dtype).reshape(shape, order="F")


def _parse_header(data: Buffer, order: str, at: int) -> tuple[int, tuple[int, ...], str, int]:
    """Parses the header of an array: flags, shape, name, and the place of its values."""
    _, begin, _, at = _parse_tag(data, order, at)
    (flags,) = struct.unpack_from(f"{order}I", data, begin)
    _, begin, end, at = _parse_tag(data, order, at)
    axes = (end - begin) // 4
    shape = struct.unpack_from(f"{order}{axes}i", data, begin) if 2 <= axes <= _MAX_AXES else ()
    if not shape or min(shape) < 0:
        raise ValueError(f"an array of the shape {shape}")
    _, begin, end, at = _parse_tag(data, order, at)
    return flags, shape, bytes(data[begin:end]).decode("latin-1"), at


def _check_numbers(flags: int, stored: int, order: str, shape: tuple[int, ...], nbytes: int) -> np.dtype[Any]:
    """Returns the dtype of an array of numbers."""
    if flags & 0xFF not in _NUMBERS or flags & _COMPLEX or stored not in _DTYPES:
        raise ValueError(f"an array of class {flags & 0xFF} and type {stored}")
    dtype = np.dtype(order + _DTYPES[stored])
    if math.prod(shape) * dtype.itemsize != nbytes:
        raise ValueError(f"an array of the shape {shape} with {nbytes} bytes")
    return dtype


def _parse_tag(data: Buffer, order: str, at: int) -> tuple[int, int, int, int]:
    """Returns the type of an element, begin and end of its data, and the place of the next element."""
    kind, size = struct.unpack_from(f"{order}II", data, at)
    if not kind >> 16:
        # These places may be beyond the end of ``data``.
        return kind, at + 8, at + 8 + size, at + 8 + size + -size % 8
    if kind >> 16 > 4:  # the data are in the tag
        raise ValueError(f"the element at byte {at} is longer than its place")
    return kind & 0xFFFF, at + 4, at + 4 + (kind >> 16), at + 8
