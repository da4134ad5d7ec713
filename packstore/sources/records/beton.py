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
from packstore.core.fields import Field
from packstore.core.plainjson import load_json
from packstore.images.encode.png import encode_png
from packstore.sources.archives.index import OpenFile
from packstore.sources.base import Certainty, Kind, SourceOptions
from packstore.sources.columns import BYTES, FILE, JSON, PIXELS, ValueType
from packstore.sources.records import find_shards, folder_has_images, list_first_shards
from packstore.sources.records.typed import Shard, Span, TypedSource
from packstore.sources.rows import Row

SUFFIXES = (".beton", ".ffcv")
_VERSION = 2
_HEADER = np.dtype(
    [("version", "<u2"), ("fields", "<u2"), ("page", "<u4"), ("samples", "<u8"), ("table", "<u8")], align=True
)
_FIELD = np.dtype([("type", "<u1"), ("name", "<u1", 16), ("arguments", "<u1", 1024)], align=True)
_IMAGE = np.dtype([("mode", "<u1"), ("width", "<u2"), ("height", "<u2"), ("ptr", "<u8")])
_SPAN = np.dtype([("ptr", "<u8"), ("size", "<u8")])
_FLOAT, _INT, _RGB, _BYTES, _ARRAY, _JSON, _TENSOR = range(7)
_ROW: tuple[Any, ...] = ("<f8", "<i8", _IMAGE, _SPAN, "<u8", _SPAN, "<u8")
"""Content of a sample's row by the type of field."""
_TYPES = {
    _FLOAT: ValueType("float64", encoding="<f8"), _INT: ValueType("int64", encoding="<i8"), _RGB: ValueType(FILE),
    _BYTES: ValueType(BYTES), _JSON: ValueType(JSON),
}  # fmt: skip
_ALLOCATED = np.dtype([("sample", "<u8"), ("ptr", "<u8"), ("size", "<u8")])
_JPG, _RAW = 0, 1
_LEAST_PAGE = 1 << 21
_MAX_FIELDS = 256
_BLOCK = 1 << 14
_MAX_ARRAY = 1 << 31
_MAX_ALLOCATED = 1 << 26


class _Layout(NamedTuple):
    """Layout of a ``.beton`` file.

    Attributes:
        kinds: Types of the fields, in order.
        row: dtype of a sample's row, with a field ``f0``, ``f1`` … of each field.
        rows_at: Offset of the rows.
        samples: Number of samples.
        table_at: Offset of the table of allocated pieces. The pages of data end there.
        nbytes: Size of the file.
    """

    kinds: tuple[int, ...]
    row: np.dtype[Any]
    rows_at: int
    samples: int
    table_at: int
    nbytes: int


