"""The files of a sharded store: a directory of shards with one manifest and one table."""

from __future__ import annotations

import dataclasses
import errno
import itertools
import json
import os
import threading
import weakref
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from packstore.core.errors import ManifestError, StoreError, UnreachableError, UsageError, printable
from packstore.core.files import (
    MANIFEST_FILE,
    device_and_inode,
    open_regular,
    raise_open_file_limit,
    release_open_files,
)
from packstore.core.manifest import MAX_JSON_BYTES, Column, Manifest
from packstore.core.plainjson import to_canonical_json
from packstore.core.progress import Progress, ProgressCallback, no_progress
from packstore.core.proof import file_digest, join_records_digests
from packstore.core.registry import FORMATS
from packstore.core.shards import Shard, ShardTable
from packstore.core.urls import ShardPlace
from packstore.stores.format import Format, parse_manifest
from packstore.stores.linked import Linked, LinkedFiles, link_folder
from packstore.stores.parts import Part, Problem
from packstore.stores.records import PartTable

_OPEN_TRIES = 8
_FILES_A_SHARD = 3
"""Open files a shard takes: its file until that is mapped, and at most two maps."""
_MOST_OPEN = 1024
"""Most shards that a reader holds open, if the process may open enough files; each takes 3 files and 20 KB."""
_FEWEST_OPEN = 32
"""Fewest shards that a reader may hold open, whatever the process's limit."""
_NO_MORE_FILES = (errno.EMFILE, errno.ENFILE)


