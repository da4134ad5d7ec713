"""What interrupted runs have left, by the protocol of :mod:`packstore.stores.builder.journal`."""

from __future__ import annotations

import bisect
import itertools
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from numpy.typing import NDArray
from xxhash import xxh3_64_intdigest

from packstore.core.checksums import file_digest, row_checksum, row_columns
from packstore.core.errors import DestinationError, StoreError, printable
from packstore.core.files import device_and_inode
from packstore.core.manifest import Column, Manifest
from packstore.core.shards import Shard
from packstore.stores.base import Reader
from packstore.stores.builder.journal import Identity, Receipt, read_journal, read_receipt
from packstore.stores.builder.spools import spooled
from packstore.stores.builder.work_directory import (
    COLUMNS,
    STORE,
    WorkDirectory,
    read_owner,
    remove_run,
    runs_of,
    work_path,
)
from packstore.stores.format import Format
from packstore.stores.opening import open_reader, read_manifest

_log = logging.getLogger(__name__)


class InterruptedRun:
    """The records of an interrupted run, in order, each proven when it is asked for.

    Attributes:
        path: The run's directory.
        records: How many there are.
        position: How far it had read the source for them.
    """

    def __init__(self, run: Path, receipt: Receipt, format: Format, columns: Sequence[Column]) -> None:
        """Raises :class:`StoreError` when what is there is not what the receipt says."""
        self.path = run
        self._format = format
        self._columns = row_columns(columns)
        self._values: dict[str, Callable[[int], Any]] = {}
        self._rows: NDArray[Any] = read_journal(run, receipt)
        self._shards = receipt.shards or ()
        self._starts = [0, *itertools.accumulate(shard.records for shard in self._shards)]
        self._reader: tuple[int, Reader] | None = None
        self._proven: set[int] = set()
        self._partial: Callable[[int], memoryview] | None = None
        self.records = receipt.records
        self.position = receipt.position
        if self._starts[-1] > self.records:
            raise StoreError("its shards have more records than its journal")

    def image(self, record: int) -> tuple[memoryview, int]:
        """The image of a record and its checksum.

        Records are asked for in order. Raises :class:`StoreError` for the first one that cannot be proven.
        """
        row = self._rows[record]
        checksum = int(row["checksum"])
        if record < self._starts[-1]:  # its shard is proven as a whole
            return memoryview(self._shard(record)), checksum
        if self._partial is None:
            self._partial = self._open_partial()
        data = self._partial(record - self._starts[-1])
        if data.nbytes != int(row["size"]) or xxh3_64_intdigest(data) != checksum:
            raise StoreError(f"record {record} of the interrupted run is not what its journal says")
        return data, checksum

    def fields(self, record: int) -> dict[str, Any]:
        """The values of a record at rest, by column: of all but the image and the checksums.

        Raises :class:`StoreError` where they cannot be proven."""
        if not self._values:
            self._values = {column.name: spooled(column, self.path / COLUMNS) for column in self._columns}
        found = {name: value(record) for name, value in self._values.items()}
        if row_checksum(self._columns, found) != int(self._rows["row"][record]):
            raise StoreError(f"the values of record {record} of the interrupted run are not what its journal says")
        return found

    def sealed(self, number: int, start: int) -> Shard | None:
        """The sealed shard ``number`` if it begins with record ``start`` and is proven: a record of it was read."""
        return self._shards[number] if number in self._proven and self._starts[number] == start else None

    def adopt(self, shard: Shard, path: Path) -> None:
        """Links a shard of :meth:`sealed` to ``path``, in another run."""
        source = self.path / STORE / shard.name
        if source.is_dir():
            path.mkdir()
            source, path = self._format.data_file(source), self._format.data_file(path)
        try:
            # Linked, so that this run, too, can be interrupted without a loss.
            path.hardlink_to(source)
        except OSError:
            source.rename(path)

    def remove(self) -> None:
        """Removes the run's directory. Images already returned stay valid."""
        try:
            remove_run(self.path)
        except OSError as error:
            _log.warning("cannot remove %s: %s", printable(str(self.path)), error)

    def _shard(self, record: int) -> Any:
        if self._reader is None or not 0 <= record - self._starts[self._reader[0]] < len(self._reader[1]):
            number = bisect.bisect_right(self._starts, record) - 1
            self._reader = number, self._prove(self._shards[number])
            self._proven.add(number)
        number, reader = self._reader
        return reader.view(record - self._starts[number])

    def _prove(self, shard: Shard) -> Reader:
        path = self.path / STORE / shard.name
        try:
            found = file_digest(self._format.data_file(path))
        except OSError as error:
            raise StoreError(f"{shard.name} of the interrupted run cannot be read: {error.strerror or error}") from None
        reader = open_reader(path)
        if found != (shard.nbytes, shard.digest) or reader.manifest.digest != shard.manifest_digest:
            raise StoreError(f"{shard.name} of the interrupted run is not as its receipt says")
        return reader

    def _open_partial(self) -> Callable[[int], memoryview]:
        path = self.path / STORE
        if path.is_dir() and not (self._format.files and self._format.data_file(path).exists()):
            path /= self._format.shard_name(len(self._shards))
        sizes = self._rows["size"][self._starts[-1] :]
        try:
            return self._format.partial_images(path, sizes)
        except OSError as error:
            raise StoreError(f"{printable(str(path))} cannot be read: {error.strerror or error}") from None


