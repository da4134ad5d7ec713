"""Writes and reads LMDB: each image alone under its record number in ten digits, whole columns and manifest by name.

Layout: ``b"%010d" % i`` → image bytes; ``b"label"`` and other fixed columns → ``.npy``; a ragged column as
``b"key/bytes"`` (``.npy`` uint8) and ``b"key/offsets"`` (``.npy`` int64, N + 1); ``b"manifest"`` → JSON. A column that
is large, or may have large values (:attr:`packstore.core.column.Column.one_by_one`), has one value per key, fixed or
ragged: the bytes of each as ``b"mask/%010d" % i``. Letters sort after digits, so the whole file is written by sorted
appends.
"""

from __future__ import annotations

import errno
import io
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import lmdb
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
    WholeColumn,
    make_lazy_column,
)
from packstore.core.errors import StoreError, printable
from packstore.core.files import beyond_standard_streams, file_size_limit, reading, sync_file
from packstore.core.manifest import MAX_JSON_BYTES, Column, Manifest
from packstore.core.progress import Progress, ProgressCallback, no_progress
from packstore.stores.base import FileWriter, Problem, Reader, Spans, parse_manifest, unreadable_error
from packstore.stores.lmdb.bulk_lookup import LeafTable, list_leaves, locate_images
from packstore.stores.lmdb.bulk_walk import IrregularError, NumberedEntries, walk_in_bulk
from packstore.stores.lmdb.entries import MANIFEST, check_entries, list_column_prefixes, list_named_keys
from packstore.stores.lmdb.npy import HEADER_BYTES, read_header
from packstore.stores.lmdb.pages import DATA_FILE, PageError, Pages
from packstore.stores.mapped import check_offsets

KEY = b"%010d"
_MAX_VALUE = 0xFFFFFFFF  # LMDB keeps the size of a value in 32 bits
_MAX_RECORDS = (_MAX_VALUE - HEADER_BYTES) // 8 - 1
"""More would not fit into the value that holds the checksums of all records, or a ragged column's offsets."""
_TXN_BYTES = 4 << 20
_TXN_RECORDS = 1 << 16
_FIRST_MAP = 64 << 20
_ENTRY_BYTES = 20
"""Fewest bytes of an entry: its pointer, its header, its key."""
_NPY = np.lib.format


