"""Reads FFCV's ``.beton`` files, version 2 (``ffcv/types.py``, ``ffcv/fields/``, ``ffcv/memory_allocator.py``).

A file is a header, a description of each field, a row for each sample (numbers, and offsets of other values), pages
of data, and a table of the allocated pieces of pages, which alone has the sizes of JPEG files.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packstore.core.errors import SourceError, printable
from packstore.core.fields import Array, Bytes, Field, Image, Json, Label
from packstore.core.plainjson import load_json
from packstore.images.encode.png import encode_png
from packstore.images.sniff import max_file_bytes
from packstore.sources.archives.index import OpenFile
from packstore.sources.base import Certainty, Kind, SourceOptions
from packstore.sources.names import make_column_names
from packstore.sources.records.files import OpenFiles
from packstore.sources.records.shards import ShardSource, find_shards, folder_has_images, list_first_shards
from packstore.sources.rows import Row
from packstore.sources.values import LABEL_NAMES, names_an_image
from packstore.stores.link_files import Location

SUFFIXES = (".beton", ".ffcv")
_VERSION = 2
_HEADER = np.dtype(
    [("version", "<u2"), ("fields", "<u2"), ("page", "<u4"), ("samples", "<u8"), ("table", "<u8")], align=True
)
_FIELD = np.dtype([("type", "<u1"), ("name", "<u1", 16), ("arguments", "<u1", 1024)], align=True)
_IMAGE = np.dtype([("mode", "<u1"), ("width", "<u2"), ("height", "<u2"), ("ptr", "<u8")])
_SPAN = np.dtype([("ptr", "<u8"), ("size", "<u8")])
_ROW: Mapping[int, Any] = {0: "<f8", 1: "<i8", 2: _IMAGE, 3: _SPAN, 4: "<u8", 5: _SPAN, 6: "<u8"}
"""Content of a sample's row by the type of field."""
_FLOAT, _INT, _RGB, _BYTES, _ARRAY, _JSON, _TENSOR = range(7)
_ALLOCATED = np.dtype([("sample", "<u8"), ("ptr", "<u8"), ("size", "<u8")])
_JPG, _RAW = 0, 1
_LEAST_PAGE = 1 << 21
_MAX_FIELDS = 256
_BLOCK = 1 << 14
_MAX_VALUE = 1 << 31
_MAX_ALLOCATED = 1 << 26


@dataclass(frozen=True)
class _BetonHeader:
    """Checked header of a ``.beton`` file.

    Attributes:
        names: Names of the fields, in order.
        types: Types of the fields, in the same order.
        arrays: dtype and shape of the fields that are arrays.
        row: dtype of a sample's row, with a field ``f0``, ``f1`` … of each field.
        rows_at: Offset of the rows.
        samples: Number of samples.
        table_at: Offset of the table of allocated pieces. The pages of data end there.
        nbytes: Size of the file.
    """

    names: tuple[str, ...]
    types: tuple[int, ...]
    arrays: Mapping[str, tuple[np.dtype[Any], tuple[int, ...]]]
    row: np.dtype[Any]
    rows_at: int
    samples: int
    table_at: int
    nbytes: int


