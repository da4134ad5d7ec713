"""Writes images of records into the rows of a batch buffer, in worker threads. A class for each way:

- :class:`RecordAssembler`: image files and arrays.
- :class:`CopyAssembler`: whole images of one mapped array.

Everything except decoding and resizing runs under the GIL, so it is kept short. Values that can be computed for a whole
batch at once are computed before slices go to the threads. Less Python also means fewer waits between threads, and
fewer cache lines that move between cores.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence, Set
from time import perf_counter

import numpy as np
import torch
from numpy.typing import NDArray

from packstore.core.errors import CorruptRecordError, DecodeError, PackstoreError
from packstore.training.loader.batch_plan import BatchPlan, GroupShare
from packstore.training.loader.checks import ChecksumPolicy, ImagesByNumber
from packstore.training.loader.column_rows import Failures
from packstore.training.loader.rows import RowFormat
from packstore.training.loader.stats import Stats
from packstore.training.loader.stored_images import StoredImages
from packstore.training.pictures import locate_error
from packstore.training.random_draws import MASK


class Assembler(ABC):
    """Writes records into rows of batch buffers. Thread-safe.

    Verifies checksums of the images, and adds the seconds to the statistics.

    Attributes:
        shape: Shape of a row: ``(H, W, C)``, ``(C, H, W)`` for a floating point store, or the shape of the final
            format.
        dtype: Dtype of a row.
        form: Format of a row, or of a crop in a row.
    """

    shape: tuple[int, ...]
    _stage = "decode"

    def __init__(self, images: StoredImages, stats: Stats, checks: ChecksumPolicy | None, form: RowFormat) -> None:
        """
        Args:
            images: Images of the records.
            stats: Collects the seconds of each stage.
            checks: Policy of checksum verification; None for none.
            form: Format of a row.
        """
        self._images = images
        self._stats = stats
        self._checks = checks
        self.form, self.dtype = form, form.dtype

    def row_shape_for(self, records: NDArray[np.int64]) -> tuple[int, ...]:
        """Returns the shape of a row in a batch of ``records``: by default :attr:`shape`.

        Subclasses may return another shape for a single record: that of its image."""
        return self.shape

    def as_images(self, rows: torch.Tensor) -> torch.Tensor:
        """Returns the rows of a buffer as a view ``(B, C, H, W)``."""
        return self.form.as_images(rows)

    def split_buffer(self, buffer: torch.Tensor) -> list[torch.Tensor]:
        """Divides a buffer of B records by look, without copies: by default there is one."""
        return [buffer]

    def select_sections(self, buffer: torch.Tensor, kept: NDArray[np.int64] | None) -> list[torch.Tensor]:
        """Divides a buffer like :meth:`split_buffer`, and copies the rows of the records ``kept``.

        If ``kept`` is None, returns all rows without a copy."""
        return [buffer if kept is None else buffer[torch.from_numpy(kept)]]

    def estimate_bytes(self, plan: BatchPlan) -> int:
        """Estimates the bytes of pixels that writing a planned batch makes, for dividing it among threads."""
        return plan.out.nbytes

    def plan_batch(
        self,
        out: torch.Tensor,
        ids: NDArray[np.int64],
        seed: int,
        epoch: int,
        errors: Failures,
        absent: Set[int] = frozenset(),
        check_all: bool = False,
        share: GroupShare | None = None,
    ) -> BatchPlan:
        """Reads the records of ``ids`` and plans their rows; chooses the checksums to verify. Decodes nothing. Adds the
        seconds to the statistics.

        Args:
            out: Rows of a batch buffer, ``(B, *shape)``.
            ids: Ids of the records, from :class:`Epochs`, ``(B,)``.
            seed: Seed of random operations.
            epoch: Epoch of random operations.
            errors: Receives failed records with their errors; None raises the first.
            absent: Rows without an image, which are not written.
            check_all: Verify every image, also of arrays, of which by default only some are verified.
            share: Group of batches that are planned at once, and the rows of this one; None to plan it on its own.

        Raises:
            CorruptRecordError: ``errors`` is None, and a record is damaged; names the record and its key.
            DecodeError: ``errors`` is None, and a record cannot be read; names the record and its key.
            UsageError: An image is too small for its crop, whatever ``errors`` is.
        """
        start = perf_counter()
        records = ids & MASK
        plan = BatchPlan(out, ids, seed, epoch, records.tolist(), failed=[*absent])
        if self._checks is not None:
            plan.pending = self._checks.choose_checksums(records, epoch, check_all)
            if plan.pending.faults:
                self._note_faults(plan, errors)
        group = None
        if share is not None and not plan.failed:
            group = share.group.plan_once(lambda ids: self._plan_group(ids, seed, epoch))
        if share is None or group is None:
            read = self._plan_batch(plan, records, errors)
        else:
            read = perf_counter()
            plan.take_group_rows(group, share.rows)
        self._stats.add_seconds("read", read - start)
        self._stats.add_seconds("decode", perf_counter() - read)
        return plan

    @abstractmethod
    def _plan_batch(self, plan: BatchPlan, records: NDArray[np.int64], errors: Failures) -> float:
        """Reads ``records``, plans their rows, and returns the time at which reading ended; notes records that cannot
        be read."""

    def _plan_group(self, ids: NDArray[np.int64], seed: int, epoch: int) -> BatchPlan | None:
        """Plans the records of several batches at once; None, as here, if each batch has to be planned by itself."""
        return None

    def fill_rows(
        self, plan: BatchPlan, first: int, stop: int, errors: Failures, skip: Set[int] = frozenset()
    ) -> list[int]:
        """Verifies, decodes and writes rows ``first`` … ``stop - 1`` of a planned batch. Adds the seconds to the
        statistics.

        Rows in ``skip`` need not be written.

        Returns:
            Rows that failed here, not those that failed while preparing.

        Raises:
            CorruptRecordError: ``errors`` is None, and a record is damaged; names the record and its key.
            DecodeError: ``errors`` is None, and a record cannot be decoded; names the record and its key.
            UsageError: An image cannot become a row, such as one of another size (:class:`SizeError`), whatever
                ``errors`` is.
        """
        start = perf_counter()
        failed = self._write_rows(plan, first, stop, errors, skip)
        self._stats.add_seconds(self._stage, perf_counter() - start)
        return failed

    @abstractmethod
    def _write_rows(self, plan: BatchPlan, first: int, stop: int, errors: Failures, skip: Set[int]) -> list[int]:
        """Does :meth:`fill_rows` without the statistics.

        Returns the rows that failed, and stores their errors in ``errors``. Raises the first error if ``errors`` is
        None."""

    def _note_faults(self, plan: BatchPlan, errors: Failures) -> None:
        """Marks records with damaged values in other columns as failed; raises the first error if ``errors`` is
        None."""
        assert plan.pending is not None
        faults = plan.pending.faults
        if errors is None:
            # The first damaged record may be one before, with a damaged image.
            self._verify_images(plan, 0, [self._images.view(i) for i in plan.numbers[: min(faults)]], errors)
        for row, error in sorted(faults.items()):
            plan.failed.append(self._note_error(errors, row, plan.numbers[row], error))

    def _verify_images(self, plan: BatchPlan, first: int, images: ImagesByNumber, errors: Failures) -> list[int]:
        """Verifies pending checksums of the images of the rows from ``first`` on, and returns the damaged rows."""
        if plan.pending is None:
            return []
        damaged = plan.pending.find_damaged(first, images, plan.failed)
        return [self._note_error(errors, row, plan.numbers[row], error) for row, error in damaged]

    def _note_error(self, errors: Failures, row: int, record: int, error: PackstoreError) -> int:
        """Stores the error of a record in ``errors``, with the record's key in its text; returns ``row``. Raises the
        error if ``errors`` is None."""
        if isinstance(error, CorruptRecordError):  # it names the record itself
            if errors is None:
                raise error
            errors[record] = error
            return row
        named = locate_error(error, self._images.reader, record, self._images.column.name)
        named.record, named.__cause__ = record, error
        if errors is None:
            raise named
        errors[record] = named
        return row


def wrong_header_error(said: Sequence[int], found: Sequence[int]) -> DecodeError:
    """Returns the error for an image whose height and width ``found`` differ from those its header ``said``."""
    return DecodeError(f"its header says {said[0]}x{said[1]}, and it is {found[0]}x{found[1]}")