def find_interrupted_run(
    runs: Sequence[Path], identity: Identity, format: Format, columns: Sequence[Column], *, restart: bool
) -> InterruptedRun | None:
    """The run that got furthest among ``runs``, the oldest first, of those with this identity; None with ``restart``.

    Why none of them is of use is logged as a warning.
    """
    best: InterruptedRun | None = None
    why = ""
    for path in runs:
        receipt = read_receipt(path)
        if receipt is None:
            why = why if restart else "the interrupted run was ended before it had noted what it had done"
            continue
        differs = "--restart was given" if restart else identity.difference(receipt)
        if differs is None:
            try:
                run = InterruptedRun(path, receipt, format, columns)
                best = run if best is None or run.records > best.records else best
            except StoreError as error:
                differs = str(error)
        if differs is not None and receipt.records:
            why = f"{receipt.records:,} records of an interrupted run are not taken over: {differs}"
    if best is None and why:
        _log.warning("starting afresh: %s", why)
    return best


def killed_after_publishing(destination: Path) -> bool:
    """Whether a run put a store at ``destination`` and was killed before its work directory was gone."""
    return _receipt_of_published(destination) is not None


def end_published_run(destination: Path, identity: Identity, *, overwrite: bool) -> Manifest | None:
    """Ends a conversion that was killed after its store had got its name and before its work directory was gone.

    Args:
        destination: The store.
        identity: Of the conversion that is wanted.
        overwrite: The store may be replaced if it was made by another one.

    Returns:
        The manifest of the store; None where there is no such thing.

    Raises:
        DestinationError: There is, but made by another conversion, and ``overwrite`` is not set.
    """
    receipt = _receipt_of_published(destination)
    if receipt is None:
        return None
    differs = identity.difference(receipt)
    if differs is None:
        WorkDirectory(destination).remove()
        return read_manifest(destination)
    if overwrite:
        return None
    raise DestinationError(
        f"{printable(str(destination))} exists already, made otherwise ({differs}); choose another name or replace it "
        "with --overwrite"
    )


def remove_published_run(destination: Path) -> None:
    """Removes what is left of a run that was killed after its store had got its name, if no run can go on from it."""
    work = work_path(destination)
    with suppress(FileNotFoundError, DestinationError):  # it has just ended, or is at it
        if work.is_dir() and read_owner(work) and all(read_receipt(run) is None for run in runs_of(work)):
            WorkDirectory(destination).remove()


def _receipt_of_published(destination: Path) -> Receipt | None:
    work = work_path(destination)
    if not work.is_dir() or read_owner(work) is None:
        return None
    try:
        sealed = read_manifest(destination).digest, device_and_inode(destination)[1]
    except (StoreError, OSError):
        return None
    try:
        runs = runs_of(work)
    except FileNotFoundError:  # the run was not killed: it has just ended
        return None
    receipts = (read_receipt(run) for run in runs)
    return next((r for r in receipts if r is not None and (r.sealed, r.inode) == sealed), None)
