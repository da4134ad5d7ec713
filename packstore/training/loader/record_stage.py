"""Runs a pipeline of albumentations on the records of finished batches, and makes batches of the results."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from packstore.core.errors import UsageError
from packstore.core.parallel import default_workers
from packstore.training.augment.albumentations import Albumentations, refuse_columns
from packstore.training.augment.steps import check_targets
from packstore.training.dataset import PackedDataset
from packstore.training.loader.decoded_columns import pad_to_largest
from packstore.training.loader.device_steps import DeviceSteps
from packstore.training.loader.division import WorkDivision, augments_one_by_one, final_image_size
from packstore.training.loader.normalizer import Normalizer
from packstore.training.loader.options import LoaderOptions
from packstore.training.loader.stats import Stats
from packstore.training.pictures import describe_key
from packstore.training.random_draws import MASK, Draws
from packstore.training.single_threaded import make_single_threaded


class RecordStage:
    """The last stage of a loader whose ``augment`` ends with an :class:`Albumentations`.

    The stages before it give images as they are stored, and lists of the other columns. This one also normalises the
    images, and calls the user's transforms.

    Attributes:
        loading_options: Options of the stages before.
    """

    def __init__(self, dataset: PackedDataset, options: LoaderOptions) -> None:
        """Raises :class:`UsageError` if the :class:`Albumentations` is not the last operation, or does not fit the
        options and the columns."""
        *before, operation = options.augment
        if not isinstance(operation, Albumentations) or any(isinstance(each, Albumentations) for each in before):
            raise UsageError("Albumentations works on whole records: put it last in augment=, and only once")
        self._operation, self._dataset, self._options = operation, dataset, options
        self._columns = {name: dataset.manifest.column(name) for name in dataset.columns if name != "key"}
        collate = dict(options.collate or {})
        refuse_columns(self._columns, collate)
        self._form = collate.pop("image", None)
        for name in ("mix", "views", "masking", "pre_transform"):
            if getattr(options, name) is not None:
                raise UsageError(f"Albumentations runs on finished records, and {name}= before: leave one of them out")
        if options.transform is not None:
            check_targets([options.transform], [column.type for column in self._columns.values()])
        loading = replace(
            options,
            augment=tuple(before),
            collate=collate,
            normalize=None,
            dtype=None,
            channels_last=False,
            transform=None,
            target_transform=None,
        )
        if augments_one_by_one(dataset, loading) or final_image_size(dataset, loading) is None:
            loading = replace(loading, collate={**collate, "image": "list"})
        self.loading_options = loading
        mode = dataset.reading.pixels
        normalizer = Normalizer.for_loader(options, dataset.manifest, mode)
        division = WorkDivision()
        self._steps = DeviceSteps(dataset.manifest, options, Stats([]), division, normalizer, mode)

    @contextmanager
    def start_threads(self) -> Iterator[Callable[[Any, NDArray[np.int64], int], Any]]:
        """Starts threads for the pipeline. Yields a function that finishes a batch in them: of an item, the ids of its
        records, and the epoch. The threads end with the block."""
        threads, process = self._options.workers or default_workers(), os.getpid()
        pool = ThreadPoolExecutor(threads, thread_name_prefix="packstore-records", initializer=make_single_threaded)
        try:
            yield partial(self._finish_batch, pool)
        finally:
            if os.getpid() == process:  # a forked child has no threads, and their locks may stay locked
                pool.shutdown(wait=True, cancel_futures=True)

    def _finish_batch(self, pool: ThreadPoolExecutor, item: Any, ids: NDArray[np.int64], epoch: int) -> Any:
        """Runs the pipeline on the records of a batch, in the threads of ``pool``, and returns the final batch."""
        names = self._dataset.columns
        values = item if isinstance(item, dict) else dict(zip(names, item if len(names) > 1 else (item,), strict=True))
        of_records = [{name: values[name][row] for name in self._columns} for row in range(len(ids))]
        draws = Draws(self._options.draws_seed, epoch, ids, len(self._options.augment) - 1)
        done = list(pool.map(self._run_on_record, of_records, draws.bits(0).tolist(), ids.tolist()))
        images = [each["image"].to(self._dataset.device) for each in done]
        values = {**values, "image": self._steps.call_transform(self._join_images(images))}
        for name, column in self._columns.items():
            if name != "image" and (column.traits.moves or column.parallel is not None):
                moved = [None if each[name] is None else each[name].to(self._dataset.device) for each in done]
                values[name] = self._join_masks(name, moved) if column.traits.lies_on_image else moved
        if self._options.target_transform is not None and "label" in values:
            values["label"] = self._options.target_transform(values["label"])
        if self._dataset.output == "dict":
            return values
        return next(iter(values.values())) if len(names) == 1 else tuple(values.values())

    def _run_on_record(self, values: dict[str, Any], seed: int, record: int) -> dict[str, Any]:
        """Runs the pipeline on the values of one record, copied to the CPU."""
        here = {name: value.cpu() if isinstance(value, torch.Tensor) else value for name, value in values.items()}
        limits = {"min_area": self._options.min_area, "min_visibility": self._options.min_visible}
        try:
            return self._operation.run_on_record(here, self._columns, seed, limits)
        except Exception as error:
            number = record & MASK
            key = describe_key(self._dataset.reader, number)
            error.add_note(f"in augment=, {type(self._operation).__name__} of record {number} ({key})")
            raise

    def _join_images(self, images: list[torch.Tensor]) -> Any:
        """Normalises images, and makes a batch, a list or a padded batch of them."""
        images = [self._steps.convert_batch(image[None])[0] for image in images]
        if self._form is None:
            return self._stack(images, "image")
        return images if self._form == "list" else self._pad(images)

    def _join_masks(self, name: str, masks: list[torch.Tensor | None]) -> Any:
        """Makes a batch of masks, or a list if one is missing, or what the images are."""
        whole = [mask for mask in masks if mask is not None]
        if len(whole) < len(masks) or self._form == "list" or (self._options.collate or {}).get(name) == "optional":
            return masks
        return self._stack(whole, name) if self._form is None else self._pad(whole, self._options.mask_fill)

    def _pad(self, values: list[torch.Tensor], fill: float = 0) -> Any:
        """Pads images or masks to the largest size."""
        sizes = torch.tensor([each.shape[-2:] for each in values], dtype=torch.int64).view(-1, 2)
        return pad_to_largest(values, sizes.to(self._dataset.device), values[0][..., :0, :0], fill)

    def _stack(self, values: list[torch.Tensor], name: str) -> torch.Tensor:
        """Stacks images or masks of one size. Raises :class:`UsageError` for others."""
        shapes = {tuple(each.shape) for each in values}
        if len(shapes) > 1:
            found = " and ".join(map(str, sorted(shapes)[:2]))
            raise UsageError(
                f"{self._operation!r} gave {name} of different shapes, {found}: let it end with a crop or Resize, or "
                "say collate={'image': 'list'} for lists, or 'padded' for a batch of the largest size"
            )
        stacked = torch.stack(values) if values else torch.empty(0)
        if name == "image" and self._options.channels_last:
            stacked = stacked.contiguous(memory_format=torch.channels_last)
        return stacked
