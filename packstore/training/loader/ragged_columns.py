"""Reads columns of any number of rows per record for batches, such as boxes, and moves them with the images."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from packstore.core.columns import NUMPY_DTYPE, Buffer, from_stored
from packstore.core.errors import PackstoreError, StoreError
from packstore.core.manifest import Column
from packstore.stores import Reader
from packstore.training.augment.targets import RowPlacement
from packstore.training.loader.columns import (
    ColumnContext,
    ColumnReader,
    ColumnRows,
    NewBuffer,
    Padded,
    fill_missing,
)
from packstore.training.values import as_tensor

Note = Callable[[int, PackstoreError, str], None]
"""Callback for a failed record: its row, the error and the column."""


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
        """Returns the rows of the records ``kept``, or of all, the number of each row's record, and the number of
        records."""
        if kept is None:
            return self.flat, self.rows, self.count
        number = np.full(self.count, -1)
        number[kept] = np.arange(len(kept))
        rows = number[self.rows]
        return self.flat[torch.from_numpy(rows >= 0)], rows[rows >= 0], len(kept)


class RaggedReader(ColumnReader):
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
            StoreError: The batch collects no errors, and a record fails.
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
        context.compare_counts(self.column, counts, expected)
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
