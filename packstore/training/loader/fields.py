"""Reads columns of a batch besides the main image, and moves boxes and keypoints with it.

The thread that prepares a batch gathers each column for the whole batch. Then all threads decode masks and further
images row by row, besides the main image. Numbers go to the device with the images.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from packstore.core.columns import NUMPY_DTYPE, Buffer, from_stored
from packstore.core.errors import CorruptRecordError, DecodeError, PackstoreError, StoreError, UsageError
from packstore.core.manifest import Column
from packstore.stores import Reader
from packstore.training.augment.targets import Placement, RowPlacement
from packstore.training.pictures import describe_record, locate_error
from packstore.training.random_draws import MASK
from packstore.training.values import as_tensor

NewBuffer = Callable[[Sequence[int], torch.dtype], torch.Tensor]
"""Allocates host memory for a column's rows."""

Failures = dict[int, Exception] | None
"""Failed records and their errors; None to raise the first error."""


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


Note = Callable[[int, PackstoreError, str], None]
"""Callback for a failed record: its row, the error and the column."""


@dataclass(eq=False)
class ColumnContext:
    """Batch whose columns are being read.

    Attributes:
        reader: The open store.
        ids: Ids of the batch's records: record number and occurrence.
        seed: Seed of random operations.
        epoch: Epoch of random operations.
        sizes: Height and width of the main images, ``(B, 2)``; None if no column moves with the images.
        placement: Positions of pixels after the operations; None without operations.
        failed: Failed rows, which are not read.
        errors: Receives failed records with their errors; None raises the first.
        objects: For each column of objects read so far: whether to keep each object, and their number in each record.
    """

    reader: Reader
    ids: NDArray[np.int64]
    seed: int
    epoch: int
    sizes: NDArray[np.int64] | None
    placement: Placement | None
    failed: set[int]
    errors: Failures
    objects: dict[str, tuple[NDArray[np.bool_], NDArray[np.int64]]] = field(default_factory=dict)

    @cached_property
    def records(self) -> NDArray[np.int64]:
        """Numbers of the records."""
        records: NDArray[np.int64] = self.ids & MASK
        return records

    @cached_property
    def numbers(self) -> list[int]:
        """Numbers of the records, as a list."""
        numbers: list[int] = self.records.tolist()
        return numbers

    def describe_row(self, row: int) -> str:
        """Describes a row for error texts: number and key of its record, and the store."""
        return describe_record(self.reader, self.numbers[row])

    def note_failure(self, row: int, error: PackstoreError, column: str) -> None:
        """Adds ``row`` to :attr:`failed`, and stores ``error`` in :attr:`errors`, with record and key in its text.

        If :attr:`errors` is None, raises the error instead. Always raises a :class:`UsageError`, unchanged."""
        if isinstance(error, UsageError):
            raise error
        record = self.numbers[row]
        if isinstance(error, DecodeError):
            error = locate_error(error, self.reader, record, column)
        elif not isinstance(error, CorruptRecordError):
            error = StoreError(f"{self.describe_row(row)}: {error}")
        error.record = record
        if self.errors is None:
            raise error
        self.errors[record] = error
        self.failed.add(row)


class ColumnRows(ABC):
    """Values of one column for one batch, in host memory. They were read, and are not yet on the device."""

    in_ring = False
    """The tensors may share memory with the ring of batch buffers."""

    def fill_rows(self, context: ColumnContext, first: int, stop: int, skip: Set[int]) -> list[int]:
        """Decodes rows ``first`` … ``stop - 1``, except rows in ``skip``. Thread-safe. This default does nothing.

        Returns the rows that failed, whose errors are stored in ``context``. Raises the first error instead if
        ``context.errors`` is None."""
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


