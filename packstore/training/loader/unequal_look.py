"""The look of images that differ in size while they are augmented: its operations run image by image."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from packstore.core.errors import DecodeError, PackstoreError, UsageError
from packstore.core.manifest import Column
from packstore.core.modes import Mode
from packstore.images.engine import Requests
from packstore.training.augment.base import Size, Step
from packstore.training.augment.cut import Cut
from packstore.training.augment.operations import too_large_error
from packstore.training.augment.resample import check_area
from packstore.training.augment.sizes import BatchBoxes
from packstore.training.augment.steps import is_per_image
from packstore.training.augment.unequal import DrawnOperations
from packstore.training.loader.looks import ANY_SIZE, Drawn, Look, OfRecord, SizeError
from packstore.training.loader.ragged_columns import read_ragged
from packstore.training.loader.stats import Stats
from packstore.training.loader.stored_images import StoredImages
from packstore.training.random_draws import MASK, Draws
from packstore.training.record_notes import mark_records


@dataclass(frozen=True, eq=False)
class UnequalLook(Look):
    """All operations of a list, image by image. If they end with one size, its images become rows of a buffer. If not,
    each image gets memory of its own.

    Attributes:
        images: Images of the records.
        steps: The user's whole list.
        size: Final height and width of all images; None if they differ.
        objects: Columns of objects, such as boxes, by which operations may choose crops.
        alone: No other column is cropped with the images.
        stats: Collects the seconds of functions per image.
    """

    images: StoredImages = field(kw_only=True)
    steps: Sequence[Step] = field(kw_only=True)
    size: Size | None = field(kw_only=True)
    objects: Sequence[Column] = field(kw_only=True)
    alone: bool = field(kw_only=True)
    stats: Stats = field(kw_only=True)

    one_by_one: ClassVar[bool] = True

    @property
    def defers(self) -> bool:
        """Threads only decode: a function of the user may draw from the process's generators."""
        return any(is_per_image(op) and not op.runs_in_threads for op in self.steps)

    def row_shape(self, size: Size | None = None) -> tuple[int, ...]:
        """Returns the shape of a row; that of images of one pixel if they get memory of their own."""
        return self.form.row_shape(self.size or (1, 1))

    def draw(
        self, sizes: NDArray[np.int64], ids: NDArray[np.int64], seed: int, epoch: int, out: torch.Tensor
    ) -> DrawnUnequalLook:
        """Draws all operations.

        Images of which operations would make too many pixels fail, see :attr:`DrawnUnequalLook.too_large`. Sets their
        ``sizes`` to those of unreadable ones, so that masks and other columns can follow."""
        draws = Draws(seed, epoch, ids)
        boxes = self._read_boxes(ids) if self.objects else None
        operations = DrawnOperations(sizes, self.steps, draws, boxes, redraws=self.alone)
        too_large = {}
        if large := operations.find_large_rows():
            for row, size in large.items():
                height, width = sizes[row].tolist()
                try:
                    check_area(height, width, size)
                except DecodeError as error:
                    too_large[row] = error
            sizes[[*large]] = ANY_SIZE
            operations = DrawnOperations(sizes, self.steps, draws, boxes, redraws=self.alone)
            if always := [*operations.find_large_rows().values()]:
                raise too_large_error(always[0])
        return DrawnUnequalLook(self, out, sizes, draws, operations, too_large)

    def _read_boxes(self, ids: NDArray[np.int64]) -> BatchBoxes:
        """Reads the upright boxes of all objects of a batch, by which operations such as ``RandomIoUCrop`` choose
        crops."""
        corners, rows, records = [], [], (ids & MASK).tolist()
        for column in self.objects:
            # An unreadable record has no boxes here; reading the column reports its error.
            flat, counts = read_ragged(self.images.reader, column, records, set(), None)
            corners.append(column.traits.upright_boxes(column, flat))
            rows.append(np.repeat(np.arange(len(counts)), counts))
        order = np.argsort(together := np.concatenate(rows), kind="stable")
        return BatchBoxes(np.concatenate(corners)[order], together[order])


