"""Several views (``views=``: several crops of each record): their operations, and the columns that move with them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from packstore.core.errors import UsageError
from packstore.core.modes import RGB
from packstore.training.augment.base import Step
from packstore.training.augment.operations import split_operations
from packstore.training.augment.views import View
from packstore.training.dataset import PackedDataset
from packstore.training.loader.batch_plan import BatchPlan
from packstore.training.loader.column_readers import (
    check_collate,
    make_column_readers,
    refuse_hidden_boxes,
    refuse_lists,
)
from packstore.training.loader.columns import BatchColumns, ColumnReaders, NumberedBuffer, Padded
from packstore.training.loader.device_steps import DeviceSteps, ImageSet
from packstore.training.loader.division import divide_work
from packstore.training.loader.looks import Look, final_format, find_stored_format
from packstore.training.loader.normalizer import Normalizer
from packstore.training.loader.options import LoaderOptions
from packstore.training.loader.stats import Stats


class ViewColumnReader:
    """Reads the columns of batches with several views (crops of each record), all but the main image.

    Columns that move with the pixels are read once per crop, others once per record.

    Attributes:
        carried: Names of the columns that move with the pixels, or belong to boxes that do.
    """

    def __init__(self, dataset: PackedDataset, options: LoaderOptions, new_assembler: Any, finish: Any) -> None:
        """Takes the arguments of :func:`make_column_readers`, and raises the same errors.

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
        refuse_lists(columns, collate)
        refuse_hidden_boxes(dataset, columns)
        self.carried = [column.name for column in columns if column.traits.moves or column.parallel is not None]
        self._as_list = options.views.as_list

        def readers(names: Sequence[str], operations: Sequence[Step]) -> ColumnReaders:
            forms = {name: form for name, form in collate.items() if name in names}
            own = replace(options, views=None, augment=tuple(operations), collate=forms)
            return make_column_readers(dataset, own, new_assembler, finish, names)

        self._plain = readers([column.name for column in columns if column.name not in self.carried], ())
        views = options.views.parts if self.carried else ()
        self._views = [(view, readers(self.carried, view.operations)) for view in views]

    def read_batch(self, plan: BatchPlan, new_buffer: NumberedBuffer) -> ViewColumns:
        """Reads the columns of a batch: the moving ones for the crops of each view, others once per record.

        Failures and errors are those of :meth:`ColumnReaders.read_batch`."""
        plain = self._plain.read_batch(plan, new_buffer)
        place, by_view = len(self._plain.readers), []
        for view, readers in self._views:
            crops = BatchPlan(
                plan.out,
                view.all_crop_ids(plan.ids),
                view.derive_seed(plan.seed),
                plan.epoch,
                np.repeat(plan.records, view.count),
                errors=plan.errors,
                failed=[*_crop_rows(plan.failed, view.count)],
            )
            crops.sizes = np.repeat(plan.sizes, view.count, 0)
            by_view.append((view, readers.read_batch(crops, _with_offset(new_buffer, place))))
            place += len(readers.readers)
        return ViewColumns(plain, by_view, self._as_list)


def _with_offset(new_buffer: NumberedBuffer, first: int) -> NumberedBuffer:
    """Returns ``new_buffer`` for column numbers that count from ``first``."""
    return lambda place, shape, dtype: new_buffer(first + place, shape, dtype)


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


