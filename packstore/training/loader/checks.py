"""Chooses the records of a batch whose checksums are verified. Threads verify images after they have read them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from packstore.core.errors import StoreError
from packstore.core.proof import Proof
from packstore.stores import Checksums, Reader
from packstore.stores.proven import ARRAY_SHARE


class ImagesByNumber(Protocol):
    """Sized collection of images that are accessed by index."""

    def __len__(self) -> int: ...

    def __getitem__(self, number: int, /) -> Any: ...


@dataclass(frozen=True, slots=True)
class PendingChecksums:
    """Checksums of a batch's images that are still to be verified, and faults already found in its other columns.

    Attributes:
        reader: The store.
        proof: Compares its records with their checksums.
        records: Numbers of the batch's records, ``(B,)``.
        faults: Errors in other columns, by row.
        rows: Rows whose images are verified, in order.
        expected: Stored checksums of these images.
    """

    reader: Reader
    proof: Proof
    records: NDArray[np.int64]
    faults: Mapping[int, StoreError]
    rows: Sequence[int]
    expected: Sequence[int]

    def find_damaged(
        self, first: int, images: ImagesByNumber, skip: Collection[int]
    ) -> Iterator[tuple[int, StoreError]]:
        """Computes checksums; yields row and error of each damaged image, except rows in ``skip``.

        ``images``: images of the rows from ``first`` on. If the reader converts images, reads the stored ones instead.
        """
        for place in range(bisect_left(self.rows, first), bisect_left(self.rows, first + len(images))):
            row = self.rows[place]
            image, record = images[row - first], int(self.records[row])
            if self.reader.converts_images:
                image = self.reader.unchecked_reader.read_stored_image(record)
            comparison = self.proof.compare_image(record, image, self.expected[place])
            if comparison.differs and row not in skip:
                yield row, self.proof.error(record, comparison)


class ChecksumPolicy:
    """Decides which checksums of a store are verified in training. Thread-safe.

    Whether an image is verified depends only on record, epoch and the policy:

    - Image files: each time.
    - Arrays: if record number plus epoch is a multiple of :data:`ARRAY_SHARE`. As many epochs verify all arrays.
    - ``"always"``: all images each time. ``"never"``: no image.

    Numbers and keys of other columns are verified each time, if the reader verifies them. Other values are not
    verified here, but when they are read.
    """

    def __init__(self, reader: Reader, checksums: Checksums, columns: Sequence[str]) -> None:
        """
        Args:
            reader: The open store, with ``checksums``.
            checksums: The policy.
            columns: Columns of the batches.
        """
        self._reader = reader
        self._proof = Proof(reader.manifest.columns, reader.unchecked_reader.value)
        self._checks_images = checksums != "never"
        self._share = 1 if checksums == "always" or reader.manifest.holds_files else ARRAY_SHARE
        # Other columns are verified one value at a time, when they are read.
        names: set[str] = set()
        for column in map(reader.manifest.column, columns):
            names |= {column.name, *(companion.name for companion in column.companions)}
        self._names = [
            c.name for c in reader.manifest.columns[1:] if c.name in names and (c.kind == "fixed" or c.name == "key")
        ]

    def choose_checksums(self, records: NDArray[np.int64], epoch: int, every: bool) -> PendingChecksums:
        """Chooses the image checksums to verify for a batch.

        Verifies numbers and keys of its other columns at once; :attr:`PendingChecksums.faults` has their errors.

        Args:
            records: Numbers of its records, ``(B,)``.
            epoch: Number of the epoch.
            every: Choose all images, also of arrays, unless none are verified.
        """
        faults = self._reader.find_faults(records, self._names)
        by_row = (
            {row: faults[record] for row, record in enumerate(records.tolist()) if record in faults} if faults else {}
        )
        if not self._checks_images:
            return PendingChecksums(self._reader, self._proof, records, by_row, (), ())
        rows = np.arange(len(records))
        if not every and self._share > 1:
            rows = np.flatnonzero((records + epoch) % self._share == 0)
        expected = self._reader.unchecked_reader.values("checksum", records[rows])
        return PendingChecksums(self._reader, self._proof, records, by_row, rows.tolist(), expected.tolist())
