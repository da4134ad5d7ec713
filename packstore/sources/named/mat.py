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
_CELL, _STRUCT, _CHAR, _NUMBERS = 1, 2, 4, range(6, 16)
"""Classes of arrays; others are objects, sparse arrays and functions."""
_DTYPES = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8", 13: "u8"}
_TEXTS = {1: "latin-1", 2: "latin-1", 4: "utf-16", 16: "utf-8", 17: "utf-16", 18: "utf-32"}
_COMPLEX = 0x800
_MAX_BYTES = 1 << 26
_MAX_DEPTH = 8
_MAX_ELEMENTS = 2_000_000


class MatError(ValueError):
    """Error for a damaged file; :func:`damage_error` adds its name."""


FAULTS = (MatError, struct.error, zlib.error, EOFError, UnicodeDecodeError)


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
        SourceError: The file is damaged, or holds other types. Inflated, it has more than 64 MiB. It has more than
            2,000,000 elements, or more than eight levels.
    """
    try:
        order = read_byte_order(data[:HEADER_BYTES])
        return _MatReader(memoryview(_inflate_elements(data, order)), order).read_variables()
    except FAULTS as error:
        raise damage_error(name, error) from None


def parse_array_start(start: bytes, order: str) -> tuple[str, tuple[tuple[int, ...], np.dtype[Any], int] | None]:
    """Parses the first bytes of an element, inflated. Returns the name of the array, and its shape, dtype and the
    offset of its numbers in the element.

    They are None for a cell, a struct, a text or complex numbers. Raises :class:`MatError` or :class:`struct.error`
    for damage. ``order``: byte order.
    """
    reader = _MatReader(memoryview(start), order)
    kind, size = struct.unpack_from(f"{order}II", start)
    if kind != _MATRIX:
        raise MatError(f"an element of type {kind}, expected an array")
    flags, shape, name, at = reader.read_array_header(8, 8 + size)
    stored, begin, stop, _ = reader.locate_element(at, 8 + size)
    key = name.decode("latin-1")
    if flags & 0xFF not in _NUMBERS or flags & _COMPLEX or stored not in _DTYPES:
        return key, None
    dtype = np.dtype(order + _DTYPES[stored])
    if math.prod(shape) * dtype.itemsize != stop - begin:
        raise MatError(f"an array of the shape {shape} with {stop - begin} bytes")
    return key, (shape, dtype, begin)


def to_whole_numbers(name: str, value: Any) -> NDArray[np.int64]:
    """Converts a row or column of whole numbers of any dtype to int64 ``(n,)``. Raises :class:`SourceError` for any
    other value."""
    if not isinstance(value, np.ndarray) or value.size not in (max(value.shape), 0):
        raise SourceError(f"{name} has something else instead of a row of numbers")
    with np.errstate(invalid="ignore"):
        whole = value.ravel().astype(np.int64)
    if not np.array_equal(whole, value.ravel()):
        raise SourceError(f"{name} has numbers that are not whole")
    return whole


def to_whole_number(name: str, value: Any) -> int:
    """Converts an array of one whole number to int. Raises :class:`SourceError` for any other value."""
    numbers = to_whole_numbers(name, value)
    if len(numbers) != 1:
        raise SourceError(f"{name} has {len(numbers)} numbers, expected one")
    return int(numbers[0])


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
    """Returns the byte order in a file's header, ``<`` or ``>``. Raises :class:`MatError` if it has none."""
    order = {b"IM": "<", b"MI": ">"}.get(header[126:])
    if order is None:
        raise MatError("its header has no byte order")
    return order


def damage_error(name: str, error: Exception) -> SourceError:
    """Makes the error for a file that could not be parsed."""
    return SourceError(f"{name} is no MAT file of level 5, or it is damaged: {printable(str(error))}")


def _inflate_elements(data: bytes, order: str) -> bytes:
    """Returns the file with all compressed elements inflated. Raises :class:`MatError` for more than 64 MiB, and if the
    file is cut off. Raises :class:`zlib.error` for a damaged element."""
    pieces, position, room = [data[:HEADER_BYTES]], HEADER_BYTES, _MAX_BYTES
    while position < len(data):
        kind, size = struct.unpack_from(f"{order}II", data, position)
        end = position + 8 + size
        if end > len(data):
            raise MatError(f"it ends {end - len(data)} bytes too early")
        inflate = zlib.decompressobj()
        packed = kind == COMPRESSED
        pieces.append(inflate.decompress(data[position + 8 : end], room + 1) if packed else data[position:end])
        room -= len(pieces[-1])
        if room < 0:
            raise MatError(f"it has more than {_MAX_BYTES:,} bytes when inflated, too many for a list")
        if packed and not inflate.eof:
            raise MatError(f"the element at byte {position} is cut off")
        position = end
    return b"".join(pieces)


