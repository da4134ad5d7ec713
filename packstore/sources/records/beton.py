"""Reads FFCV's ``.beton`` files, version 2 (``ffcv/types.py``, ``ffcv/fields/``, ``ffcv/memory_allocator.py``).

A file is a header, a description of each field, a row for each sample (numbers, and offsets of other values), pages
of data, and a table of the allocated pieces of pages, which alone has the sizes of JPEG files.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from packstore.core.errors import SourceError, printable
from packstore.core.plainjson import load_json
from packstore.images.encode.files import encode_png
from packstore.sources.archives.index import OpenFile
from packstore.sources.base import Kind
from packstore.sources.columns import BYTES, FILE, JSON, ValueType
from packstore.sources.records import find_shards, refuse_damage
from packstore.sources.records.typed import Shard, Span, TypedSource

SUFFIXES = (".beton", ".ffcv")
_VERSION = 2
_HEADER = np.dtype(
    [("version", "<u2"), ("fields", "<u2"), ("page", "<u4"), ("samples", "<u8"), ("table", "<u8")], align=True
)
_FIELD = np.dtype([("type", "<u1"), ("name", "S16"), ("arguments", "V1024")], align=True)
_IMAGE = np.dtype([("mode", "<u1"), ("width", "<u2"), ("height", "<u2"), ("ptr", "<u8")])
_SPAN = np.dtype([("ptr", "<u8"), ("size", "<u8")])
_FLOAT, _INT, _RGB, _BYTES, _ARRAY, _JSON, _TENSOR = range(7)
# Content of a sample's row by the type of field.
_ROW: tuple[Any, ...] = ("<f8", "<i8", _IMAGE, _SPAN, "<u8", _SPAN, "<u8")
_TYPES = {
    _FLOAT: ValueType("float64", encoding="<f8"), _INT: ValueType("int64", encoding="<i8"), _RGB: ValueType(FILE),
    _BYTES: ValueType(BYTES), _JSON: ValueType(JSON),
}  # fmt: skip
_ALLOCATED = np.dtype([("sample", "<u8"), ("ptr", "<u8"), ("size", "<u8")])
_JPG, _RAW = 0, 1
_LEAST_PAGE = 1 << 21
_MAX_FIELDS = 256
_MAX_ARRAY = 1 << 31
_MAX_ALLOCATED = 1 << 26


class _Layout(NamedTuple):
    """Layout of a ``.beton`` file.

    Attributes:
        row: dtype of a sample's row, with a field ``f0``, ``f1`` … of each field.
        rows_at: Offset of the rows.
        samples: Number of samples.
        table_at: Offset of the table of allocated pieces. The pages of data end there.
    """

    row: np.dtype[Any]
    rows_at: int
    samples: int
    table_at: int


class BetonSource(TypedSource):
    """Source of ``.beton`` files: one file, or all in a folder. Opening reads all headers. Opening refuses a path
    without such files, files with different fields, and fields of other types than FFCV's. Raw pixels become PNG
    files."""

    kind = "beton"
    unit = ".beton file"
    suffixes = SUFFIXES

    @classmethod
    def is_shard(cls, path: Path) -> bool:
        """Tells if a file has a valid header of a ``.beton`` file; False if it cannot be read."""
        with suppress(SourceError):
            return bool(_read_header(path))
        return False

    def read_shards(self) -> Iterator[Shard]:
        """Yields each file with the types of its fields. Raises :class:`SourceError` for an invalid header."""
        for split, file in find_shards(self.path, SUFFIXES, self.is_shard):
            yield Shard(split, file, *_read_header(file))

    def places(self, number: int) -> Iterator[tuple[int, int, str]]:
        """Yields the number of each sample, and the next."""
        return ((index, index + 1, "") for index in range(self.typed_shards[number].layout.samples))

    def spans(self, number: int, start: int, stop: int) -> Mapping[str, Span]:
        """Returns the place of each value of sample ``start``. Numbers are in its row. Raises :class:`ValueError`, with
        the field, for an impossible place."""
        layout, spans = self.typed_shards[number].layout, {}
        place = layout.rows_at + start * layout.row.itemsize
        data = self.opened[number].read(layout.row.itemsize, place)
        if len(data) < layout.row.itemsize:
            raise ValueError("the file is cut off")
        row = np.frombuffer(data, layout.row)[0]
        for name, type, key in zip(self.types, self.types.values(), layout.row.names, strict=True):
            dtype, offset = layout.row.fields[key][:2]
            if dtype.kind in "if":
                spans[name] = Span(place + offset, place + offset + dtype.itemsize)
                continue
            try:
                spans[name] = self._find_value(number, type, row[key])
            except ValueError as error:
                raise ValueError(f"{printable(name)}: {error}") from error
        return spans

    def decode(self, type: ValueType, data: bytes, form: Any) -> Any:
        """Decodes a value. ``form``: height and width of raw pixels, which become a PNG file; else None."""
        if form is not None:
            return encode_png(np.frombuffer(data, np.uint8).reshape(*form, 3))
        if type.encoding is not None:
            values = np.frombuffer(data, type.encoding)
            return values.reshape(type.shape) if type.shape else values[0].item()
        return load_json(data.partition(b"\0")[0]) if type.kind == JSON else data

    @cached_property
    def _allocation_tables(self) -> list[tuple[NDArray[np.uint64], NDArray[np.uint64]]]:
        """Offsets and sizes of the allocated pieces of each file, sorted by offset."""
        tables = []
        for number, (*_, layout) in enumerate(self.typed_shards):
            data = self.opened[number].read(_MAX_ALLOCATED * _ALLOCATED.itemsize, layout.table_at)
            table = np.frombuffer(data[: len(data) // _ALLOCATED.itemsize * _ALLOCATED.itemsize], _ALLOCATED)
            order = np.lexsort((table["size"], table["ptr"]))
            tables.append((table["ptr"][order], table["size"][order]))
        return tables

    def _find_value(self, number: int, type: ValueType, value: Any) -> Span:
        """Returns the place of a value; ``value`` is its content in the row of the sample."""
        layout, size, form = self.typed_shards[number].layout, None, None
        if type.encoding is not None:
            place, size = int(value), math.prod(type.shape) * type.encoding.itemsize
        elif type.kind != FILE:
            place, size = value.item()
        else:
            mode, width, height, place = value.item()
            if mode == _RAW:
                size, form = height * width * 3, (height, width)
            if mode not in (_JPG, _RAW) or size == 0 or height * width > self.options.max_pixels:
                raise ValueError(f"an image of {width} x {height} pixels in mode {mode}, which cannot be read")
        if size == 0:
            return Span(0, 0)
        # A row only has the place of a value. The size is in the table of allocated pieces.
        starts, sizes = self._allocation_tables[number]
        at = int(np.searchsorted(starts, np.uint64(place), "right")) - 1
        written = int(sizes[at]) if at >= 0 and starts[at] == place else 0
        if not written or size not in (None, written):
            expected = "a file" if size is None else f"{size} bytes"
            raise ValueError(f"{written} bytes were written at byte {place}, where {expected} should be")
        if not layout.rows_at + layout.samples * layout.row.itemsize <= place <= place + written <= layout.table_at:
            raise ValueError(f"{written} bytes at byte {place}, where none can be")
        return Span(place, place + written, form)


def _read_header(path: Path) -> tuple[dict[str, ValueType], _Layout]:
    """Reads the header of a file: the types of its fields, and its layout."""
    with refuse_damage(path):
        file = OpenFile(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK))
        start = file.read(_HEADER.itemsize, 0).ljust(_HEADER.itemsize, b"\0")
        version, count, page, samples, table = np.frombuffer(start, _HEADER)[0].item()
        described = np.frombuffer(file.read(count * _FIELD.itemsize, _HEADER.itemsize), np.uint8)
        rows_at = _HEADER.itemsize + count * _FIELD.itemsize
        if version != _VERSION or page < _LEAST_PAGE or page & (page - 1) or not 0 < count <= _MAX_FIELDS:
            raise ValueError(f"its header is not one of FFCV: version {version}, {count} fields, pages of {page} bytes")
        if len(described) < count * _FIELD.itemsize or not table:
            raise ValueError("it is cut off, or was not written to its end")
        fields = described.view(_FIELD)
        names, kinds = [name.decode("ascii") for name in fields["name"].tolist()], fields["type"].tolist()
        if len({*names}) < count or not all(name and name.isprintable() for name in names) or max(kinds) >= len(_ROW):
            raise ValueError(f"its fields {names} are of the types {kinds}, which are not FFCV's")
        row = np.dtype([(f"f{i}", _ROW[kind]) for i, kind in enumerate(kinds)], align=True)
        pieces = (file.size - table) // _ALLOCATED.itemsize
        if not rows_at + samples * row.itemsize <= table <= file.size or pieces > min(samples * count, _MAX_ALLOCATED):
            raise ValueError(f"{samples} samples and a table at byte {table} do not fit into {file.size} bytes")
        types = {
            name: _TYPES.get(kind) or _parse_array_type(bytes(arguments))
            for name, kind, arguments in zip(names, kinds, fields["arguments"], strict=True)
        }
        return types, _Layout(row, rows_at, samples, table)


def _parse_array_type(arguments: bytes) -> ValueType:
    """Parses dtype and shape of a field of arrays."""
    # ``arguments`` are 32 lengths of axes, the length of the dtype, and the dtype as JSON.
    *axes, length = np.frombuffer(arguments[: 33 * 8], "<u8").tolist()
    while axes and not axes[-1]:
        axes.pop()
    ((name, form),) = load_json(arguments[33 * 8 :][:length])
    dtype = np.dtype(str(form))
    if name or dtype.kind not in "biuf" or len(axes) > 8 or math.prod(axes) * dtype.itemsize > _MAX_ARRAY:
        raise ValueError(f"arrays of {str(form)!r:.40} and shape {tuple(axes)}")
    return ValueType(dtype.newbyteorder("=").name, tuple(axes), dtype)


KIND = Kind("beton", ".beton files of FFCV", BetonSource.recognise, BetonSource)
