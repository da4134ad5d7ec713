"""Finds and reads what interrupted runs left, by the protocol of :mod:`packstore.stores.builder.journal`."""

from __future__ import annotations

import bisect
import itertools
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from packstore.core.checksums import ROW_CHECKSUM, file_digest
from packstore.core.errors import DestinationError, StoreError, printable
from packstore.core.files import device_and_inode
from packstore.core.manifest import Column, Manifest
from packstore.core.proof import Proof
from packstore.core.shards import Shard
from packstore.stores.base import Reader
from packstore.stores.builder.journal import ConversionIdentity, Receipt, read_journal, read_receipt
from packstore.stores.builder.owner import read_owner
from packstore.stores.builder.spools import open_kept_column
from packstore.stores.builder.work_directory import (
    COLUMNS,
    STORE,
    WorkDirectory,
    list_runs,
    remove_run,
    work_path,
)
from packstore.stores.format import Format
from packstore.stores.opening import open_reader, read_manifest

_log = logging.getLogger(__name__)


class InterruptedRun:
    """The records of an interrupted run, which are checked when they are read.

    A record of a sealed shard is read only after the whole shard matched its SHA-256. Any other record is compared
    with its own checksum. Raises :class:`StoreError` for a record that is missing or does not match.

    Also links sealed shards into the run that resumes, and removes the directory of the interrupted run.

    Attributes:
        path: The run's directory.
        records: Number of records.
        position: Position in the source that the run had reached.
    """

    def __init__(self, run: Path, receipt: Receipt, format: Format, columns: Sequence[Column]) -> None:
        """Reads the run's journal. Raises :class:`StoreError` if that fails or the journal contradicts ``receipt``."""
        self.path = run
        self._format = format
        self._values: dict[str, Callable[[int], Any]] = {}
        self._rows: NDArray[Any] = read_journal(run, receipt)
        journaled = {"checksum": self._rows["checksum"], ROW_CHECKSUM.name: self._rows["row"]}
        self._proof = Proof([*columns, ROW_CHECKSUM], lambda name, record: journaled[name][record])
        self._shards = receipt.shards or ()
        self._starts = [0, *itertools.accumulate(shard.records for shard in self._shards)]
        self._reader: tuple[int, Reader] | None = None
        self._proven: set[int] = set()
        self._partial: Callable[[int], memoryview] | None = None
        self.records = receipt.records
        self.position = receipt.position
        if self._starts[-1] > self.records:
            raise StoreError("the shards of the interrupted run have more records than its journal")

    def read_image(self, record: int) -> tuple[memoryview, int]:
        """Returns the image of a record and its checksum.

        Call it for records in order: each step into another sealed shard reads and checks that whole shard.

        Raises:
            StoreError: The image is missing or does not match. Do not read later images of the run either.
        """
        row = self._rows[record]
        checksum = int(row["checksum"])
        if record < self._starts[-1]:  # in a sealed shard, which is proven as a whole
            return memoryview(self._view_sealed_image(record)), checksum
        if self._partial is None:
            self._partial = self._open_unsealed_file()
        data = self._partial(record - self._starts[-1])
        if data.nbytes != int(row["size"]) or self._proof.compare_image(record, data, checksum).differs:
            raise StoreError(f"record {record} of the interrupted run contradicts its journal")
        return data, checksum

    def read_fields(self, record: int) -> dict[str, Any]:
        """Returns the stored values of a record by column, without the image and the checksums.

        Raises:
            StoreError: A value is missing, or the values do not match the row checksum in the journal.
        """
        if not self._values:
            self._values = {
                column.name: open_kept_column(column, self.path / COLUMNS) for column in self._proof.columns
            }
        values = {name: read(record) for name, read in self._values.items()}
        if self._proof.compare_fields(record, values).differs:
            raise StoreError(f"the values of record {record} of the interrupted run contradict its journal")
        return values

    def find_proven_shard(self, number: int, start: int) -> Shard | None:
        """Returns the sealed shard ``number``, or None if :meth:`read_image` has not checked it.

        Returns None also if that shard does not begin with record ``start``.
        """
        return self._shards[number] if number in self._proven and self._starts[number] == start else None

    def link_shard(self, shard: Shard, path: Path) -> None:
        """Hard-links a checked shard to ``path``, in the run that resumes. Moves it if links are impossible."""
        source = self.path / STORE / shard.name
        if source.is_dir():
            path.mkdir()
            source, path = self._format.data_file(source), self._format.data_file(path)
        try:
            # A link keeps the shard here too: if the new run is interrupted early, nothing is lost.
            path.hardlink_to(source)
        except OSError:
            source.rename(path)

    def remove(self) -> None:
        """Removes the run's directory, and logs a warning if that fails. Images already returned stay valid."""
        try:
            remove_run(self.path)
        except OSError as error:
            _log.warning("cannot remove %s: %s", printable(str(self.path)), error)

    def _view_sealed_image(self, record: int) -> Any:
        """Returns an image in a sealed shard. Opens and checks the shard unless it is the last one that was opened."""
        if self._reader is None or not 0 <= record - self._starts[self._reader[0]] < len(self._reader[1]):
            number = bisect.bisect_right(self._starts, record) - 1
            self._reader = number, self._open_proven(self._shards[number])
            self._proven.add(number)
        number, reader = self._reader
        return reader.view(record - self._starts[number])

    def _open_proven(self, shard: Shard) -> Reader:
        """Opens a sealed shard. Raises :class:`StoreError` if the shard cannot be read, or its SHA-256 or manifest
        differs from the receipt.
        """
        path = self.path / STORE / shard.name
        try:
            size_and_digest = file_digest(self._format.data_file(path))
        except OSError as error:
            raise StoreError(f"{shard.name} of the interrupted run cannot be read: {error.strerror or error}") from None
        if size_and_digest == (shard.nbytes, shard.digest):
            reader = open_reader(path)
            if reader.manifest.digest == shard.manifest_digest:
                return reader
            reader.close()
        raise StoreError(f"{shard.name} of the interrupted run contradicts its receipt")

    def _open_unsealed_file(self) -> Callable[[int], memoryview]:
        """Opens the file that the run had not sealed. Returns a function that reads an image by its number in the file.

        Raises :class:`StoreError` if the file cannot be read.
        """
        path = self.path / STORE
        if path.is_dir() and not (self._format.files and self._format.data_file(path).exists()):
            path /= self._format.shard_name(len(self._shards))
        sizes = self._rows["size"][self._starts[-1] :]
        try:
            return self._format.open_partial_file(path, sizes)
        except OSError as error:
            raise StoreError(f"{printable(str(path))} cannot be read: {error.strerror or error}") from None


