"""The table of a sharded store: a row of fixed size for each shard, in a binary file that :func:`numpy.fromfile` reads.

The manifest of the store holds the number of rows and their SHA-256, which detects every changed byte. A row holds all
facts about a shard that are known without opening it. Shards can therefore be added to a table or left out without
reading them. Rows are in the order of the records. The number in a row names the shard's file: a shard can be inserted
without renaming others.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packstore.core.column_types.base import SHA256, check
from packstore.core.errors import ManifestError

TABLE_ROW = np.dtype(
    [
        ("number", "<u8"),
        ("records", "<u8"),
        ("nbytes", "<u8"),
        ("image_nbytes", "<u8"),
        ("records_digest", "u1", (16,)),
        ("digest", "u1", (32,)),
        ("manifest_digest", "u1", (32,)),
    ]
)
"""A row of the table, 112 bytes; the fields are those of :class:`Shard`."""
SHARD = re.compile(r"shard-(?P<number>\d{5}|[1-9]\d{5,9})(?P<suffix>\.[a-z0-9._-]{1,32})")
"""File name of a shard of any format."""
TABLE = re.compile(r"table-[0-9a-f]{12}\.shards")
"""File name of a table. It contains the first 12 digits of its SHA-256, so tables of two versions never mix up."""

_MAX_SHARDS = 10**7
_MAX_NUMBER = 10**10
_MAX_BYTES = 1 << 62
MAX_RECORDS = 10**10  # LMDB keys have ten digits
_SUFFIX = re.compile(r"\.[a-z0-9._-]{1,32}")
RECORDS_DIGEST = re.compile(r"[0-9a-f]{32}")


def shard_name(number: int, suffix: str) -> str:
    """Returns the file name of a shard in its store's directory: ``shard-00003.h5``."""
    return f"shard-{number:05d}{suffix}"


@dataclass(frozen=True, slots=True)
class Shard:
    """One file (or directory) of a sharded store. Raises :class:`ManifestError` for impossible values.

    Attributes:
        name: File name in the store's directory, see :data:`SHARD`.
        records: Number of its records, at least one.
        nbytes: Size of its data file (for LMDB ``data.mdb``).
        image_nbytes: Bytes of its images.
        records_digest: Its own :attr:`packstore.core.manifest.Manifest.records_digest`.
        digest: SHA-256 of its data file.
        manifest_digest: Digest of its manifest; distinguishes shards of equal size when they are opened.
    """

    name: str
    records: int
    nbytes: int
    image_nbytes: int
    records_digest: str
    digest: str
    manifest_digest: str

    def __post_init__(self) -> None:
        check(SHARD.fullmatch(self.name) is not None, "shard name", self.name)
        sizes = self.nbytes, self.image_nbytes
        check(1 <= self.records <= MAX_RECORDS and min(sizes) >= 0, "shard size", (self.records, *sizes))
        check(max(sizes) < _MAX_BYTES, "shard size", sizes)
        check(RECORDS_DIGEST.fullmatch(self.records_digest) is not None, "records digest", self.records_digest)
        check(SHA256.fullmatch(self.digest) is not None, "shard digest", self.digest)
        check(SHA256.fullmatch(self.manifest_digest) is not None, "shard manifest digest", self.manifest_digest)

    @property
    def number(self) -> int:
        """The number in its name."""
        return int(self.name[6 : self.name.index(".")])