class LmdbWriter(FileWriter):
    """Appends records in key order, one transaction per 4 MiB, which bounds memory and stays in the processor's cache.

    A background thread syncs committed data meanwhile, so that the last sync is short.

    The file needs no compacting copy: appended leaves are full, and each transaction rewrites only the rightmost page
    of each level of the tree, which the transaction after the next reuses. Measured: 9 pages of 38,835 more than
    ``env.copy(compact=True)`` for 50,000 records of 2 KB, 7 of 16,990 for 600 of 110 KB.
    """

    def __init__(self, path: Path, image: Column, *, map_size: int = _FIRST_MAP) -> None:
        super().__init__(path, image)
        self._map_size = map_size
        self._env: Any = None
        self._pending: list[tuple[bytes, Buffer]] = []
        self._pending_bytes = 0
        self._records = 0
        self._syncer = ThreadPoolExecutor(1, thread_name_prefix="packstore-sync")
        self._syncing: Future[None] | None = None
        self._suspended = False
        # Once it has freed a block of this size, glibc keeps freed memory for the next transaction (mallopt(3), dynamic
        # threshold). Else it may return it to the system each time: 8,000 page faults more for 600 files of 110 KB,
        # and 20 ms of 100.
        bytearray(_TXN_BYTES)
        path.mkdir()
        self._open_environment()

    def append(self, images: Sequence[Buffer]) -> None:
        """Appends images under their record numbers. Raises :class:`StoreError` beyond the number of records that one
        LMDB holds.
        """
        if self._records + len(images) > _MAX_RECORDS:
            raise StoreError(f"LMDB holds up to {_MAX_RECORDS:,} records a file; use a shard size")
        self._records = self._append_values(images, KEY, self._records)

    def _append_values(self, values: Iterable[Buffer], key: bytes, record: int) -> int:
        """Appends values, the first under ``key % record``. Writes and syncs in the background whenever enough are
        pending. Returns the next record.

        Raises :class:`StoreError` for a value of 4 GiB or more.
        """
        pending, nbytes = self._pending, self._pending_bytes
        for image in values:
            size = len(image)
            if size > _MAX_VALUE:
                raise StoreError(f"record {record} has {size} bytes; LMDB holds up to {_MAX_VALUE} a value")
            # bytes cannot change; a view may be of a buffer that its owner reuses
            pending.append((key % record, image if type(image) is bytes else bytes(image)))
            record += 1
            nbytes += size
            # Counted by record, not by call: the file must not depend on how records were batched.
            if nbytes >= _TXN_BYTES or len(pending) >= _TXN_RECORDS:
                self._write_pending()
                pending, nbytes = self._pending, 0
                if not self._suspended and (self._syncing is None or self._syncing.done()):
                    self.check_synced()
                    self._syncing = self._syncer.submit(sync_file, self.path / DATA_FILE)
        self._pending_bytes = nbytes
        return record

    def suspend(self) -> None:
        """Writes pending images, waits for the sync in the background, and closes the environment; ends that
        syncing.
        """
        self._suspended = True
        self._syncer.shutdown(wait=True, cancel_futures=True)
        self._close_environment()

    def seal(self, manifest: Manifest, columns: Mapping[str, WholeColumn]) -> None:
        # Reopened in any case: an environment that has written before reuses other free pages, and the file must not
        # depend on whether the writer was suspended.
        """Writes all other columns and the manifest by sorted names, one transaction each, and closes the
        environment.
        """
        self._close_environment()
        self._open_environment()
        parts: dict[str, NDArray[Any] | Iterable[Buffer] | bytes] = {MANIFEST: manifest.to_json().encode("ascii")}
        for name, data in columns.items():
            if manifest.column(name).one_by_one:
                parts[f"{name}/"] = data if isinstance(data, Ragged) else map(_view_bytes, data)
            elif isinstance(data, Ragged):
                parts |= {f"{name}/bytes": data.data, f"{name}/offsets": data.offsets}
            else:
                parts[name] = data
        for name in sorted(parts):
            part = parts[name]
            if not isinstance(part, bytes | np.ndarray):
                self._append_values(part, name.encode("ascii") + KEY, 0)
                self._write_pending()
                continue
            self._pending = [(name.encode("ascii"), part if isinstance(part, bytes) else _to_npy(part))]
            self._write_pending()
        self._syncer.shutdown(wait=False, cancel_futures=True)  # the caller's sync waits for the one that runs
        self.abort(wait=False)

    def check_synced(self) -> None:
        if self._syncing is not None and not self._syncing.cancelled():
            self._syncing.result()

    def abort(self, *, wait: bool = True) -> None:
        """Drops pending values and closes the environment; waits for the sync in the background unless ``wait`` is
        False.
        """
        self._syncer.shutdown(wait=wait, cancel_futures=True)
        self._pending = []
        if self._env is not None:
            self._env.close()
            self._env = None

    def _close_environment(self) -> None:
        """Writes pending values and closes the environment, if it is open."""
        if self._env is not None:
            self._write_pending()
            self._env.close()
            self._env = None

    def _open_environment(self) -> None:
        """Opens the environment, creating it if need be, without locks and syncs."""
        # As bytes: py-lmdb cannot encode a path that is not UTF-8.
        path = os.fsencode(self.path)
        with _raise_as_os_errors(self.path), beyond_standard_streams():
            self._env = lmdb.open(
                path, map_size=self._map_size, lock=False, sync=False, mode=0o666, max_dbs=0, create=True
            )

    def _write_pending(self) -> None:
        """Writes the pending values in one transaction; if the map is full, doubles it and retries."""
        while self._pending:
            try:
                with _raise_as_os_errors(self.path), self._env.begin(write=True) as txn, txn.cursor() as cursor:
                    added = cursor.putmulti(self._pending, append=True)[1]
            except lmdb.MapFullError:
                # Doubles: at most 30 times for a terabyte. The file itself grows only by the pages written.
                self._map_size *= 2
                with _raise_as_os_errors(self.path):
                    self._env.set_mapsize(self._map_size)
                continue
            if added != len(self._pending):
                raise StoreError(f"LMDB took {added} of {len(self._pending)} values of {printable(str(self.path))}")
            self._pending = []
        self._pending_bytes = 0