class BatchField(ABC):
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
            StoreError, DecodeError: ``context.errors`` is None, and a record cannot be read.
        """

    def find_missing(self, context: ColumnContext) -> NDArray[np.bool_] | None:
        """Returns bool ``(B,)``, True for records without a value. Returns None for a column that is not optional.

        Raises:
            UsageError: A row that has not failed has no value, and the column is not optional; names the record and its
                key.
        """
        if not self.column.nullable:
            return np.zeros(len(context.ids), np.bool_) if self.optional else None
        missing = ~context.reader.values(self.column.valid_name, context.records)
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


class NumberField(BatchField):
    """Reads a column of numbers of one shape for batches: labels and fixed arrays."""

    def read_batch(self, context: ColumnContext, new_buffer: NewBuffer) -> ColumnRows:
        """Reads all values at once, as one tensor. Reads failed rows, too.

        Raises as :meth:`find_missing`. Raises every error of the reader, even if ``context.errors`` collects errors."""
        missing = self.find_missing(context)
        values = context.reader.values(self.column.name, context.records)
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


class ObjectField(BatchField):
    """Reads a column of text, JSON or bytes for batches."""

    def read_batch(self, context: ColumnContext, new_buffer: NewBuffer) -> ColumnRows:
        """Reads the values one by one. Missing and failed values become None.

        Raises the first error if ``context.errors`` is None. Raises as :meth:`find_missing`."""
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


@dataclass(eq=False)
class RaggedRows(ColumnRows):
    """Values of a batch with any number of rows per record.

    Attributes:
        flat: Rows of all records, one after another.
        rows: For each row of ``flat``, the position of its record in the batch; ascending.
        count: Number of records.
        form: Form of the batch's value: ``list`` of ``(n, …)``, ``padded`` tensor, or ``multi_hot`` tensor of classes.
        classes: Width of the multi-hot tensor.
        missing: True for records without a value; None if the column is not optional.
    """

    flat: torch.Tensor
    rows: NDArray[np.int64]
    count: int
    form: str
    classes: int
    missing: NDArray[np.bool_] | None

    def host_tensors(self, kept: NDArray[np.int64] | None) -> list[torch.Tensor]:
        """Returns the values of the records ``kept``, or all, by form.

        - ``list``: the rows of all records.
        - ``multi_hot``: the rows of all records, and the position of each row's record.
        - ``padded``: the padded tensor, and the lengths.
        """
        flat, rows, count = self._select_kept(kept)
        if self.form == "list":
            return [flat]
        numbers = torch.from_numpy(rows)
        if self.form == "multi_hot":
            return [flat, numbers]
        lengths = np.bincount(rows, minlength=count)
        values = flat.new_zeros((count, int(lengths.max(initial=0)), *flat.shape[1:]))
        values[numbers, torch.from_numpy(np.arange(len(rows)) - np.repeat(np.cumsum(lengths) - lengths, lengths))] = (
            flat
        )
        return [values, torch.from_numpy(lengths)]

    def build_value(self, there: Iterator[torch.Tensor], kept: NDArray[np.int64] | None, ids: torch.Tensor) -> Any:
        """Builds the list, :class:`Padded` or float32 multi-hot tensor.

        A list has None for missing values of an optional column. The other forms have zeros."""
        first = next(there)
        if self.form == "padded":
            return Padded(first, next(there))
        _, rows, count = self._select_kept(kept)
        if self.form == "multi_hot":
            result = torch.zeros((count, self.classes), device=first.device)
            # The 1 is made on the device: copying one from the host would make the host wait.
            return result.index_put_((next(there), first), result.new_ones(()))
        ends = np.cumsum(np.bincount(rows, minlength=count)).tolist()
        # Do not use views made by split: autograd would treat all of them as one.
        parts = [first[start:stop] for start, stop in zip([0, *ends], ends, strict=False)]
        return fill_missing(parts, self.missing, kept)

    def _select_kept(self, kept: NDArray[np.int64] | None) -> tuple[torch.Tensor, NDArray[np.int64], int]:
        """Selects the records ``kept``, or all, and numbers them from 0.

        Returns their rows, the number of each row's record, and the number of records."""
        if kept is None:
            return self.flat, self.rows, self.count
        number = np.full(self.count, -1)
        number[kept] = np.arange(len(kept))
        rows = number[self.rows]
        return self.flat[torch.from_numpy(rows >= 0)], rows[rows >= 0], len(kept)


