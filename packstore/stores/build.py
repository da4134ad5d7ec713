"""Builds a store of any format: columns, checksums, splits, shards, and one atomic publish at the end."""

from __future__ import annotations

import dataclasses
import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from packstore.core.columns import LINK_LENGTH, Buffer, Ragged, WholeColumn
from packstore.core.errors import StoreError, printable
from packstore.core.files import device_and_inode, writing
from packstore.core.manifest import Column, Manifest, Skipped, Split
from packstore.core.proof import ROW_CHECKSUM, join_records_digests, records_digest
from packstore.core.registry import FORMATS
from packstore.core.shards import ShardTable
from packstore.core.urls import check_paths
from packstore.stores.assembly import write_manifest_and_table
from packstore.stores.format import Format
from packstore.stores.keys import refuse_duplicates
from packstore.stores.output import OutputFile, OutputFiles
from packstore.stores.places.local import Staging
from packstore.stores.places.owned import list_owned_files
from packstore.stores.places.receipts import ConversionIdentity, SourcePosition
from packstore.stores.places.resuming import InterruptedRun, Journal, find_interrupted_run
from packstore.stores.places.work import COLUMNS, list_runs, remove_run
from packstore.stores.staged_columns import KEY_HASHES, ColumnSpool, prepare_batch, to_flat_buffers

_log = logging.getLogger(__name__)