class ViewSteps:
    """Runs the operations of all views of a loader. A view is one or more crops of each record.

    Normalises the crops, and builds the batch's dict or list of them.

    Attributes:
        looks: Work of the decoding threads for each view; empty if all operations run on batches of whole images.
    """

    def __init__(self, dataset: PackedDataset, options: LoaderOptions, stats: Stats, whole: bool) -> None:
        """
        Args:
            dataset: The dataset.
            options: Options of the loader, with views.
            stats: Collects the seconds of each stage.
            whole: Run all operations on batches of whole images: of floating point, or resident ones.
        """
        assert options.views is not None
        self.looks: list[Look] = []
        self._as_list = options.views.as_list
        self._stats = stats
        self._steps: list[tuple[View, DeviceSteps]] = []
        mode = dataset.reading.pixels
        stored = find_stored_format(dataset.manifest.image, mode)
        in_threads = dataset.device.type == "cpu" and not whole
        for view in options.views.parts:
            normalizer = Normalizer.for_loader(options, dataset.manifest, mode)
            final = final_format(dataset.manifest, normalizer, options.channels_last, mode)
            division = divide_work(
                view.operations,
                () if whole else split_operations(view.operations, flip=True)[0],
                final if in_threads else None,
                runs_programs=in_threads and mode == RGB,
                calls_functions=in_threads,
            )
            own, seed = replace(options, views=None, augment=view.operations), view.derive_seed(options.draws_seed)
            steps = DeviceSteps(dataset.manifest, own, stats, division, normalizer, mode, seed)
            self._steps.append((view, steps))
            if not whole:
                self.looks.append(Look(division.form or stored, division.crops, division.programs, view, view.count))
        if any(look.form is stored for look in self.looks):  # all views share a buffer of one type
            self.looks = [replace(look, form=stored) for look in self.looks]

    @property
    def draws_on_host(self) -> bool:
        """True if operations of a view draw on the host; see :attr:`DeviceSteps.draws_on_host`."""
        return any(steps.draws_on_host for _, steps in self._steps)

    @property
    def calls_user_code(self) -> bool:
        """True if crops go through functions of the user here. Leaves out functions that decoding threads call."""
        return any(steps.calls_user_code for _, steps in self._steps)

    def iterate_image_sets(self, sections: Sequence[torch.Tensor], ids: NDArray[np.int64]) -> Iterator[ImageSet]:
        """Yields an :class:`ImageSet` for each view: its crops, on which decoding threads call the user's functions.

        ``sections``: parts of a batch buffer, by view. ``ids``: ids of the records."""
        for (view, steps), look, section in zip(self._steps, self.looks, sections, strict=True):
            yield ImageSet(steps, look.form.as_images(section), view.all_crop_ids(ids), view.count)

    def build(self, crops: Sequence[torch.Tensor], ids: torch.Tensor, epoch: int, host_ids: NDArray[np.int64]) -> Any:
        """Builds the batch's dict or list of views on the device: runs the remaining operations, normalises.

        Args:
            crops: Crops of each view, ``(B * count, 3, h, w)``; if there are no looks, whole images alone.
            ids: Ids of the records, int64 ``(B,)``, on the same device.
            epoch: Epoch of random operations.
            host_ids: The same ids on the host.
        """
        if not self.looks:
            return self.build_from_images(crops[0], ids, epoch, host_ids)
        made = []
        for (view, steps), images in zip(self._steps, crops, strict=True):
            with self._stats.measure("augment"):
                there, here = view.all_crop_ids(ids), view.all_crop_ids(host_ids)
                made.append(steps.convert_batch(steps.augment_batch(images, there, epoch, here)))
        return self._make_item(made, len(ids))

    def build_from_images(
        self, images: torch.Tensor, ids: torch.Tensor, epoch: int, host_ids: NDArray[np.int64] | None
    ) -> Any:
        """Builds the batch's dict or list of views from whole images ``(B, 3, H, W)``: runs all operations, normalises.

        ``ids``: ids of the records, on the same device. ``host_ids``: the same on the host, if they are known."""
        made = []
        for view, steps in self._steps:
            with self._stats.measure("augment"):
                # Crop by crop: the images of a batch may be many times larger than their crops.
                crops = [
                    steps.augment_batch(
                        images,
                        view.crop_ids(ids, number),
                        epoch,
                        None if host_ids is None else view.crop_ids(host_ids, number),
                    )
                    for number in range(view.count)
                ]
                together = crops[0] if len(crops) == 1 else torch.stack(crops, 1).flatten(0, 1)
                made.append(steps.convert_batch(together))
        return self._make_item(made, len(ids))

    def _make_item(self, made: Sequence[torch.Tensor], count: int) -> Any:
        """Returns the finished crops of ``count`` records: a list, or a dict of ``(count, crops, …)`` by view."""
        if self._as_list:
            return list(made)
        by_view = {}
        for (view, _), crops in zip(self._steps, made, strict=True):
            by_view[view.name] = crops.view(count, view.count, *crops.shape[1:])
        return by_view
