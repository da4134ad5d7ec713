"""Columns of a batch with several views: masks, boxes and keypoints move with the crops of each view."""

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
from packstore.training.loader.columns import (
    BatchColumns,
    BatchFields,
    check_collate,
    refuse_hidden_boxes,
    refuse_lists,
)
from packstore.training.loader.fields import Failures, NewBuffer, Padded
from packstore.training.loader.options import LoaderOptions
from packstore.training.loader.prepared import Prepared


class ViewFields:
    """Columns of a loader's batches besides the main image: constant ones, and ones that move with each view.

    Attributes:
        carried: Names of the columns that move.
    """

    def __init__(self, dataset: PackedDataset, options: LoaderOptions, new_assembler: Any, finish: Any) -> None:
        """Takes the arguments of :class:`BatchFields`; raises the same errors, and :class:`UsageError` for further
        images."""
        assert options.views is not None
        columns = [dataset.manifest.column(name) for name in dataset.columns if name != "image"]
        images = [column.name for column in columns if column.type == "image"]
        if images:
            raise UsageError(
                f"views= crops the column 'image', and {', '.join(images)} would stay whole: leave it out of columns="
            )
        collate = options.collate or {}
        check_collate(columns, collate)
        lists = [column.name for column in columns if column.form == "files" and collate.get(column.name) != "list"]
        if lists:
            refuse_lists(lists)
        refuse_hidden_boxes(dataset, [column.name for column in columns if column.type == "json"])
        self.carried = [column.name for column in columns if column.traits.moves or column.parallel is not None]
        self._as_list = options.views.as_list

        def fields(names: Sequence[str], operations: Sequence[Step]) -> BatchFields:
            forms = {name: form for name, form in collate.items() if name in names}
            own = replace(options, views=None, augment=tuple(operations), collate=forms)
            return BatchFields(dataset, own, new_assembler, finish, names)

        self._plain = fields([column.name for column in columns if column.name not in self.carried], ())
        views = options.views.parts if self.carried else ()
        self._views = [(view, fields(self.carried, view.operations)) for view in views]

    def gather(
        self, prepared: Prepared, assembler: Assembler, new_buffer: Callable[[int], NewBuffer], errors: Failures
    ) -> ViewColumns:
        """Gathers the columns for each view, see :meth:`BatchFields.gather`."""
        plain = self._plain.gather(prepared, assembler, new_buffer, errors)
        place, found = len(self._plain), []
        for view, fields in self._views:
            crops = Prepared(
                prepared.out,
                view.ids(prepared.ids),
                view.seed(prepared.seed),
                prepared.epoch,
                failed=[*_crop_rows(prepared.failed, view.count)],
            )
            crops.sizes = np.repeat(prepared.sizes, view.count, 0)
            found.append((view, fields.gather(crops, assembler, _with_offset(new_buffer, place), errors)))
            place += len(fields)
        return ViewColumns(plain, found, self._as_list)


def _with_offset(new_buffer: Callable[[int], NewBuffer], first: int) -> Callable[[int], NewBuffer]:
    return lambda place: new_buffer(first + place)


class ViewColumns:
    """Columns of a batch with several views (crops) per record. Has the interface of :class:`BatchColumns`; each row is
    one record with all its views."""

    def __init__(self, plain: BatchColumns, views: Sequence[tuple[View, BatchColumns]], as_list: bool) -> None:
        self._plain = plain
        self._views = views
        self._as_list = as_list

    @property
    def failed(self) -> set[int]:
        """Rows that have failed, while gathering or before."""
        return self._plain.failed.union(*(_record_rows(own.failed, view.count) for view, own in self._views))

    def fill(self, first: int, stop: int, failed: list[int]) -> list[int]:
        found = self._plain.fill(first, stop, failed)
        for view, own in self._views:
            crops = [*_crop_rows({*failed, *found}, view.count)]
            found += sorted(_record_rows(own.fill(first * view.count, stop * view.count, crops), view.count))
        return found

    def tensors(self, kept: NDArray[np.int64] | None) -> list[torch.Tensor]:
        found = self._plain.tensors(kept)
        for view, own in self._views:
            found += own.tensors(_select_crops(kept, view.count))
        return found

    def values(
        self, there: Iterator[torch.Tensor], kept: NDArray[np.int64] | None, ids: torch.Tensor
    ) -> tuple[dict[str, Any], list[Any]]:
        values, shared = self._plain.values(there, kept, ids)
        for view, own in self._views:
            found, in_ring = own.values(there, _select_crops(kept, view.count), ids)
            shared += in_ring
            for name, value in found.items():
                if self._as_list:
                    values.setdefault(name, []).append(value)
                else:
                    values.setdefault(name, {})[view.name] = _by_record(value, view.count)
        return values, shared


def _crop_rows(rows: Set[int] | Sequence[int], count: int) -> Iterator[int]:
    """Yields the rows of the crops of records ``rows``."""
    return (row * count + number for row in rows for number in range(count))


def _record_rows(crops: Set[int] | Sequence[int], count: int) -> set[int]:
    return {crop // count for crop in crops}


def _select_crops(kept: NDArray[np.int64] | None, count: int) -> NDArray[np.int64] | None:
    return None if kept is None else (kept[:, None] * count + np.arange(count)).reshape(-1)


def _by_record(value: Any, count: int) -> Any:
    """Groups values of crops by record: ``(B * count, …)`` to ``(B, count, …)``, a list to lists of ``count``."""
    if isinstance(value, Padded):
        return Padded(*(_by_record(part, count) for part in value))
    if isinstance(value, torch.Tensor):
        return value.view(len(value) // count, count, *value.shape[1:])
    return [value[first : first + count] for first in range(0, len(value), count)]
