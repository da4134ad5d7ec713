"""A batch that is planned but not yet decoded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from threading import Lock
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from packstore.images.engine import Requests
from packstore.images.programs import Program
from packstore.images.sniff import ImageInfo
from packstore.training.augment.base import Crops
from packstore.training.augment.unequal import Cut, DrawnOperations
from packstore.training.loader.checks import PendingChecksums
from packstore.training.loader.finish import RowFormat
from packstore.training.loader.rows import RowWriter, as_numpy

Header = ImageInfo | None
"""Header of an image file; None if the file was not read."""


@dataclass(eq=False)
class PreparedBatch:
    """Planned batch: which record goes into which row of a buffer, and how.

    A whole batch is planned at once, since planning costs hardly more for many images than for one.

    Attributes:
        out: The rows, ``(B, *shape)``.
        ids: Ids of the records, from :class:`Epochs`, ``(B,)``: record number, and occurrence in the epoch.
        seed: Seed of random operations.
        epoch: Epoch of random operations.
        numbers: Numbers of the records.
        views: Stored bytes of the records' images, or arrays.
        sizes: Height and width of each image by its header, ``(B, 2)``; upright if it has an EXIF orientation to apply.
        pending: Checksums that are still to be verified; None if there is no policy.
        turned: EXIF orientations to apply, by row. The engine refuses these images.
        headers: Headers of image files that the engine refuses; None for other rows.
        first_crops: Crops after the first operation, if operations run while decoding.
        crops: Source of the pixels of each row; None for whole images.
        finish: Final format of the rows; None if rows hold pixels as decoded.
        failed: Rows whose records cannot be read.
        too_large: Rows of which operations would make too many pixels: the image's height and width, and those of the
            result.
        requests: The whole batch as requests to the engine; None if the engine cannot process it.
        program: Pixel operations on each row after the crops, ``(B, n)``; None for none.
        views_planned: With several views of a record (``views=``): the plan of each, by :class:`ViewAssembler`.
        operations: With images that differ in size while augmented: all drawn operations; else None.
        first_cuts: With such images: the crop made while decoding, and the number of operations that it replaces.
        redrawn: With such images: operations of rows whose images have another size than their headers say.
        deferred: With such images: rows on which the asking thread runs the operations.
        images: With such images: the current state of each, ``(1, 3, h, w)``; finally its row if they make no batch.
    """

    out: torch.Tensor
    ids: NDArray[np.int64]
    seed: int
    epoch: int
    numbers: Sequence[int] = ()
    pending: PendingChecksums | None = None
    views: Any = field(default_factory=list)
    sizes: NDArray[np.int64] = field(init=False)
    headers: Sequence[Header] = ()
    first_crops: Crops | None = None
    crops: Crops | None = None
    finish: RowFormat | None = None
    turned: Mapping[int, int] = field(default_factory=dict)
    failed: list[int] = field(default_factory=list)
    too_large: Mapping[int, tuple[tuple[int, int], tuple[int, int]]] = field(default_factory=dict)
    requests: Requests | None = None
    program: Program | None = None
    views_planned: Sequence[Any] = ()
    operations: DrawnOperations | None = None
    first_cuts: Sequence[tuple[Cut, int]] = ()
    images: list[Any] = field(default_factory=list)
    redrawn: dict[int, DrawnOperations] = field(default_factory=dict)
    deferred: set[int] = field(default_factory=set)
    _lock: Lock = field(default_factory=Lock)

    def take_group_rows(self, plan: PreparedBatch, rows: slice) -> None:
        """Takes this batch's rows from the plan of a group of batches. Its requests then write to :attr:`out`.

        Asserts that the plan has requests."""
        self.views, self.sizes, self.headers = plan.views[rows], plan.sizes[rows], plan.headers[rows]
        self.turned = {row - rows.start: turn for row, turn in plan.turned.items() if rows.start <= row < rows.stop}
        self.first_crops = None if plan.first_crops is None else plan.first_crops.select_rows(rows)
        self.crops = None if plan.crops is None else plan.crops.select_rows(rows)
        self.program = None if plan.program is None else plan.program[rows]
        assert plan.requests is not None
        self.requests = plan.requests.select_rows(rows.start, rows.stop)
        self.requests.write_to(as_numpy(self.out))

    @property
    def rows(self) -> RowWriter:
        """Writer of the rows that the engine does not write. Created on first use; thread-safe.

        It writes into ``out``. If the rows have a final format, it writes bytes into other memory, from which they are
        normalised later."""
        with self._lock:
            return self._row_writer

    @cached_property
    def _row_writer(self) -> RowWriter:
        """Does :attr:`rows` without the lock."""
        pixels = self.out
        if self.finish is not None:
            height, width = self.finish.image_size(self.out.shape[1:])
            shape = (len(self.out), height, width, self.finish.channels)
            pixels = torch.empty(shape, dtype=torch.uint8, device="cpu")
        return RowWriter(pixels, self.crops)
