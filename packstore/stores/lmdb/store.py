"""Reads LMDB without the library; :mod:`packstore.stores.lmdb.writer` writes it and describes the layout."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packstore.core.columns import NUMPY_DTYPE, ColumnData, make_lazy_column
from packstore.core.errors import StoreError, printable
from packstore.core.files import reading
from packstore.core.manifest import MAX_JSON_BYTES, Column, Manifest
from packstore.core.progress import Progress, ProgressCallback, no_progress
from packstore.stores.format import parse_own_manifest, unreadable_error
from packstore.stores.lmdb.pages import (
    DATA_FILE,
    Gap,
    PageError,
    Pages,
    RecordLookup,
    WalkedColumn,
    WrongSize,
    find_header_faults,
)
from packstore.stores.parts import Fault, Part, Problem, Spans, check_offsets, map_column

MANIFEST = "manifest"
HEADER_BYTES = 1024
"""Most bytes of the ``.npy`` header of an array of numbers."""
_ENTRY_BYTES = 20
"""Fewest bytes of an entry: its pointer, its header, its key."""
_NPY = b"\x93NUMPY\x01\x00"
_NPY_HEADER = re.compile(
    rb"\{ *'descr': *'([<>|=]?[biufc]\d{1,2})', *'fortran_order': *(True|False),"
    rb" *'shape': *\(((?:\d{1,18}, *)*(?:\d{1,18})?)\),? *\} *".replace(b" ", rb"[ \t\n\f\r]")  # Python's white space
)


def open_partial_file(path: Path, _: NDArray[np.uint64]) -> Callable[[int], memoryview]:
    """Opens the finished transactions of a killed writer. Returns a function that reads an image by its number.

    Raises :class:`StoreError` if the file cannot be opened. The function raises it for a missing or damaged image.
    """
    return _make_read(_map_pages(path), "image", path)


def read_manifest(path: Path) -> Manifest:
    """Reads the manifest of the LMDB at ``path``. Raises :class:`StoreError` for a missing or damaged one."""
    return _read_stored_manifest(_map_pages(path), path)


class LmdbPart(Part):
    """An LMDB, read through a map of the file, without the library: see :mod:`packstore.stores.lmdb.pages`.

    Opening raises :class:`StoreError` unless the number of entries is that of the manifest. Views stay valid after
    :meth:`close`, even by another thread. A fork, or another environment of the same file in the process, does no harm.
    """

    fewest_together = 12

    def __init__(self, path: Path, descriptor: int | None = None) -> None:
        """``descriptor`` is an open file descriptor of ``data.mdb``, or None. The caller may close it afterwards."""
        pages = _map_pages(path, descriptor)
        super().__init__(path, _read_stored_manifest(pages, path))
        self._shown = printable(str(path))
        self._images: RecordLookup | None = RecordLookup(pages, b"")
        self._records = self.manifest.records
        image = self.manifest.image
        self._width = image.record_nbytes if image.kind == "fixed" else None
        self._columns: dict[str, ColumnData] = {}
        one_by_one = len(_list_numbered_columns(self.manifest))
        expected = self._records * one_by_one + len(_list_named_keys(self.manifest))
        entries, shown = pages.tree.entries, self._shown
        if entries > len(pages.map) // _ENTRY_BYTES:
            raise StoreError(f"{shown} is damaged: it says it has {entries} entries in {len(pages.map)} bytes")
        if entries != expected:
            raise StoreError(f"{shown} is damaged: it has {entries} entries, its manifest says {expected}")

    def view(self, index: int) -> memoryview:
        if not 0 <= index < self._records:
            raise IndexError(f"record {index} of {self._records}")
        images = self._images or self._require_open()
        try:
            value = images.find_value(index)
        except PageError as error:
            raise Fault(int(index), self.path, f"is damaged: {error}") from None
        if value is None:
            raise Fault(int(index), self.path, "is missing")
        if self._width is not None and len(value) != self._width:
            raise Fault(int(index), self.path, f"has {len(value)} bytes: it is damaged")
        return value

    def locate(self, rows: NDArray[np.int64]) -> Spans:
        images = self._require_open()
        if len(rows) and not 0 <= rows.min() <= rows.max() < self._records:
            raise IndexError(f"records {rows.min()} to {rows.max()} of {self._records}")
        starts, sizes, count = images.locate(rows)
        wrong = [] if self._width is None else np.flatnonzero(sizes[:count] != self._width).tolist()
        if count < len(rows) or wrong:
            self.view(int(rows[(*wrong, count)[0]]))  # raises the fault
        return Spans(images.data, starts, sizes)

    def column(self, name: str) -> ColumnData:
        columns = self._columns  # read once: another thread may close the part meanwhile
        if name not in columns:
            column = self.manifest.column(name)
            if name == "image":
                raise StoreError("an LMDB has no array of all images; read them one by one")
            if column.one_by_one:
                read = _make_read(self._require_open().pages, name, self.path)
                columns[name] = make_lazy_column(column, self._records, read)
            else:
                columns[name] = map_column(column, self._records, self._map_array)
        return columns[name]

    def close(self) -> None:
        self._images = None
        self._columns = {}

    def faults(self, *, quick: bool = False, progress: ProgressCallback = no_progress) -> Iterator[Problem]:
        """Yields faults of

        - the header pages,
        - every page and entry: bounds, order, missing and surplus keys, sizes in a fixed column,
        - the offsets of ragged columns.

        ``quick`` skips the overflow pages of long values. Raises :class:`StoreError` if the part is closed.
        """
        pages = self._require_open().pages
        for fault in find_header_faults(pages.tree):
            yield Problem(f"{fault}: LMDB itself may not read it")
        yield from _check_entries(pages, self.manifest, quick, progress)
        for column in self.manifest.columns[1:]:
            if column.kind == "ragged" and not column.one_by_one:
                try:
                    yield from check_offsets(column.name, self.column(column.name))
                except StoreError as error:
                    yield Problem(str(error))
        progress(Progress("structure", self._records, self._records, self.manifest.image.nbytes))

    def _require_open(self) -> RecordLookup:
        """Returns the lookup of images, or raises :class:`StoreError` if the part is closed."""
        images = self._images  # read once: another thread may close the part meanwhile
        if images is None:
            raise StoreError(f"{self._shown} is closed")
        return images

    def _map_array(self, name: str, kind: str, shape: tuple[int, ...]) -> NDArray[Any]:
        """Returns the array in the ``.npy`` value ``name``, as a view of the map if it is aligned."""
        shown, dtype = self._shown, NUMPY_DTYPE[kind]
        try:
            value = self._require_open().pages.find_value(name.encode("ascii"))
        except PageError as error:
            raise StoreError(f"{shown} is damaged: {error}") from None
        where = f"column {name!r} of {shown}"
        if value is None:
            raise StoreError(f"{where} is missing")
        try:
            found_shape, fortran, found_dtype, start = read_npy_header(value[:HEADER_BYTES].tobytes())
        except ValueError as error:
            raise StoreError(f"{where} has no valid .npy header: {error}") from error
        raw = value[start:]
        if fortran or found_dtype != dtype or found_shape != shape or len(raw) != dtype.itemsize * math.prod(shape):
            raise StoreError(f"{where} is {found_dtype} {found_shape} in {len(raw)} bytes, not {dtype} {shape}")
        array: NDArray[Any] = raw.view(dtype).reshape(shape)
        if not array.flags.aligned:
            array = array.copy()
            array.flags.writeable = False  # like a view of the map
        return array


def read_npy_header(head: bytes) -> tuple[tuple[int, ...], bool, np.dtype[Any], int]:
    """Parses the header of a ``.npy`` file (NEP 1, version 1.0), the container of a whole column.

    numpy parses it as Python source, and raises nearly any exception for damaged text. In CPython 3.11 its parsing
    occasionally fails while another thread parses Python ("AST constructor recursion depth mismatch").

    Args:
        head: The first :data:`HEADER_BYTES` of the file.

    Returns:
        Shape, True for Fortran order, dtype, and the offset of the array's data.

    Raises:
        ValueError: ``head`` is not the header of an array of numbers.
    """
    if head[: len(_NPY)] != _NPY:
        raise ValueError("it does not begin like .npy version 1.0")
    start = len(_NPY) + 2
    stop = start + int.from_bytes(head[len(_NPY) : start], "little")
    match = _NPY_HEADER.fullmatch(head[start:stop]) if stop <= len(head) else None
    if match is None:
        raise ValueError("its text does not describe an array of numbers")
    shape = tuple(int(length) for length in match[3].replace(b",", b" ").split())
    try:
        dtype = np.dtype(match[1].decode("ascii"))
    except TypeError as error:
        raise ValueError(str(error)) from None
    return shape, match[2] == b"True", dtype, stop


def _map_pages(path: Path, descriptor: int | None = None) -> Pages:
    """Maps the data file, by its open ``descriptor`` if that is not None."""
    try:
        with reading(path / DATA_FILE, descriptor) as opened:
            return Pages(opened)
    except OSError as error:
        raise StoreError(f"{printable(str(path))} cannot be opened: {error.strerror or error}") from error
    except PageError as error:
        raise unreadable_error(path, "an LMDB", error) from None


def _read_stored_manifest(pages: Pages, path: Path) -> Manifest:
    """Reads the manifest in an LMDB."""
    try:
        text = pages.find_value(MANIFEST.encode("ascii"))
    except PageError as error:
        raise unreadable_error(path, "an LMDB", error) from None
    if text is None:
        raise StoreError(f"{printable(str(path))} is an LMDB without a packstore manifest")
    return parse_own_manifest(text[: MAX_JSON_BYTES + 1].tobytes(), path, "lmdb", "an LMDB")


def _make_read(pages: Pages, column: str, path: Path) -> Callable[[int], memoryview]:
    """Returns a function that reads the value of a record in a column."""
    # holds the pages: it works even after the part is closed
    find, shown = RecordLookup(pages, _key_prefix(column)).find_value, printable(str(path))

    def read(record: int) -> memoryview:
        try:
            value = find(record)
        except PageError as error:
            raise StoreError(f"{shown} is damaged: {error}") from None
        if value is None:
            raise StoreError(f"the {column} of record {record} of {shown} is missing")
        return value

    return read


def _key_prefix(column: str) -> bytes:
    """Returns what stands before the record number in the keys of a column: nothing for images."""
    return b"" if column == "image" else f"{column}/".encode("ascii")


def _list_numbered_columns(manifest: Manifest) -> list[Column]:
    """Returns the columns with an entry per record; the first are the images."""
    return [manifest.image, *(column for column in manifest.columns[1:] if column.one_by_one)]


def _list_named_keys(manifest: Manifest) -> set[bytes]:
    """Returns the keys without a record number: ``manifest``, and the arrays of whole columns."""
    whole = (column for column in manifest.columns[1:] if not column.one_by_one)
    return {MANIFEST.encode("ascii"), *(name.encode("ascii") for column in whole for name in column.array_names)}


def _check_entries(pages: Pages, manifest: Manifest, quick: bool, progress: ProgressCallback) -> Iterator[Problem]:
    """Yields the faults of pages and entries, and differences from the manifest's bytes of each column."""
    columns, named, records = _list_numbered_columns(manifest), _list_named_keys(manifest), manifest.records
    prefixes = [_key_prefix(column.name) for column in columns]
    widths = [column.record_nbytes if column.kind == "fixed" else -1 for column in columns]
    walked = (WalkedColumn * len(columns))(
        *(WalkedColumn(prefix, len(prefix), width) for prefix, width in zip(prefixes, widths, strict=True))
    )
    names = ["its entry", *(f"its entry of {column.name!r}" for column in columns[1:])]

    def report() -> None:
        progress(Progress("structure", walked[0].next, records, walked[0].nbytes))

    for item in pages.walk(walked, records, overflow=not quick, report=report):
        if isinstance(item, str):
            yield Problem(item)
        elif isinstance(item, Gap):
            for record in range(item.first, item.end):
                yield Problem(f"{names[item.column]} is missing", record=record)
        elif isinstance(item, WrongSize):
            what = f"{names[item.column]} has {item.size} bytes, expected {widths[item.column]}"
            yield Problem(what, record=item.record)
        elif item.key in named:
            named.remove(item.key)
        else:
            yield Problem(f"entry {item.key!r} does not belong to the store")
    for name, column in zip(names, walked, strict=True):
        for record in range(column.next, records):
            yield Problem(f"{name} is missing", record=record)
    for key in sorted(named):
        yield Problem(f"entry {key!r} is missing")
    found = {column.name: counted.nbytes for column, counted in zip(columns, walked, strict=True)}
    for column in manifest.container_columns:
        nbytes = found.get(column.name, column.nbytes)
        if nbytes != column.nbytes:
            what = "images" if column.name == "image" else f"values of {column.name!r}"
            yield Problem(f"all {what} have {nbytes} bytes, the manifest says {column.nbytes}")
