"""Receipts: what a run has written so far, so that another run can go on from it after a kill.

A run keeps a *journal*, 32 bytes a record (size, checksum, shape), and every few seconds a *receipt*: a JSON file that
says how many records there are, what the journal's digest is up to there, by which options and from which source they
were made, and which shards are sealed. It is replaced in one step and never synced: a power cut may lose the last
seconds, but nothing is believed because it is there. Whoever goes on compares the journal with the receipt, each
record with its checksum and each sealed shard with its SHA-256, and takes over what is proven, from the first record
to the first doubt.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from packstore.core.errors import StoreError
from packstore.core.files import drop, open_file
from packstore.core.manifest import Shard, Skipped
from packstore.stores.builder.work_directory import JOURNAL, RECEIPT

_log = logging.getLogger(__name__)

Fingerprint = Mapping[str, Any]
"""What makes the records what they are, as plain JSON: options, source, versions. Equal ones give equal stores."""

ROW = np.dtype([("size", "<u8"), ("checksum", "<u8"), ("shape", "<i4", (3,)), ("unused", "<u4")])
EVERY_SECONDS = 2.0
_WHAT = "packstore receipt 1"


@dataclasses.dataclass(frozen=True, slots=True)
class Progressed:
    """How far a source has been read; the caller's part of a receipt.

    Attributes:
        consumed: Entries of the source that were read, with those that were skipped.
        digest: A digest of these entries, by which a changed source is told.
        skipped: Those left out.
    """

    consumed: int
    digest: str
    skipped: tuple[Skipped, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class Receipt:
    """What a run has written.

    Attributes:
        fingerprint: Of the conversion.
        progressed: How far its source was read; None in a receipt that nobody can go on from, only finish.
        records: Records that the journal has.
        journal: XXH3-128 of their rows in it.
        shards: The shards that are sealed, in order from the first record on.
        sealed: Digest of the manifest, once the store is complete and only its move to the destination remains.
        inode: Of that store: another one there with the same manifest may be damaged, and about to be replaced.
    """

    fingerprint: Fingerprint
    progressed: Progressed | None
    records: int
    journal: str
    shards: tuple[Shard, ...] = ()
    sealed: str | None = None
    inode: int | None = None

    def write(self, run: Path) -> None:
        """Puts the receipt into the directory of a run, in one step."""
        plain = dataclasses.asdict(self) | {"what": _WHAT}
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
        progressed = plain["progressed"]
        if progressed is not None:
            progressed["skipped"] = tuple(Skipped(**s) for s in progressed["skipped"])
            plain["progressed"] = Progressed(**progressed)
        plain["shards"] = tuple(Shard(**s) for s in plain["shards"])
        return Receipt(**plain)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
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
        self._digest = xxhash.xxh3_128()
        self._records = 0
        self.written = 0
        self.due = time.monotonic() + EVERY_SECONDS

    def append(self, sizes: Sequence[int], checksums: NDArray[np.uint64], shapes: NDArray[np.int32] | None) -> None:
        """Adds records: sizes in bytes, ``uint64`` checksums, and ``int32`` shapes ``(n, 3)`` where these vary."""
        rows = np.zeros(len(sizes), ROW)
        rows["size"], rows["checksum"] = sizes, checksums
        if shapes is not None:
            rows["shape"] = shapes
        data = rows.tobytes()
        self._file.write(data)
        self._digest.update(data)
        self._records += len(sizes)

    def receipt(
        self, progressed: Progressed | None, shards: Sequence[Shard], sealed: tuple[str, int] | None = None
    ) -> None:
        """Writes a receipt for all that was added; ``sealed`` is the digest and the inode of the complete store."""
        self._file.flush()
        digest, inode = sealed or (None, None)
        receipt = Receipt(
            self._fingerprint, progressed, self._records, self._digest.hexdigest(), tuple(shards), digest, inode
        )
        receipt.write(self._run)
        if sealed is None:
            self.written = self._records
        self.due = time.monotonic() + EVERY_SECONDS

    def close(self) -> None:
        """Closes the journal. Idempotent."""
        drop(self._file)


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
    """What differs between two fingerprints, the first in the order of ``wanted``; None when equal."""
    wanted = json.loads(json.dumps(wanted))
    for name in [*wanted, *(name for name in found if name not in wanted)]:
        mine, other = wanted.get(name), found.get(name)
        if mine != other:
            if isinstance(mine, dict) and isinstance(other, dict):
                inner = difference(other, mine)
                return f"{name}: {inner}" if inner else name
            if len(str(mine)) > 40 or len(str(other)) > 40:
                return f"{name} differs"
            return f"{name} was {other}, is {mine}"
    return None
