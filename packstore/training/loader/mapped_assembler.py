"""Writes images of one memory-mapped array into batch buffers: the engine crops them, or they are copied."""

from __future__ import annotations

from collections.abc import Set
from time import perf_counter
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from packstore.images.engine import get_engine
from packstore.training.loader.assemble import Assembler
from packstore.training.loader.checks import ChecksumPolicy
from packstore.training.loader.fields import Failures
from packstore.training.loader.finish import RowFormat
from packstore.training.loader.kernel import EngineKernel, height_width
from packstore.training.loader.prepared import PreparedBatch
from packstore.training.loader.rows import as_numpy
from packstore.training.loader.stats import Stats
from packstore.training.loader.stored_images import MappedImages
from packstore.training.random_draws import MASK, Draws


class CropAssembler(Assembler):
    """Lets the engine crop, augment and normalise images of a memory-mapped array into batch buffers, in one pass."""

    def __init__(
        self,
        images: MappedImages,
        kernel: EngineKernel,
        stats: Stats,
        checks: ChecksumPolicy | None,
        finish: RowFormat | None,
    ) -> None:
        """``kernel`` is the work of the engine; for the other arguments see :class:`Assembler`."""
        super().__init__(images, stats, checks, finish)
        self._array = images.array
        self._kernel = kernel
        self.shape = kernel.shape

    def _plan_batch(self, prepared: PreparedBatch, records: NDArray[np.int64], errors: Failures) -> float:
        """Draws the crops, and builds the engine's requests. Reads nothing.

        Raises :class:`UsageError` if the images are too small for a crop."""
        draws = Draws(prepared.seed, prepared.epoch, prepared.ids)
        prepared.sizes = self._kernel.repeat_size(len(records))
        planned = self._kernel.plan_crops(draws)
        prepared.first_crops = planned[1] if len(planned) > 1 else None
        prepared.requests = self._kernel.make_requests(self._array, records, planned[-1], prepared.out, draws)
        return perf_counter()

    def _plan_group(self, ids: NDArray[np.int64], seed: int, epoch: int) -> PreparedBatch | None:
        """Draws the crops of several batches at once. Reads no image. Returns a plan without memory for images; never
        None."""
        none = torch.empty((0, *self.shape), dtype=self.dtype, device="cpu")
        plan = PreparedBatch(none, ids, seed, epoch)
        self._plan_batch(plan, ids & MASK, None)
        return plan

    def _write_rows(
        self, prepared: PreparedBatch, first: int, stop: int, errors: Failures, skip: Set[int]
    ) -> list[int]:
        """Verifies checksums, and lets the engine write all rows.

        Returns the damaged rows, or raises the first error if ``errors`` is None. Raises :class:`MemoryError` if the
        engine refuses a row."""
        assert prepared.requests is not None
        failed = self._verify_images(
            prepared, first, _SelectedImages(self._array, prepared.ids[first:stop] & MASK), errors
        )
        if get_engine().run(prepared.requests, first, stop, 0).any():
            raise MemoryError(f"the engine has no memory for images of {self._array.shape[1:]}")
        return failed


class CopyAssembler(Assembler):
    """Copies whole images of a memory-mapped array, and normalises them into batch buffers."""

    _stage = "read"

    def __init__(
        self, images: MappedImages, stats: Stats, checks: ChecksumPolicy | None, finish: RowFormat | None
    ) -> None:
        super().__init__(images, stats, checks, finish)
        self._array = images.array
        self._size = height_width(images.column)
        self.shape = (images.stored if finish is None else finish).row_shape(self._size)

    def _plan_batch(self, prepared: PreparedBatch, records: NDArray[np.int64], errors: Failures) -> float:
        """Sets the common size of the images. Reads nothing."""
        prepared.sizes = np.tile(np.array(self._size, np.int64), (len(records), 1))
        return perf_counter()

    def _write_rows(
        self, prepared: PreparedBatch, first: int, stop: int, errors: Failures, skip: Set[int]
    ) -> list[int]:
        """Copies all images, verifies the checksums of the copies, and normalises them.

        Returns the damaged rows, or raises the first error if ``errors`` is None."""
        records = prepared.ids[first:stop] & MASK
        out = prepared.out[first:stop] if self._finish is None else prepared.rows.pixels[first:stop]
        copies = as_numpy(out)
        if copies.dtype == self._array.dtype:
            np.take(self._array, records, axis=0, out=copies, mode="clip")
        else:  # torch has no such dtype
            stored = np.take(self._array, records, axis=0)
            copies[:], copies = stored, stored
        failed = self._verify_images(prepared, first, copies, errors)  # the copies, which nothing changes any more
        if self._finish is not None:
            self._finish.write_rows(out, prepared.out[first:stop])
        return failed


class _SelectedImages:
    """Images at some indices of an array, each looked up on access."""

    def __init__(self, images: NDArray[Any], places: NDArray[np.int64]) -> None:
        self._images = images
        self._places = places

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, number: int) -> NDArray[Any]:
        image: NDArray[Any] = self._images[self._places[number]]
        return image
