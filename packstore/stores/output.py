"""Writes the files of a store: one, or several shards, each sealed, read back and synced when full."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import numpy as np

from packstore.core.columns import WholeColumn
from packstore.core.errors import StoreError, printable
from packstore.core.files import sync_tree
from packstore.core.manifest import Column, Manifest
from packstore.core.parallel import default_workers, ordered_map
from packstore.core.proof import file_digest, find_different_image
from packstore.core.registry import FORMATS
from packstore.core.shards import Shard
from packstore.stores.assembly import differs_error
from packstore.stores.format import FileWriter, Format
from packstore.stores.places.resuming import InterruptedRun
from packstore.stores.staged_columns import describe_column

_BATCH_BYTES = 4 << 20


@dataclasses.dataclass(slots=True)
class OutputFile:
    """One file of a store that is being written: the whole store, or a shard.

    Attributes:
        path: The file, or an LMDB's directory.
        start: Its first record.
        stop: One after its last record.
        nbytes: Bytes of its images.
        writer: Its writer; None for a shard reused from an interrupted run.
        adopted: The reused shard, or None.
    """

    path: Path
    start: int
    stop: int
    nbytes: int = 0
    writer: FileWriter | None = None
    adopted: Shard | None = None


DescribeFile = Callable[[OutputFile], tuple[Manifest, Mapping[str, WholeColumn]]]
"""Returns the manifest of a file and all its columns but ``image``."""


class OutputFiles:
    """Writes images in order to one file, or to shards. Reads each file back when it is sealed.

    Links shards that an interrupted run has completed, instead of writing them again.

    Attributes:
        sharded: Whether the store has shards.
        sealed: The sealed shards.
        interrupted_run: The interrupted run whose sealed shards are reused, or None.
    """

    def __init__(self, path: Path, format: Format, image: Column, *, sharded: bool, shard_size: int | None) -> None:
        """``path`` is the file, or the directory of shards. :meth:`end_shard` ends a shard.

        ``shard_size``: most bytes of images in a shard, unless a single image has more; None for no limit.
        """
        self._path = path
        self._format = format
        self._image = image
        self.sharded = sharded
        self._shard_size = shard_size
        self._cut = False
        self._files: list[OutputFile] = []
        self.sealed: list[Shard] = []
        self.interrupted_run: InterruptedRun | None = None

    def write_images(self, buffers: Sequence[bytes | memoryview], sizes: list[int], first_record: int) -> None:
        """Writes images to the current file. Begins a new file if there is none, after :meth:`end_shard`, and before an
        image that would exceed the shard size.

        ``sizes``: bytes of each image, which a linked store has in other files.
        """
        if not buffers:
            return
        if not self._files or (self._cut and self._files[-1].stop > self._files[-1].start):
            self._begin_file(first_record)
        self._cut = False
        first = 0
        if self._shard_size is not None:
            for i, size in enumerate(sizes):
                file = self._files[-1]
                if file.nbytes + size > self._shard_size and first_record + i > file.start:
                    _append_to_file(file, buffers[first:i])
                    first = i
                    file = self._begin_file(first_record + i)
                file.nbytes += size
        else:
            self._files[-1].nbytes += sum(sizes)
        _append_to_file(self._files[-1], buffers[first:])

    def end_shard(self) -> None:
        """Makes the next record begin another shard. Has no effect if the current shard is empty, or without shards."""
        self._cut = self.sharded

    def seal_full_shards(self, describe: DescribeFile) -> None:
        """Seals all shards but the last. Does nothing without shards.

        All columns of their records must have been appended.
        """
        while self.sharded and len(self.sealed) < len(self._files) - 1:
            self._seal_shard(describe)

    def seal_remaining(self, describe: DescribeFile) -> Manifest | None:
        """Seals all files that are not sealed. Returns the manifest of a single file, or None in a sharded store."""
        if not self.sharded:
            (file,) = self._files
            manifest, columns = describe(file)
            _seal_file(file, manifest, columns)
            return manifest
        while len(self.sealed) < len(self._files):
            self._seal_shard(describe)
        return None

    def list_writers(self) -> list[FileWriter]:
        """Lists the writers of all files, also of sealed ones. A shard reused from an interrupted run has no writer."""
        return [file.writer for file in self._files if file.writer is not None]

    def _begin_file(self, start: int) -> OutputFile:
        """Begins a file at record ``start``, or reuses a checked shard of the interrupted run."""
        if self._files and (full := self._files[-1].writer) is not None:
            full.suspend()  # the file before gets no more images
        number = len(self._files)
        path = self._path / self._format.shard_name(number) if self.sharded else self._path
        file = OutputFile(path, start, start)
        # a shard with this number and first record
        shard = self.interrupted_run.find_proven_shard(number, start) if self.interrupted_run is not None else None
        if self.interrupted_run is not None and shard is not None:
            self.interrupted_run.link_shard(shard, path)
            file.adopted = shard
        else:
            file.writer = self._format.new_writer(path, self._image)
        self._files.append(file)
        return file

    def _seal_shard(self, describe: DescribeFile) -> None:
        """Seals the first unsealed shard, or takes over a reused one, and adds it to :attr:`sealed`."""
        file = self._files[len(self.sealed)]
        manifest, columns = describe(file)
        records, shard = file.stop - file.start, file.adopted
        if shard is None:
            _seal_file(file, manifest, columns)
            nbytes, digest = file_digest(self._format.data_file(file.path))
            shard = Shard(
                file.path.name, records, nbytes, file.nbytes, manifest.records_digest, digest, manifest.digest
            )
        # the reused shard must be what would be written now
        elif (shard.records, shard.manifest_digest) != (records, manifest.digest):
            raise StoreError(
                f"{shard.name} of the interrupted run differs from what the source gives now; pack with --restart"
            )
        self.sealed.append(shard)


def _append_to_file(file: OutputFile, buffers: Sequence[bytes | memoryview]) -> None:
    """Appends images to a file and counts them."""
    # a shard reused from an interrupted run has its images already
    if file.writer is not None:
        file.writer.append(buffers)
    file.stop += len(buffers)


def _seal_file(file: OutputFile, manifest: Manifest, columns: Mapping[str, WholeColumn]) -> None:
    """Seals a file, and reads it back while another thread syncs it to the disk."""
    assert file.writer is not None  # a reused shard is sealed already
    file.writer.seal(manifest, columns)
    with ThreadPoolExecutor(1, thread_name_prefix="packstore-sync") as pool:
        synced = pool.submit(sync_tree, file.path)
        verify_read_back(file.path, manifest)
        synced.result()
    file.writer.check_synced()


def verify_read_back(path: Path, manifest: Manifest) -> None:
    """Opens a sealed file, and compares manifest, columns and images with the digests of the written data.

    Also checks the file's structure. Does not read the images of a linked store.

    The data usually comes from the system's page cache. This finds faults of library, memory and file system, not of a
    disk that loses data after confirming the write.

    Raises:
        StoreError: Something differs, or the file does not open.
    """
    shown, format = printable(str(path)), FORMATS[manifest.format]
    with closing(format.open(path)) as part:
        if part.manifest.digest != manifest.digest:
            raise differs_error(shown, "its manifest")
        for column in manifest.columns[1:]:
            if describe_column(column, part.column(column.name)) != column:
                raise differs_error(shown, f"column {column.name!r}")
        problem = next(iter(part.faults(quick=format.quick_read_back)), None)
        if problem is not None:
            raise differs_error(shown, f"the structure ({problem.what})")
        if manifest.is_linked:  # the images are in other files
            return
        checksums, total = part.fixed_column("checksum"), len(part)

        def find_wrong(some: range) -> int | None:
            data, starts, sizes = part.locate(np.arange(some.start, some.stop))
            images = (data[at : at + size] for at, size in zip(starts.tolist(), sizes.tolist(), strict=True))
            return find_different_image(images, checksums[some.start : some.stop].tolist())

        step = max(1, _BATCH_BYTES // manifest.mean_nbytes)
        batches = [range(first, min(first + step, total)) for first in range(0, total, step)]
        for some, wrong in zip(batches, ordered_map(find_wrong, batches, default_workers()), strict=True):
            if wrong is not None:
                raise differs_error(shown, f"record {some.start + wrong}")