@dataclass(frozen=True)
class ShardTable(Sequence[Shard]):
    """The shards of a store in order. Equality compares length, digest and suffix, not rows.

    Raises :class:`ManifestError` for an impossible length, digest or suffix; :meth:`parse_rows` checks rows. Access to
    a shard raises it if the rows were not read.

    Attributes:
        length: Number of shards.
        digest: SHA-256 of the rows.
        suffix: Suffix of the shards' file names.
        rows: :data:`TABLE_ROW`, shape ``(length,)``; None if only the manifest was read.
    """

    length: int
    digest: str
    suffix: str
    rows: NDArray[Any] | None = field(default=None, compare=False, repr=False, metadata={"plain": False})

    def __post_init__(self) -> None:
        check(1 <= self.length <= _MAX_SHARDS, "number of shards", self.length)
        check(SHA256.fullmatch(self.digest) is not None, "digest of the table of shards", self.digest)
        check(_SUFFIX.fullmatch(self.suffix) is not None, "suffix of shards", self.suffix)

    @classmethod
    def from_shards(cls, shards: Sequence[Shard], suffix: str) -> ShardTable:
        """Builds the table of these shards. Raises :class:`ManifestError` without shards."""
        return cls.from_rows(shards_to_rows(shards), suffix)

    @classmethod
    def from_rows(cls, rows: NDArray[Any], suffix: str) -> ShardTable:
        """Builds the table of contiguous rows, :data:`TABLE_ROW`. Raises :class:`ManifestError` without rows."""
        return cls(len(rows), hashlib.sha256(rows.data).hexdigest(), suffix, rows)

    @property
    def file(self) -> str:
        """Name of the table's file in the store's directory."""
        return f"table-{self.digest[:12]}.shards"

    @property
    def nbytes(self) -> int:
        """Size of the table's file."""
        return self.length * TABLE_ROW.itemsize

    def parse_rows(self, data: bytes) -> ShardTable:
        """Returns a table with the rows in ``data``, the bytes of the table's file.

        Raises :class:`ManifestError` if they do not match the digest, have impossible values, or name a shard twice.
        """
        if len(data) != self.nbytes:
            raise ManifestError(f"the table of shards has {len(data)} bytes, expected {self.nbytes}")
        found = hashlib.sha256(data).hexdigest()
        if found != self.digest:
            raise ManifestError(f"the table of shards is damaged: its SHA-256 is {found}, expected {self.digest}")
        rows = np.frombuffer(data, TABLE_ROW)
        records = rows["records"]
        good = (records >= 1) & (records <= MAX_RECORDS)
        good &= (rows["nbytes"] < _MAX_BYTES) & (rows["image_nbytes"] < _MAX_BYTES) & (rows["number"] < _MAX_NUMBER)
        if not good.all():
            row = int(np.argmin(good))
            raise ManifestError(f"the table of shards has an impossible row {row}: {rows[row].tolist()[:4]}")
        if len(np.unique(rows["number"])) != len(rows):
            raise ManifestError("the table of shards names a shard twice")
        return ShardTable(self.length, self.digest, self.suffix, rows)

    @property
    def table(self) -> NDArray[Any]:
        """The rows. Raises :class:`ManifestError` if they were not read."""
        if self.rows is None:
            raise ManifestError("the table of shards was not read")
        return self.rows

    @cached_property
    def starts(self) -> NDArray[np.int64]:
        """First record of each shard, ``int64 (length + 1,)``. The last element is the number of all records.

        Raises :class:`ManifestError` if the rows were not read.
        """
        starts = np.zeros(self.length + 1, np.int64)
        np.cumsum(self.table["records"], dtype=np.int64, out=starts[1:])
        return starts

    def name(self, place: int) -> str:
        """Returns the file name of the shard at a position in the table. Raises :class:`ManifestError` if the rows were
        not read."""
        return shard_name(int(self.table["number"][place]), self.suffix)

    def names(self) -> list[str]:
        """Returns the file names of all shards, in order. Raises :class:`ManifestError` if the rows were not read."""
        return [shard_name(number, self.suffix) for number in self.table["number"].tolist()]

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, number: Any) -> Any:
        """Returns a :class:`Shard`, or a list of them for a slice."""
        chosen = range(self.length)[number]
        if isinstance(chosen, range):
            return [self[i] for i in chosen]
        row = self.table[chosen]
        return Shard(
            self.name(chosen),
            int(row["records"]),
            int(row["nbytes"]),
            int(row["image_nbytes"]),
            row["records_digest"].tobytes().hex(),
            row["digest"].tobytes().hex(),
            row["manifest_digest"].tobytes().hex(),
        )

    def __iter__(self) -> Iterator[Shard]:
        return (self[i] for i in range(self.length))


def shards_to_rows(shards: Sequence[Shard]) -> NDArray[Any]:
    """Converts shards to rows of a table, :data:`TABLE_ROW`."""
    rows = np.zeros(len(shards), TABLE_ROW)
    for i, shard in enumerate(shards):
        digests = (shard.records_digest, shard.digest, shard.manifest_digest)
        values = (np.frombuffer(bytes.fromhex(text), np.uint8) for text in digests)
        rows[i] = (shard.number, shard.records, shard.nbytes, shard.image_nbytes, *values)
    return rows
