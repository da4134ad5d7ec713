"""Resuming an interrupted run: the notes that a run leaves, and how far the next run trusts them.

**While it writes**, a run keeps in its directory (see :mod:`packstore.stores.builder.work_directory`), beside the store
that it writes:

- a *journal*, 24 bytes a record: size and checksum of the image, checksum of the row;
- a file for each other column with its values one after another, and a file of offsets for each ragged one;
- the rows of the sealed shards, as in a :class:`packstore.core.shards.ShardTable`;
- every two seconds a *receipt*: a JSON file, see :class:`Receipt`.

The receipt is replaced in one step and never synced: a power cut may lose the last seconds.

**The next run** to the same destination (:mod:`packstore.stores.builder.interrupted`) looks for receipts of an equal
identity whose source is unchanged up to the position. It takes the receipt with most records, or starts afresh and logs
why. It checks everything: the journal by the receipt, each record by its checksum, each sealed shard by its SHA-256.
The records before the first that fails are used. Sealed shards are linked; other images and values are copied. Labels
and keys that the source lists are read from the source again (:mod:`packstore.packing.run`). The old run's directory
is removed once the new run's receipt has as many records. Repeated kills therefore lose nothing.

**A kill at the end**: the last receipt, written before the store gets its name, has the store's manifest digest and
inode. If a store with both is at the destination, the run was complete. The same conversion then only removes the work
directory.

**Other notes of unfinished work**:

- a conversion by many machines: a plan, and a receipt for each shard, as objects at the destination
  (:mod:`packstore.cluster.receipts`)
- an export: a receipt for each shard (:mod:`packstore.exports.staging`)
- an append: a marker with the files that it adds (:mod:`packstore.stores.builder.growth`)
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from packstore.core.errors import ManifestError, StoreError
from packstore.core.files import drop, open_file
from packstore.core.plainjson import encode_with_digest, from_plain, parse_with_digest, to_plain
from packstore.core.shards import Shard, ShardTable, shards_to_rows
from packstore.core.tally import Tally
from packstore.stores.builder.work_directory import JOURNAL, RECEIPT, SHARDS

_log = logging.getLogger(__name__)

Fingerprint = Mapping[str, Any]
"""Plain JSON values that determine the records: conversions with equal ones give equal stores."""

ROW = np.dtype([("size", "<u8"), ("checksum", "<u8"), ("row", "<u8")])
EVERY_SECONDS = 2.0
_WHAT = "packstore receipt 4"


@dataclasses.dataclass(frozen=True, slots=True)
class SourcePosition:
    """Position up to which a source was read.

    Attributes:
        digest: Digest of the entries that were read; a changed source has another.
        tally: Counts of these entries. Those of images (``counted``, ``palette``, ``kept``) cover all entries up to
            ``counted_upto``.
        counted_upto: Number of entries from the first on whose images are counted; at least ``tally.entries``.
    """

    digest: str
    tally: Tally
    counted_upto: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class ConversionIdentity:
    """Identity of a conversion: options, source and versions. A later run with the same identity may resume an
    interrupted one.

    Attributes:
        fingerprint: Its options, source and versions.
        source_change: Describes how the source has changed before a position. Returns None if it has not.
    """

    fingerprint: Fingerprint
    source_change: Callable[[SourcePosition], str | None]

    def describe_difference(self, receipt: Receipt) -> str | None:
        """Describes how a receipt's conversion differs from this one. Returns None if it does not."""
        return describe_difference(receipt.fingerprint, self.fingerprint) or self.source_change(receipt.position)


@dataclasses.dataclass(frozen=True, slots=True)
class Receipt:
    """Record of the work that a run has done, from which another run can resume.

    Attributes:
        fingerprint: Fingerprint of the conversion.
        position: Position that it reached in its source.
        records: Records in the journal.
        journal: XXH3-128 of their rows in the journal.
        shards: The sealed shards from the first record on; None if there are none. Their rows are in a file of their
            own, to which each receipt only appends.
        sealed: Digest of the manifest of the complete store; None before the store is complete.
        inode: Inode of that store. It tells the store from another one with the same manifest.
    """

    fingerprint: Fingerprint
    position: SourcePosition
    records: int
    journal: str
    shards: ShardTable | None = None
    sealed: str | None = None
    inode: int | None = None

    def write(self, run: Path) -> None:
        """Replaces the receipt in the directory of a run, in one step."""
        new = run / f"{RECEIPT}.new"
        new.write_bytes(encode_with_digest(to_plain(self) | {"what": _WHAT}))
        new.replace(run / RECEIPT)


