"""Runs the operations of several views (``views=``), in decoding threads or on batches. Builds a batch's dict or list
of views.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from packstore.core.modes import RGB
from packstore.training.augment.operations import split_operations
from packstore.training.augment.views import View
from packstore.training.dataset import PackedDataset
from packstore.training.loader.device_steps import DeviceSteps, ImageSet
from packstore.training.loader.division import divide_work
from packstore.training.loader.looks import Look
from packstore.training.loader.normalizer import Normalizer
from packstore.training.loader.options import LoaderOptions
from packstore.training.loader.rows import final_format, stored_format
from packstore.training.loader.stats import Stats


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
        stored = stored_format(dataset.manifest.image, mode)
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
                self.looks.append(Look(division.form or stored, division.crops, division.programs, view))
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