class RaggedField(BatchField):
    """Reads a column of values with any number of rows per record: labels, boxes, keypoints or arrays.

    Moves boxes, keypoints and other rows with coordinates with the images. Drops objects, such as boxes, that become
    too small, and the rows of other columns that describe them."""

    def __init__(
        self, column: Column, form: str = "list", optional: bool = False, min_area: float = 1, min_visible: float = 0
    ) -> None:
        """
        Args:
            column: The column.
            form: ``list``, ``padded`` or ``multi_hot``.
            optional: Records may have no value.
            min_area: See :func:`packstore.training.augment.targets.place_boxes`.
            min_visible: See there."""
        super().__init__(column, optional)
        self._form = form
        self._least = min_area, min_visible

    def read_batch(self, context: ColumnContext, new_buffer: NewBuffer) -> RaggedRows:
        """Reads the values; moves those that have coordinates, such as boxes and keypoints, with the images.

        Drops objects that become too small, and notes in ``context.objects`` which are kept. Without operations, drops
        none, however small. If the column describes objects, such as labels of boxes, keeps the rows of kept objects
        only: the objects must be read before, which is not checked here.

        A record fails if it cannot be read, or has another number of rows than objects. For multi-hot, a class beyond
        the column's classes fails, too.

        Raises:
            StoreError: ``context.errors`` is None, and a record fails.
            UsageError: As :meth:`find_missing`.
        """
        column, missing = self.column, self.find_missing(context)
        flat, counts = read_ragged(context.reader, column, context.numbers, context.failed, context.note_failure)
        rows = np.repeat(np.arange(len(counts)), counts)
        if context.placement is not None and column.traits.moves:
            moves = RowPlacement(context.placement, *self._least)
            flat, keep = column.traits.move_rows(column, flat, rows, moves)
            if keep is not None:
                flat, rows = flat[keep], rows[keep]
                context.objects[column.name] = keep, counts
        if column.parallel in context.objects:
            keep = self._match_objects(context, counts, *context.objects[column.parallel])
            flat, rows = flat[keep], rows[keep]
        classes = len(column.classes or ())
        if self._form == "multi_hot" and len(flat) and not 0 <= flat.min() <= flat.max() < classes:
            wrong = (flat < 0) | (flat >= classes)
            for row, number in zip(rows[wrong].tolist(), flat[wrong].tolist(), strict=True):
                error = StoreError(f"it has class {number} in {column.name!r}, which has classes 0 to {classes - 1}")
                context.note_failure(row, error, column.name)
            flat, rows = flat[~wrong], rows[~wrong]
        return RaggedRows(as_tensor(column, flat), rows, len(counts), self._form, classes, missing)

    def _match_objects(
        self, context: ColumnContext, counts: NDArray[np.int64], keep: NDArray[np.bool_], expected: NDArray[np.int64]
    ) -> NDArray[np.bool_]:
        """Finds which of the column's rows to keep, by their objects: bool, without rows of failed records.

        A record with another number of rows than of objects fails.

        Args:
            context: The batch.
            counts: Number of the column's rows of each record; 0 for records that failed before.
            keep: Whether to keep each object, of all records.
            expected: Number of objects of each record.
        """
        for row in np.flatnonzero(counts != expected).tolist():
            if row not in context.failed:
                rows = f"{counts[row]} rows of {self.column.name!r}, and {expected[row]} of {self.column.parallel!r}"
                context.note_failure(row, StoreError(f"it has {rows}"), self.column.name)
        failed = np.isin(np.arange(len(counts)), [*context.failed])
        kept = ~np.repeat(failed, counts)
        kept[kept] = keep[~np.repeat(failed, expected)]
        return kept


def read_ragged(
    reader: Reader, column: Column, records: Sequence[int], skip: Set[int], note: Note | None
) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Reads the values of ``records``, which have any number of rows.

    Returns all rows as one array, and the number of rows of each record.

    Args:
        reader: The open store.
        column: The column.
        records: Numbers of the records.
        skip: Positions in ``records`` that are not read; these have 0 rows.
        note: Called with position, error and column name for a record that cannot be read, which has 0 rows. None
            ignores the error.
    """
    nbytes = column.record_nbytes
    parts: list[Buffer] = []
    for place, record in enumerate(records):
        part: Buffer = b""
        if place not in skip:
            try:
                part = reader.value(column.name, record)
                if len(part) % nbytes:
                    from_stored(column, part)  # raises the right error
            except PackstoreError as error:
                if note is not None:
                    note(place, error, column.name)
                part = b""
        parts.append(part)
    # All at once: numpy takes microseconds for each array, however small.
    flat = np.frombuffer(bytearray().join(parts), NUMPY_DTYPE[column.dtype]).reshape(-1, *column.shape)
    return flat, np.array([len(part) for part in parts], np.int64) // nbytes
