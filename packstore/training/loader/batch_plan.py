"""Batches that are planned but not yet decoded. Several are planned at once: with few records a batch, most of the time
for planning goes to calls of numpy.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from packstore.core.errors import CorruptRecordError, StoreError
from packstore.core.proof import Proof
from packstore.images.engine import Requests
from packstore.images.sniff import ImageInfo
from packstore.stores import Checksums, Reader
from packstore.stores.proven import ARRAY_SHARE
from packstore.training.loader.looks import Drawn, DrawnLook
from packstore.training.values import as_numpy

Failures = dict[int, Exception] | None
"""Failed records and their errors; None to raise the first error."""

Header = ImageInfo | None
"""Header of an image file; None if the file was not read."""


@dataclass(eq=False)
class BatchPlan:
    """Planned batch: which record goes into which row of a buffer, and how.

    A whole batch is planned at once, since planning costs hardly more for many images than for one.

    Attributes:
        out: The rows, ``(B, *shape)``.
        ids: Ids of the records, from :class:`Epochs`, ``(B,)``: record number, and occurrence in the epoch.
        seed: Seed of random operations.
        epoch: Epoch of random operations.
        records: Numbers of the records, ``(B,)``.
        numbers: The same as a list; empty for the plan of several batches.
        errors: Receives failed records with their errors; None raises the first.
        buffers: Stored bytes of the records' images, or arrays.
        sizes: Height and width of each image by its header, ``(B, 2)``; upright if it has an EXIF orientation to apply.
        pending: Checksums that are still to be verified; None if there is no policy.
        turned: EXIF orientations to apply, by row. The engine refuses these images.
        headers: Headers of image files that the engine refuses; None for other rows.
        looks: The drawn looks of all records; empty if whole arrays are copied.
        failed: Rows whose records cannot be read.
        requests: The whole batch as requests to the engine, a record's crops of all looks one after another; None if
            the engine cannot process it.
    """

    out: torch.Tensor
    ids: NDArray[np.int64]
    seed: int
    epoch: int
    records: NDArray[np.int64]
    numbers: Sequence[int] = ()
    errors: Failures = None
    pending: PendingChecksums | None = None
    buffers: Any = field(default_factory=list)
    sizes: NDArray[np.int64] = field(init=False)
    headers: Sequence[Header] = ()
    looks: Sequence[Drawn] = ()
    turned: Mapping[int, int] = field(default_factory=dict)
    failed: list[int] = field(default_factory=list)
    requests: Requests | None = None

    def take_group_rows(self, group: BatchPlan, rows: slice) -> None:
        """Takes this batch's rows from the plan of a group of batches. Its requests then write to :attr:`out`.

        Asserts that the plan has one look, and requests."""
        (look,) = group.looks
        self.buffers, self.sizes, self.headers = group.buffers[rows], group.sizes[rows], group.headers[rows]
        self.turned = {row - rows.start: turn for row, turn in group.turned.items() if rows.start <= row < rows.stop}
        assert isinstance(look, DrawnLook)
        self.looks = [look.select_records(rows.start, rows.stop, self.out)]
        assert group.requests is not None
        self.requests = group.requests.select_rows(rows.start, rows.stop)
        self.requests.write_to(as_numpy(self.out))


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
            if row in skip:
                continue
            image, record = images[row - first], int(self.records[row])
            if self.reader.converts_images:
                image = self.reader.unchecked_reader.read_stored_image(record)
            try:
                self.proof.check_image(record, image, self.expected[place])
            except CorruptRecordError as error:
                yield row, error


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
        stored = reader.manifest.columns
        names = {each.name for column in stored if column.name in columns for each in (column, *column.companions)}
        # Other columns are verified one value at a time, when they are read.
        self._names = [c.name for c in stored[1:] if c.name in names and (c.kind == "fixed" or c.name == "key")]

    def choose_checksums(self, records: NDArray[np.int64], epoch: int, every: bool) -> PendingChecksums:
        """Chooses the image checksums to verify for a batch.

        Verifies numbers and keys of its other columns at once; :attr:`PendingChecksums.faults` has their errors.

        Args:
            records: Numbers of its records, ``(B,)``.
            epoch: Number of the epoch.
            every: Choose all images, also of arrays, unless none are verified.
        """
        faults = self._reader.rows.find_faults(records, self._names)
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
