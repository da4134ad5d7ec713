"""A sharded store: a directory of shards with one manifest, read as one store."""

from __future__ import annotations

import bisect
import itertools
import os
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packstore.core.checksums import file_digest
from packstore.core.columns import Buffer, ColumnData, Ragged
from packstore.core.errors import StoreError, printable
from packstore.core.files import (
    MANIFEST_FILE,
    allow_open_files,
    device_and_inode,
    open_regular,
    release_open_files,
)
from packstore.core.manifest import MAX_JSON_BYTES, Column, Manifest, Shard
from packstore.core.progress import Progress, ProgressCallback, no_progress
from packstore.core.registry import FORMATS
from packstore.stores.base import Problem, Reader, manifest_text, parse_manifest
from packstore.stores.format import Format

_OPEN_TRIES = 8
_FILES_A_SHARD = 3
"""Descriptors of a shard: its file until that is mapped, and at most two maps."""


class ShardedReader(Reader):
    """Opens the files of all shards at once, so that it keeps working when the store is replaced. Reads what is in a
    shard when it is first needed."""

    def __init__(self, path: Path) -> None:
        for _ in range(_OPEN_TRIES):
            before = _manifest_identity(path)
            manifest = read_sharded_manifest(path)
            files, promised = _hold(manifest, path)
            if _manifest_identity(path) == before:
                break
            _drop(files, promised)  # replaced in between
        else:
            raise StoreError(f"{printable(str(path))} was replaced by other stores while it was opened; open it again")
        super().__init__(path, manifest)
        self._format: Format = FORMATS[manifest.format]
        self._files = files
        self._finalizer = weakref.finalize(self, _drop, files, promised)
        self._starts = [0, *itertools.accumulate(s.records for s in self.manifest.shards)]
        self._readers: list[Reader | None] = [None] * len(self.manifest.shards)
        self._columns: dict[str, ColumnData] = {}
        self._lock = threading.Lock()
        self._closed = False

    def read(self, index: int) -> Buffer:
        reader, local = self._locate(index)
        return reader.read(local)

    def view(self, index: int) -> Buffer:
        reader, local = self._locate(index)
        return reader.view(local)

    def will_need(self, index: int, view: Buffer) -> None:
        reader, local = self._locate(index)
        reader.will_need(local, view)

    def array(self, index: int) -> NDArray[Any]:
        reader, local = self._locate(index)
        return reader.array(local)

    def key(self, index: int) -> str:
        reader, local = self._locate(index)
        return reader.key(local)

    def column(self, name: str) -> ColumnData:
        column = self.manifest.column(name)
        if name == "image":
            raise StoreError("a sharded store has no array of all images; read them one by one")
        columns = self._columns  # another thread may close meanwhile
        if name not in columns:
            columns[name] = _joined(column, [self.shard(i).column(name) for i in range(len(self._readers))])
        return columns[name]

    def close(self) -> None:
        with self._lock:
            self._closed = True
            readers, self._readers = self._readers, [None] * len(self._readers)
            self._columns = {}
            self._finalizer()
        for reader in readers:
            if reader is not None:
                reader.close()

    def shard(self, number: int) -> Reader:
        """The reader of one shard. Raises :class:`StoreError` that names the shard when it is missing, not whole, or
        not the one that the manifest means."""
        reader = self._readers[number]
        if reader is None:
            with self._lock:
                if self._closed:
                    raise StoreError(f"{printable(str(self.path))} is closed")
                reader = self._readers[number]
                if reader is None:
                    try:
                        held, self._files[number] = self._files[number], None  # the reader's map holds it from here
                        reader = self._readers[number] = self._open_shard(self.manifest.shards[number], held)
                    except StoreError:
                        self._refuse_replaced()
                        raise
        return reader

    def check_files(self) -> None:
        try:
            with self._lock:
                for reader, held, shard in zip(self._readers, self._files, self.manifest.shards, strict=True):
                    if reader is None:
                        self._check_file(shard, held)
        except StoreError:
            self._refuse_replaced()
            raise

    def check_structure(self, *, quick: bool = False, progress: ProgressCallback = no_progress) -> Iterator[Problem]:
        """Shards missing, left over, of the wrong size or SHA-256 (not ``quick``), and what each finds in itself."""
        shards = self.manifest.shards
        try:
            same = (self.path / MANIFEST_FILE).read_bytes() == manifest_text(self.manifest)
        except OSError:
            same = False
        if not same:
            yield Problem(f"{MANIFEST_FILE} holds the manifest, but not as it was written")
        names = {shard.name for shard in shards}
        for entry in sorted(self.path.iterdir()):
            if entry.name not in names and entry.name != MANIFEST_FILE:
                yield Problem(f"{printable(entry.name)!r} does not belong to the store")
        done_bytes = 0
        for number, shard in enumerate(shards):
            yield from self._check_shard(number, shard, quick, progress)
            done_bytes += shard.nbytes
            progress(Progress("structure", number + 1, len(shards), done_bytes))

    def _check_shard(self, number: int, shard: Shard, quick: bool, progress: ProgressCallback) -> Iterator[Problem]:
        start = self._starts[number]
        file = self._format.data_file(self.path / shard.name)
        if file.exists() and not file.is_file():  # a pipe would keep us waiting, a device would never end
            yield Problem("is neither a file nor a link to one", shard=shard.name, lost=True)
            return
        if not quick:
            try:
                digest = file_digest(file)[1]
            except OSError as error:
                yield Problem(f"cannot be read: {error.strerror or error}", shard=shard.name, lost=True)
                return
            if digest != shard.digest:
                yield Problem(f"its SHA-256 is {digest}, expected {shard.digest}", shard=shard.name)
        try:
            reader = self.shard(number)
        except StoreError as error:
            yield Problem(str(error), shard=shard.name, lost=True)
            return
        for problem in reader.check_structure(quick=quick, progress=progress):
            record = None if problem.record is None else start + problem.record
            yield Problem(problem.what, record, problem.key, shard.name, problem.lost)

    def _locate(self, index: int) -> tuple[Reader, int]:
        if not 0 <= index < len(self):
            raise IndexError(f"record {index} of {len(self)}")
        number = bisect.bisect_right(self._starts, index) - 1
        return self._readers[number] or self.shard(number), index - self._starts[number]

    def _refuse_replaced(self) -> None:
        """Raises :class:`StoreError` when the manifest is another one now: then no shard is damaged or missing."""
        try:
            same = read_sharded_manifest(self.path).digest == self.manifest.digest
        except StoreError:
            return
        if not same:
            raise StoreError(f"{printable(str(self.path))} has been replaced by another store; open it again")

    def _where(self, shard: Shard) -> str:
        return f"shard {shard.name} of {printable(str(self.path))}"

    def _check_file(self, shard: Shard, held: int | None) -> None:
        try:
            file = self._format.data_file(self.path / shard.name)
            size = os.fstat(held).st_size if held is not None else file.stat().st_size
        except OSError as error:
            raise StoreError(f"{self._where(shard)} cannot be opened: {error.strerror or error}") from error
        if size != shard.nbytes:
            raise StoreError(f"{self._where(shard)} has {size} bytes, expected {shard.nbytes}")

    def _open_shard(self, shard: Shard, held: int | None) -> Reader:
        path, where = self.path / shard.name, self._where(shard)
        try:
            # Without a descriptor it could not be opened earlier, which may have changed.
            file = open_regular(self._format.data_file(path)) if held is None else held
        except OSError as error:
            raise StoreError(f"{where} cannot be opened: {error.strerror or error}") from error
        try:
            self._check_file(shard, file)
            reader = self._format.open(path, file)
        finally:
            os.close(file)
        found, whole = reader.manifest, self.manifest
        same = found.format == whole.format and found.encoding == whole.encoding and found.records == shard.records
        if not same or found.shards or [_kind(c) for c in found.columns] != [_kind(c) for c in whole.columns]:
            reader.close()
            raise StoreError(
                f"{where} is of another store: it holds {found.records} records of {found.encoding} "
                f"({FORMATS[found.format].title}), expected {shard.records} of {whole.encoding}"
            )
        if found.digest != shard.manifest_digest:
            reader.close()
            raise StoreError(
                f"{where} is another shard or of another store: the digest of its manifest is {found.digest}, "
                f"expected {shard.manifest_digest}"
            )
        return reader


