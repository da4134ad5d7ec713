"""Reads the columns of a loader's batches besides the main image.

The thread that prepares a batch gathers each column for the whole batch. Then all threads decode masks and further
images row by row, besides the main image. Numbers go to the device with the images.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from packstore.core.columns import from_stored
from packstore.core.errors import CorruptRecordError, DecodeError, PackstoreError, StoreError, UsageError
from packstore.core.manifest import Column
from packstore.stores import Reader
from packstore.training.augment.base import Step
from packstore.training.dataset import PackedDataset
from packstore.training.loader.batch_plan import BatchPlan
from packstore.training.pictures import describe_record, locate_error
from packstore.training.random_draws import Draws
from packstore.training.values import as_tensor

if TYPE_CHECKING:
    from packstore.training.augment.targets import Placement

NewBuffer = Callable[[Sequence[int], torch.dtype], torch.Tensor]
"""Allocates host memory for a column's rows."""

NumberedBuffer = Callable[[int, Sequence[int], torch.dtype], torch.Tensor]
"""Does the same for the column with an index."""


class Padded(NamedTuple):
    """Values with different numbers of rows, padded to one tensor.

    Attributes:
        values: ``(B, n, …)``, ``n`` the largest number of rows. Padding is zero; that of masks is the loader's
            ``mask_fill``.
        lengths: Size of each record's own value. Lists of rows: their number, int64 ``(B,)``. Images: height and width,
            int64 ``(B, 2)``. Volumes and clips: the length of each axis, int64 ``(B, axes)``.
    """

    values: torch.Tensor
    lengths: torch.Tensor


@dataclass(eq=False)
class ColumnContext:
    """Batch whose columns are being read.

    Attributes:
        reader: The open store.
        plan: The batch, whose ``errors`` receive failed records; None raises the first.
        sizes: Height and width of the main images, ``(B, 2)``; None if no column moves with the images.
        placement: Positions of pixels after the operations; None without operations.
        failed: Failed rows, which are not read.
        objects: For each column of objects read so far: whether to keep each object, and their number in each record.
    """

    reader: Reader
    plan: BatchPlan
    sizes: NDArray[np.int64] | None
    placement: Placement | None
    failed: set[int]
    objects: dict[str, tuple[NDArray[np.bool_], NDArray[np.int64]]] = field(default_factory=dict)

    @cached_property
    def numbers(self) -> list[int]:
        """Numbers of the records, as a list."""
        numbers: list[int] = self.plan.records.tolist()
        return numbers

    def describe_row(self, row: int) -> str:
        """Describes a row for error texts: number and key of its record, and the store."""
        return describe_record(self.reader, self.numbers[row])

    def note_failure(self, row: int, error: PackstoreError, column: str) -> None:
        """Adds ``row`` to :attr:`failed`, and stores ``error`` in the plan's errors, with record and key in its text.

        If these are None, raises the error instead. A :class:`UsageError` is raised in any case, unchanged."""
        if isinstance(error, UsageError):
            raise error
        record = self.numbers[row]
        if isinstance(error, DecodeError):
            error = locate_error(error, self.reader, record, column)
        elif not isinstance(error, CorruptRecordError):
            error = StoreError(f"{self.describe_row(row)}: {error}")
        error.record = record
        if self.plan.errors is None:
            raise error
        self.plan.errors[record] = error
        self.failed.add(row)

    def compare_counts(self, column: Column, counts: NDArray[np.int64], expected: NDArray[np.int64]) -> None:
        """Notes a failure for each record whose number of a column's rows is not that of its objects."""
        for row in np.flatnonzero(counts != expected).tolist():
            if row not in self.failed:
                rows = f"{counts[row]} rows of {column.name!r}, and {expected[row]} of {column.parallel!r}"
                self.note_failure(row, StoreError(f"it has {rows}"), column.name)


class ColumnRows(ABC):
    """Values of one column for one batch, in host memory. They were read, and are not yet on the device."""

    in_ring = False
    """The tensors may share memory with the ring of batch buffers."""

    def fill_rows(self, context: ColumnContext, first: int, stop: int, skip: Set[int]) -> list[int]:
        """Decodes rows ``first`` … ``stop - 1``, except rows in ``skip``. Thread-safe. This default does nothing.

        Returns the rows that failed, whose errors are stored in ``context``. Raises the first error instead if
        the batch collects no errors."""
        return []

    @abstractmethod
    def host_tensors(self, kept: NDArray[np.int64] | None) -> list[torch.Tensor]:
        """Returns the tensors to copy to the device, with the rows ``kept``, or all."""

    @abstractmethod
    def build_value(self, there: Iterator[torch.Tensor], kept: NDArray[np.int64] | None, ids: torch.Tensor) -> Any:
        """Builds the batch's value from its tensors on the device.

        Args:
            there: Yields the tensors in the order of :meth:`host_tensors`. Exactly as many are taken.
            kept: As for :meth:`host_tensors`.
            ids: Ids of the records, on the device. Only columns that are augmented there use them.
        """


