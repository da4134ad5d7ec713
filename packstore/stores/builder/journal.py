"""Going on after an interrupt: what a run notes while it writes, and what the next one believes of it.

**While it writes**, a run keeps in its directory (see :mod:`packstore.stores.builder.work_directory`), beside the store
that it writes:

- a *journal*, 24 bytes a record: size and checksum of the image, checksum of the row;
- the values of all other columns, one behind the other in a file each, with the offsets of ragged ones in another;
- the rows of the shards that are sealed, as in a :class:`packstore.core.shards.ShardTable`;
- every few seconds a *receipt*: a JSON file that says how many records there are, what the journal's digest is up to
  there, which shards are sealed, the :class:`Identity` of the conversion, and the :class:`SourcePosition` reached.

The receipt is replaced in one step and never synced: a power cut may lose the last seconds.

**The next run** to the same destination (:mod:`packstore.stores.builder.interrupted`) takes the receipt that got
furthest, if its identity is equal and the source is unchanged up to that position; else it starts afresh and logs why.
It believes nothing because it is there: it compares the journal with the receipt, each record with its checksum and
each sealed shard with its SHA-256, and uses what is proven, from the first record to the first doubt. Sealed shards are
linked, other images and values copied; labels and keys that the source lists come from there again
(:mod:`packstore.packing.resume`). The old
run's directory goes once the new run's receipt has more records, so being killed again and again loses nothing.

**A kill at the end**: a last receipt, before the store gets its name, has the digest of its manifest and its inode. So
where a store with both lies at the destination and the work directory is still there, all that was left to do was to
remove that, and the same conversion does just this.
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
from packstore.core.manifest import Skipped
from packstore.core.plainjson import to_plain
from packstore.core.shards import Shard, ShardTable, shards_to_rows
from packstore.stores.builder.work_directory import JOURNAL, RECEIPT, SHARDS

_log = logging.getLogger(__name__)

Fingerprint = Mapping[str, Any]
"""Plain JSON values that make the records what they are. Conversions with equal ones give equal stores."""

ROW = np.dtype([("size", "<u8"), ("checksum", "<u8"), ("row", "<u8")])
EVERY_SECONDS = 2.0
_WHAT = "packstore receipt 2"


@dataclasses.dataclass(frozen=True, slots=True)
class SourcePosition:
    """How far a source has been read.

    Attributes:
        consumed: Entries that were read, including those that were skipped.
        digest: A digest of these entries, by which a changed source is told.
        skipped: Those left out.
        counted_upto: Entries that were counted: at least those read.
        oriented: How many of the counted have an EXIF orientation.
        palette: Of which classes how many of the counted are PNG with a palette; class 0 without labels.
    """

    consumed: int
    digest: str
    skipped: tuple[Skipped, ...] = ()
    counted_upto: int = 0
    oriented: int = 0
    palette: tuple[tuple[int, int], ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class Identity:
    """What makes a conversion the same as another one, which may so go on from its work.

    Attributes:
        fingerprint: Its options, its source, its versions.
        source_change: Given a position in the source, says how the source differs from what was read up to there; None
            where it does not.
    """

    fingerprint: Fingerprint
    source_change: Callable[[SourcePosition], str | None]

    def difference(self, receipt: Receipt) -> str | None:
        """Why a run with this receipt made something else; None where it did not."""
        return difference(receipt.fingerprint, self.fingerprint) or self.source_change(receipt.position)


@dataclasses.dataclass(frozen=True, slots=True)
class Receipt:
    """What a run has written.

    Attributes:
        fingerprint: Of the conversion.
        position: How far its source was read.
        records: Records that the journal has.
        journal: XXH3-128 of their rows in it.
        shards: The shards that are sealed, in order from the first record on; None when there are none. Their rows are
            in a file of their own that grows, so that a receipt costs the same with many.
        sealed: Digest of the manifest, once the store is complete and only its move to the destination remains.
        inode: Of that store: another one there with the same manifest may be damaged, and about to be replaced.
    """

    fingerprint: Fingerprint
    position: SourcePosition
    records: int
    journal: str
    shards: ShardTable | None = None
    sealed: str | None = None
    inode: int | None = None

    def write(self, run: Path) -> None:
        """Puts the receipt into the directory of a run, in one step."""
        plain = to_plain(self) | {"what": _WHAT}
        new = run / f"{RECEIPT}.new"
        text = json.dumps(plain, sort_keys=True)
        whole = {"digest": xxhash.xxh3_128_hexdigest(text.encode("ascii")), "receipt": plain}
        new.write_text(json.dumps(whole, sort_keys=True), "ascii")
        new.replace(run / RECEIPT)


def read_receipt(run: Path) -> Receipt | None:
    """The receipt of a run; None where there is none that is whole."""
    try:
        outer = json.loads((run / RECEIPT).read_text("ascii"))
        plain = outer["receipt"]
        if outer["digest"] != xxhash.xxh3_128_hexdigest(json.dumps(plain, sort_keys=True).encode("ascii")):
            raise ValueError("its digest differs")
        if plain.pop("what") != _WHAT:
            return None
        position = plain["position"]
        plain["position"] = SourcePosition(**position | {"skipped": tuple(Skipped(**s) for s in position["skipped"])})
        if plain["shards"] is not None:
            table = ShardTable(**plain["shards"])
            # A published run needs no shards: killed while it was removed, it may have only its receipt left.
            if plain["sealed"] is not None and not (run / SHARDS).exists():
                plain["shards"] = ()
            else:
                with (run / SHARDS).open("rb") as file:
                    plain["shards"] = table.read(file.read(table.nbytes))
        return Receipt(**plain)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, ManifestError, KeyError, TypeError, AttributeError, RecursionError) as error:
        _log.debug("the receipt in %s is of no use: %s", run, error)
        return None


class Journal:
    """Writes the journal of a run, and its receipts.

    Attributes:
        due: When the next receipt should be written, by ``time.monotonic``.
        written: Records of the latest receipt on the way; 0 in a run that was too short for one.
    """

    def __init__(self, run: Path, fingerprint: Fingerprint) -> None:
        self._run = run
        # As JSON gives it back: lists for tuples.
        self._fingerprint: Fingerprint = json.loads(json.dumps(fingerprint))
        self._file: IO[bytes] = open_file(run / JOURNAL, "xb")
        self._shards: IO[bytes] = open_file(run / SHARDS, "xb")
        self._sealed, self._shards_digest = 0, hashlib.sha256()
        self._digest = xxhash.xxh3_128()
        self._records = 0
        self.written = 0
        self.due = time.monotonic() + EVERY_SECONDS

    def append(self, sizes: Sequence[int], checksums: NDArray[np.uint64], row_checksums: NDArray[np.uint64]) -> None:
        """Adds records: sizes of their images in bytes, ``uint64`` checksums of these and of their rows."""
        rows = np.zeros(len(sizes), ROW)
        rows["size"], rows["checksum"], rows["row"] = sizes, checksums, row_checksums
        data = rows.tobytes()
        self._file.write(data)
        self._digest.update(data)
        self._records += len(sizes)

    def receipt(self, position: SourcePosition, shards: Sequence[Shard], sealed: tuple[str, int] | None = None) -> None:
        """Writes a receipt for all that was added; ``sealed`` is the digest and the inode of the complete store."""
        self._file.flush()
        digest, inode = sealed or (None, None)
        table = self._table(shards)
        receipt = Receipt(self._fingerprint, position, self._records, self._digest.hexdigest(), table, digest, inode)
        receipt.write(self._run)
        if sealed is None:
            self.written = self._records
        self.due = time.monotonic() + EVERY_SECONDS

    def close(self) -> None:
        """Closes the journal. Idempotent."""
        drop(self._file)
        drop(self._shards)

    def _table(self, shards: Sequence[Shard]) -> ShardTable | None:
        """The table of these shards, once the rows of the new ones are written."""
        if not shards:
            return None
        rows = shards_to_rows(shards[self._sealed :]).tobytes()
        self._shards.write(rows)
        self._shards.flush()
        self._shards_digest.update(rows)
        self._sealed = len(shards)
        return ShardTable(len(shards), self._shards_digest.hexdigest(), shards[0].name[len("shard-00000") :])


def read_journal(run: Path, receipt: Receipt) -> NDArray[Any]:
    """The rows of the journal that the receipt speaks of. Raises :class:`StoreError` when they are not as it says."""
    try:
        rows = np.memmap(run / JOURNAL, ROW, "r", shape=(receipt.records,)) if receipt.records else np.empty(0, ROW)
    except (OSError, ValueError) as error:  # ValueError: it is shorter
        raise StoreError(f"the journal of {run} cannot be read: {error}") from None
    if xxhash.xxh3_128_hexdigest(rows.view(np.uint8).data) != receipt.journal:
        raise StoreError(f"the journal of {run} does not hold what its receipt says")
    return rows


def difference(found: Fingerprint, wanted: Fingerprint) -> str | None:
    """What differs between two fingerprints, the first in the order of ``wanted``; None when equal. A name that ends
    with a question mark may have had no value before."""
    wanted = json.loads(json.dumps(wanted))
    for name in [*wanted, *(name for name in found if name not in wanted)]:
        mine, other = wanted.get(name), found.get(name)
        if mine != other and not (name.endswith("?") and other is None):
            if isinstance(mine, dict) and isinstance(other, dict):
                inner = difference(other, mine)
                return f"{name}: {inner}" if inner else name
            if len(str(mine)) > 40 or len(str(other)) > 40:
                return f"{name} differs"
            return f"{name} was {other}, is {mine}"
    return None