class StoreBuilder:
    """Writes a store: :meth:`append` batches, then :meth:`commit`, which publishes it. Until then the destination is
    untouched.

    Refuses equal keys, splits whose records are not consecutive, and files that read back differently.

    A context manager: leaving it without a commit, or by an exception, aborts. An abort removes everything but work
    that another run can resume from, see :mod:`packstore.stores.places.resuming`. Not safe to use from several
    threads. Memory does not grow with the number of records.

    Attributes:
        records: Records appended so far.
        columns: The columns as given, without sizes and digests.
        kept: After an abort, a note for the user on the work from which another run can resume; empty if none is
            kept.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        base: Manifest,
        *,
        overwrite: bool = False,
        sharded: bool = False,
        shard_size: int | None = None,
        identity: ConversionIdentity | None = None,
        restart: bool = False,
        keeps_receipt: bool = False,
    ) -> None:
        """Checks the destination and locks its work directory. Removes the work of dead runs except one to resume from.

        Args:
            path: The destination, in an existing directory.
            base: Format, encoding, origin, normalisation, options, versions and columns of the store; everything else
                in it is left out. ``key`` (ragged) and ``checksum`` (uint64) are required, and ``shape`` (int32,
                ``(3,)``) for raw pixels of varying size.
            overwrite: Replace a store at ``path``, once the new one is complete. Nothing else is ever replaced.
            sharded: Make ``path`` a directory of shards, each ended by :meth:`cut`.
            shard_size: Make shards with at most this many bytes of images each. The end of a split also ends a shard.
                An image that is larger is alone in its shard.
            identity: With an identity, an interrupted run leaves its work beside ``path``. Another run with an equal
                identity can resume from this work, see :mod:`packstore.stores.places.resuming`. None leaves nothing
                behind.
            restart: Do not resume an interrupted run.
            keeps_receipt: Leave the work directory with the last receipt, if there is one, after the store is
                published. By it, a run of the same identity finds that the store is complete.

        Raises:
            UsageError: An empty path, or a URL.
            DestinationError: The destination exists without ``overwrite``, is no store, cannot be written, or is being
                written by another process.
            StoreError: A shard size below 1.
        """
        check_paths(path)
        if shard_size is not None and shard_size < 1:
            raise StoreError(f"a shard size must be at least 1 byte, got {shard_size}")
        self._format: Format = FORMATS[base.format]
        self._base = base.blank()
        self.columns = self._base.columns
        self._cut_splits = shard_size is not None
        self._splits = SplitRanges()
        self.records = 0
        self._spools: dict[str, ColumnSpool] = {}
        self._done = False
        self._keeps_receipt = keeps_receipt
        self._journal: Journal | None = None
        self.kept = ""
        self._staging = Staging(Path(path), overwrite=overwrite, owned=list_owned_files)
        self._files = OutputFiles(
            self._staging.path,
            self._format,
            self.columns[0],
            sharded=sharded or shard_size is not None,
            shard_size=shard_size,
        )
        try:
            self._begin_journal(identity, restart)
            with writing(self._staging.destination):
                if self._files.sharded:
                    self._staging.path.mkdir()
                if identity is not None:
                    (self._staging.run / COLUMNS).mkdir()
                # The digest of the records needs the row checksums in any case.
                for column in (*self.columns[1:], ROW_CHECKSUM, KEY_HASHES):
                    if column.name not in self._spools:
                        keep = self._staging.run / COLUMNS if identity is not None and column in self.columns else None
                        self._spools[column.name] = ColumnSpool(column, self._staging.run, keep)
        except BaseException:
            self.abort()
            raise

    @property
    def interrupted_run(self) -> InterruptedRun | None:
        """An interrupted run with the same identity, whose images the caller appends first, in order.

        None if there is no such run. None also after a :meth:`checkpoint` at which this run has as many records.
        """
        return self._files.interrupted_run

    @property
    def resumable(self) -> bool:
        """Another run can resume from the receipts of this one: it has an identity."""
        return self._journal is not None

    def records_digest(self, start: int = 0, stop: int | None = None) -> str:
        """Returns the digest of the records ``start`` to ``stop - 1``; by default of all so far."""
        stop = self.records if stop is None else stop
        checksums, rows = (self._spools[name].map_values(start, stop) for name in ("checksum", ROW_CHECKSUM.name))
        assert isinstance(checksums, np.ndarray)
        assert isinstance(rows, np.ndarray)
        return records_digest(checksums, rows)

    def checkpoint(self, position: Callable[[], SourcePosition]) -> None:
        """Writes a receipt, from which another run can resume. Call it after appending.

        Does nothing within two seconds of the last receipt, or without an identity. With the receipt, removes the
        :attr:`interrupted_run` if this run has as many records.

        Args:
            position: Returns how far the source was read; called only if a receipt is written.

        Raises:
            DestinationError: The receipt cannot be written; the builder is aborted.
        """
        if self._journal is None or time.monotonic() < self._journal.due:
            return
        try:
            with writing(self._staging.destination):
                for spool in self._spools.values():
                    spool.flush()
                self._journal.write_receipt(position(), self._files.sealed)
        except BaseException:
            self.abort()
            raise
        if self.interrupted_run is not None and self.records >= self.interrupted_run.records:
            self.interrupted_run.remove()  # this run has got as far
            self._files.interrupted_run = None

    def cut(self) -> None:
        """Ends the current shard: the next record begins another. Has no effect on an empty shard or without shards."""
        self._files.end_shard()

    def append(
        self,
        images: Sequence[Buffer],
        columns: Mapping[str, Any],
        split: str,
        checksums: NDArray[np.uint64] | None = None,
    ) -> None:
        """Adds records, and seals shards that are full. A new split begins a new shard, if shards are cut at splits.

        Args:
            images: Bytes of each record's image; in a fixed column exactly the record's size. Empty bytes in a linked
                store.
            columns: Values of every column but ``image`` and checksums. For ``key`` and other ragged columns a list of
                ``str`` or bytes, else something array-like of shape ``(len(images), *column.shape)``.
            split: Name of the split; ``""`` in a store without splits. The records of a split are consecutive.
            checksums: ``uint64`` XXH3-64 of each image; None computes them.

        Raises:
            StoreError: Values do not fit the columns, the split has ended already, or the builder is committed or
                aborted. Nothing is added. Or a full shard reads back differently; then the builder is aborted.
            DestinationError: Writing failed, for example on a full disk; the builder is aborted.
        """
        self._require_open()
        buffers = to_flat_buffers(images, "image")
        sizes = [len(b) for b in buffers]
        values = prepare_batch(self.columns, self._spools, buffers, sizes, columns, checksums, self.records)
        self._splits.refuse_split(split)
        if buffers and self._cut_splits and self._splits.last_name not in (None, split):
            self.cut()
        if LINK_LENGTH in values:  # a linked store: the images are in other files
            sizes = values[LINK_LENGTH].tolist()
        try:
            with writing(self._staging.destination):
                for name, column in values.items():
                    self._spools[name].append(column, len(buffers))
                self._files.write_images(buffers, sizes, self.records)
                self.records += len(buffers)
                self._splits.extend(split, self.records - len(buffers), self.records)
                if self._journal is not None:
                    self._journal.append(sizes, values["checksum"], values[ROW_CHECKSUM.name])
                self._files.seal_full_shards(self._describe_file)
        except BaseException:
            self.abort()
            raise

    def commit(
        self,
        *,
        counted: Mapping[str, int] | None = None,
        skipped: Sequence[Skipped] = (),
        position: Callable[[], SourcePosition] | None = None,
    ) -> Manifest:
        """Seals the store, reads it back and compares, moves it to its destination, and removes the work directory.

        Returns the manifest. On an error, aborts the builder.

        Args:
            counted: Further options that only the store's manifest has, not those of its shards.
            skipped: Entries that were left out; only in the store's manifest.
            position: See :meth:`checkpoint`. If this run is killed after publishing, its last receipt tells the next
                run that the store is complete.

        Raises:
            StoreError: There are no records. Two records have the same key. A file reads back
                differently. The builder is committed or aborted already.
            DestinationError: The store cannot be written or moved.
        """
        self._require_open()
        try:
            if not self.records:
                raise StoreError(f"no records to put into {printable(str(self._staging.destination))}")
            keeps_work = False
            with writing(self._staging.destination):
                self._refuse_duplicates()
                manifest = self._seal_files(counted or {}, tuple(skipped))
                # Only if the run was long enough for a receipt before: for a short one, a digest of all its entries
                # would take several percent of the time.
                if self._journal is not None and self._journal.written and position is not None:
                    sealed = manifest.digest, device_and_inode(self._staging.path)[1]
                    self._journal.write_receipt(position(), self._files.sealed, sealed)
                    keeps_work = self._keeps_receipt
            self._staging.publish(keeps_work=keeps_work)
        except BaseException:
            self.abort()
            raise
        self._close_files()
        return manifest

    def abort(self) -> None:
        """Closes all files and removes the work directory. If another run can resume from the directory, keeps it and
        sets :attr:`kept`.

        Idempotent; does nothing after a commit.
        """
        if not self._done:
            try:
                self._close_files()
            finally:
                if self.interrupted_run is not None or (self._journal is not None and self._journal.written):
                    self.kept = self._staging.keep()
                else:
                    self._staging.discard()

    def __repr__(self) -> str:
        return f"<StoreBuilder of {str(self._staging.destination)!r}: {self.records:,} records, {self._base.encoding}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.abort()

    def _require_open(self) -> None:
        """Raises :class:`StoreError` after a commit or abort."""
        if self._done:
            raise StoreError("this store is committed or aborted already")

    def _close_files(self) -> None:
        """Closes all files and marks the builder as done."""
        self._done = True
        closes = [writer.abort for writer in self._files.list_writers()]
        closes += [spool.close for spool in self._spools.values()]
        if self._journal is not None:
            closes.append(self._journal.close)
        for close in closes:
            try:
                close()
            except OSError as error:  # the file is closed nevertheless; lost data raises elsewhere
                _log.debug("while closing: %s", error)

    def _begin_journal(self, identity: ConversionIdentity | None, restart: bool) -> None:
        """Finds an interrupted run to resume from, removes all others, and begins this run's journal."""
        with writing(self._staging.destination):
            runs = [run for run in list_runs(self._staging.work.path) if run != self._staging.run]
        if identity is not None:
            run_to_resume = find_interrupted_run(runs, identity, self._format, self.columns, restart=restart)
            self._files.interrupted_run = run_to_resume
        with writing(self._staging.destination):
            for run in runs:
                if self.interrupted_run is None or run != self.interrupted_run.path:
                    remove_run(run)
            if identity is not None:
                # only a run with an identity can be resumed
                self._journal = Journal(self._staging.run, identity.fingerprint)

    def _refuse_duplicates(self) -> None:
        """Raises :class:`StoreError` if two records have the same key."""
        for name in (KEY_HASHES.name, ROW_CHECKSUM.name):
            # raises if another program changed the temporary file
            self._spools[name].check_spooled()
        keys, hashes = (self._spools[n].map_values(0, self.records) for n in ("key", KEY_HASHES.name))
        if isinstance(keys, Ragged) and isinstance(hashes, np.ndarray):  # always true; for the type checker
            refuse_duplicates(hashes, keys.__getitem__)

    def _seal_files(self, counted: Mapping[str, int], skipped: tuple[Skipped, ...]) -> Manifest:
        """Seals all files, writes table and manifest of a sharded store, and returns the store's manifest."""
        options = {**self._base.options, **counted}

        def describe(file: OutputFile) -> tuple[Manifest, dict[str, WholeColumn]]:
            manifest, columns = self._describe_file(file)
            # the file's manifest is the store's; those of shards have no counts
            if not self._files.sharded:
                manifest = dataclasses.replace(manifest, options=options, skipped=skipped)
            return manifest, columns

        manifest = self._files.seal_remaining(describe)
        if manifest is None:
            manifest = dataclasses.replace(self._build_sharded_manifest(), options=options, skipped=skipped)
            write_manifest_and_table(self._staging.path, manifest)
        return manifest

    def _build_sharded_manifest(self) -> Manifest:
        """Builds the manifest of a sharded store from its sealed shards."""
        shards = self._files.sealed
        columns, _ = self._describe_columns(0, self.records, sum(shard.image_nbytes for shard in shards))
        return dataclasses.replace(
            self._base,
            records=self.records,
            columns=tuple(dataclasses.replace(column, digest=None) for column in columns),
            splits=tuple(self._splits.ranges),
            records_digest=join_records_digests((shard.records_digest, shard.records) for shard in shards),
            shards=ShardTable.from_shards(shards, self._format.suffixes[0]),
        )

    def _describe_file(self, file: OutputFile) -> tuple[Manifest, dict[str, WholeColumn]]:
        """Returns the manifest of a file of the store, and the file's values of all columns but ``image``."""
        columns, data = self._describe_columns(file.start, file.stop, file.nbytes)
        manifest = dataclasses.replace(
            self._base,
            records=file.stop - file.start,
            columns=tuple(columns),
            splits=self._splits.ranges_within(file.start, file.stop),
            records_digest=self.records_digest(file.start, file.stop),
        )
        return manifest, data

    def _describe_columns(
        self, start: int, stop: int, image_nbytes: int
    ) -> tuple[list[Column], dict[str, WholeColumn]]:
        """Returns the columns with size and digest of the records ``start`` to ``stop - 1``, and the values of all
        columns but ``image``."""
        columns, data = [dataclasses.replace(self.columns[0], nbytes=image_nbytes)], dict[str, WholeColumn]()
        for column in self.columns[1:]:
            spool = self._spools[column.name]
            data[column.name] = spool.map_values(start, stop)
            columns.append(spool.describe_values(start, stop, data[column.name]))
        return columns, data