class ColumnReader(ABC):
    """Reads one column for a loader's batches."""

    def __init__(self, column: Column, optional: bool = False) -> None:
        self.column = column
        self.optional = optional

    @abstractmethod
    def read_batch(self, context: ColumnContext, new_buffer: NewBuffer) -> ColumnRows:
        """Reads the column's values of a batch.

        Adds rows that cannot be read to ``context.failed``, and stores their errors in ``context``. Masks and images
        are not decoded yet: ``new_buffer`` allocates their memory.

        Raises:
            UsageError: A record has no value, and the column is not optional; names the record and its key.
            StoreError, DecodeError: The batch collects no errors, and a record cannot be read.
        """

    def find_missing(self, context: ColumnContext) -> NDArray[np.bool_] | None:
        """Returns bool ``(B,)``, True for records without a value. Returns None for a column that is not optional.

        Raises:
            UsageError: A row that has not failed has no value, and the column is not optional; names the record and its
                key.
        """
        if not self.column.nullable:
            return np.zeros(len(context.plan.ids), np.bool_) if self.optional else None
        missing = ~context.reader.values(self.column.valid_name, context.plan.records)
        rows = [row for row in np.flatnonzero(missing).tolist() if row not in context.failed]
        if rows and not self.optional:
            raise missing_value_error(context.describe_row(rows[0]), self.column.name)
        return missing if self.optional else None


def missing_value_error(where: str, name: str) -> UsageError:
    """Returns the error for a record without a value of the column ``name``."""
    return UsageError(
        f"{where} has no {name!r}: collate={{{name!r}: 'optional'}} gives a list with None for it, "
        f"and columns= of the dataset can leave {name!r} out"
    )


def select_rows(values: Any, kept: NDArray[np.int64] | None) -> Any:
    """Selects the rows ``kept`` of an array, a tensor or a list. Returns ``values`` itself if ``kept`` is None."""
    if kept is None:
        return values
    if isinstance(values, list):
        return [values[row] for row in kept.tolist()]
    return values[torch.from_numpy(kept)] if isinstance(values, torch.Tensor) else values[kept]


@dataclass(eq=False)
class TensorRows(ColumnRows):
    """Values of one shape for a batch: ``(B, …)``. For an optional column, a list with None for missing values."""

    host: torch.Tensor
    missing: NDArray[np.bool_] | None

    def host_tensors(self, kept: NDArray[np.int64] | None) -> list[torch.Tensor]:
        """Returns one tensor of the rows ``kept``, or all."""
        return [select_rows(self.host, kept)]

    def build_value(self, there: Iterator[torch.Tensor], kept: NDArray[np.int64] | None, ids: torch.Tensor) -> Any:
        """Returns the next tensor of ``there``, which has the tensors of a batch on the device. For an optional column,
        returns a list with None for missing values."""
        return fill_missing(next(there), self.missing, kept)


def fill_missing(values: Any, missing: NDArray[np.bool_] | None, kept: NDArray[np.int64] | None) -> Any:
    """Replaces the values of missing rows by None, and returns a list. Returns ``values`` unchanged if ``missing`` is
    None.

    Args:
        values: One value for each row in ``kept``.
        missing: For each row of the batch, True if its value is missing.
        kept: Indices of the batch's rows that ``values`` covers; None for all.
    """
    if missing is None:
        return values
    return [None if absent else values[row] for row, absent in enumerate(select_rows(missing, kept).tolist())]


class NumberReader(ColumnReader):
    """Reads a column of numbers of one shape for batches: labels and fixed arrays."""

    def read_batch(self, context: ColumnContext, new_buffer: NewBuffer) -> ColumnRows:
        """Reads all values at once, as one tensor. Reads failed rows, too.

        Raises as :meth:`find_missing`. Raises every error of the reader, even if errors are collected."""
        missing = self.find_missing(context)
        values = context.reader.values(self.column.name, context.plan.records)
        return TensorRows(as_tensor(self.column, values), missing)


@dataclass(eq=False)
class PythonObjectRows(ColumnRows):
    """Values of a batch that stay Python objects, in a list: texts, JSON values or bytes."""

    values: list[Any]

    def host_tensors(self, kept: NDArray[np.int64] | None) -> list[torch.Tensor]:
        """Returns an empty list: Python objects are not copied to the device."""
        return []

    def build_value(self, there: Iterator[torch.Tensor], kept: NDArray[np.int64] | None, ids: torch.Tensor) -> Any:
        """Returns the values of the rows ``kept``, or all, as a list; takes no tensor."""
        return select_rows(self.values, kept)


