"""Columns of a batch with several views (``views=``: several crops of each record). Masks, boxes and keypoints move
with the crops of each view.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from packstore.core.errors import UsageError
from packstore.training.augment.base import Step
from packstore.training.augment.views import View
from packstore.training.dataset import PackedDataset
from packstore.training.loader.assemble import Assembler
from packstore.training.loader.batch_plan import BatchPlan
from packstore.training.loader.column_rows import Failures, NewBuffer, Padded
from packstore.training.loader.columns import (
    BatchColumns,
    ColumnReaders,
    check_collate,
    refuse_hidden_boxes,
    refuse_lists,
)
from packstore.training.loader.options import LoaderOptions


class ViewColumnReader:
    """Reads the columns of batches with several views (crops of each record), all but the main image.

    Columns that move with the pixels are read once per crop, others once per record.

    Attributes:
        carried: Names of the columns that move with the pixels, or belong to boxes that do.
    """

    def __init__(self, dataset: PackedDataset, options: LoaderOptions, new_assembler: Any, finish: Any) -> None:
        """Takes the arguments of :class:`ColumnReaders`, and raises the same errors.

        Raises :class:`UsageError` also for columns that cannot follow: further images, lists of images, and JSON with
        boxes."""
        assert options.views is not None
        columns = [dataset.manifest.column(name) for name in dataset.columns if name != "image"]
        images = [column.name for column in columns if column.holds_one_image]
        if images:
            raise UsageError(
                f"views= crops the column 'image', and {', '.join(images)} would stay whole: leave it out of columns="
            )
        collate = options.collate or {}
        check_collate(columns, collate)
        lists = [column.name for column in columns if column.form == "files" and collate.get(column.name) != "list"]
        if lists:
            refuse_lists(lists)
        refuse_hidden_boxes(dataset, columns)
        self.carried = [column.name for column in columns if column.traits.moves or column.parallel is not None]
        self._as_list = options.views.as_list

        def readers(names: Sequence[str], operations: Sequence[Step]) -> ColumnReaders:
            forms = {name: form for name, form in collate.items() if name in names}
            own = replace(options, views=None, augment=tuple(operations), collate=forms)
            return ColumnReaders(dataset, own, new_assembler, finish, names)

        self._plain = readers([column.name for column in columns if column.name not in self.carried], ())
        views = options.views.parts if self.carried else ()
        self._views = [(view, readers(self.carried, view.operations)) for view in views]

    def read_batch(
        self, plan: BatchPlan, assembler: Assembler, new_buffer: Callable[[int], NewBuffer], errors: Failures
    ) -> ViewColumns:
        """Reads the columns of a batch: the moving ones for the crops of each view, others once per record.

        Failures and errors are those of :meth:`ColumnReaders.read_batch`."""
        plain = self._plain.read_batch(plan, assembler, new_buffer, errors)
        place, by_view = len(self._plain), []
        for view, readers in self._views:
            crops = BatchPlan(
                plan.out,
                view.all_crop_ids(plan.ids),
                view.derive_seed(plan.seed),
                plan.epoch,
                failed=[*_crop_rows(plan.failed, view.count)],
            )
            crops.sizes = np.repeat(plan.sizes, view.count, 0)
            by_view.append((view, readers.read_batch(crops, assembler, _with_offset(new_buffer, place), errors)))
            place += len(readers)
        return ViewColumns(plain, by_view, self._as_list)


def _with_offset(new_buffer: Callable[[int], NewBuffer], first: int) -> Callable[[int], NewBuffer]:
    """Returns ``new_buffer`` for column numbers that count from ``first``."""
    return lambda place: new_buffer(first + place)


class ViewColumns:
    """Columns of a batch with several views (crops) per record. Has the interface of :class:`BatchColumns`.

    A row is a record with all its views."""

    def __init__(self, plain: BatchColumns, views: Sequence[tuple[View, BatchColumns]], as_list: bool) -> None:
        self._plain = plain
        self._views = views
        self._as_list = as_list

    @property
    def failed_rows(self) -> set[int]:
        """Rows, of records, that have failed so far in any view."""
        return self._plain.failed_rows.union(*(_record_rows(own.failed_rows, view.count) for view, own in self._views))

    def fill_rows(self, first: int, stop: int, failed: list[int]) -> list[int]:
        """Decodes the values of records ``first`` … ``stop - 1`` for each view, except records in ``failed``.

        Returns the records that failed in this call; a record may occur once for each view in which it failed."""
        bad_rows = self._plain.fill_rows(first, stop, failed)
        for view, own in self._views:
            crops = [*_crop_rows({*failed, *bad_rows}, view.count)]
            bad_rows += sorted(_record_rows(own.fill_rows(first * view.count, stop * view.count, crops), view.count))
        return bad_rows

    def host_tensors(self, kept: NDArray[np.int64] | None) -> list[torch.Tensor]:
        """Returns the tensors to copy to the device, with the records ``kept``, or all.

        Tensors of columns that do not move with their image come first. Those of each view follow."""
        tensors = self._plain.host_tensors(kept)
        for view, own in self._views:
            tensors += own.host_tensors(_select_crops(kept, view.count))
        return tensors

    def build_values(
        self, there: Iterator[torch.Tensor], kept: NDArray[np.int64] | None, ids: torch.Tensor
    ) -> tuple[dict[str, Any], list[Any]]:
        """Builds the values by column from the tensors on the device, which it takes from ``there`` in order.

        Returns the values by column, and a list of values that may share memory with the ring.

        A column that moves with its image has the values of each view: in a list by crop, or in a dict by the view's
        name. In a dict, values have the shape ``(B, crops, …)``."""
        values, shared = self._plain.build_values(there, kept, ids)
        for view, own in self._views:
            by_name, in_ring = own.build_values(there, _select_crops(kept, view.count), ids)
            shared += in_ring
            for name, value in by_name.items():
                if self._as_list:
                    values.setdefault(name, []).append(value)
                else:
                    values.setdefault(name, {})[view.name] = _group_by_record(value, view.count)
        return values, shared


def _crop_rows(rows: Set[int] | Sequence[int], count: int) -> Iterator[int]:
    """Yields the numbers of all crops of the records ``rows``, ``count`` each."""
    return (row * count + number for row in rows for number in range(count))


def _record_rows(crops: Set[int] | Sequence[int], count: int) -> set[int]:
    """Returns the records to which the crops with these numbers belong."""
    return {crop // count for crop in crops}


def _select_crops(kept: NDArray[np.int64] | None, count: int) -> NDArray[np.int64] | None:
    """Returns the numbers of all crops of the records ``kept``. Returns None, for all, if ``kept`` is None."""
    return None if kept is None else (kept[:, None] * count + np.arange(count)).reshape(-1)


def _group_by_record(value: Any, count: int) -> Any:
    """Groups values of crops by record: ``(B * count, …)`` to ``(B, count, …)``, a list to lists of ``count``."""
    if isinstance(value, Padded):
        return Padded(*(_group_by_record(part, count) for part in value))
    if isinstance(value, torch.Tensor):
        return value.view(len(value) // count, count, *value.shape[1:])
    return [value[first : first + count] for first in range(0, len(value), count)]
