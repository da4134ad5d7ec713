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
from packstore.training.loader.checks import Suspects
from packstore.training.loader.finish import RowFormat
from packstore.training.loader.rows import RowWriter, as_numpy

Header = ImageInfo | None
"""Header of an image file; None if it was not read."""


@dataclass(eq=False)
class Prepared:
    """Planned batch: which record goes into which row of a buffer, and how.

    A whole batch is planned at once, since planning costs hardly more for many images than for one.

    Attributes:
        out: The rows, ``(B, *shape)``.
        ids: Ids of the records, from :class:`Epochs`, ``(B,)``.
        seed: Seed of random operations.
        epoch: Epoch of random operations.
        numbers: Numbers of the records.
        views: Bytes of the records.
        sizes: Height and width of each image by its header, ``(B, 2)``; upright if it has an EXIF orientation to apply.
        suspects: Checksums to verify.
        turned: EXIF orientations to apply, by row. The engine refuses these images.
        headers: Headers of image files that the engine refuses.
        first_crops: Crops after the first operation, if operations run while decoding.
        crops: Source of the pixels of each row; None for whole images.
        finish: Final format of the rows; None if rows stay bytes.
        failed: Rows whose records cannot be read.
        requests: The whole batch as requests to the engine; None if it cannot do it.
        program: Program of each row, ``(B, n)``; None for none.
        views_planned: With several views: the plan of each, by :class:`ViewAssembler`.
        course: With images that differ in size while augmented: all operations; else None.
        first_cuts: With such images: the cut made while decoding, and the number of operations that it replaces.
        images: With such images: the current state of each, ``(1, 3, h, w)``; finally its row if they make no batch.
    """

    out: torch.Tensor
    ids: NDArray[np.int64]
    seed: int
    epoch: int
    numbers: Sequence[int] = ()
    suspects: Suspects | None = None
    views: Any = field(default_factory=list)
    sizes: NDArray[np.int64] = field(init=False)
    headers: Sequence[Header] = ()
    first_crops: Crops | None = None
    crops: Crops | None = None
    finish: RowFormat | None = None
    turned: Mapping[int, int] = field(default_factory=dict)
    failed: list[int] = field(default_factory=list)
    requests: Requests | None = None
    program: Program | None = None
    views_planned: Sequence[Any] = ()
    operations: DrawnOperations | None = None
    first_cuts: Sequence[tuple[Cut, int]] = ()
    images: list[Any] = field(default_factory=list)
    _lock: Lock = field(default_factory=Lock)

    def adopt(self, plan: Prepared, rows: slice) -> None:
        """Takes over its rows of a plan for several batches."""
        self.views, self.sizes, self.headers = plan.views[rows], plan.sizes[rows], plan.headers[rows]
        self.turned = {row - rows.start: turn for row, turn in plan.turned.items() if rows.start <= row < rows.stop}
        self.first_crops = None if plan.first_crops is None else plan.first_crops.part(rows)
        self.crops = None if plan.crops is None else plan.crops.part(rows)
        self.program = None if plan.program is None else plan.program[rows]
        assert plan.requests is not None
        self.requests = plan.requests.rows(rows.start, rows.stop)
        self.requests.write_to(as_numpy(self.out))

    @property
    def rows(self) -> RowWriter:
        """Rows for pixels that the engine does not write: rows of ``out``, or bytes that are finished later.
        Created on first use."""
        with self._lock:
            return self._row_writer

    @cached_property
    def _row_writer(self) -> RowWriter:
        """Writer of rows into ``out``, or, if pixels are finished later, into new memory for their bytes."""
        pixels = self.out
        if self.finish is not None:
            height, width = self.finish.size(self.out.shape[1:])
            shape = (len(self.out), height, width, self.finish.channels)
            pixels = torch.empty(shape, dtype=torch.uint8, device="cpu")
        return RowWriter(pixels, self.crops)