class BetonSource(ShardSource):
    """Source of ``.beton`` files: one file, or all in a folder. Opening reads all headers. Opening refuses a path
    without such files, files with different fields, and fields of other types than FFCV's. If all images of a field are
    raw pixels, its column has arrays. Else it has files, and raw pixels become PNG files."""

    kind = "beton"

    def __init__(self, path: Path, options: SourceOptions) -> None:
        super().__init__(path, options)
        self.shards = find_shards(path, SUFFIXES, is_beton).files
        if not self.shards:
            raise SourceError(f"{printable(str(path))} holds no .beton files")
        self._files = OpenFiles([file for _, file in self.shards], lambda _: None)
        self._betons = [_read_beton_header(self._files[number], file) for number, (_, file) in enumerate(self.shards)]
        first = self._betons[0]
        if any((b.names, b.types, b.arrays) != (first.names, first.types, first.arrays) for b in self._betons):
            raise SourceError(f"{printable(str(path))}: its files have different fields")
        self._max_image = max_file_bytes(options.max_pixels)
        self.evidence = f"{len(self.shards)} .beton file{'s' * (len(self.shards) != 1)} of FFCV"

    def shard_rows(self, number: int, keys: Iterator[str]) -> Iterator[Row]:
        """Yields a row for each sample of file ``number``. Its size is the estimated size of the main image."""
        main = f"f{self._betons[0].names.index(self._main_field)}"
        for start, block in self._read_row_blocks(number):
            for i, size in enumerate(self._estimate_image_sizes(number, block[main]).tolist(), start):
                yield Row(next(keys), (number, i), size)

    def read_values(self, ref: Any) -> dict[str, Any]:
        """Reads the values of a sample, by column. ``ref`` is the number of the file and the number of the sample in
        it. Raises :class:`ValueError`, with file and field, for a value that cannot be read."""
        number, index = ref
        beton = self._betons[number]
        row = self._read_rows(number, index, 1)[0]
        values = {}
        for i, (name, kind) in enumerate(zip(beton.names, beton.types, strict=True)):
            try:
                values[self._columns[name]] = self._read_value(number, name, kind, row[f"f{i}"])
            except (ValueError, RecursionError) as error:
                raise ValueError(f"{self.shards[number][1].name}: {printable(name)}: {error}") from error
        return values

    def locate_row(self, ref: Any) -> Location | None:
        """Locates the start of the main image; its end is unknown. Returns None if the file was replaced since it was
        opened."""
        number, index = ref
        beton = self._betons[number]
        image = self._read_rows(number, index, 1)[0][f"f{beton.names.index(self._main_field)}"]
        location = self._files.locate_span(number, int(image["ptr"]), 0)
        return None if location is None else location._replace(within=None)

    def fields(self) -> Mapping[str, Field]:
        """Declares a column for each field by its type; integers with a name of labels become labels. Reads the rows of
        all files for the modes of images. Sets :attr:`shape` if all main images are raw pixels of one shape."""
        beton = self._betons[0]
        columns: dict[str, Field] = {}
        plain: dict[int, Field] = {_FLOAT: Array("float64"), _INT: Array("int64"), _BYTES: Bytes(), _JSON: Json()}
        for name, kind in zip(beton.names, beton.types, strict=True):
            if kind == _RGB:
                modes, shape = self._image_modes[name]
                columns[self._columns[name]] = Image("uint8" if modes == {_RAW} else None)
                if name == self._main_field and modes == {_RAW}:
                    self.shape = shape
            elif kind in (_ARRAY, _TENSOR):
                dtype, axes = beton.arrays[name]
                columns[self._columns[name]] = Array(dtype.newbyteorder("=").name, axes)
            elif kind == _INT and name.lower() in LABEL_NAMES:
                columns[self._columns[name]] = Label()
            else:
                columns[self._columns[name]] = plain[kind]
        return columns

    def close(self) -> None:
        """Closes the source and its open files."""
        super().close()
        self._files.close()

    @cached_property
    def _main_field(self) -> str:
        """Name of the field of the main image: one with a usual name of images, else the first. Raises
        :class:`SourceError` if no field has images."""
        beton = self._betons[0]
        images = [name for name, kind in zip(beton.names, beton.types, strict=True) if kind == _RGB]
        if not images:
            holds = ", ".join(map(printable, beton.names))
            raise SourceError(f"{printable(str(self.path))} holds no images, but {holds}")
        return next((name for name in images if names_an_image(name)), images[0])

    @cached_property
    def _columns(self) -> dict[str, str]:
        """Column of each field, by name; ``image`` for the main image. Raises :class:`SourceError` if a field ``image``
        has no images."""
        columns = make_column_names(list(self._betons[0].names))
        if "image" in columns.values() and columns[self._main_field] != "image":
            raise SourceError(
                f"{printable(str(self.path))}: 'image' is not an image, but {printable(self._main_field)} is"
            )
        return {**columns, self._main_field: "image"}

    @cached_property
    def _image_modes(self) -> dict[str, tuple[set[int], tuple[int, ...] | None]]:
        """Modes and shape of the images of each field, by name. Modes are 0 for JPEG and 1 for raw pixels; others
        are left out. The shape is ``(H, W, 3)``, or None if it varies. The first use reads all rows."""
        beton = self._betons[0]
        facts: dict[str, tuple[set[int], tuple[int, ...] | None]] = {}
        for i, (name, kind) in enumerate(zip(beton.names, beton.types, strict=True)):
            if kind != _RGB:
                continue
            modes, sizes = set[int](), set[tuple[int, int]]()
            for number in range(len(self.shards)):
                for _, block in self._read_row_blocks(number):
                    image = block[f"f{i}"]
                    modes |= set(np.unique(image["mode"]).tolist())
                    if len(sizes) < 2:
                        pairs = np.unique(image["height"].astype(np.uint32) << 16 | image["width"]).tolist()
                        sizes |= {(pair >> 16, pair & 0xFFFF) for pair in pairs[:2]}
            shape = (*next(iter(sizes)), 3) if len(sizes) == 1 else None
            facts[name] = modes & {_JPG, _RAW}, shape
        return facts

    @cached_property
    def _allocation_tables(self) -> list[tuple[NDArray[np.uint64], NDArray[np.uint64]]]:
        """Offsets and sizes of the allocated pieces of each file, sorted by offset."""
        tables = []
        for number, beton in enumerate(self._betons):
            count = (beton.nbytes - beton.table_at) // _ALLOCATED.itemsize
            data = self._files[number].read(count * _ALLOCATED.itemsize, beton.table_at)
            table = np.frombuffer(data[: len(data) // _ALLOCATED.itemsize * _ALLOCATED.itemsize], _ALLOCATED)
            order = np.lexsort((table["size"], table["ptr"]))
            tables.append((table["ptr"][order], table["size"][order]))
        return tables

    def _read_value(self, number: int, name: str, kind: int, value: Any) -> Any:
        """Reads a value of a row by the type of its field. Returns a number, an image, an array, bytes, or a parsed
        JSON value. Raises :class:`ValueError` if it is damaged or too large."""
        if kind in (_FLOAT, _INT):
            return value.item()
        if kind == _RGB:
            return self._read_image(number, name, value)
        if kind in (_ARRAY, _TENSOR):
            dtype, shape = self._betons[number].arrays[name]
            data = self._read_data(number, int(value), math.prod(shape) * dtype.itemsize, _MAX_VALUE)
            return np.frombuffer(data, dtype).reshape(shape)
        data = self._read_data(number, int(value["ptr"]), int(value["size"]), _MAX_VALUE)
        return load_json(data.partition(b"\0")[0]) if kind == _JSON else data

    def _read_image(self, number: int, name: str, value: Any) -> Any:
        """Reads an image: the bytes of a JPEG file, or an array of raw pixels. If other images of the field are JPEG,
        encodes raw pixels as PNG. Raises :class:`ValueError` if it is damaged or too large."""
        mode, height, width, ptr = (int(value[key]) for key in ("mode", "height", "width", "ptr"))
        if mode not in (_JPG, _RAW):
            raise ValueError(f"an image is written in mode {mode}, which FFCV does not have")
        if mode == _JPG:
            return self._read_data(number, ptr, None, self._max_image)
        if not height or not width:
            raise ValueError(f"an image of {width} x {height} pixels")
        if height * width > self.options.max_pixels:
            raise ValueError(f"an image of {height * width} pixels, more than max_pixels")
        data = self._read_data(number, ptr, height * width * 3, _MAX_VALUE)
        pixels = np.frombuffer(data, np.uint8).reshape(height, width, 3)
        return pixels if self._image_modes[name][0] == {_RAW} else encode_png(pixels)

    def _estimate_image_sizes(self, number: int, images: NDArray[Any]) -> NDArray[np.int64]:
        """Returns the size of each image in bytes, at most that of the file. Returns 0 for a JPEG file that is not in
        the table of allocated pieces."""
        raw = images["height"].astype(np.int64) * images["width"] * 3
        jpg = self._allocated_sizes(number, images["ptr"]).astype(np.int64)
        return np.clip(np.where(images["mode"] == _JPG, jpg, raw), 0, self._betons[number].nbytes)

    def _allocated_sizes(self, number: int, places: NDArray[np.uint64]) -> NDArray[np.uint64]:
        """Looks up the number of bytes that were allocated at each of ``places``; 0 if nothing was."""
        starts, sizes = self._allocation_tables[number]
        if not len(starts):
            return np.zeros(len(places), np.uint64)
        at = np.maximum(np.searchsorted(starts, places, "right"), 1) - 1
        return np.where(starts[at] == places, sizes[at], np.uint64(0))

    def _read_data(self, number: int, place: int, size: int | None, limit: int) -> bytes:
        """Reads all bytes that were allocated at offset ``place``. Returns ``b""`` if ``size`` is 0.

        Raises :class:`ValueError`

        - if the number of bytes is not ``size``; None allows any number but 0;
        - for more than ``limit`` bytes;
        - for bytes outside the pages of data, and for a file that is cut off.
        """
        beton = self._betons[number]
        first = beton.rows_at + beton.samples * beton.row.itemsize
        written = int(self._allocated_sizes(number, np.array([place], np.uint64))[0])
        if size == 0:
            return b""
        if not written or size not in (None, written):
            expected = "a file" if size is None else f"{size} bytes"
            raise ValueError(f"{written} bytes were written at byte {place}, where {expected} should be")
        if written > limit:
            raise ValueError(f"{written} bytes, more than {limit}")
        if not first <= place <= place + written <= beton.table_at:
            raise ValueError(f"{written} bytes at byte {place}, where none can be")
        data = self._files[number].read(written, place)
        if len(data) < written:
            raise ValueError("the file is cut off")
        return data

    def _read_row_blocks(self, number: int) -> Iterator[tuple[int, NDArray[Any]]]:
        """Yields the rows of a file in blocks of up to 16,384. Each block comes with the number of its first row."""
        for start in range(0, self._betons[number].samples, _BLOCK):
            yield start, self._read_rows(number, start, min(_BLOCK, self._betons[number].samples - start))

    def _read_rows(self, number: int, start: int, count: int) -> NDArray[Any]:
        """Reads ``count`` rows of a file from row ``start`` on. Raises :class:`ValueError` if the file is cut off."""
        beton = self._betons[number]
        size = beton.row.itemsize
        data = self._files[number].read(count * size, beton.rows_at + start * size)
        if len(data) < count * size:
            raise ValueError(f"{self.shards[number][1].name} is cut off")
        return np.frombuffer(data, beton.row)


def is_beton(path: Path) -> bool:
    """Tells if a file has a valid header of a ``.beton`` file; False if it cannot be read."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        _read_beton_header(OpenFile(descriptor), path)
    except (OSError, SourceError):
        return False
    return True


def _read_beton_header(file: OpenFile, path: Path) -> _BetonHeader:
    """Reads the header of a file. Raises :class:`SourceError` if it is invalid."""
    try:
        return _parse_header(file)
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError, SyntaxError) as error:
        raise SourceError(f"{printable(str(path))} is not a readable .beton file: {printable(str(error))}") from None


def _parse_header(file: OpenFile) -> _BetonHeader:
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
    types = tuple(described["type"].tolist())
    if len(set(names)) < count or not all(name and name.isprintable() for name in names):
        raise ValueError("its fields have no names")
    own = next((name for name, kind in zip(names, types, strict=True) if kind not in _ROW), None)
    if own is not None:
        raise ValueError(f"the field {own!r} is of a kind of its own, which only the program knows that wrote it")
    arrays = {
        name: _parse_array_type(bytes(arguments))
        for name, kind, arguments in zip(names, types, described["arguments"], strict=True)
        if kind in (_ARRAY, _TENSOR)
    }
    row = np.dtype([(f"f{i}", _ROW[kind]) for i, kind in enumerate(types)], align=True)
    rows_at = _HEADER.itemsize + count * _FIELD.itemsize
    pieces = (nbytes - table) // _ALLOCATED.itemsize
    if pieces > min(samples * count, _MAX_ALLOCATED):
        raise ValueError(f"its table has {pieces} entries for {samples} samples")
    if not rows_at + samples * row.itemsize <= table <= nbytes:
        raise ValueError(f"{samples} samples and a table at byte {table} do not fit into {nbytes} bytes")
    return _BetonHeader(names, types, arrays, row, rows_at, samples, table, nbytes)


def _parse_array_type(arguments: bytes) -> tuple[np.dtype[Any], tuple[int, ...]]:
    """Parses dtype and shape of a field of arrays from ``arguments``: 32 lengths of axes, the length of the dtype, and
    the dtype as JSON. Raises :class:`ValueError` for other dtypes than numbers, more than 8 axes, and large arrays."""
    *axes, length = np.frombuffer(arguments[: 33 * 8], "<u8").tolist()
    while axes and not axes[-1]:
        axes.pop()
    (description,) = load_json(arguments[33 * 8 :][:length])
    name, form = description
    dtype = np.dtype(str(form))
    if name or dtype.kind not in "biuf" or len(axes) > 8 or math.prod(axes) * dtype.itemsize > _MAX_VALUE:
        raise ValueError(f"arrays of {str(form)!r:.40} and shape {tuple(axes)}")
    return dtype, tuple(axes)


def _recognise(path: Path, options: SourceOptions) -> Certainty:
    """Certain for valid ``.beton`` files, possible if only the suffix fits, else ``NO``. ``NO`` for a folder with
    images directly in it. Reads the first 4 such files of a folder."""
    if path.is_dir() and folder_has_images(path):
        return Certainty.NO
    files = [path] if path.is_file() else [file for file in list_first_shards(path, SUFFIXES) if _has_suffix(file)]
    if any(map(is_beton, files)):
        return Certainty.CERTAIN
    return Certainty.POSSIBLE if any(map(_has_suffix, files)) else Certainty.NO


def _has_suffix(file: Path) -> bool:
    """Tells if a file has the suffix of a ``.beton`` file."""
    return file.name.lower().endswith(SUFFIXES)


KIND = Kind("beton", ".beton files of FFCV", _recognise, BetonSource)