@contextmanager
def _raise_as_os_errors(path: Path) -> Iterator[None]:
    """Turns LMDB's errors into :class:`OSError`, with the errno of a full disk or a file size limit if that is the
    cause.

    Lets :class:`lmdb.MapFullError` pass.
    """
    try:
        yield
    except lmdb.MapFullError:
        raise
    except lmdb.Error as error:
        space = os.statvfs(path)
        if space.f_bavail * space.f_frsize < _TXN_BYTES:
            # LMDB says "Input/output error" when the disk fills up in the middle of a write.
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)) from error
        limit, file = file_size_limit(), path / DATA_FILE
        if limit is not None and file.exists() and file.stat().st_size + _TXN_BYTES > limit:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG)) from error
        raise OSError(f"LMDB says {error}") from error


def open_partial_file(path: Path) -> Callable[[int], memoryview]:
    """Opens the finished transactions of a killed writer; returns a function that reads an image by its number. Both
    raise :class:`StoreError`.

    Implements :meth:`packstore.stores.format.Format.open_partial_file`.
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
    """Reads the manifest of the LMDB at ``path``. Raises :class:`StoreError`."""
    return _read_stored_manifest(_map_pages(path), path)


def _map_pages(path: Path, descriptor: int | None = None) -> Pages:
    """Maps the data file. Raises :class:`StoreError` if it cannot be opened, or is no LMDB."""
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
    """Reads an LMDB over a map of its own, without the library: see :mod:`packstore.stores.lmdb.pages`.

    So a damaged page raises an error, views stay valid after :meth:`close` even of another thread, and a fork or
    another environment of the same file in the process does no harm.
    """

    def __init__(self, path: Path, descriptor: int | None = None) -> None:
        """``descriptor`` is an open one of ``data.mdb``, or None; the caller may close it afterwards."""
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
        """Returns the image as a view of the map. Raises :class:`StoreError` if it is missing or damaged."""
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
        """Locates 32 images or more at once with numpy; looks fewer, or those of a damaged file, up one by one."""
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
        if self._pages is not None and isinstance(view, memoryview):
            self._pages.will_need(view)

    def mapped_ragged_column(self, name: str) -> Ragged | None:
        column = self.column(name)
        return column if type(column) is Ragged else None

    def column(self, name: str) -> ColumnData:
        """Returns a column as a view of the map, or one that reads each value on access, and keeps it. Raises
        :class:`StoreError` for ``image`` and for a damaged column.
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
        """Yields faults of every page and entry: bounds, order, missing and surplus keys, sizes in a fixed column."""
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
        """Yields the locations of images from record 0 on; stops at the first irregular page."""
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
        """Returns a :class:`PageError` as the error of a damaged store."""
        return StoreError(f"{printable(str(self.path))} is damaged: {error}")

    def _map_array(self, name: str, dtype: np.dtype[Any], shape: tuple[int, ...]) -> NDArray[Any]:
        """Returns the array in the ``.npy`` value ``name`` as a view of the map; as a copy if it is not aligned.

        Raises :class:`StoreError` if it is missing, damaged, or of another dtype or shape.
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
    """Reads the manifest in an LMDB. Raises :class:`StoreError` if there is none, or it is damaged or that of another
    kind of store.
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
    """Returns a column with one value per key, which reads a value when it is accessed. It stays valid after the reader
    is closed.

    Reading raises :class:`StoreError` for a missing or damaged value.
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


def _to_npy(array: NDArray[Any]) -> bytes:
    """Returns an array as a ``.npy`` file of version 1.0."""
    head = io.BytesIO()
    _NPY.write_array_header_1_0(head, _NPY.header_data_from_array_1_0(array))
    return b"".join((head.getvalue(), _view_bytes(array) if array.size else b""))


def _view_bytes(array: NDArray[Any]) -> memoryview:
    """Views an array as bytes."""
    return array.reshape(-1).view(np.uint8).data


def _make_read_only(array: NDArray[Any]) -> NDArray[Any]:
    """Makes an array read-only and returns it."""
    array.flags.writeable = False
    return array
