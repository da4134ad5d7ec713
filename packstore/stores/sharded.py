"""A sharded store: a directory of shards with one manifest, read as one store."""

from __future__ import annotations

import bisect
import dataclasses
import errno
import itertools
import json
import os
import threading
import weakref
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packstore.core.checksums import file_digest, join_records_digests
from packstore.core.columns import NUMPY_DTYPE, Buffer, ColumnData, Ragged
from packstore.core.errors import ManifestError, StoreError, UsageError, printable
from packstore.core.files import (
    MANIFEST_FILE,
    device_and_inode,
    open_regular,
    raise_open_file_limit,
    release_open_files,
)
from packstore.core.manifest import MAX_JSON_BYTES, Column, Manifest
from packstore.core.plainjson import canonical
from packstore.core.progress import Progress, ProgressCallback, no_progress
from packstore.core.registry import FORMATS
from packstore.core.shards import Shard, ShardTable
from packstore.stores.base import Problem, Reader, parse_manifest
from packstore.stores.format import Format
from packstore.stores.link_files import LinkedFiles
from packstore.stores.linked import LinkedReader, folder_of

_OPEN_TRIES = 8
_FILES_A_SHARD = 3
"""Descriptors of a shard: its file until that is mapped, and at most two maps."""
_MOST_OPEN = 1024
"""Shards that a reader holds open, where the process may have so many files open; each takes 3 files and 20 KB."""
_FEWEST_OPEN = 32
"""Shards that it holds open all the same."""
_NO_MORE_FILES = (errno.EMFILE, errno.ENFILE)