class BetonSource(TypedSource):
    """Source of ``.beton`` files: one file, or all in a folder. Opening reads all headers. Opening refuses a path
    without such files, files with different fields, and fields of other types than FFCV's. If all images of a field are
    raw pixels, its column has arrays. Else it has files, and raw pixels become PNG files."""

    kind = "beton"
    unit = ".beton file"
    evidence = "{} of FFCV"

    def read_shards(self) -> Iterator[Shard]:
        """Yields each file with the types of its fields. Raises :class:`SourceError` for an invalid header."""
        for split, file in find_shards(self.path, SUFFIXES, is_beton).files:
            yield Shard(split, file, *_read_header(file))

    def places(self, number: int) -> Iterator[tuple[int, int, str]]:
        """Yields the number of each sample, and the next."""
        return ((index, index + 1, "") for index in range(self.typed_shards[number].layout.samples))

    def shard_rows(self, number: int, keys: Iterator[str]) -> Iterator[Row]:
        """Yields a row for each sample of file ``number``. Its size is the estimated size of the main image, at most
        that of the file; 0 for a JPEG file that is not in the table of allocated pieces."""
        main, nbytes = f"f{[*self.types].index(self.main_image)}", self.typed_shards[number].layout.nbytes
        for first, block in self._read_row_blocks(number):
            images = block[main]
            raw = images["height"].astype(np.int64) * images["width"] * 3
            jpg = self._allocated_sizes(number, images["ptr"]).astype(np.int64)
            sizes = np.clip(np.where(images["mode"] == _JPG, jpg, raw), 0, nbytes)
            for index, size in enumerate(sizes.tolist(), first):
                yield Row(next(keys), (number, index, index + 1), size)

    def spans(self, number: int, start: int, stop: int) -> Mapping[str, Span]:
        """Returns the place of each value of sample ``start``. Numbers are in its row. Raises :class:`ValueError`, with
        file and field, for an impossible place."""
        shard = self.typed_shards[number]
        row, spans = self._read_rows(number, start, 1)[0], {}
        for i, (name, type) in enumerate(shard.types.items()):
            try:
                spans[name] = self._find_value(number, start, i, type, row[f"f{i}"])
            except ValueError as error:
                raise ValueError(f"{shard.file.name}: {printable(name)}: {error}") from error
        return spans

    def decode(self, type: ValueType, data: bytes, form: Any) -> Any:
        """Decodes a value. Raw pixels become an array; or a PNG file, if other images of the field are JPEG files.
        ``form``: height and width of raw pixels, else None."""
        if form is not None:
            pixels = np.frombuffer(data, np.uint8).reshape(*form, 3)
            return pixels if type.kind == PIXELS else encode_png(pixels)
        if type.encoding is not None:
            values = np.frombuffer(data, type.encoding)
            return values.reshape(type.shape) if type.shape else values[0].item()
        return load_json(data.partition(b"\0")[0]) if type.kind == JSON else data

    def fields(self) -> Mapping[str, Field]:
        """Declares the columns, see :meth:`TypedSource.fields`. Sets :attr:`shape` if all main images are raw pixels of
        one shape."""
        if self.types[self.main_image].kind == PIXELS:
            self.shape = self._image_modes[self.main_image][1]
        return super().fields()

    @cached_property
    def types(self) -> Mapping[str, ValueType]:
        """Type of each value: pixels for a field of images that are all raw pixels. Reads all rows."""
        raw = {name: ValueType(PIXELS) for name, (modes, _) in self._image_modes.items() if modes == {_RAW}}
        return {**self.typed_shards[0].types, **raw}

    @cached_property
    def _image_modes(self) -> dict[str, tuple[set[int], tuple[int, ...] | None]]:
        """Modes and shape of the images of each field, by name. Modes are 0 for JPEG and 1 for raw pixels; others
        are left out. The shape is ``(H, W, 3)``, or None if it varies. The first use reads all rows."""
        facts: dict[str, tuple[set[int], tuple[int, ...] | None]] = {}
        for i, (name, type) in enumerate(self.typed_shards[0].types.items()):
            if type.kind != FILE:
                continue
            modes, sizes = set[int](), set[tuple[int, int]]()
            for _, block in (each for number in range(len(self.shards)) for each in self._read_row_blocks(number)):
                image = block[f"f{i}"]
                modes |= set(np.unique(image["mode"]).tolist())
                if len(sizes) < 2:
                    pairs = np.unique(image["height"].astype(np.uint32) << 16 | image["width"]).tolist()
                    sizes |= {(pair >> 16, pair & 0xFFFF) for pair in pairs[:2]}
            facts[name] = modes & {_JPG, _RAW}, (*next(iter(sizes)), 3) if len(sizes) == 1 else None
        return facts

    @cached_property
    def _allocation_tables(self) -> list[tuple[NDArray[np.uint64], NDArray[np.uint64]]]:
        """Offsets and sizes of the allocated pieces of each file, sorted by offset."""
        tables = []
        for number, (*_, layout) in enumerate(self.typed_shards):
            data = self.opened[number].read(layout.nbytes - layout.table_at, layout.table_at)
            table = np.frombuffer(data[: len(data) // _ALLOCATED.itemsize * _ALLOCATED.itemsize], _ALLOCATED)
            order = np.lexsort((table["size"], table["ptr"]))
            tables.append((table["ptr"][order], table["size"][order]))
        return tables

    def _allocated_sizes(self, number: int, places: NDArray[np.uint64]) -> NDArray[np.uint64]:
        """Looks up the number of bytes that were allocated at each of ``places``; 0 if nothing was."""
        starts, sizes = self._allocation_tables[number]
        if not len(starts):
            return np.zeros(len(places), np.uint64)
        at = np.maximum(np.searchsorted(starts, places, "right"), 1) - 1
        return np.where(starts[at] == places, sizes[at], np.uint64(0))

    def _find_value(self, number: int, index: int, field: int, type: ValueType, value: Any) -> Span:
        """Returns the place of the value of a field in sample ``index``; ``value``: content of its row.

        Raises :class:`ValueError`

        - for a mode or size that images do not have;
        - if the number of allocated bytes is not that of the value;
        - for bytes outside the pages of data.
        """
        layout, size, form = self.typed_shards[number].layout, None, None
        if layout.kinds[field] in (_FLOAT, _INT):
            place = layout.rows_at + index * layout.row.itemsize + layout.row.fields[f"f{field}"][1]
            return Span(place, place + 8)
        if layout.kinds[field] == _RGB:
            mode, height, width, place = (int(value[key]) for key in ("mode", "height", "width", "ptr"))
            if mode not in (_JPG, _RAW):
                raise ValueError(f"an image is written in mode {mode}, which FFCV does not have")
            if mode == _RAW and (not height or not width):
                raise ValueError(f"an image of {width} x {height} pixels")
            if mode == _RAW:
                if height * width > self.options.max_pixels:
                    raise ValueError(f"an image of {height * width} pixels, more than max_pixels")
                size, form = height * width * 3, (height, width)
        elif layout.kinds[field] in (_ARRAY, _TENSOR):
            place, size = int(value), math.prod(type.shape) * type.encoding.itemsize
        else:
            place, size = int(value["ptr"]), int(value["size"])
        written = int(self._allocated_sizes(number, np.array([place], np.uint64))[0])
        if size == 0:
            return Span(0, 0)
        if not written or size not in (None, written):
            expected = "a file" if size is None else f"{size} bytes"
            raise ValueError(f"{written} bytes were written at byte {place}, where {expected} should be")
        if not layout.rows_at + layout.samples * layout.row.itemsize <= place <= place + written <= layout.table_at:
            raise ValueError(f"{written} bytes at byte {place}, where none can be")
        return Span(place, place + written, form)

    def _read_row_blocks(self, number: int) -> Iterator[tuple[int, NDArray[Any]]]:
        """Yields the rows of a file in blocks of up to 16,384. Each block comes with the number of its first row."""
        samples = self.typed_shards[number].layout.samples
        for start in range(0, samples, _BLOCK):
            yield start, self._read_rows(number, start, min(_BLOCK, samples - start))

    def _read_rows(self, number: int, start: int, count: int) -> NDArray[Any]:
        """Reads ``count`` rows of a file from row ``start`` on. Raises :class:`ValueError` if the file is cut off."""
        layout = self.typed_shards[number].layout
        data = self.opened[number].read(count * layout.row.itemsize, layout.rows_at + start * layout.row.itemsize)
        if len(data) < count * layout.row.itemsize:
            raise ValueError(f"{self.shards[number][1].name} is cut off")
        return np.frombuffer(data, layout.row)


def is_beton(path: Path) -> bool:
    """Tells if a file has a valid header of a ``.beton`` file; False if it cannot be read."""
    with suppress(SourceError):
        return bool(_read_header(path))
    return False


def _read_header(path: Path) -> tuple[dict[str, ValueType], _Layout]:
    """Reads the header of a file: the types of its fields, and its layout. Raises :class:`SourceError` if it is
    invalid, or the file cannot be read."""
    try:
        return _parse_header(OpenFile(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)))
    except (OSError, ValueError, TypeError, KeyError, OverflowError, RecursionError, SyntaxError) as error:
        raise SourceError(f"{printable(str(path))} is not a readable .beton file: {printable(str(error))}") from None


def _parse_header(file: OpenFile) -> tuple[dict[str, ValueType], _Layout]:
    """Parses and checks the header and the descriptions of fields.

    Raises :class:`ValueError` and other errors if they are invalid, for more than 256 fields, and for fields of a kind
    that is not FFCV's."""
    nbytes = os.fstat(file.descriptor).st_size
    start = file.read(_HEADER.itemsize, 0)
    if len(start) < _HEADER.itemsize:
        raise ValueError("it is cut off")
    version, count, page, samples, table = np.frombuffer(start, _HEADER)[0].item()
    if page < _LEAST_PAGE or page & (page - 1) or not 0 < count <= _MAX_FIELDS:
        raise ValueError("its header is not one of FFCV")
    if version != _VERSION:
        raise ValueError(f"it has version {version} of the format, expected {_VERSION}")
    if not table:
        raise ValueError("it was not written to its end")
    described = np.frombuffer(file.read(count * _FIELD.itemsize, _HEADER.itemsize), _FIELD)
    if len(described) < count:
        raise ValueError("it is cut off")
    names = tuple(bytes(name).partition(b"\0")[0].decode("ascii") for name in described["name"])
    kinds = tuple(described["type"].tolist())
    if len(set(names)) < count or not all(name and name.isprintable() for name in names):
        raise ValueError("its fields have no names")
    own = next((name for name, kind in zip(names, kinds, strict=True) if kind >= len(_ROW)), None)
    if own is not None:
        raise ValueError(f"the field {own!r} is of a kind of its own, which only the program knows that wrote it")
    types = {
        name: _TYPES.get(kind) or _parse_array_type(bytes(arguments))
        for name, kind, arguments in zip(names, kinds, described["arguments"], strict=True)
    }
    row = np.dtype([(f"f{i}", _ROW[kind]) for i, kind in enumerate(kinds)], align=True)
    rows_at = _HEADER.itemsize + count * _FIELD.itemsize
    pieces = (nbytes - table) // _ALLOCATED.itemsize
    if pieces > min(samples * count, _MAX_ALLOCATED):
        raise ValueError(f"its table has {pieces} entries for {samples} samples")
    if not rows_at + samples * row.itemsize <= table <= nbytes:
        raise ValueError(f"{samples} samples and a table at byte {table} do not fit into {nbytes} bytes")
    return types, _Layout(kinds, row, rows_at, samples, table, nbytes)


def _parse_array_type(arguments: bytes) -> ValueType:
    """Parses dtype and shape of a field of arrays from ``arguments``: 32 lengths of axes, the length of the dtype, and
    the dtype as JSON. Raises :class:`ValueError` for other dtypes than numbers, more than 8 axes, and large arrays."""
    *axes, length = np.frombuffer(arguments[: 33 * 8], "<u8").tolist()
    while axes and not axes[-1]:
        axes.pop()
    (description,) = load_json(arguments[33 * 8 :][:length])
    name, form = description
    dtype = np.dtype(str(form))
    if name or dtype.kind not in "biuf" or len(axes) > 8 or math.prod(axes) * dtype.itemsize > _MAX_ARRAY:
        raise ValueError(f"arrays of {str(form)!r:.40} and shape {tuple(axes)}")
    return ValueType(dtype.newbyteorder("=").name, tuple(axes), dtype)


def _recognise(path: Path, options: SourceOptions) -> Certainty:
    """Certain for valid ``.beton`` files, possible if only the suffix fits, else ``NO``. ``NO`` for a folder with
    images directly in it. Reads the first 4 such files of a folder."""
    if path.is_dir() and folder_has_images(path):
        return Certainty.NO
    files = [path] if path.is_file() else list_first_shards(path, SUFFIXES)
    named = [file for file in files if file.name.lower().endswith(SUFFIXES)]
    if any(map(is_beton, [path] if path.is_file() else named)):
        return Certainty.CERTAIN
    return Certainty.POSSIBLE if named else Certainty.NO


KIND = Kind("beton", ".beton files of FFCV", _recognise, BetonSource)
