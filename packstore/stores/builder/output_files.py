"""The files of a store while it is written: one, or several shards, each sealed, read back and synced when full."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from packstore.core.checksums import file_digest
from packstore.core.columns import WholeColumn
from packstore.core.errors import StoreError
from packstore.core.files import sync_tree
from packstore.core.manifest import Column, Manifest
from packstore.core.shards import Shard
from packstore.stores.base import Writer
from packstore.stores.builder.interrupted import InterruptedRun
from packstore.stores.builder.read_back import read_again
from packstore.stores.format import Format


@dataclasses.dataclass(slots=True)
class OutputFile:
    """One file of the store: the whole store, or a shard.

    Attributes:
        path: The file, or an LMDB's directory.
        start: Its first record.
        stop: One after its last.
        nbytes: Bytes of its images.
        writer: None for a shard that is reused from an interrupted run.
        adopted: That shard.
    """

    path: Path
    start: int
    stop: int
    nbytes: int = 0
    writer: Writer | None = None
    adopted: Shard | None = None


Describe = Callable[[OutputFile], tuple[Manifest, Mapping[str, WholeColumn]]]
"""Gives the manifest of a file and all its columns but ``image``."""


class OutputFiles:
    """Writes images in order to one file, or to shards.

    Attributes:
        sharded: Whether there are shards.
        sealed: The shards that are sealed.
        interrupted: The interrupted run whose sealed shards are reused, or None.
    """

    def __init__(self, path: Path, format: Format, image: Column, *, sharded: bool, shard_size: int | None) -> None:
        """``path`` is the file, or the directory of shards. These end where :meth:`cut` says, and with ``shard_size``
        before they would have more bytes of images."""
        self._path = path
        self._format = format
        self._image = image
        self.sharded = sharded
        self._shard_size = shard_size
        self._cut = False
        self._files: list[OutputFile] = []
        self.sealed: list[Shard] = []
        self.interrupted: InterruptedRun | None = None

    def write(self, buffers: Sequence[bytes | memoryview], sizes: list[int], first_record: int) -> None:
        """Gives images to the current file, and begins a new one where its size would pass the shard size."""
        if not buffers:
            return
        if not self._files or (self._cut and self._files[-1].stop > self._files[-1].start):
            self._begin(first_record)
        self._cut = False
        first = 0
        if self._shard_size is not None:
            for i, size in enumerate(sizes):
                file = self._files[-1]
                if file.nbytes + size > self._shard_size and first_record + i > file.start:
                    _append(file, buffers[first:i])
                    first = i
                    file = self._begin(first_record + i)
                file.nbytes += size
        else:
            self._files[-1].nbytes += sum(sizes)
        _append(self._files[-1], buffers[first:])

    def cut(self) -> None:
        """Ends the shard, if it has a record: the next one begins another. Of a store of one file, nothing."""
        self._cut = self.sharded

    def seal_full(self, describe: Describe) -> None:
        """Seals the shards that get no more records; all columns of these must have been appended."""
        while self.sharded and len(self.sealed) < len(self._files) - 1:
            self._seal_shard(describe)

    def seal_all(self, describe: Describe) -> Manifest | None:
        """Seals what is left; returns the manifest of the only file, or None in a sharded store."""
        if not self.sharded:
            (file,) = self._files
            manifest, columns = describe(file)
            _seal(file, manifest, columns)
            return manifest
        while len(self.sealed) < len(self._files):
            self._seal_shard(describe)
        return None

    def writers(self) -> list[Writer]:
        return [file.writer for file in self._files if file.writer is not None]

    def _begin(self, start: int) -> OutputFile:
        if self._files and (full := self._files[-1].writer) is not None:
            full.suspend()
        number = len(self._files)
        path = self._path / self._format.shard_name(number) if self.sharded else self._path
        file = OutputFile(path, start, start)
        shard = self.interrupted.sealed(number, start) if self.interrupted is not None else None
        if self.interrupted is not None and shard is not None:
            self.interrupted.adopt(shard, path)
            file.adopted = shard
        else:
            file.writer = self._format.new_writer(path, self._image)
        self._files.append(file)
        return file

    def _seal_shard(self, describe: Describe) -> None:
        file = self._files[len(self.sealed)]
        manifest, columns = describe(file)
        records, shard = file.stop - file.start, file.adopted
        if shard is None:
            _seal(file, manifest, columns)
            nbytes, digest = file_digest(self._format.data_file(file.path))
            shard = Shard(
                file.path.name, records, nbytes, file.nbytes, manifest.records_digest, digest, manifest.digest
            )
        elif (shard.records, shard.manifest_digest) != (records, manifest.digest):
            raise StoreError(
                f"{shard.name} of the interrupted run is not what its source gives now; pack with --restart"
            )
        self.sealed.append(shard)


def _append(file: OutputFile, buffers: Sequence[bytes | memoryview]) -> None:
    if file.writer is not None:
        file.writer.append(buffers)
    file.stop += len(buffers)


def _seal(file: OutputFile, manifest: Manifest, columns: Mapping[str, WholeColumn]) -> None:
    """Seals a file, makes it durable, and reads it back meanwhile: the one waits, the other computes."""
    assert file.writer is not None  # a reused shard is sealed already
    file.writer.seal(manifest, columns)
    with ThreadPoolExecutor(1, thread_name_prefix="packstore-sync") as pool:
        synced = pool.submit(sync_tree, file.path)
        read_again(file.path, manifest)
        synced.result()
    file.writer.synced()
