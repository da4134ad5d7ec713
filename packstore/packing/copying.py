"""Copies records between stores without decoding or encoding them; verifies every checksum."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packstore.core.column import LINK_LENGTH, SEEK_INDEX
from packstore.core.columns import Buffer
from packstore.core.errors import StoreError
from packstore.core.manifest import Column
from packstore.core.proof import ROW_CHECKSUM, Proof, row_columns
from packstore.images.orientation import count_oriented, keeps_exif
from packstore.images.seek_index import index_values, reads_gray
from packstore.packing.encoding import EXIF_ORIENTED
from packstore.stores import Reader, StoreBuilder
from packstore.stores.batch import BATCH_BYTES, BATCH_RECORDS
from packstore.stores.proven import DamagedCopies

LinkGetter = Callable[[Reader, NDArray[np.int64]], dict[str, Any]]
"""Returns the links of some records of a store, as values by column."""


@dataclass(frozen=True, slots=True)
class CopiedRecords:
    """Piece of a composition: records of one store that are copied into one split.

    Attributes:
        reader: Reader of the store that contains them.
        records: ``int64``, their numbers, in order.
        split: Their split in the new store; ``""`` for none.
        labels: By column, an array that maps old class numbers to new ones; missing values become 0.
        cut: Begin a new shard with them.
    """

    reader: Reader
    records: NDArray[np.int64]
    split: str
    labels: Mapping[str, NDArray[np.int64]] = field(default_factory=dict)
    cut: bool = False

    @property
    def count(self) -> int:
        """Number of records."""
        return len(self.records)

    @property
    def runs(self) -> list[tuple[str, int]]:
        """Split in the new store and number of consecutive records."""
        return [(self.split, self.count)]


@dataclass(slots=True)
class CopiedCounts:
    """Counts of copied records of stores that have image files with an EXIF orientation.

    Attributes:
        oriented: Number of those whose image has an EXIF orientation.
        unread: Number of records that were copied without their images.
    """

    oriented: int = 0
    unread: int = 0


def copy_records(
    builder: StoreBuilder, piece: CopiedRecords, links: LinkGetter, counts: CopiedCounts
) -> Iterator[tuple[int, int]]:
    """Copies records of an open store to a builder, batch by batch. Yields the number of records and bytes of each.

    Verifies the checksums. Between linked stores it reads no images, and then verifies only the other fields. To add a
    seek index it reads them. Fields of a store without row checksums are not verified.

    Args:
        builder: Receives the records. Columns that its store does not have are dropped.
        piece: The records.
        links: Returns the links of records; called only if the builder's store is linked.
        counts: Gets the counts of these records.

    Raises:
        CorruptRecordError: The image or another value of a record does not match its checksum.
    """
    reader, own, given = piece.reader, builder.columns, piece.reader.manifest.columns
    wanted = {column.name for column in row_columns(own)}
    linked = any(column.name == LINK_LENGTH for column in own)
    adds_index = {c.name for c in own} - {c.name for c in given} == {SEEK_INDEX.name}
    unread = linked and not adds_index and reads_gray(own) == reads_gray(given)
    has_oriented = bool(reader.manifest.options.get(EXIF_ORIENTED)) and keeps_exif(reader.manifest)
    step = max(1, min(BATCH_RECORDS, BATCH_BYTES // reader.manifest.mean_nbytes))
    for some in (piece.records[start : start + step] for start in range(0, piece.count, step)):
        checksums, images, values = _read_proven(reader, some, unread)
        for name, numbers in piece.labels.items():
            values[name] = renumber_classes(values[name], numbers)
            if f"{name}_valid" in values and isinstance(values[name], np.ndarray):
                values[name][~values[f"{name}_valid"]] = 0  # missing values have no class
        kept = {name: value for name, value in values.items() if name in wanted}
        if unread and reader.manifest.has_column(SEEK_INDEX.name):
            kept |= dict(_read_values(reader, [c for c in own if c.name == SEEK_INDEX.name], some))
        else:
            kept |= index_values(own, images)
        if has_oriented and unread:
            counts.unread += len(some)
        elif has_oriented:
            counts.oriented += count_oriented(images)
        nbytes = sum(map(len, images))
        if linked:
            kept |= links(reader, some)
            images, nbytes = [b""] * len(some), sum(kept[LINK_LENGTH].tolist())
        builder.append(images, kept, piece.split, checksums=checksums)
        yield len(some), nbytes


def renumber_classes(labels: Any, numbers: NDArray[np.int64]) -> Any:
    """Maps class numbers to new ones. Takes the array of a fixed column, or the stored values of a ragged column."""
    if isinstance(labels, np.ndarray):
        return numbers[labels]
    return [numbers[np.frombuffer(value, "<i8")].astype("<i8").tobytes() for value in labels]


def _read_proven(
    reader: Reader, some: NDArray[np.int64], unread: bool
) -> tuple[NDArray[np.uint64], Sequence[Buffer], dict[str, Any]]:
    """Reads records and verifies their checksums; returns the images' checksums, the images and all other fields."""
    copies, proof, numbers = DamagedCopies(reader), Proof(reader.manifest.columns, reader.value), some.tolist()
    while True:
        try:
            checksums = reader.values("checksum", some)
            images: Sequence[Buffer] = [b""] * len(some)  # with ``unread``, images stay empty
            if not unread:
                images = reader.views(some)
                proof.check_images(numbers, images, checksums)
            values = dict(_read_values(reader, proof.columns, some))
            if proof.has_rows:
                proof.check_rows(numbers, values, reader.values(ROW_CHECKSUM.name, some))
        except StoreError as error:
            if not copies.refetch([error], some):  # damaged shards in the cache can be fetched again
                raise
        else:
            return checksums, images, values


def _read_values(reader: Reader, columns: Iterable[Column], some: NDArray[np.int64]) -> Iterator[tuple[str, Any]]:
    """Yields name and values of each column, for some records."""
    for column in columns:
        if column.kind == "fixed":
            yield column.name, reader.values(column.name, some)
        else:
            yield column.name, [bytes(reader.value(column.name, i)) for i in some.tolist()]
