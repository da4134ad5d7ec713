"""Writes LMDB: each image alone under its record number in ten digits, whole columns and manifest by name.

Layout:

- ``b"%010d" % i``: the bytes of an image
- ``b"label"``: a fixed column as ``.npy``
- ``b"key/bytes"`` (``.npy`` uint8) and ``b"key/offsets"`` (``.npy`` int64, N + 1): a ragged column
- ``b"mask/%010d" % i``: the bytes of a value, for a fixed or ragged column with an entry per record. Such a column is
  large, or may have large values: see :attr:`packstore.core.columns.Column.one_by_one`.
- ``b"manifest"``: JSON

Letters sort after digits, so the whole file is written by sorted appends.
"""

from __future__ import annotations

import errno
import io
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
from numpy.typing import NDArray

from packstore.core.columns import Buffer, Ragged, WholeColumn
from packstore.core.errors import StoreError, printable
from packstore.core.files import beyond_standard_streams, file_size_limit, sync_file
from packstore.core.manifest import Column, Manifest
from packstore.stores.format import FileWriter
from packstore.stores.lmdb.pages import DATA_FILE
from packstore.stores.lmdb.store import HEADER_BYTES, MANIFEST

KEY = b"%010d"
_MAX_VALUE = 0xFFFFFFFF  # LMDB keeps the size of a value in 32 bits
_MAX_RECORDS = (_MAX_VALUE - HEADER_BYTES) // 8 - 1
"""More would not fit into the value that holds the checksums of all records, or a ragged column's offsets."""
_TXN_BYTES = 4 << 20
_TXN_RECORDS = 1 << 16
_FIRST_MAP = 64 << 20
_NPY = np.lib.format


class LmdbWriter(FileWriter):
    """Appends records in key order, in transactions of 4 MiB, which bounds memory. Creates the directory at once.

    A background thread syncs committed data meanwhile, which shortens the last sync.

    The file needs no compacting copy. Appended leaf pages are full. Each transaction rewrites only the rightmost page
    of each level of the tree, and the transaction after the next reuses the old page. Measured: 9 pages of 38,835 more
    than ``env.copy(compact=True)`` for 50,000 records of 2 KB, 7 of 16,990 for 600 of 110 KB.
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
        """Appends images under their record numbers.

        Raises :class:`StoreError` for an image of 4 GiB or more, and for over 536,870,782 records.
        """
        if self._records + len(images) > _MAX_RECORDS:
            raise StoreError(f"LMDB holds up to {_MAX_RECORDS:,} records a file; use a shard size")
        self._records = self._append_values(images, KEY, self._records)

    def _append_values(self, values: Iterable[Buffer], key: bytes, record: int) -> int:
        """Appends values under ``key % record`` and the following numbers, and returns the next record number."""
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
                # One sync at a time, in the background: LMDB itself does not sync.
                if not self._suspended and (self._syncing is None or self._syncing.done()):
                    self.check_synced()
                    self._syncing = self._syncer.submit(sync_file, self.path / DATA_FILE)
        self._pending_bytes = nbytes
        return record

    def suspend(self) -> None:
        """Writes pending images and closes the environment. Waits for the running sync, and begins no other."""
        self._suspended = True
        self._syncer.shutdown(wait=True, cancel_futures=True)
        self._close_environment()

    def seal(self, manifest: Manifest, columns: Mapping[str, WholeColumn]) -> None:
        """Reopens the environment, writes all other columns and the manifest in the order of their keys, and closes it.

        A column with an entry per record is written like images. Any other array is a transaction of its own.
        """
        # Reopened in any case: an environment that has written before reuses other free pages, and the file must not
        # depend on whether the writer was suspended.
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
        """Waits for the sync in the background, and raises its :class:`OSError`."""
        if self._syncing is not None and not self._syncing.cancelled():
            self._syncing.result()

    def abort(self, *, wait: bool = True) -> None:
        """Drops pending values and closes the environment.

        Waits for the sync in the background unless ``wait`` is False.
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
        """Opens the environment without locks and syncs, and creates a missing file."""
        # As bytes: py-lmdb cannot encode a path that is not UTF-8.
        path = os.fsencode(self.path)
        with _raise_as_os_errors(self.path), beyond_standard_streams():
            self._env = lmdb.open(
                path, map_size=self._map_size, lock=False, sync=False, mode=0o666, max_dbs=0, create=True
            )

    def _write_pending(self) -> None:
        """Writes the pending values in one transaction, in a larger map if they do not fit."""
        while self._pending:
            try:
                with _raise_as_os_errors(self.path), self._env.begin(write=True) as txn, txn.cursor() as cursor:
                    added = cursor.putmulti(self._pending, append=True)[1]
            except lmdb.MapFullError:
                # The transaction was aborted: the loop writes all its values again.
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
    """Raises each error of LMDB in the context as :class:`OSError`, except :class:`lmdb.MapFullError`."""
    try:
        yield
    except lmdb.MapFullError:
        raise  # the caller enlarges the map
    except lmdb.Error as error:
        space = os.statvfs(path)
        if space.f_bavail * space.f_frsize < _TXN_BYTES:
            # LMDB says "Input/output error" when the disk fills up in the middle of a write.
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)) from error
        limit, file = file_size_limit(), path / DATA_FILE
        if limit is not None and file.exists() and file.stat().st_size + _TXN_BYTES > limit:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG)) from error
        raise OSError(f"LMDB says {error}") from error


def _to_npy(array: NDArray[Any]) -> bytes:
    """Returns an array as a ``.npy`` file of version 1.0."""
    head = io.BytesIO()
    _NPY.write_array_header_1_0(head, _NPY.header_data_from_array_1_0(array))
    return b"".join((head.getvalue(), _view_bytes(array) if array.size else b""))


def _view_bytes(array: NDArray[Any]) -> memoryview:
    """Views a contiguous array as flat bytes."""
    return array.reshape(-1).view(np.uint8).data