def _hold(manifest: Manifest, path: Path) -> tuple[list[int | None], int]:
    """Opens the files of the shards, as many as the process may have open.

    Returns a descriptor for each, None for one that is not or cannot be opened (reading it says why), and how many open
    files were reserved."""
    promised = allow_open_files(_FILES_A_SHARD * len(manifest.shards))
    allowed = promised // _FILES_A_SHARD
    files: list[int | None] = [None] * len(manifest.shards)
    format: Format = FORMATS[manifest.format]
    for i, shard in enumerate(manifest.shards[:allowed]):
        try:
            files[i] = open_regular(format.data_file(path / shard.name))
        except OSError:
            continue
    return files, promised


def _drop(files: list[int | None], promised: int) -> None:
    for i, file in enumerate(files):
        if file is not None:
            files[i] = None
            os.close(file)
    release_open_files(promised)


def _manifest_identity(path: Path) -> tuple[int, int]:
    try:
        return device_and_inode(path / MANIFEST_FILE)
    except OSError as error:
        raise StoreError(f"{printable(str(path / MANIFEST_FILE))} cannot be read: {error.strerror or error}") from error


def read_sharded_manifest(path: Path) -> Manifest:
    """The manifest of the sharded store at ``path``. Raises :class:`StoreError`."""
    file = path / MANIFEST_FILE
    shown = printable(str(path))
    try:
        with file.open("rb") as opened:
            text = opened.read(MAX_JSON_BYTES + 1)
    except OSError as error:
        raise StoreError(f"{printable(str(file))} cannot be read: {error.strerror or error}") from error
    manifest = parse_manifest(text, file)
    if not manifest.shards:
        raise StoreError(f"{shown} has a manifest that names no shards")
    names = [shard.name for shard in manifest.shards]
    format: Format = FORMATS[manifest.format]
    expected = [format.shard_name(i) for i in range(len(names))]
    if names != expected:
        raise StoreError(f"{shown} has a manifest with the shards {names!r:.200}, not {expected!r:.200}")
    return manifest


def _joined(column: Column, parts: list[ColumnData]) -> ColumnData:
    """A column's values of all shards as one. Those of a single shard are not copied."""
    if len(parts) == 1:
        return parts[0]
    if column.kind == "fixed":
        joined: NDArray[Any] = np.concatenate([p for p in parts if isinstance(p, np.ndarray)])
        joined.flags.writeable = False
        return joined
    ragged = [p for p in parts if isinstance(p, Ragged)]
    bases = [0, *itertools.accumulate(len(p.data) for p in ragged)]
    offsets = np.concatenate(
        [np.zeros(1, np.int64), *(p.offsets[1:] + base for p, base in zip(ragged, bases, strict=False))]
    )
    data = np.concatenate([p.data for p in ragged])
    offsets.flags.writeable = data.flags.writeable = False
    return Ragged(offsets, data)


def _kind(column: Column) -> tuple[Any, ...]:
    return column.name, column.kind, column.dtype, column.shape, column.layout, column.classes