class Shards(PartTable):
    """The shards of a store in a directory. Opens them when they are needed.

    Holds up to 1,024 shards open, or fewer if the process may not open enough files.

    - No more shards than that: :func:`open_sharded` opens all files at the beginning. The reader then still works after
      the store is replaced.
    - More shards: closes those that were used longest ago, and :class:`Chain` copies what it reads.

    Each opened shard must have the manifest digest that the table lists. After the store is replaced, opening another
    shard therefore raises :class:`StoreError`.
    """

    def __init__(self, path: Path, manifest: Manifest, files: dict[int, int], promised: int) -> None:
        """Args:
        path: Path of the store.
        manifest: Its manifest, with the table.
        files: Descriptors of shards that are open already, by number. The reader closes them.
        promised: Number of open files reserved for the reader.
        """
        table = manifest.shard_table
        super().__init__(path, manifest, table.starts[:-1])
        self._format: Format = FORMATS[manifest.format]
        self._table = table
        self._data_file = f"/{self._format.files[0]}" if self._format.files else ""
        self._files = files
        self._finalizer = weakref.finalize(self, _close_files, files, promised)
        self._open: dict[int, Part] = {}
        self._most = max(_FEWEST_OPEN, promised // _FILES_A_SHARD)
        self.bounded = self._most < len(table)
        self._used: dict[int, int] = {}  # time of last use of each open shard, if their number is bounded
        self._clock = itertools.count()
        self._linked = LinkedFiles()
        self._lock = threading.RLock()  # reentrant: a remote reader closes shards while it opens one
        self._closed = False

    def places(self) -> list[ShardPlace]:
        """Path or URL of each shard, in order."""
        return [f"{self.path}/{name}" for name in self._table.names()]

    def close(self) -> None:
        """Closes all shards and files, and releases the reserved open files."""
        with self._lock:
            self._closed = True
            parts = [*self._open.values()]
            self._open.clear()
            self.columns = {}
            self._linked.clear()
            self._finalizer()
        for part in parts:
            part.close()

    def open(self, number: int) -> Part:
        """Returns a shard. Opens it if need be, and may close others to make room.

        Raises:
            StoreError: The shard is missing, incomplete, or not the one that the table lists. The store was replaced,
                or this reader is closed.
            UsageError: The process may not open more files.
        """
        if self.bounded:
            self._used[number] = next(self._clock)
        part = self._open.get(number)
        if part is None:
            self._fetch_before_opening(number)
            with self._lock:
                if self._closed:
                    raise StoreError(f"{printable(str(self.path))} is closed")
                part = self._open.get(number)
                if part is None:
                    if len(self._open) >= self._most:
                        self._close_oldest()
                    held = self._files.pop(number, None)  # from here on its map keeps it open
                    try:
                        part = self._open[number] = self._open_shard(number, held)
                    except StoreError as error:
                        if isinstance(error.__cause__, OSError) and error.__cause__.errno in _NO_MORE_FILES:
                            # Another class of error: the shard must not be taken for damaged.
                            raise UsageError(f"{error}: raise the limit (ulimit -n), or pack larger shards") from error
                        self._raise_if_replaced()
                        raise
        return part

    def _fetch_before_opening(self, number: int) -> None:
        """Fetches a shard that is not local, without the lock: other threads may open shards meanwhile."""

    def check_files(self) -> None:
        """Raises :class:`StoreError` if the file of a shard that is not open is missing or has another size.

        If another store has replaced this one, the error says that instead.
        """
        try:
            with self._lock:
                for number, nbytes in enumerate(self._table.table["nbytes"].tolist()):
                    if number not in self._open:
                        self._check_file_size(number, nbytes, self._files.get(number))
        except StoreError:
            self._raise_if_replaced()
            raise

    def _close_oldest(self) -> None:
        """Drops the eighth of the open shards that was used longest ago."""
        oldest = sorted(self._open, key=lambda number: self._used.get(number, -1))[: 1 + len(self._open) // 8]
        for number in oldest:
            del self._open[number]  # arrays and views in use keep the file open
        self._used = {number: self._used.get(number, -1) for number in self._open}

    def _is_manifest_canonical(self) -> bool:
        """Returns whether the manifest's file is unchanged, and canonical JSON as packstore writes it."""
        try:
            same = read_sharded_manifest(self.path).digest == self.manifest.digest
            text = (self.path / MANIFEST_FILE).read_bytes()
            return same and text == f"{to_canonical_json(json.loads(text))}\n".encode("ascii")
        except (OSError, StoreError, ValueError):
            return False

    def faults(self, *, quick: bool = False, progress: ProgressCallback = no_progress) -> Iterator[Problem]:
        """Yields a changed manifest, faults of each shard, and a wrong digest of all records.

        Opens all shards. ``quick``: compare no SHA-256.
        """
        shards = self._table
        if not self._is_manifest_canonical():
            yield Problem(f"{MANIFEST_FILE} was changed, although its values are the same")
        done_bytes = 0
        for number, shard in enumerate(shards):
            yield from self._check_shard(number, shard, quick, progress)
            done_bytes += shard.nbytes
            progress(Progress("structure", number + 1, len(shards), done_bytes))
        yield from self._check_joined_digest()

    def _check_joined_digest(self) -> Iterator[Problem]:
        """Yields a problem if the table's digests of records do not give that of the manifest."""
        joined = join_records_digests((shard.records_digest, shard.records) for shard in self._table)
        if joined != self.manifest.records_digest:
            expected = self.manifest.records_digest
            yield Problem(f"the digest of the records of all shards is {joined}, expected {expected}")

    def list_surplus_files(self) -> list[str]:
        """Lists the names in the store's directory that the manifest does not know.

        Raises :class:`StoreError` if the directory cannot be listed.
        """
        names = {MANIFEST_FILE, self._table.file, *self._table.names()}
        try:
            return sorted(entry.name for entry in self.path.iterdir() if entry.name not in names)
        except OSError as error:  # such as: a store of one file has replaced it
            raise StoreError(f"{printable(str(self.path))} cannot be listed: {error.strerror or error}") from error

    def _check_shard(self, number: int, shard: Shard, quick: bool, progress: ProgressCallback) -> Iterator[Problem]:
        """Yields the faults of a shard; ``quick`` leaves out its SHA-256."""
        file = self._format.data_file(self.path / shard.name)
        if file.exists() and not file.is_file():  # reading a pipe would block, a device would never end
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
        yield from self._check_part(number, quick, progress)

    def _check_part(self, number: int, quick: bool, progress: ProgressCallback) -> Iterator[Problem]:
        """Opens a shard and yields its faults, or why it does not open."""
        name, start = self._table.name(number), int(self.starts[number])
        try:
            part = self.open(number)
        except UnreachableError:  # the shard may be undamaged
            raise
        except StoreError as error:
            yield Problem(str(error), shard=name, lost=True)
            return
        for problem in part.faults(quick=quick, progress=progress):
            record = None if problem.record is None else start + problem.record
            yield Problem(problem.what, record, problem.key, name, problem.lost)

    def _raise_if_replaced(self) -> None:
        """Raises :class:`StoreError` if another store has replaced this one."""
        try:
            same = read_sharded_manifest(self.path).digest == self.manifest.digest
        except StoreError:
            return  # a damaged manifest: the caller's own error says more
        if not same:
            raise StoreError(f"{printable(str(self.path))} has been replaced by another store; open it again")

    def _describe_shard(self, name: str) -> str:
        """Returns "shard NAME of STORE", for messages."""
        return f"shard {name} of {printable(str(self.path))}"

    def _check_file_size(self, number: int, nbytes: int, held: int | None) -> None:
        """Raises :class:`StoreError` if a shard's file, or the open ``held``, is missing or has another size."""
        name = self._table.name(number)
        try:
            # A Path takes longer than the call.
            size = os.stat(f"{self.path}/{name}{self._data_file}" if held is None else held).st_size  # noqa: PTH116
        except OSError as error:
            raise StoreError(f"{self._describe_shard(name)} cannot be opened: {error.strerror or error}") from error
        if size != nbytes:
            raise StoreError(f"{self._describe_shard(name)} has {size} bytes, expected {nbytes}")

    def _open_shard(self, number: int, held: int | None) -> Part:
        """Opens a shard by its path, or by the descriptor ``held``, which it closes."""
        shard = self._table[number]
        path, where = self.path / shard.name, self._describe_shard(shard.name)
        try:
            # If it is not open, opening it failed earlier, or there are too many: try now.
            file = open_regular(self._format.data_file(path)) if held is None else held
        except OSError as error:
            raise StoreError(f"{where} cannot be opened: {error.strerror or error}") from error
        try:
            self._check_file_size(number, shard.nbytes, file)
            part = self._format.open(path, file)
        finally:
            os.close(file)
        own, whole = part.manifest, self.manifest
        same = own.format == whole.format and own.encoding == whole.encoding and own.records == shard.records
        if not same or own.shards or not columns_match(own.columns, whole.columns):
            part.close()
            raise StoreError(
                f"{where} belongs to another store: it holds {own.records} records of {own.encoding} "
                f"({FORMATS[own.format].title}), expected {shard.records} of {whole.encoding}"
            )
        if own.digest != shard.manifest_digest:
            part.close()
            raise StoreError(
                f"{where} is another shard, or belongs to another store: the digest of its manifest is {own.digest}, "
                f"expected {shard.manifest_digest}"
            )
        if (own.image.nbytes, own.records_digest) != (shard.image_nbytes, shard.records_digest):
            part.close()
            raise StoreError(f"{where} has other images or records than the table of shards lists")
        if not whole.is_linked:
            return part
        return Linked(part, link_folder(self.path), self._linked)


def open_sharded(path: Path) -> Shards:
    """Opens the sharded store at ``path``. Retries up to eight times if another store replaces it meanwhile.

    Raises :class:`StoreError` if manifest or table cannot be read, or if all tries failed.
    """
    for _ in range(_OPEN_TRIES):
        before = manifest_identity(path)
        try:
            manifest = read_sharded_manifest(path)
        except StoreError:
            if manifest_identity(path) == before:
                raise
            continue
        files, promised = _open_files(manifest, path)
        if manifest_identity(path) == before:
            return Shards(path, manifest, files, promised)
        _close_files(files, promised)  # the store was replaced meanwhile
    raise StoreError(f"{printable(str(path))} was replaced by other stores while it was opened; open it again")


def reserve_open_files(table: ShardTable) -> int:
    """Reserves open files for a reader of these shards, and raises the process's limit if need be.

    Returns the number of reserved files, which may be smaller than needed.
    """
    return raise_open_file_limit(_FILES_A_SHARD * min(len(table), _MOST_OPEN))


def _open_files(manifest: Manifest, path: Path) -> tuple[dict[int, int], int]:
    """Opens the files of shards; returns descriptors by shard number, and the number of files reserved."""
    table, format = manifest.shard_table, FORMATS[manifest.format]
    promised = reserve_open_files(table)
    files: dict[int, int] = {}
    # all files or none: a process near its limit opens shards as they are read
    if promised >= _FILES_A_SHARD * len(table):
        for number, name in enumerate(table.names()):
            with suppress(OSError):  # opening the shard later raises the error
                files[number] = open_regular(format.data_file(path / name))
    return files, promised


def _close_files(files: dict[int, int], promised: int) -> None:
    """Closes descriptors and releases the reserved open files."""
    while files:
        os.close(files.popitem()[1])
    release_open_files(promised)


def read_sharded_manifest(path: Path) -> Manifest:
    """Reads the manifest and the table of shards of the sharded store at ``path``.

    Raises :class:`StoreError` if one of them is missing or damaged. Raises it also if the manifest names no shards, or
    shards with a suffix of another format.
    """
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
    """Reads the table's file in the sharded store at ``path``. Returns ``table`` with its rows.

    Raises :class:`StoreError` if the file is missing or has another digest.
    """
    file = path / table.file
    try:
        with os.fdopen(open_regular(file), "rb") as opened:
            data = opened.read(table.nbytes + 1)
    except OSError as error:
        raise StoreError(f"{printable(str(file))} cannot be read: {error.strerror or error}") from error
    try:
        return table.parse_rows(data)
    except ManifestError as error:
        raise ManifestError(f"{printable(str(file))}: {error}") from None


def manifest_identity(path: Path) -> tuple[int, int]:
    """Returns device and inode of the manifest's file, which change when a store is replaced.

    Raises :class:`StoreError` if there is no such file.
    """
    try:
        return device_and_inode(path / MANIFEST_FILE)
    except OSError as error:
        raise StoreError(f"{printable(str(path / MANIFEST_FILE))} cannot be read: {error.strerror or error}") from error


def columns_match(shard: Sequence[Column], whole: Sequence[Column]) -> bool:
    """Returns whether a shard's columns are declared like those of its store.

    The shard may lack the last classes, which later shards added.
    """
    if len(shard) != len(whole):
        return False
    for mine, column in zip(shard, whole, strict=True):
        classes = mine.classes
        if classes is not None and column.classes is not None and column.classes[: len(classes)] == classes:
            classes = column.classes
        if dataclasses.replace(mine, classes=classes).declaration != column.declaration:
            return False
    return True