class ShardedReader(Reader):
    """Opens shards when they are needed, and reads what is in them when that is needed.

    Up to 1,024 shards are open at a time, less where the process may not open so many files. A store that has no more
    keeps its files open from the beginning, and its reader works on when the store is replaced. Of a larger one, the
    shards used longest ago are let go. Each proves by the digest of its manifest that it is the one that the table
    means, whenever it is opened: after a replacement, a shard that is not open raises :class:`StoreError`, and nothing
    of the new store is ever taken for the old one's.
    """

    def __init__(self, path: Path, manifest: Manifest, files: dict[int, int], promised: int) -> None:
        """
        Args:
            path: Of the store.
            manifest: Its manifest, with the table.
            files: Descriptors of shards that are open already, by number; the reader closes them.
            promised: How many open files are reserved for it.
        """
        table = _table(manifest)
        super().__init__(path, manifest)
        self._format: Format = FORMATS[manifest.format]
        self._table = table
        self._data_file = f"/{self._format.files[0]}" if self._format.files else ""
        self._files = files
        self._finalizer = weakref.finalize(self, _drop, files, promised)
        self._starts: list[int] = table.starts.tolist()
        self._open: dict[int, Reader] = {}
        self._most = max(_FEWEST_OPEN, promised // _FILES_A_SHARD)
        self._bounded = self._most < len(table)
        self._used: dict[int, int] = {}  # when each of the open shards was last used, where their number is bounded
        self._clock = itertools.count()
        self._columns: dict[str, ColumnData] = {}
        self._linked = LinkedFiles()
        self._lock = threading.RLock()  # a remote reader lets shards go while it opens one
        self._closed = False

    def read(self, index: int) -> Buffer:
        reader, local = self._locate(index)
        return reader.read(local)

    def view(self, index: int) -> Buffer:
        reader, local = self._locate(index)
        view = reader.view(local)
        # A view keeps its shard's map, and so a file open: those of a batch would be as many as its records.
        return bytes(view) if self._bounded else view

    def views(self, records: NDArray[np.int64]) -> Sequence[Buffer]:
        if not self.manifest.is_linked or not len(records):
            return super().views(records)
        found: list[Buffer] = [b""] * len(records)
        for reader, some, local in self._by_shard(records):
            for place, view in zip(some.tolist(), reader.views(local), strict=True):
                found[place] = view
        return found

    def will_need(self, index: int, view: Buffer) -> None:
        if not self._bounded:
            reader, local = self._locate(index)
            reader.will_need(local, view)

    def array(self, index: int) -> NDArray[Any]:
        reader, local = self._locate(index)
        array = reader.array(local)
        if self._bounded:
            array = array.copy()
            array.flags.writeable = False
        return array

    def value(self, name: str, index: int) -> Any:
        reader, local = self._locate(index)
        value = reader.value(name, local)
        return bytes(value) if self._bounded and isinstance(value, memoryview) else value

    def values(self, name: str, records: NDArray[np.int64]) -> NDArray[Any]:
        column = self.manifest.column(name)
        if column.kind != "fixed" or name == "image":
            return self.fixed(name)[records]
        chosen: NDArray[np.int64] = np.asarray(records, np.int64)
        if len(chosen) and not 0 <= int(chosen.min()) <= int(chosen.max()) < len(self):
            raise IndexError(f"records {chosen.min()} to {chosen.max()} of {len(self)}")
        out: NDArray[Any] | None = None
        for reader, some, local in self._by_shard(chosen):
            values = reader.values(name, local)
            if out is None:  # not before: a manifest may promise any shape
                out = np.empty((len(chosen), *column.shape), NUMPY_DTYPE[column.dtype])
            out[some] = values
        return np.empty((0, *column.shape), NUMPY_DTYPE[column.dtype]) if out is None else out

    def part(self, number: int) -> Reader:
        return self.shard(number)

    @property
    def part_starts(self) -> NDArray[np.int64]:
        return self._table.starts[:-1]

    def places(self) -> list[str]:
        return [f"{self.path}/{name}" for name in self._table.names()]

    def key(self, index: int) -> str:
        reader, local = self._locate(index)
        return reader.key(local)

    def column(self, name: str) -> ColumnData:
        column = self.manifest.column(name)
        if name == "image":
            raise StoreError("a sharded store has no array of all images; read them one by one")
        columns = self._columns  # another thread may close meanwhile
        if name not in columns:
            columns[name] = joined_values(column, (part.column(name) for part in self.parts()), self._bounded)
        return columns[name]

    def close(self) -> None:
        with self._lock:
            self._closed = True
            readers = [*self._open.values()]
            self._open.clear()
            self._columns = {}
            self._linked.clear()
            self._finalizer()
        for reader in readers:
            reader.close()

    def shard(self, number: int) -> Reader:
        """The reader of one shard. Raises :class:`StoreError` that names the shard when it is missing, not whole, or
        not the one that the manifest means."""
        if self._bounded:
            self._used[number] = next(self._clock)
        reader = self._open.get(number)
        if reader is None:
            self._make_ready(number)
            with self._lock:
                if self._closed:
                    raise StoreError(f"{printable(str(self.path))} is closed")
                reader = self._open.get(number)
                if reader is None:
                    if len(self._open) >= self._most:
                        self._let_go()
                    held = self._files.pop(number, None)  # the reader's map holds it from here
                    try:
                        reader = self._open[number] = self._open_shard(number, held)
                    except StoreError as error:
                        if isinstance(error.__cause__, OSError) and error.__cause__.errno in _NO_MORE_FILES:
                            # Not the store's fault, so that nobody may take the shard for damaged.
                            raise UsageError(f"{error}: raise the limit (ulimit -n), or pack larger shards") from error
                        self._refuse_replaced()
                        raise
        return reader

    def _make_ready(self, number: int) -> None:
        """Does what takes long before a shard is opened, while other threads open others."""

    def check_files(self) -> None:
        try:
            with self._lock:
                for number, nbytes in enumerate(self._table.table["nbytes"].tolist()):
                    if number not in self._open:
                        self._check_file(number, nbytes, self._files.get(number))
        except StoreError:
            self._refuse_replaced()
            raise

    def _let_go(self) -> None:
        """Forgets an eighth of the open shards, those used longest ago. What still uses one keeps it."""
        oldest = sorted(self._open, key=lambda number: self._used.get(number, -1))[: 1 + len(self._open) // 8]
        for number in oldest:
            del self._open[number]
        self._used = {number: self._used.get(number, -1) for number in self._open}

    def _is_manifest_as_written(self) -> bool:
        """Whether the manifest's file holds this manifest in its canonical form, whichever version wrote it."""
        try:
            same = read_sharded_manifest(self.path).digest == self.manifest.digest
            text = (self.path / MANIFEST_FILE).read_bytes()
            return same and text == f"{canonical(json.loads(text))}\n".encode("ascii")
        except (OSError, StoreError, ValueError):
            return False

    def check_structure(self, *, quick: bool = False, progress: ProgressCallback = no_progress) -> Iterator[Problem]:
        """Shards missing, left over, of the wrong size or SHA-256 (not ``quick``), and what each finds in itself."""
        shards = self._table
        if not self._is_manifest_as_written():
            yield Problem(f"{MANIFEST_FILE} holds the manifest, but not as it was written")
        names = {MANIFEST_FILE, shards.file, *shards.names()}
        for entry in sorted(self.path.iterdir()):
            if entry.name not in names:
                yield Problem(f"{printable(entry.name)!r} does not belong to the store")
        done_bytes = 0
        for number, shard in enumerate(shards):
            yield from self._check_shard(number, shard, quick, progress)
            done_bytes += shard.nbytes
            progress(Progress("structure", number + 1, len(shards), done_bytes))
        joined = join_records_digests((shard.records_digest, shard.records) for shard in shards)
        if joined != self.manifest.records_digest:
            yield Problem(
                f"the digest of the records of all shards is {joined}, expected {self.manifest.records_digest}"
            )

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

    def _by_shard(self, records: NDArray[np.int64]) -> Iterator[tuple[Reader, NDArray[np.int64], NDArray[np.int64]]]:
        """The shards of some records: the reader of each, places in ``records``, and the shard's own numbers."""
        numbers = np.searchsorted(self._table.starts, records, "right") - 1
        local = records - self._table.starts[numbers]
        order = np.argsort(numbers, kind="stable")
        edges = np.flatnonzero(np.diff(numbers[order], prepend=-1, append=-1)).tolist()
        for first, last in itertools.pairwise(edges):
            some = order[first:last]
            yield self.shard(int(numbers[some[0]])), some, local[some]

    def _locate(self, index: int) -> tuple[Reader, int]:
        if not 0 <= index < len(self):
            raise IndexError(f"record {index} of {len(self)}")
        number = bisect.bisect_right(self._starts, index) - 1
        reader = None if self._bounded else self._open.get(number)
        return reader or self.shard(number), index - self._starts[number]

    def _refuse_replaced(self) -> None:
        """Raises :class:`StoreError` when the manifest is another one now: then no shard is damaged or missing."""
        try:
            same = read_sharded_manifest(self.path).digest == self.manifest.digest
        except StoreError:
            return
        if not same:
            raise StoreError(f"{printable(str(self.path))} has been replaced by another store; open it again")

    def _where(self, name: str) -> str:
        return f"shard {name} of {printable(str(self.path))}"

    def _check_file(self, number: int, nbytes: int, held: int | None) -> None:
        name = self._table.name(number)
        try:
            # A Path takes longer than the call.
            size = os.stat(f"{self.path}/{name}{self._data_file}" if held is None else held).st_size  # noqa: PTH116
        except OSError as error:
            raise StoreError(f"{self._where(name)} cannot be opened: {error.strerror or error}") from error
        if size != nbytes:
            raise StoreError(f"{self._where(name)} has {size} bytes, expected {nbytes}")

    def _open_shard(self, number: int, held: int | None) -> Reader:
        shard = self._table[number]
        path, where = self.path / shard.name, self._where(shard.name)
        try:
            # Without a descriptor it could not be opened earlier, which may have changed.
            file = open_regular(self._format.data_file(path)) if held is None else held
        except OSError as error:
            raise StoreError(f"{where} cannot be opened: {error.strerror or error}") from error
        try:
            self._check_file(number, shard.nbytes, file)
            reader = self._format.open(path, file)
        finally:
            os.close(file)
        found, whole = reader.manifest, self.manifest
        same = found.format == whole.format and found.encoding == whole.encoding and found.records == shard.records
        if not same or found.shards or not same_columns(found.columns, whole.columns):
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
        if (found.image.nbytes, found.records_digest) != (shard.image_nbytes, shard.records_digest):
            reader.close()
            raise StoreError(f"{where} has other images or records than the table of shards says")
        return LinkedReader(reader, folder_of(self.path), self._linked) if whole.is_linked else reader


def open_sharded(path: Path) -> ShardedReader:
    """Opens the sharded store at ``path``. Raises :class:`StoreError`."""
    for _ in range(_OPEN_TRIES):
        before = _manifest_identity(path)
        try:
            manifest = read_sharded_manifest(path)
        except StoreError:
            if _manifest_identity(path) == before:
                raise
            continue
        files, promised = _hold(manifest, path)
        if _manifest_identity(path) == before:
            return ShardedReader(path, manifest, files, promised)
        _drop(files, promised)  # replaced in between
    raise StoreError(f"{printable(str(path))} was replaced by other stores while it was opened; open it again")


def reserve_open_files(table: ShardTable) -> int:
    """Reserves open files for a reader of these shards. Returns how many it got."""
    return raise_open_file_limit(_FILES_A_SHARD * min(len(table), _MOST_OPEN))


def _hold(manifest: Manifest, path: Path) -> tuple[dict[int, int], int]:
    """Opens the files of the shards if the process may have all of them open, else none.

    Returns their descriptors by the number of the shard, without those that cannot be opened (reading them says why),
    and how many open files were reserved."""
    table, format = _table(manifest), FORMATS[manifest.format]
    promised = reserve_open_files(table)
    files: dict[int, int] = {}
    if promised >= _FILES_A_SHARD * len(table):
        for number, name in enumerate(table.names()):
            with suppress(OSError):
                files[number] = open_regular(format.data_file(path / name))
    return files, promised


def _drop(files: dict[int, int], promised: int) -> None:
    while files:
        os.close(files.popitem()[1])
    release_open_files(promised)


def _table(manifest: Manifest) -> ShardTable:
    assert manifest.shards is not None  # read_sharded_manifest has seen to it
    return manifest.shards


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
    if manifest.shards is None:
        raise StoreError(f"{shown} has a manifest that names no shards")
    suffix = FORMATS[manifest.format].suffixes[0]
    if manifest.shards.suffix != suffix:
        raise StoreError(f"{shown} has a manifest of shards that end with {manifest.shards.suffix!r}, not {suffix!r}")
    return dataclasses.replace(manifest, shards=read_table(path, manifest.shards))


def read_table(path: Path, table: ShardTable) -> ShardTable:
    """``table`` with its rows, of the sharded store at ``path``. Raises :class:`StoreError`."""
    file = path / table.file
    try:
        with os.fdopen(open_regular(file), "rb") as opened:
            data = opened.read(table.nbytes + 1)
    except OSError as error:
        raise StoreError(f"{printable(str(file))} cannot be read: {error.strerror or error}") from error
    try:
        return table.read(data)
    except ManifestError as error:
        raise ManifestError(f"{printable(str(file))}: {error}") from None


def joined_values(column: Column, values: Iterable[ColumnData], copy: bool) -> ColumnData:
    """A column's values of all shards as one. Those of a single shard are not copied.

    With ``copy``, each part is copied at once, and does not keep its shard open."""
    parts = [_copied(part) for part in values] if copy else [*values]
    if len(parts) == 1:
        return parts[0]
    if column.kind == "fixed":
        joined: NDArray[Any] = np.concatenate([p[:] for p in parts if not isinstance(p, Ragged)])
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


def _copied(values: ColumnData) -> ColumnData:
    if isinstance(values, Ragged):
        return Ragged(values.offsets.copy(), values.data.copy())
    return values[:].copy() if isinstance(values, np.ndarray) else values[:]


def same_columns(shard: Sequence[Column], whole: Sequence[Column]) -> bool:
    """Whether a shard has the columns of its store. It may lack the last classes: what was appended has them."""
    if len(shard) != len(whole):
        return False
    for mine, column in zip(shard, whole, strict=True):
        classes = mine.classes
        if classes is not None and column.classes is not None and column.classes[: len(classes)] == classes:
            classes = column.classes
        if dataclasses.replace(mine, classes=classes).declared != column.declared:
            return False
    return True