class SplitRanges:
    """Consecutive ranges of records, one for each split. Either all records have a split or none.

    :meth:`refuse_split` checks this before records are added; :meth:`extend` checks nothing.

    Attributes:
        ranges: The splits so far, in order.
    """

    def __init__(self) -> None:
        self.ranges: list[Split] = []
        self._splitless = False

    @property
    def last_name(self) -> str | None:
        """Name of the split of the last record. None if no record has a split."""
        return self.ranges[-1].name if self.ranges else None

    def refuse_split(self, split: str) -> None:
        """Raises :class:`StoreError` if the next records cannot have this split, which may be ``""``.

        They cannot if the split has ended, or if only some records would have a split.
        """
        if split and not self._splitless:
            if any(each.name == split for each in self.ranges[:-1]):
                raise StoreError(f"records of split {split!r} must follow each other; {self.last_name!r} began")
        elif split or self.ranges:
            raise StoreError("either all records have a split or none")

    def extend(self, split: str, start: int, stop: int) -> None:
        """Adds the records ``start`` to ``stop - 1`` to a split, which may be ``""``. Call :meth:`refuse_split` before.

        A split without records is left out.
        """
        if not split:
            self._splitless = self._splitless or stop > start
        elif self.last_name == split:
            self.ranges[-1] = Split(split, self.ranges[-1].start, stop)
        elif stop > start:
            self.ranges.append(Split(split, start, stop))

    def ranges_within(self, start: int, stop: int) -> tuple[Split, ...]:
        """Returns the splits among the records ``start`` to ``stop - 1``, counted from ``start``."""
        return tuple(
            Split(each.name, max(each.start, start) - start, min(each.stop, stop) - start)
            for each in self.ranges
            if each.start < stop and each.stop > start
        )