def read_receipt(run: Path) -> Receipt | None:
    """Reads the receipt of a run and the table of its shards.

    Returns None if there is no receipt, or if receipt or table is damaged or of another version. A complete store needs
    no table: its receipt then has no shards.
    """
    try:
        plain = parse_with_digest((run / RECEIPT).read_bytes())
        if plain.pop("what") != _WHAT:
            return None
        plain["position"] = from_plain(SourcePosition, plain["position"], "position")
        if plain["shards"] is not None:
            table = ShardTable(**plain["shards"])
            # A run killed while its directory was being removed may have only its receipt left; that suffices.
            if plain["sealed"] is not None and not (run / SHARDS).exists():
                plain["shards"] = ()
            else:
                with (run / SHARDS).open("rb") as file:
                    plain["shards"] = table.parse_rows(file.read(table.nbytes))
        return Receipt(**plain)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, ManifestError, KeyError, TypeError, AttributeError, RecursionError) as error:
        _log.debug("the receipt in %s is unusable: %s", run, error)
        return None


class Journal:
    """Writes the journal of a run, which has sizes and checksums of its records, and the run's receipts.

    Creates the files; raises :class:`FileExistsError` if there are any. Syncs none.

    Attributes:
        due: When to write the next receipt, by ``time.monotonic``.
        written: Records in the latest receipt before the store was complete; 0 if there was none.
    """

    def __init__(self, run: Path, fingerprint: Fingerprint) -> None:
        self._run = run
        # With lists for tuples, as it is read back from JSON.
        self._fingerprint: Fingerprint = json.loads(json.dumps(fingerprint))
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
        """Writes table rows of newly sealed shards. Returns the table of all sealed shards, or None without shards."""
        if not shards:
            return None
        rows = shards_to_rows(shards[self._sealed :]).tobytes()
        self._shards.write(rows)
        self._shards.flush()
        self._shards_digest.update(rows)
        self._sealed = len(shards)
        return ShardTable(len(shards), self._shards_digest.hexdigest(), shards[0].name[len("shard-00000") :])


def read_journal(run: Path, receipt: Receipt) -> NDArray[Any]:
    """Maps the journal's rows that a receipt covers. Raises :class:`StoreError` if rows are missing, or their digest
    differs from the receipt.
    """
    try:
        rows = np.memmap(run / JOURNAL, ROW, "r", shape=(receipt.records,)) if receipt.records else np.empty(0, ROW)
    except (OSError, ValueError) as error:  # ValueError: it is shorter
        raise StoreError(f"the journal of {run} cannot be read: {error}") from None
    if xxhash.xxh3_128_hexdigest(rows.view(np.uint8).data) != receipt.journal:
        raise StoreError(f"the journal of {run} contradicts its receipt")
    return rows


def describe_difference(other: Fingerprint, wanted: Fingerprint) -> str | None:
    """Describes the first difference of two fingerprints, in the order of ``wanted``. Returns None if they are equal.

    If both values are mappings, describes their first difference, after the name.

    Leaves out the two values if one of them has over 40 characters.

    A name that ends with a question mark may be absent from ``other``.
    """
    wanted = json.loads(json.dumps(wanted))
    for name in [*wanted, *(name for name in other if name not in wanted)]:
        now, before = wanted.get(name), other.get(name)
        if now != before and not (name.endswith("?") and before is None):
            if isinstance(now, dict) and isinstance(before, dict):
                inner = describe_difference(before, now)
                return f"{name}: {inner}" if inner else name
            if len(str(now)) > 40 or len(str(before)) > 40:
                return f"{name} differs"
            return f"{name} was {before}, is {now}"
    return None