def find_interrupted_run(
    runs: Sequence[Path], identity: ConversionIdentity, format: Format, columns: Sequence[Column], *, restart: bool
) -> InterruptedRun | None:
    """Finds a run to resume from: one with this identity whose source is unchanged.

    Of several, takes the first of those with most records. Returns None if there is none, or if ``restart`` is set.
    Then logs a warning if records of a run are not reused. Without ``restart``, warns also of a run without a receipt.
    """
    best: InterruptedRun | None = None
    why = ""
    for path in runs:
        receipt = read_receipt(path)
        if receipt is None:
            why = why or ("" if restart else "the interrupted run was ended before it had saved a record")
            continue
        differs = "--restart was given" if restart else identity.describe_difference(receipt)
        if differs is None:
            try:
                run = InterruptedRun(path, receipt, format, columns)
                best = run if best is None or run.records > best.records else best
            except StoreError as error:
                differs = str(error)
        if differs is not None and receipt.records:
            why = f"{receipt.records:,} records of an interrupted run cannot be reused: {differs}"
    if best is None and why:
        _log.warning("starting afresh: %s", why)
    return best


def was_killed_after_publishing(destination: Path) -> bool:
    """Returns whether the store at ``destination`` is complete, but its run was killed before it cleaned up.

    Such a run has left its work directory.
    """
    return _find_published_receipt(destination) is not None


def finish_published_run(destination: Path, identity: ConversionIdentity, *, overwrite: bool) -> Manifest | None:
    """Removes the work directory of a conversion that was killed right after publishing its store.

    Args:
        destination: The store.
        identity: Identity of the conversion that is wanted.
        overwrite: The store may be replaced if another conversion made it.

    Returns:
        The store's manifest. None if no such conversion was killed. None also if another conversion was killed and
        ``overwrite`` is set; its work directory stays.

    Raises:
        DestinationError: Another conversion made the store, and ``overwrite`` is not set. Or a process uses the work
            directory.
    """
    receipt = _find_published_receipt(destination)
    if receipt is None:
        return None
    differs = identity.describe_difference(receipt)
    if differs is None:
        WorkDirectory(destination).remove()
        return read_manifest(destination)
    if overwrite:
        return None
    raise DestinationError(
        f"{printable(str(destination))} exists already, made by another conversion ({differs}); choose another name "
        "or replace it with --overwrite (Python: overwrite=True)"
    )


def remove_published_run(destination: Path) -> None:
    """Removes the work directory that a killed run left beside a published store.

    Keeps a directory that has a receipt, that packstore did not make, or that a process uses.
    """
    work = work_path(destination)
    with suppress(FileNotFoundError, DestinationError):  # the run has just ended, or still holds it
        if work.is_dir() and all(read_receipt(run) is None for run in list_runs(work)):
            WorkDirectory(destination).remove()


def _find_published_receipt(destination: Path) -> Receipt | None:
    """Returns the receipt of the run that published the store at ``destination``.

    Returns None if there is no store, if its work directory is gone, or if another run made the store.
    """
    work = work_path(destination)
    if not work.is_dir() or read_owner(work) is None:
        return None
    try:
        sealed = read_manifest(destination).digest, device_and_inode(destination)[1]
    except (StoreError, OSError):
        return None
    try:
        runs = list_runs(work)
    except FileNotFoundError:  # the run was not killed: it has just ended
        return None
    receipts = (read_receipt(run) for run in runs)
    return next((r for r in receipts if r is not None and (r.sealed, r.inode) == sealed), None)
