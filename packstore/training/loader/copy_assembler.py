"""Copies whole images of one memory-mapped array into batch buffers."""

from __future__ import annotations

from collections.abc import Set
from time import perf_counter

import numpy as np
import torch

from packstore.training.loader.assembler import Assembler
from packstore.training.loader.batch_plan import BatchPlan, ChecksumPolicy
from packstore.training.loader.looks import Look, RowFormat, height_width
from packstore.training.loader.stats import Stats
from packstore.training.loader.stored_images import MappedImages
from packstore.training.values import as_numpy


class CopyAssembler(Assembler):
    """Copies whole images of a memory-mapped array, and normalises them into batch buffers."""

    _stage = "read_seconds"

    def __init__(
        self, images: MappedImages, max_pixels: int, stats: Stats, checks: ChecksumPolicy | None, form: RowFormat
    ) -> None:
        super().__init__(images, [Look(form)], max_pixels, stats, checks=checks)
        self._array = images.array
        self._stored = images.stored
        self._size = height_width(images.column)
        self._plans_groups = False

    def _plan_batch(self, plan: BatchPlan) -> float:
        """Sets the common size of the images. Reads nothing."""
        plan.sizes = np.tile(np.array(self._size, np.int64), (len(plan.records), 1))
        return perf_counter()

    def _write_rows(self, plan: BatchPlan, first: int, stop: int, skip: Set[int]) -> list[int]:
        """Copies all images, verifies the checksums of the copies, normalises them, and returns the damaged rows."""
        records = plan.records[first:stop]
        out, finishes = plan.out[first:stop], self.form is not self._stored
        if finishes:
            out = torch.empty((len(out), *self._stored.row_shape(self._size)), dtype=self._stored.dtype, device="cpu")
        copies = as_numpy(out)
        if copies.dtype == self._array.dtype:
            np.take(self._array, records, axis=0, out=copies, mode="clip")
        else:  # torch has no such dtype
            stored = np.take(self._array, records, axis=0)
            copies[:], copies = stored, stored
        failed = self._verify_images(plan, first, copies)  # the copies, which nothing changes any more
        if finishes:
            self.form.write_rows(out, plan.out[first:stop])
        return failed