class ObjectReader(ColumnReader):
    """Reads a column of text, JSON or bytes for batches."""

    def read_batch(self, context: ColumnContext, new_buffer: NewBuffer) -> ColumnRows:
        """Reads the values one by one. Missing and failed values become None.

        Raises the first error if the batch collects no errors. Raises as :meth:`find_missing`."""
        reader, column, missing = context.reader, self.column, self.find_missing(context)
        values: list[Any] = []
        for row, record in enumerate(context.numbers):
            value = None
            if row not in context.failed and (missing is None or not missing[row]):
                try:
                    value = from_stored(column, reader.value(column.name, record))
                except PackstoreError as error:
                    context.note_failure(row, error, column.name)
            values.append(value)
        return PythonObjectRows(values)


class BatchColumns:
    """Columns of a batch in progress besides the main image, in host memory.

    Attributes:
        failed_rows: Rows that have failed so far: a value could not be read or decoded.
    """

    def __init__(self, context: ColumnContext, rows: Mapping[str, ColumnRows]) -> None:
        self.failed_rows = context.failed
        self._context = context
        self._rows = rows

    def fill_rows(self, first: int, stop: int, failed: list[int]) -> list[int]:
        """Decodes masks and further images of rows ``first`` … ``stop - 1``, except rows in ``failed``.

        Returns:
            Rows that fail here; raises instead as :meth:`ColumnRows.fill_rows`.
        """
        bad_rows: list[int] = []
        for rows in self._rows.values():
            bad_rows += rows.fill_rows(self._context, first, stop, self.failed_rows | {*failed, *bad_rows})
        return bad_rows

    def host_tensors(self, kept: NDArray[np.int64] | None) -> list[torch.Tensor]:
        """Returns the tensors to copy to the device, with the rows ``kept``, or all."""
        return [tensor for rows in self._rows.values() for tensor in rows.host_tensors(kept)]

    def build_values(
        self, there: Iterator[torch.Tensor], kept: NDArray[np.int64] | None, ids: torch.Tensor
    ) -> tuple[dict[str, Any], list[Any]]:
        """Builds the batch's values by column from its tensors on the device, which it takes from ``there``.

        Returns the values, and a list of those that may share memory with the ring of batch buffers."""
        values = {name: rows.build_value(there, kept, ids) for name, rows in self._rows.items()}
        return values, [values[name] for name, rows in self._rows.items() if rows.in_ring]


@dataclass(eq=False)
class ColumnReaders:
    """Reads the columns of a loader's batches besides the main image.

    Moves masks, boxes, keypoints and other columns that move with the image.

    Attributes:
        dataset: The dataset.
        operations: Operations by which the columns move.
        readers: Reader of each column. Columns of objects come first: they decide which rows of others are kept.
        asked: Names of the columns of a batch; others are read only for these.
        carried: Names of the columns that can move with the images.
        places: Plan the moves of pixels if the images did not.
    """

    dataset: PackedDataset
    operations: Sequence[Step]
    readers: Sequence[ColumnReader]
    asked: Sequence[str]
    carried: Sequence[str]
    places: bool

    @property
    def objects(self) -> list[Column]:
        """Columns of objects, such as boxes, that are read."""
        return [reader.column for reader in self.readers if reader.column.traits.rows_are_objects]

    def read_batch(self, plan: BatchPlan, new_buffer: NumberedBuffer) -> BatchColumns:
        """Reads the columns of a batch whose main images are planned.

        Moves boxes and keypoints with the images. Does not decode masks and further images yet.

        Args:
            plan: The planned batch.
            new_buffer: Allocates the rows of the column with the index that it is given.

        Raises:
            UsageError: A record has no value, and the column is not optional; names the record and its key.
            StoreError, DecodeError: The plan's ``errors`` are None, and a record cannot be read.
        """
        sizes, placement = None, None
        look = plan.looks[0] if plan.looks else None
        if look is not None and look.placement is not None:
            sizes, placement = plan.sizes, look.placement
        elif self.places:
            from packstore.training.augment.targets import plan_targets

            sizes, first = plan.sizes, None if look is None else look.first
            draws = Draws(plan.seed, plan.epoch, plan.ids)
            placement = plan_targets(sizes, self.operations, draws, first)
        context = ColumnContext(self.dataset.reader, plan, sizes, placement, set(plan.failed))
        rows = {}
        for place, reader in enumerate(self.readers):
            rows[reader.column.name] = reader.read_batch(context, partial(new_buffer, place))
        return BatchColumns(context, {name: rows[name] for name in self.asked})