class DrawnUnequalLook(Drawn):
    """An :class:`UnequalLook` drawn for the records of a batch.

    Attributes:
        images: The current state of each image, ``(1, C, h, w)``; finally its row if images get memory of their own.
        too_large: Errors of rows of which operations would make too many pixels.
    """

    look: UnequalLook

    def __init__(
        self,
        look: UnequalLook,
        out: torch.Tensor,
        sizes: NDArray[np.int64],
        draws: Draws,
        operations: DrawnOperations,
        too_large: Mapping[int, PackstoreError],
    ) -> None:
        self.look, self.out = look, out
        self._draws, self._operations, self.placement = draws, operations, operations.placement
        self.too_large, self.decoded_nbytes = too_large, int(sizes.prod(1).sum()) * look.images.mode.channels
        # The crop that is made while decoding, and the number of operations that it replaces.
        self._first_cuts = [operations.first_cut(row) for row in range(len(sizes))]
        self.images: list[Any] = [None] * len(sizes)
        self._decoded: dict[int, tuple[torch.Tensor, bool]] = {}  # images without their first cut; of another size?
        self._redrawn: dict[int, DrawnOperations] = {}  # of images whose size is not that of their header
        self._deferred: set[int] = set()

    def set_outputs(self, requests: Requests) -> bool:
        """Adds the first cuts to requests to the engine, each with an array of its own as its destination.

        Returns False for arrays: the engine decodes only files, and makes their first cuts."""
        if not self.look.images.are_files or not self.images:
            return False
        cuts: list[Cut] = [cut for cut, _ in self._first_cuts]
        pixels = [np.empty((*cut.window[2:], self.look.images.mode.channels), np.uint8) for cut in cuts]
        self.images = [torch.from_numpy(each).permute(2, 0, 1)[None] for each in pixels]
        names = ("box", "size", "window", "flip", "sampling")
        boxes, sizes, windows, flips, samplings = (np.array([getattr(cut, name) for cut in cuts]) for name in names)
        requests.set_output_images(boxes, sizes, windows, flips, samplings, pixels)
        return True

    def write_pixels(self, decoded: Mapping[int, NDArray[Any]], column: Column, mode: Mode) -> dict[int, DecodeError]:
        """Takes decoded images, by row, for :meth:`finish_rows`. Returns no errors."""
        self._decoded |= {row: (_as_image(pixels, column), False) for row, pixels in decoded.items()}
        return {}

    def write_alone(
        self, row: int, pixels: NDArray[Any], of_record: OfRecord | None, column: Column, mode: Mode
    ) -> None:
        """Keeps one decoded image until :meth:`finish_rows`."""
        self._decoded[row] = _as_image(pixels, column), of_record is not None

    def finish_rows(self, first: int, stop: int, skip: Collection[int]) -> Iterator[tuple[int, PackstoreError]]:
        """Runs the remaining operations on the images of rows ``first`` … ``stop - 1``, except those in ``skip``.

        Yields the rows that fail with their errors. Raises the :class:`UsageError` of an operation, and what functions
        of the user raise."""
        for row in range(first, stop):
            if row in skip:
                continue
            try:
                self._cut_decoded(row)
                if self.look.defers:
                    self._deferred.add(row)
                else:
                    self._finish_row(row)
            except Exception as error:
                if isinstance(error, UsageError) or not isinstance(error, PackstoreError):
                    mark_records(error, self._draws.records[row : row + 1])
                    raise
                yield row, error

    def run_deferred(self) -> None:
        """Runs the operations on the images that :meth:`finish_rows` put off, in the calling thread, and counts the
        seconds.

        Raises an operation's error even if the loader skips failed records."""
        if not self._deferred:
            return
        with self.look.stats.measure("per_image"):
            while self._deferred:
                row = min(self._deferred)
                try:
                    self._finish_row(row)
                except Exception as error:
                    mark_records(error, self._draws.records[row : row + 1])
                    raise
                self._deferred.remove(row)

    def _cut_decoded(self, row: int) -> None:
        """Makes the first cut of an image that the engine has refused."""
        if row not in self._decoded:
            return
        image, has_other_size = self._decoded.pop(row)
        if has_other_size:  # than its header says: all operations are drawn again
            sizes, draws = np.array([image.shape[-2:]], np.int64), self._draws[row : row + 1]
            self._redrawn[row] = DrawnOperations(sizes, self.look.steps, draws, redraws=True)
        self.images[row] = image if has_other_size else self._first_cuts[row][0](image)

    def _finish_row(self, row: int) -> None:
        """Runs the remaining operations on the image of a row, and puts the result into its row."""
        if row in self._redrawn:
            made = self._redrawn[row].run_on_image(0, self.images[row])
        else:
            made = self._operations.run_on_image(row, self.images[row], self._first_cuts[row][1])
        self._put_image(row, made)

    def _put_image(self, row: int, image: torch.Tensor) -> None:
        """Writes a finished image ``(1, C, h, w)`` into its row, or into new memory; normalises images of bytes."""
        look, form, size = self.look, self.look.form, (image.shape[-2], image.shape[-1])
        expected = torch.float32 if look.images.column.layout == "CHW" else look.images.stored.dtype
        if image.dtype != expected and look.size is None:
            # A function has made another dtype: it stays as it is.
            self.images[row] = image[0] if form.planes else image[0].permute(1, 2, 0)
            return
        if image.dtype != expected:
            raise UsageError(
                f"augment= made {image.dtype} of an image, and {expected} is expected: convert in transform="
            )
        if look.size is None:
            out = torch.empty((1, *form.row_shape(size)), dtype=form.dtype, device="cpu")
            self.images[row] = out[0]
        else:
            out, self.images[row] = self.out[row : row + 1], None
            if form.image_size(out.shape[1:]) != size:
                raise SizeError.between(size, form.image_size(out.shape[1:]))
        if form.normalizer is not None and image.dtype == torch.uint8:
            form.write_rows(image.permute(0, 2, 3, 1).contiguous(), out)
        else:
            form.as_images(out).copy_(image)


def _as_image(pixels: NDArray[Any], column: Column) -> torch.Tensor:
    """Returns a copy of an image's pixels as ``(1, C, H, W)``; floating point as float32."""
    image = torch.from_numpy(np.array(pixels if column.layout == "CHW" else pixels.transpose(2, 0, 1)))[None]
    if column.dtype == "bfloat16":
        image = image.view(torch.bfloat16)
    return image.float() if image.is_floating_point() else image  # rounded once, after all operations