class _MatReader:
    """Parser of the uncompressed bytes of a MAT file.

    All methods raise :class:`MatError`, :class:`struct.error` or :class:`UnicodeDecodeError` for damage. They raise
    :class:`MatError` for types that they refuse.
    """

    def __init__(self, data: memoryview, order: str) -> None:
        self.data = data
        self.order = order
        self.left = _MAX_ELEMENTS

    def read_variables(self) -> dict[str, Any]:
        """Reads all variables by name."""
        return {name.decode("latin-1"): value for name, value in self.read_arrays(HEADER_BYTES, len(self.data), 0)}

    def read_arrays(self, start: int, end: int, depth: int) -> Iterator[tuple[bytes, Any]]:
        """Yields name and value of each array between the offsets ``start`` and ``end``. ``depth``: number of enclosing
        cells and structs.

        An empty element is an array of no numbers, with an empty name. Refuses any other element, and more than eight
        levels.
        """
        while start < end:
            kind, begin, stop, after = self.locate_element(start, end)
            if kind != _MATRIX:
                raise MatError(f"an element of type {kind} at byte {start}, expected an array")
            if depth > _MAX_DEPTH:
                raise MatError("it is nested too deeply")
            yield self.read_array(begin, stop, depth) if begin < stop else (b"", np.zeros(0))
            start = after

    def read_array(self, start: int, end: int, depth: int) -> tuple[bytes, Any]:
        """Reads name and value of the array between the offsets ``start`` and ``end``."""
        flags, shape, name, at = self.read_array_header(start, end)
        return name, self.read_value(flags, shape, at, end, depth)

    def read_array_header(self, start: int, end: int) -> tuple[int, tuple[int, ...], bytes, int]:
        """Reads the header of an array: flags, shape, name, and the position of its values.

        Refuses fewer than 2 or more than 8 axes, and a shape that exceeds the bytes.
        """
        _, begin, _, after = self.locate_element(start, end)
        (flags,) = struct.unpack_from(f"{self.order}I", self.data, begin)
        _, begin, stop, after = self.locate_element(after, end)
        shape = struct.unpack_from(f"{self.order}{(stop - begin) // 4}i", self.data, begin)
        if not 2 <= len(shape) <= _MAX_DEPTH or min(shape) < 0 or math.prod(shape) > end - start:
            raise MatError(f"an array of the shape {shape[:_MAX_DEPTH]} in {end - start} bytes")
        _, begin, stop, after = self.locate_element(after, end)
        return flags, shape, bytes(self.data[begin:stop]), after

    def read_value(self, flags: int, shape: tuple[int, ...], at: int, end: int, depth: int) -> Any:
        """Reads the value that follows an array's header. Its type is that of :func:`load_mat`.

        Refuses texts of several rows, complex numbers and other classes.

        Args:
            flags: Flags of the header: class and complexity.
            shape: Shape of the header.
            at: Offset of the value.
            end: Offset behind the array.
            depth: Number of enclosing cells and structs.
        """
        kind, count = flags & 0xFF, math.prod(shape)
        if kind == _CELL:
            return self.read_items(at, end, depth, count)
        if kind == _STRUCT:
            _, begin, _, at = self.locate_element(at, end)
            (width,) = struct.unpack_from(f"{self.order}i", self.data, begin)
            _, begin, stop, at = self.locate_element(at, end)
            if not 0 < width <= 64 or (stop - begin) % width:
                raise MatError("a struct without field names")
            names = [bytes(self.data[n : n + width]).partition(b"\0")[0] for n in range(begin, stop, width)]
            values = self.read_items(at, end, depth, count * len(names))
            return {name.decode("latin-1"): values[n :: len(names)] for n, name in enumerate(names)}
        stored, begin, stop, _ = self.locate_element(at, end)
        if kind == _CHAR:
            if stored not in _TEXTS or (count and shape[0] != 1):
                raise MatError(f"a text of type {stored} and shape {shape}")
            wide = {"<": "-le", ">": "-be"}[self.order] if stored in (4, 17, 18) else ""
            return bytes(self.data[begin:stop]).decode(_TEXTS[stored] + wide)
        if kind not in _NUMBERS or flags & _COMPLEX or stored not in _DTYPES:
            raise MatError(f"an array of class {kind} and type {stored}")
        dtype = np.dtype(self.order + _DTYPES[stored])
        if count * dtype.itemsize != stop - begin:
            raise MatError(f"an array of the shape {shape} with {stop - begin} bytes")
        return np.frombuffer(self.data, dtype, count, begin).reshape(shape, order="F")

    def read_items(self, at: int, end: int, depth: int, count: int) -> list[Any]:
        """Reads the values of the ``count`` arrays of a cell or struct, between the offsets ``at`` and ``end``.
        Refuses any other number of them."""
        values = [value for _, value in self.read_arrays(at, end, depth + 1)]
        if len(values) != count:
            raise MatError(f"{len(values)} values, expected {count}")
        return values

    def locate_element(self, start: int, end: int) -> tuple[int, int, int, int]:
        """Parses the tag at ``start``. Returns the type of the element, begin and end of its data, and the offset of
        the next element.

        Refuses an element that exceeds ``end``, and a file with more than 2,000,000 elements.
        """
        self.left -= 1
        if self.left < 0:
            raise MatError(f"it has more than {_MAX_ELEMENTS} elements")
        if start + 8 > end:
            raise MatError(f"it ends within the element at byte {start}")
        kind, size = struct.unpack_from(f"{self.order}II", self.data, start)
        if kind >> 16:  # the data are in the tag
            kind, size, begin, after = kind & 0xFFFF, kind >> 16, start + 4, start + 8
        else:
            begin = start + 8
            after = begin + size + -size % 8
        if begin + size > min(end, after):
            raise MatError(f"the element at byte {start} is longer than its parent")
        return kind, begin, begin + size, min(after, end)
