"""A batch that is planned and not decoded yet."""

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
from packstore.training.augment.unequal import Course, Cut
from packstore.training.loader.checks import Suspects
from packstore.training.loader.finish import Finish
from packstore.training.loader.rows import Rows

Header = ImageInfo | None
"""What the header of an image file says, as far as it was read."""


@dataclass(eq=False)
class Prepared:
    """A planned batch: which record goes into which row of a buffer, and how.

    The cost of planning hardly depends on the number of images, so a whole batch is planned at once.

    Attributes:
        out: The rows, ``(B, *shape)``.
        ids: Of the records, as :class:`Epochs` gives them, ``(B,)``.
        seed: For random operations.
        epoch: Likewise.
        numbers: Numbers of the records.
        views: Their bytes.
        sizes: Height and width of each image, ``(B, 2)``, as its header says; upright where it is to be turned.
        suspects: What of the records is to be checked.
        turned: Rows whose images are to be turned, and their EXIF orientations. The engine does not take them.
        headers: Headers of image files that the engine does not take.
        first_crops: What the first operation makes of the images, where operations run while decoding.
        crops: Where the pixels of each row come from; None for whole images.
        finish: What the rows become of bytes; None where they are those.
        failed: Rows whose records cannot be read.
        requests: All of it for the engine, if that knows how.
        program: What happens to the bytes of each row, ``(B, n)``; None for nothing.
        views_planned: Of several views, what a :class:`ViewAssembler` has planned of each.
        course: Of images that differ in size on their way, all operations; None for others.
        first_cuts: Of these, what is cut while they are decoded, and how many operations that does.
        images: Of these, each image under way, ``(1, 3, h, w)``; in the end, if they make no batch, its row.
    """

    out: torch.Tensor
    ids: NDArray[np.int64]
    seed: int
    epoch: int
    numbers: Sequence[int] = ()
    suspects: Suspects | None = None
    views: Any = field(default_factory=list)
    sizes: NDArray[np.int64] = field(init=False)
    headers: Sequence[Header] = field(init=False)
    first_crops: Crops | None = None
    crops: Crops | None = None
    finish: Finish | None = None
    turned: Mapping[int, int] = field(default_factory=dict)
    failed: list[int] = field(default_factory=list)
    requests: Requests | None = None
    program: Program | None = None
    views_planned: Sequence[Any] = ()
    course: Course | None = None
    first_cuts: Sequence[tuple[Cut, int]] = ()
    images: list[Any] = field(default_factory=list)
    _lock: Lock = field(default_factory=Lock)

    @property
    def rows(self) -> Rows:
        """Where pixels go that the engine does not write, and how: rows of ``out``, or of bytes yet to be finished."""
        with self._lock:
            return self._rows

    @cached_property
    def _rows(self) -> Rows:
        pixels = self.out
        if self.finish is not None:
            height, width = self.finish.size(self.out.shape[1:])
            shape = (len(self.out), height, width, self.finish.channels)
            pixels = torch.empty(shape, dtype=torch.uint8, device="cpu")
        return Rows(pixels, self.crops)
