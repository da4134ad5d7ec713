"""Images whose sizes differ during augmentation: planned for a batch, decoded and augmented one by one."""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from packstore.core.errors import DecodeError, PackstoreError, UsageError
from packstore.core.manifest import Column
from packstore.images.engine import Requests
from packstore.training.augment.base import Size, Step
from packstore.training.augment.detection import BatchBoxes
from packstore.training.augment.operations import too_large_error
from packstore.training.augment.resample import check_area
from packstore.training.augment.steps import is_per_image
from packstore.training.augment.unequal import DrawnOperations
from packstore.training.loader.assemble import wrong_header_error
from packstore.training.loader.column_rows import Failures
from packstore.training.loader.looks import Look
from packstore.training.loader.prepared import PreparedBatch
from packstore.training.loader.ragged_columns import read_ragged
from packstore.training.loader.record_assembler import RecordAssembler
from packstore.training.loader.rows import RowFormat, SizeError
from packstore.training.loader.stored_images import StoredImages
from packstore.training.random_draws import Draws
from packstore.training.record_notes import mark_records

_ANY_SIZE = 4096
"""Height and width with which unreadable images are planned."""


class UnequalAssembler(RecordAssembler):
    """Decodes and augments images one by one, since their sizes differ on the way.

    If operations end with one size, writes the images into rows of a batch buffer. If not, each image gets memory of
    its own.

    Attributes:
        defers: A function of the user may draw from the process's generators.
    """

    _plans_groups = False

    def __init__(
        self,
        list_of_operations: Sequence[Step],
        size: Size | None,
        object_columns: Sequence[Column],
        images: StoredImages,
        form: RowFormat,
        *arguments: Any,
    ) -> None:
        """
        Args:
            list_of_operations: The user's whole list.
            size: Final height and width of all images; None if they differ.
            object_columns: Columns of objects, such as boxes, by which operations may choose crops.
            images: Images of the records.
            form: Format of the finished images.
            arguments: Further arguments of :class:`RecordAssembler`.
        """
        super().__init__(images, [Look(form)], *arguments)
        self._list = tuple(list_of_operations)
        self.defers = any(is_per_image(op) and not op.runs_in_threads for op in self._list)
        self._object_columns = object_columns
        self.as_list = size is None
        self.shape = form.row_shape(size or (1, 1))  # unused for a list

    def _row_shape(self) -> tuple[int, ...]:
        """Returns an empty tuple, in place of the shape that the constructor sets."""
        return ()

    def estimate_bytes(self, prepared: PreparedBatch) -> int:
        """Returns the bytes of the decoded images, before any operation."""
        return int(prepared.sizes.prod(1).sum()) * self._images.mode.channels

    def _request_rows(self, prepared: PreparedBatch, requests: Requests | None) -> Requests | None:
        """Draws all operations into ``prepared``, and adds to ``requests`` the crops and resizes that the engine can
        do.

        The engine writes an array per image, in ``prepared.images``. Returns None if ``requests`` is None, for arrays,
        and if there are no images."""
        ids = prepared.ids
        operations = self._draw_operations(prepared)
        if large := operations.find_large_rows():
            # Planned as unreadable ones: masks and other columns follow the plan.
            prepared.too_large = {row: (tuple(prepared.sizes[row].tolist()), size) for row, size in large.items()}
            prepared.sizes[[*large]] = _ANY_SIZE
            operations = self._draw_operations(prepared)
            if always := [*operations.find_large_rows().values()]:
                raise too_large_error(always[0])
        prepared.operations = operations
        prepared.first_cuts = [operations.first_cut(row) for row in range(len(ids))]
        prepared.images = [None] * len(ids)
        if requests is None or not self._images.are_files or not len(ids):
            return None
        cuts = [cut for cut, _ in prepared.first_cuts]
        pixels = [np.empty((*cut.window[2:], self._images.mode.channels), np.uint8) for cut in cuts]
        prepared.images = [torch.from_numpy(each).permute(2, 0, 1)[None] for each in pixels]
        names = ("box", "size", "window", "flip", "sampling")
        boxes, sizes, windows, flips, samplings = (np.array([getattr(cut, name) for cut in cuts]) for name in names)
        requests.set_output_images(boxes, sizes, windows, flips, samplings, pixels)
        return requests

    def _draw_operations(self, prepared: PreparedBatch) -> DrawnOperations:
        """Draws all operations for images of the batch's sizes."""
        draws = Draws(prepared.seed, prepared.epoch, prepared.ids)
        boxes = self._read_boxes(prepared) if self._object_columns else None
        return DrawnOperations(prepared.sizes, self._list, draws, boxes, redraws=self._alone)

    def _plan_batch(self, prepared: PreparedBatch, records: NDArray[np.int64], errors: Failures) -> float:
        """Plans the batch; records whose images would become too large fail."""
        read = super()._plan_batch(prepared, records, errors)
        for row, (found, size) in prepared.too_large.items():
            try:
                check_area(*found, size)
            except DecodeError as error:
                prepared.failed.append(self._note_error(errors, row, prepared.numbers[row], error))
        return read

    def _replace_unread(self, prepared: PreparedBatch) -> None:
        """Sets the size of images with unreadable headers to at least 4096 x 4096. No operation then refuses them as
        too small; decoding raises later."""
        sizes = prepared.sizes
        sizes[sizes[:, 0] == 0] = np.maximum(sizes.max(0, initial=0), _ANY_SIZE)

    def _read_boxes(self, prepared: PreparedBatch) -> BatchBoxes:
        """Reads the upright boxes of all objects of a batch. Operations such as ``RandomIoUCrop`` choose crops by them.

        An unreadable record has no boxes. Reading the column reports its error."""
        corners, rows = [], []
        for column in self._object_columns:
            flat, counts = read_ragged(self._images.reader, column, prepared.numbers, set(prepared.failed), None)
            corners.append(column.traits.upright_boxes(column, flat))
            rows.append(np.repeat(np.arange(len(counts)), counts))
        order = np.argsort(together := np.concatenate(rows), kind="stable")
        return BatchBoxes(np.concatenate(corners)[order], together[order])

    def _write_rows(
        self, prepared: PreparedBatch, first: int, stop: int, errors: Failures, skip: Set[int]
    ) -> list[int]:
        """Verifies and decodes the images, and runs the remaining operations on each. Counts the decoded images.

        Returns the rows that failed; their errors are in ``errors``. If ``errors`` is None, raises the first error.
        Always raises a :class:`UsageError` of an operation."""
        failed = self._verify_images(prepared, first, prepared.views[first:stop], errors)
        refused = {*self._run_engine(prepared, first, stop)}
        left_out = {*failed, *prepared.failed, *skip}
        for row in range(first, stop):
            if row in left_out:
                continue
            try:
                if row in refused:
                    self._decode_refused(prepared, row)
                if self.defers:
                    prepared.deferred.add(row)
                else:
                    self._put_image(prepared, row, _run_remaining(prepared, row))
            except Exception as error:
                if isinstance(error, UsageError) or not isinstance(error, PackstoreError):
                    mark_records(error, prepared.ids[row : row + 1])
                    raise
                failed.append(self._note_error(errors, row, prepared.numbers[row], error))
        if self._images.are_files:
            self._stats.add_decoded(stop - first - len(left_out))
        return failed

    def run_deferred(self, prepared: PreparedBatch) -> None:
        """Runs the operations on all images that were only decoded, in the calling thread, once. Adds the seconds to
        those of functions per image.

        Raises :class:`UsageError` and :class:`DecodeError` of an operation, whatever becomes of failed records."""
        with self._stats.measure("per_image"):
            while prepared.deferred:
                row = min(prepared.deferred)
                try:
                    self._put_image(prepared, row, _run_remaining(prepared, row))
                except Exception as error:
                    mark_records(error, prepared.ids[row : row + 1])
                    raise
                prepared.deferred.remove(row)

    def _decode_refused(self, prepared: PreparedBatch, row: int) -> None:
        """Decodes an image that the engine refuses, and runs the first crop on it.

        If the image has another size than its header says, draws the operations again for the real size. But if other
        columns were cropped by the header, raises :class:`DecodeError`."""
        pixels = self._read_pixels(prepared, row, self._row_header(prepared, row))
        if self._images.column.layout != "CHW":
            pixels = pixels.transpose(2, 0, 1)
        image = torch.from_numpy(np.array(pixels))[None]
        if self._images.column.dtype == "bfloat16":
            image = image.view(torch.bfloat16)
        if image.is_floating_point():  # rounded once, after all operations
            image = image.float()
        found, said = image.shape[-2:], prepared.sizes[row].tolist()
        if [*found] == said:
            prepared.images[row] = prepared.first_cuts[row][0](image)
            return
        if not self._alone:
            raise wrong_header_error(said, found)
        # The header has another size than the image: plan again, by the real size.
        draws = Draws(prepared.seed, prepared.epoch, prepared.ids[row : row + 1])
        prepared.images[row] = image
        prepared.redrawn[row] = DrawnOperations(np.array([found], np.int64), self._list, draws, redraws=True)

    def _put_image(self, prepared: PreparedBatch, row: int, image: torch.Tensor) -> None:
        """Writes a finished image ``(1, C, h, w)`` into its row, or into new memory. Normalises images of bytes.

        An image of another dtype, which a function has made, stays as it is if it has no row; else raises
        :class:`UsageError`. If images have rows, raises :class:`SizeError` for
        another size than the row's."""
        form, size = self.form, (image.shape[-2], image.shape[-1])
        expected = torch.float32 if self._images.column.layout == "CHW" else self._images.stored.dtype
        if image.dtype != expected and self.as_list:
            prepared.images[row] = image[0] if form.planes else image[0].permute(1, 2, 0)
            return
        if image.dtype != expected:
            raise UsageError(
                f"augment= made {image.dtype} of an image, and {expected} is expected: convert in transform="
            )
        if self.as_list:
            out = torch.empty((1, *form.row_shape(size)), dtype=self.dtype, device="cpu")
            prepared.images[row] = out[0]
        else:
            out, prepared.images[row] = prepared.out[row : row + 1], None
            if form.image_size(out.shape[1:]) != size:
                raise SizeError.between(size, form.image_size(out.shape[1:]))
        if form.normalizer is not None and image.dtype == torch.uint8:
            form.write_rows(image.permute(0, 2, 3, 1).contiguous(), out)
        else:
            form.as_images(out).copy_(image)


def _run_remaining(prepared: PreparedBatch, row: int) -> torch.Tensor:
    """Runs operations on the image of a row, and returns the result. Leaves out those that the first crop replaces."""
    if row in prepared.redrawn:
        return prepared.redrawn[row].run_on_image(0, prepared.images[row])
    assert prepared.operations is not None
    return prepared.operations.run_on_image(row, prepared.images[row], prepared.first_cuts[row][1])
