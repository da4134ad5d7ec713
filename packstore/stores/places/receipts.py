"""Receipts: what a run notes of its work, with a :class:`Tally` of the samples that it has read.

By them another run can resume it, or finds that it is complete.
"""

from __future__ import annotations

import dataclasses
import json
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from packstore.core.errors import ManifestError
from packstore.core.manifest import Skipped
from packstore.core.plainjson import encode_with_digest, from_plain, parse_with_digest, to_plain
from packstore.core.shards import ShardTable

_log = logging.getLogger(__name__)

Fingerprint = Any
"""Plain JSON that determines what a run writes: runs with equal ones write the same. A conversion's is an object."""

RECEIPT, SHARDS = "receipt", "shards"
_WHAT = "packstore receipt 5"


@dataclasses.dataclass(slots=True)
class Tally:
    """Counts of samples. :meth:`add` adds up the tallies of batches, shards and interrupted runs.

    Attributes:
        entries: Number of entries that were read, including the skipped ones.
        source_bytes: Their bytes in the source.
        skipped: Samples left out by policy.
        counted: Number of records by option of the manifest: ``exif_oriented``, or a conversion from another mode
            without loss (:data:`packstore.images.image_files.UNIFIED`).
        palette: Number of PNG files with a palette, by class number as text; class 0 without labels.
        kept: Number of progressive JPEG files that could not be made baseline and were kept unchanged, by reason.
    """

    entries: int = 0
    source_bytes: int = 0
    skipped: list[Skipped] = dataclasses.field(default_factory=list)
    counted: Counter[str] = dataclasses.field(default_factory=Counter)
    palette: Counter[str] = dataclasses.field(default_factory=Counter)
    kept: Counter[str] = dataclasses.field(default_factory=Counter)

    def __post_init__(self) -> None:
        # Read back from JSON, they are a tuple and dicts.
        self.skipped = list(self.skipped)
        self.counted, self.palette, self.kept = Counter(self.counted), Counter(self.palette), Counter(self.kept)

    def add(self, other: Tally) -> None:
        """Adds the counts of ``other``, whose samples come after those of this tally."""
        self.entries += other.entries
        self.source_bytes += other.source_bytes
        self.skipped += other.skipped
        self.counted.update(other.counted)
        self.palette.update(other.palette)
        self.kept.update(other.kept)


def sum_tallies(tallies: Iterable[Tally]) -> Tally:
    """Returns the sum of tallies, in their order."""
    total = Tally()
    for each in tallies:
        total.add(each)
    return total


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
class Receipt:
    """Record of the work that a run has done: a conversion, an append or an export.

    Attributes:
        fingerprint: Fingerprint of the run.
        position: Position that a conversion reached in its source; None for other runs.
        records: Records in the journal.
        journal: XXH3-128 of their rows in the journal.
        shards: The sealed shards from the first record on; None if there are none. Their rows are in a file of their
            own, to which each receipt only appends.
        sealed: Digest of the manifest of the complete store; None before the store is complete, and for an export.
        inode: Inode of what the run publishes by a rename. It tells a store from another one with the same manifest,
            and an export from the one that it replaces.
        version: At a URL, the number of the version that the run publishes.
        added: Names of the files that an append adds to a store.
        replaced: Names of the store's files that it does not need after the append.
    """

    fingerprint: Fingerprint
    position: SourcePosition | None = None
    records: int = 0
    journal: str = ""
    shards: ShardTable | None = None
    sealed: str | None = None
    inode: int | None = None
    version: int | None = None
    added: tuple[str, ...] = ()
    replaced: tuple[str, ...] = ()

    def encode(self) -> bytes:
        """Formats the receipt as JSON with its own SHA-256."""
        return encode_with_digest(to_plain(self) | {"what": _WHAT})

    @classmethod
    def parse(cls, data: bytes) -> Receipt:
        """Parses the output of :meth:`encode`; the shards have no rows yet.

        Raises :class:`ManifestError` if it is damaged or of another version.
        """
        plain = parse_with_digest(data)
        if plain.pop("what", None) != _WHAT:
            raise ManifestError("it is of another version")
        return from_plain(cls, plain, "receipt")

    def write(self, run: Path) -> None:
        """Replaces the receipt in the directory of a run, in one step."""
        new = run / f"{RECEIPT}.new"
        new.write_bytes(self.encode())
        new.replace(run / RECEIPT)


def read_receipt(run: Path) -> Receipt | None:
    """Reads the receipt of a run and the table of its shards.

    Returns None if there is no receipt, or if receipt or table is damaged or of another version. A complete store needs
    no table: its receipt then has no shards.
    """
    try:
        receipt = Receipt.parse((run / RECEIPT).read_bytes())
        if (table := receipt.shards) is None:
            return receipt
        # A run killed while its directory was being removed may have only its receipt left; that suffices.
        if receipt.sealed is not None and not (run / SHARDS).exists():
            return dataclasses.replace(receipt, shards=None)
        with (run / SHARDS).open("rb") as file:
            return dataclasses.replace(receipt, shards=table.parse_rows(file.read(table.nbytes)))
    except FileNotFoundError:
        return None
    except (OSError, ManifestError, RecursionError) as error:
        _log.debug("the receipt in %s is unusable: %s", run, error)
        return None


@dataclasses.dataclass(frozen=True, slots=True)
class ConversionIdentity:
    """Identity of a conversion: options, source and versions. A later run with the same identity may resume an
    interrupted one.

    Attributes:
        fingerprint: Its options, source and versions.
        source_change: Describes how the source has changed before a position. Returns None if it has not.
    """

    fingerprint: Mapping[str, Any]
    source_change: Callable[[SourcePosition], str | None]

    def describe_difference(self, receipt: Receipt) -> str | None:
        """Describes how a receipt's run differs from this conversion. Returns None if it does not."""
        if receipt.position is None:
            return "it was no conversion"
        return describe_difference(receipt.fingerprint, self.fingerprint) or self.source_change(receipt.position)


def describe_difference(other: Mapping[str, Any], wanted: Mapping[str, Any]) -> str | None:
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
