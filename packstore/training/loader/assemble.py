"""Assembles records as rows of a batch buffer in worker threads. A class for each way:

- :class:`RecordAssembler`: image files, which are decoded, and arrays that are read one by one; with
  :class:`ViewAssembler` for several crops, and :class:`UnequalAssembler` for images that differ in size;
- :class:`CropAssembler` and :class:`CopyAssembler`: one mapped array of all images.

Everything except decoding and resizing runs under the GIL, so it is kept short: whatever can be computed for a whole
batch at once is, before slices go to the threads. Less Python also means fewer waits between threads, and fewer cache
lines that move between cores.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence, Set
from time import perf_counter

import numpy as np
import torch
from numpy.typing import NDArray

from packstore.core.errors import CorruptRecordError, DecodeError, PackstoreError
from packstore.training.loader.checks import Checks, ImagesByNumber
from packstore.training.loader.fields import Failures
from packstore.training.loader.finish import RowFormat
from packstore.training.loader.planning import Share
from packstore.training.loader.prepared import Prepared
from packstore.training.loader.stats import Stats
from packstore.training.loader.stored_images import StoredImages
from packstore.training.pictures import locate_error
from packstore.training.random_draws import MASK


class Assembler(ABC):
    """Writes records into rows of batch buffers. Thread-safe.

    Attributes:
        shape: Shape of a row: ``(H, W, C)``, ``(C, H, W)`` for a floating point store, or the shape of the final
            format.
        dtype: Dtype of a row.
        planes: Rows have the channels first.
    """

    shape: tuple[int, ...]
    _stage = "decode"

    def __init__(self, images: StoredImages, stats: Stats, checks: Checks | None, finish: RowFormat | None) -> None:
        """
        Args:
            images: Images of the records.
            stats: Collects the seconds of each stage.
            checks: Policy of checksum verification; None for none.
            finish: Final format of cropped pixels; None for none.
        """
        self._images = images
        self._stats = stats
        self._checks = checks
        self._finish = finish
        made = finish or images.stored
        self.planes, self.dtype = made.planes, made.dtype

    def shape_for(self, records: NDArray[np.int64]) -> tuple[int, ...]:
        """Returns the shape of a row of a batch of ``records``: :attr:`shape`; the image's own shape for a single
        record whose size may differ.

        Reads that from the image's header; if the header is damaged or too large, decoding raises.
        """
        return self.shape

    def as_images(self, rows: torch.Tensor) -> torch.Tensor:
        """Returns rows of a buffer as ``(B, C, H, W)``: a view, channels last if pixels are stored like that."""
        return rows if self.planes else rows.permute(0, 3, 1, 2)

    def bytes_made(self, prepared: Prepared) -> int:
        """Estimates the bytes of pixels of a prepared batch."""
        return prepared.out.nbytes

    def prepare(
        self,
        out: torch.Tensor,
        ids: NDArray[np.int64],
        seed: int,
        epoch: int,
        errors: Failures,
        absent: Set[int] = frozenset(),
        check_all: bool = False,
        share: Share | None = None,
    ) -> Prepared:
        """Reads the records of ``ids`` and plans their rows. Decodes nothing.

        Args:
            out: Rows of a batch buffer, ``(B, *shape)``.
            ids: Ids of the records, from :class:`Epochs`, ``(B,)``.
            seed: Seed of random operations.
            epoch: Epoch of random operations.
            errors: Receives failed records with their errors; None raises the first.
            absent: Rows without an image, which are not written.
            check_all: Verify all images, of arrays too.
            share: Group of batches that are planned at once, and the rows of this one; None to plan it on its own.

        Raises:
            CorruptRecordError: A record is damaged; names the record and its key.
        """
        start = perf_counter()
        records = ids & MASK
        prepared = Prepared(out, ids, seed, epoch, records.tolist(), failed=[*absent], finish=self._finish)
        if self._checks is not None:
            prepared.suspects = self._checks.choose(records, epoch, check_all)
            if prepared.suspects.faults:
                self._note_faults(prepared, errors)
        plan = None
        if share is not None and not prepared.failed:
            plan = share.group.plan(lambda ids: self._plan_group(ids, seed, epoch))
        if share is None or plan is None:
            read = self._plan(prepared, records, errors)
        else:
            read = perf_counter()
            prepared.adopt(plan, share.rows)
        self._stats.add("read", read - start)
        self._stats.add("decode", perf_counter() - read)
        return prepared

    @abstractmethod
    def _plan(self, prepared: Prepared, records: NDArray[np.int64], errors: Failures) -> float:
        """Reads ``records`` and plans their rows; returns the time when they were read."""

    def _plan_group(self, ids: NDArray[np.int64], seed: int, epoch: int) -> Prepared | None:
        """Plans the records of several batches, without rows, or returns None if each batch is to be planned on its
        own."""
        return None

    def fill(
        self, prepared: Prepared, first: int, stop: int, errors: Failures, skip: Set[int] = frozenset()
    ) -> list[int]:
        """Decodes and writes rows ``first`` … ``stop - 1`` of a prepared batch; may leave out rows in ``skip``.

        Returns:
            Rows that failed here, not those that failed while preparing.

        Raises:
            CorruptRecordError: A record is damaged; names the record and its key.
            DecodeError: A record cannot be decoded; likewise.
        """
        start = perf_counter()
        failed = self._write_rows(prepared, first, stop, errors, skip)
        self._stats.add(self._stage, perf_counter() - start)
        return failed

    @abstractmethod
    def _write_rows(self, prepared: Prepared, first: int, stop: int, errors: Failures, skip: Set[int]) -> list[int]:
        """Does :meth:`fill`."""

    def _note_faults(self, prepared: Prepared, errors: Failures) -> None:
        """Notes errors in other columns; or raises the first error of the batch, images included."""
        assert prepared.suspects is not None
        faults = prepared.suspects.faults
        if errors is None:
            self._verify_images(prepared, 0, [self._images.view(i) for i in prepared.numbers[: min(faults)]], errors)
        for row, error in sorted(faults.items()):
            prepared.failed.append(self._note_error(errors, row, prepared.numbers[row], error))

    def _verify_images(self, prepared: Prepared, first: int, images: ImagesByNumber, errors: Failures) -> list[int]:
        """Verifies checksums of ``images``, which belong to the rows from ``first`` on; returns the damaged rows."""
        if prepared.suspects is None:
            return []
        damaged = prepared.suspects.find_damaged(first, images, prepared.failed)
        return [self._note_error(errors, row, prepared.numbers[row], error) for row, error in damaged]

    def _note_error(self, errors: Failures, row: int, record: int, error: PackstoreError) -> int:
        """Notes the error of a record, or raises it if ``errors`` is None; returns the row."""
        if isinstance(error, CorruptRecordError):  # it names the record itself
            if errors is None:
                raise error
            errors[record] = error
            return row
        named = locate_error(error, self._images.reader, record, self._images.column.name)
        if errors is None:
            raise named from error
        errors[record] = named
        return row


def wrong_header_error(said: Sequence[int], found: Sequence[int]) -> DecodeError:
    """Returns the error for an image whose size differs from its header."""
    return DecodeError(f"its header says {said[0]}x{said[1]}, and it is {found[0]}x{found[1]}")
