"""Reads LMDB without the library; :mod:`packstore.stores.lmdb.writer` writes it and describes the layout."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packstore.core.columns import (
    NUMPY_DTYPE,
    OFFSET,
    Buffer,
    ColumnData,
    LazyArray,
    LazyRagged,
    Ragged,
    make_lazy_column,
)
from packstore.core.errors import StoreError, printable
from packstore.core.files import reading
from packstore.core.manifest import MAX_JSON_BYTES, Column, Manifest
from packstore.core.progress import Progress, ProgressCallback, no_progress
from packstore.stores.base import Problem, Reader, Spans, parse_manifest, unreadable_error
from packstore.stores.lmdb.bulk_lookup import LeafTable, list_leaves, locate_images
from packstore.stores.lmdb.bulk_walk import IrregularError, NumberedEntries, walk_in_bulk
from packstore.stores.lmdb.entries import MANIFEST, check_entries, list_column_prefixes, list_named_keys
from packstore.stores.lmdb.npy import HEADER_BYTES, read_header
from packstore.stores.lmdb.pages import DATA_FILE, PageError, Pages
from packstore.stores.mapped import check_offsets

_ENTRY_BYTES = 20
"""Fewest bytes of an entry: its pointer, its header, its key."""


def open_partial_file(path: Path) -> Callable[[int], memoryview]:
    """Opens the finished transactions of a killed writer. Returns a function that reads an image by its number.

    Raises :class:`StoreError` if the file cannot be opened. The function raises it for a missing or damaged image.
    """
    pages = _map_pages(path)

    def image(number: int) -> memoryview:
        try:
            value = pages.find_image(number)
        except PageError as error:
            raise StoreError(f"{printable(str(path))} is damaged: {error}") from None
        if value is None:
            raise StoreError(f"{printable(str(path))} has no image {number}")
        return value

    return image


def read_manifest(path: Path) -> Manifest:
    """Reads the manifest of the LMDB at ``path``. Raises :class:`StoreError` for a missing or damaged one."""
    return _read_stored_manifest(_map_pages(path), path)


def _map_pages(path: Path, descriptor: int | None = None) -> Pages:
    """Maps the data file, by its open ``descriptor`` if that is not None.

    Raises :class:`StoreError` if the file cannot be opened, or is no LMDB.
    """
    try:
        with reading(path / DATA_FILE, descriptor) as opened:
            return Pages(opened)
    except OSError as error:
        raise StoreError(f"{printable(str(path))} cannot be opened: {error.strerror or error}") from error
    except PageError as error:
        raise unreadable_error(path, "an LMDB", error) from None


_FEWEST_IN_BULK = 32
"""Fewer records are faster to look up one by one: in bulk 64 take 1.2 µs each instead of 2.1, 256 take 0.5."""


class LmdbReader(Reader):
    """Reads an LMDB through a map of the file, without the library: see :mod:`packstore.stores.lmdb.pages`.

    Opening raises :class:`StoreError` unless the number of entries is that of the manifest. Reading from a damaged page
    raises it, too. Views stay valid after :meth:`close`, even by another thread. A fork, or another environment of the
    same file in the process, does no harm.
    """

    def __init__(self, path: Path, descriptor: int | None = None) -> None:
        """``descriptor`` is an open file descriptor of ``data.mdb``, or None. The caller may close it afterwards."""
        pages = _map_pages(path, descriptor)
        super().__init__(path, _read_stored_manifest(pages, path))
        self._pages: Pages | None = pages
        self._records = self.manifest.records
        image = self.manifest.image
        self._width = image.record_nbytes if image.kind == "fixed" else None
        self._columns: dict[str, ColumnData] = {}
        self._leaves: LeafTable | None = None
        self._prefixes = list_column_prefixes(self.manifest)
        expected = self._records * (1 + len(self._prefixes)) + len(list_named_keys(self.manifest))
        entries = pages.entries
        if entries > len(pages.map) // _ENTRY_BYTES:
            raise StoreError(
                f"{printable(str(path))} is damaged: it says it has {entries} entries in {len(pages.map)} bytes"
            )
        if entries != expected:
            raise StoreError(
                f"{printable(str(path))} is damaged: it has {entries} entries, its manifest says {expected}"
            )

    def read(self, index: int) -> memoryview:
        """Returns the image as a view of the map, without comparing its checksum.

        Raises :class:`StoreError` if the image is missing, of a wrong length or in damaged pages, or if the reader is
        closed. Raises :class:`IndexError` for a number out of range.
        """
        if not 0 <= index < self._records:
            raise IndexError(f"record {index} of {self._records}")
        pages = self._pages or self._require_open()
        try:
            value = pages.find_image(index)
        except PageError as error:
            raise self._damage_error(error) from None
        if value is None:
            raise StoreError(f"record {index} of {printable(str(self.path))} is missing")
        if self._width is not None and len(value) != self._width:
            raise StoreError(f"record {index} of {printable(str(self.path))} has {len(value)} bytes: it is damaged")
        return value

    def views(self, records: NDArray[np.int64]) -> Sequence[Buffer]:
        """Locates 32 images or more at once with numpy. Looks up fewer, or images in a damaged file, one by one."""
        pages = self._pages
        if pages is None or len(records) < _FEWEST_IN_BULK or not 0 <= records.min() <= records.max() < self._records:
            return super().views(records)
        if self._leaves is None:
            self._leaves = list_leaves(pages)
        located = None if self._leaves is None else locate_images(pages, self._leaves, records)
        if located is None or (self._width is not None and (located[1] != self._width).any()):
            return super().views(records)
        return pages.record_lookup(b"").view_values(*located)

    def will_need(self, index: int, view: Buffer) -> None:
        """Asks the operating system to read the image. Does nothing if the reader is closed."""
        if self._pages is not None and isinstance(view, memoryview):
            self._pages.will_need(view)

    def mapped_ragged_column(self, name: str) -> Ragged | None:
        """Returns a ragged column over the map. None for a fixed column, and for one with an entry per record."""
        column = self.column(name)
        return column if type(column) is Ragged else None

    def column(self, name: str) -> ColumnData:
        """Returns a column: arrays over the mapped file, or an object that reads each value on access.

        Later calls return the same object. Raises :class:`StoreError` for ``image``, for a damaged column, and if the
        reader is closed.
        """
        columns = self._columns  # read once: another thread may close the reader meanwhile
        if name not in columns:
            column = self.manifest.column(name)
            if name == "image":
                raise StoreError("an LMDB has no array of all images; read them one by one")
            if column.one_by_one:
                columns[name] = _make_lazy_column(
                    self._require_open(), column, self._records, printable(str(self.path))
                )
            elif column.kind == "fixed":
                columns[name] = self._map_array(name, NUMPY_DTYPE[column.dtype], (self._records, *column.shape))
            else:
                data = self._map_array(f"{name}/bytes", np.dtype("u1"), (column.nbytes,))
                columns[name] = Ragged(self._map_array(f"{name}/offsets", OFFSET, (self._records + 1,)), data)
        return columns[name]

    def close(self) -> None:
        self._pages = None
        self._columns = {}

    def check_structure(self, *, quick: bool = False, progress: ProgressCallback = no_progress) -> Iterator[Problem]:
        """Yields faults of

        - the header pages,
        - every page and entry: bounds, order, missing and surplus keys, sizes in a fixed column,
        - the offsets of ragged columns.

        ``quick`` skips the overflow pages of long values. Raises :class:`StoreError` if the reader is closed.
        """
        for fault in self._require_open().find_header_faults():
            yield Problem(f"{fault}: LMDB itself may not read it")
        yield from check_entries(self._require_open(), self.manifest, quick=quick, progress=progress)
        for column in self.manifest.columns[1:]:
            if column.kind == "ragged":
                try:
                    if not column.one_by_one:
                        yield from check_offsets(column.name, self.column(column.name))
                except StoreError as error:
                    yield Problem(str(error))
        progress(Progress("structure", self._records, self._records, self.manifest.image.nbytes))

    def spans(self) -> Iterator[Spans]:
        """Yields the locations of images from record 0 on. Stops at the first irregular page.

        Raises :class:`StoreError` if the reader is closed.
        """
        pages, first = self._require_open(), 0
        try:
            for run in walk_in_bulk(pages, self._prefixes, overflow=False):
                if (
                    not isinstance(run, NumberedEntries)
                    or run.prefix
                    or (run.numbers != np.arange(first, first + len(run.numbers))).any()
                ):
                    return
                first += len(run.numbers)
                yield Spans(pages.map.data, run.starts, run.sizes)
        except IrregularError:
            return

    def _require_open(self) -> Pages:
        """Returns the pages. Raises :class:`StoreError` if the reader is closed."""
        pages = self._pages  # read once: another thread may close the reader meanwhile
        if pages is None:
            raise StoreError(f"{printable(str(self.path))} is closed")
        return pages

    def _damage_error(self, error: PageError) -> StoreError:
        """Returns the error of a damaged store, with the message of a :class:`PageError`."""
        return StoreError(f"{printable(str(self.path))} is damaged: {error}")

    def _map_array(self, name: str, dtype: np.dtype[Any], shape: tuple[int, ...]) -> NDArray[Any]:
        """Returns the array in the ``.npy`` value ``name`` as a view of the map, or as a copy if it is not aligned.

        Raises :class:`StoreError` if the array is missing, damaged, or of another dtype or shape.
        """
        try:
            value = self._require_open().find_value(name.encode("ascii"))
        except PageError as error:
            raise self._damage_error(error) from None
        where = f"column {name!r} of {printable(str(self.path))}"
        if value is None:
            raise StoreError(f"{where} is missing")
        try:
            found_shape, fortran, found_dtype, start = read_header(value[:HEADER_BYTES].tobytes())
        except ValueError as error:
            raise StoreError(f"{where} has no valid .npy header: {error}") from error
        raw = value[start:]
        if fortran or found_dtype != dtype or found_shape != shape or len(raw) != dtype.itemsize * math.prod(shape):
            raise StoreError(f"{where} is {found_dtype} {found_shape} in {len(raw)} bytes, not {dtype} {shape}")
        array: NDArray[Any] = raw.view(dtype).reshape(shape)
        return array if array.flags.aligned else _make_read_only(array.copy())


def _read_stored_manifest(pages: Pages, path: Path) -> Manifest:
    """Reads the manifest in an LMDB.

    Raises :class:`StoreError` if the manifest is missing, damaged, or describes another kind of store.
    """
    try:
        text = pages.find_value(MANIFEST.encode("ascii"))
    except PageError as error:
        raise unreadable_error(path, "an LMDB", error) from None
    if text is None:
        raise StoreError(f"{printable(str(path))} is an LMDB without a packstore manifest")
    manifest = parse_manifest(text[: MAX_JSON_BYTES + 1].tobytes(), path)
    if manifest.format != "lmdb" or manifest.shards:
        kind = f"{'sharded ' if manifest.shards else ''}{manifest.format}"
        raise StoreError(f"{printable(str(path))} is an LMDB, but its manifest describes a {kind} store")
    return manifest


def _make_lazy_column(pages: Pages, column: Column, records: int, path: str) -> LazyRagged | LazyArray:
    """Returns a column with an entry per record, which reads each value on access.

    The column stays valid after the reader is closed. Reading raises :class:`StoreError` for a missing or damaged
    value.
    """
    name = column.name
    find = pages.record_lookup(f"{name}/".encode("ascii")).find_value

    def read(record: int) -> memoryview:
        try:
            value = find(record)
        except PageError as error:
            raise StoreError(f"{path} is damaged: {error}") from None
        if value is None:
            raise StoreError(f"the {name} of record {record} of {path} is missing")
        return value

    return make_lazy_column(column, records, read)


def _make_read_only(array: NDArray[Any]) -> NDArray[Any]:
    """Makes an array itself read-only, and returns it."""
    array.flags.writeable = False
    return array
