"""Resuming an interrupted run: the notes that a run leaves, and how far the next run trusts them.

**While it writes**, a run keeps in its directory (see :mod:`packstore.stores.places.work`), beside the store that it
writes:

- a *journal*, 24 bytes a record: size and checksum of the image, checksum of the row;
- a file for each other column with its values one after another, and a file of offsets for each ragged one;
- the rows of the sealed shards, as in a :class:`packstore.core.shards.ShardTable`;
- every two seconds a *receipt*: a JSON file, see :class:`packstore.stores.places.receipts.Receipt`.

The receipt is replaced in one step and never synced: a power cut may lose the last seconds.

**The next run** to the same destination looks for receipts of an equal identity whose source is unchanged up to the
position. It takes the receipt with most records, or starts afresh and logs why. It checks everything: the journal by
the receipt, each record by its checksum, each sealed shard by its SHA-256. The records before the first that fails are
used. Sealed shards are linked; other images and values are copied. Labels and keys that the source lists are read from
the source again (:mod:`packstore.packing.run`). The old run's directory is removed once the new run's receipt has as
many records. Repeated kills therefore lose nothing.

**A kill at the end**: the last receipt, written before the store gets its name, has the store's manifest digest and
inode. If a store with both is at the destination, the run was complete. The same conversion then only removes the work
directory.

**Other notes of unfinished work**:

- a conversion by many machines: a plan, and a receipt for each shard, as objects at the destination
  (:mod:`packstore.packing.distribute`)
- an export: facts on each shard beside its receipt (:mod:`packstore.exports.plan`)
- an append: a receipt with the files that it adds (:mod:`packstore.stores.places.local`)
"""

from __future__ import annotations

import bisect
import hashlib
import itertools
import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from packstore.core.errors import StoreError, printable
from packstore.core.files import drop, open_file
from packstore.core.manifest import Column
from packstore.core.proof import ROW_CHECKSUM, Proof, file_digest
from packstore.core.shards import Shard, ShardTable, shards_to_rows
from packstore.stores.format import Format
from packstore.stores.opening import open_reader
from packstore.stores.places.receipts import SHARDS, ConversionIdentity, Receipt, SourcePosition, read_receipt
from packstore.stores.places.work import COLUMNS, JOURNAL, STORE, remove_run
from packstore.stores.records import Records
from packstore.stores.staged_columns import open_kept_column

_log = logging.getLogger(__name__)

ROW = np.dtype([("size", "<u8"), ("checksum", "<u8"), ("row", "<u8")])
EVERY_SECONDS = 2.0


class Journal:
    """Writes the journal of a run, which has sizes and checksums of its records, and the run's receipts.

    Creates the files; raises :class:`FileExistsError` if there are any. Syncs none.

    Attributes:
        due: When to write the next receipt, by ``time.monotonic``.
        written: Records in the latest receipt before the store was complete; 0 if there was none.
    """

    def __init__(self, run: Path, fingerprint: Mapping[str, Any]) -> None:
        self._run = run
        # With lists for tuples, as it is read back from JSON.
        self._fingerprint: Mapping[str, Any] = json.loads(json.dumps(fingerprint))
        self._file: IO[bytes] = open_file(run / JOURNAL, "xb")
        self._shards: IO[bytes] = open_file(run / SHARDS, "xb")
        self._sealed, self._shards_digest = 0, hashlib.sha256()
        self._digest = xxhash.xxh3_128()
        self._records = 0
        self.written = 0
        self.due = time.monotonic() + EVERY_SECONDS

    def append(self, sizes: Sequence[int], checksums: NDArray[np.uint64], row_checksums: NDArray[np.uint64]) -> None:
        """Adds records: bytes of each image, ``uint64`` checksum of each image, ``uint64`` checksum of each row."""
        rows = np.zeros(len(sizes), ROW)
        rows["size"], rows["checksum"], rows["row"] = sizes, checksums, row_checksums
        data = rows.tobytes()
        self._file.write(data)
        self._digest.update(data)
        self._records += len(sizes)

    def write_receipt(
        self, position: SourcePosition, shards: Sequence[Shard], sealed: tuple[str, int] | None = None
    ) -> None:
        """Flushes the journal and writes a receipt for all appended records.

        ``shards``: all sealed shards. ``sealed``: manifest digest and inode of the complete store.
        """
        self._file.flush()
        digest, inode = sealed or (None, None)
        table = self._write_shard_rows(shards)
        receipt = Receipt(self._fingerprint, position, self._records, self._digest.hexdigest(), table, digest, inode)
        receipt.write(self._run)
        if sealed is None:
            self.written = self._records
        self.due = time.monotonic() + EVERY_SECONDS

    def close(self) -> None:
        """Closes the files without writing buffered data. Idempotent."""
        drop(self._file)
        drop(self._shards)

    def _write_shard_rows(self, shards: Sequence[Shard]) -> ShardTable | None:
        """Writes table rows of newly sealed shards, and returns the table of all, or None without shards."""
        if not shards:
            return None
        rows = shards_to_rows(shards[self._sealed :]).tobytes()
        self._shards.write(rows)
        self._shards.flush()
        self._shards_digest.update(rows)
        self._sealed = len(shards)
        return ShardTable(len(shards), self._shards_digest.hexdigest(), shards[0].name[len("shard-00000") :])


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
        """Maps the rows of the run's journal that ``receipt`` covers.

        Raises :class:`StoreError` if rows are missing, or their digest differs from the receipt.
        """
        try:
            rows = np.memmap(run / JOURNAL, ROW, "r", shape=(receipt.records,)) if receipt.records else np.empty(0, ROW)
        except (OSError, ValueError) as error:  # ValueError: it is shorter
            raise StoreError(f"the journal of {run} cannot be read: {error}") from None
        if xxhash.xxh3_128_hexdigest(rows.view(np.uint8).data) != receipt.journal:
            raise StoreError(f"the journal of {run} contradicts its receipt")
        self.path = run
        self._format = format
        self._values: dict[str, Callable[[int], Any]] = {}
        self._rows: NDArray[Any] = rows
        journaled = {"checksum": rows["checksum"], ROW_CHECKSUM.name: rows["row"]}
        self._proof = Proof([*columns, ROW_CHECKSUM], lambda name, record: journaled[name][record])
        self._shards = receipt.shards or ()
        self._starts = [0, *itertools.accumulate(shard.records for shard in self._shards)]
        self._reader: tuple[int, Records] | None = None
        self._proven: set[int] = set()
        self._partial: Callable[[int], memoryview] | None = None
        self.records = receipt.records
        assert receipt.position is not None  # of a conversion
        self.position: SourcePosition = receipt.position
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
        """Returns an image in a sealed shard."""
        if self._reader is None or not 0 <= record - self._starts[self._reader[0]] < len(self._reader[1]):
            number = bisect.bisect_right(self._starts, record) - 1
            # The last shard stays open: images are read in order.
            self._reader = number, self._open_proven(self._shards[number])
            self._proven.add(number)
        number, reader = self._reader
        return reader.view(record - self._starts[number])

    def _open_proven(self, shard: Shard) -> Records:
        """Opens a sealed shard, or raises :class:`StoreError` if it differs from the receipt."""
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
        """Opens the file that the run had not sealed, and returns a function that reads its images."""
        path = self.path / STORE
        if path.is_dir() and not (self._format.files and self._format.data_file(path).exists()):
            # of a sharded store: the shard after the sealed ones
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
        if receipt is None or receipt.position is None:
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
