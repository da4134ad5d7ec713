"""Reads columns of a batch whose values are decoded row by row, besides the main image.

These are masks, volumes, clips and further images.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from packstore.core.columns import Buffer
from packstore.core.errors import DecodeError, PackstoreError, UsageError
from packstore.core.manifest import Column
from packstore.images.masks import MaskHeader, decode_mask, read_mask_header
from packstore.images.sniff import MAX_PIXELS
from packstore.training.augment.operations import HOW_TO_COLLATE
from packstore.training.augment.targets import place_clip, place_mask
from packstore.training.loader.assembler import Assembler
from packstore.training.loader.batch_plan import BatchPlan
from packstore.training.loader.columns import (
    ColumnContext,
    ColumnReader,
    ColumnRows,
    NewBuffer,
    Padded,
    TensorRows,
    fill_missing,
    select_rows,
)
from packstore.training.loader.looks import SizeError, split_flat
from packstore.training.pictures import ImageListReader, read_stored_array, read_stored_files


@dataclass(eq=False)
class MaskRows(TensorRows):
    """Masks, volumes or clips of a batch, ``(B, …, h, w)``. If they differ in shape, :attr:`host` is flat, with one
    after the other.

    Attributes:
        column: The column.
        stored: The file or array of each row; None for a missing or failed one.
        headers: The header of each row's file; None for arrays and rows without a value.
        fill_value: Value outside the image.
        shapes: Final shape of each row, ``(B, axes)``; None if all have one shape.
        form: ``"list"``, ``"padded"`` or ``"stacked"`` if they may differ in shape.
    """

    column: Column
    stored: list[Any]
    headers: list[MaskHeader | None]
    fill_value: int
    shapes: NDArray[np.int64] | None = None
    form: str | None = None

    in_ring = True

    @cached_property
    def _masks_of_rows(self) -> torch.Tensor | list[torch.Tensor]:
        """Mask of each row, as views of :attr:`host`."""
        return self.host if self.shapes is None else split_flat(self.host, self.shapes.tolist())

    def host_tensors(self, kept: NDArray[np.int64] | None) -> list[torch.Tensor]:
        """Returns the masks. If their shapes differ, returns all values in one flat tensor, and the shapes."""
        if self.shapes is None:
            return super().host_tensors(kept)
        host = self.host
        if kept is not None:
            host = torch.cat([self._masks_of_rows[row].reshape(-1) for row in kept.tolist()] or [host[:0]])
        return [host, torch.from_numpy(select_rows(self.shapes, kept))]

    def build_value(self, there: Iterator[torch.Tensor], kept: NDArray[np.int64] | None, ids: torch.Tensor) -> Any:
        """Returns masks of one shape as :class:`TensorRows` does, others in their form.

        - ``padded``: :class:`Padded`; a missing mask is all padding.
        - ``list``: a list; None for a missing mask of an optional column.
        - ``stacked``: one tensor; a list for an optional column. Raises :class:`UsageError` for masks of different
          shapes.
        """
        if self.shapes is None:
            return super().build_value(there, kept, ids)
        flat, shapes = next(there), next(there)
        masks = split_flat(flat, select_rows(self.shapes, kept).tolist())
        if self.form == "padded":
            return pad_to_largest(masks, shapes, flat.new_empty((0,) * shapes.shape[1]), self.fill_value)
        if self.form == "stacked" and self.missing is None and masks:
            if len({mask.shape for mask in masks}) > 1:
                raise UsageError(f"masks of {self.column.name!r} differ in size after augment=: {HOW_TO_COLLATE}")
            return torch.stack(masks)
        return fill_missing(masks, self.missing, kept)

    def fill_rows(self, context: ColumnContext, first: int, stop: int, skip: Set[int]) -> list[int]:
        """Decodes the masks of rows, and moves them as their images. Returns the rows that failed, whose errors are
        stored in ``context``.

        If the batch collects no errors, raises the first error instead. Always raises a :class:`UsageError`."""
        failed = []
        for row in range(first, stop):
            if row not in skip:
                try:
                    self._fill_row(context, row)
                except PackstoreError as error:
                    context.note_failure(row, error, self.column.name)
                    failed.append(row)
        return failed

    def _fill_row(self, context: ColumnContext, row: int) -> None:
        """Decodes the mask of a row, moves it with its image, and writes it; writes zeros for a missing mask."""
        placement, out = context.placement, self._masks_of_rows[row].numpy()
        stored, header = self.stored[row], self.headers[row]
        if stored is None or not out.size:
            out[:] = 0
            return
        if header is None:
            mask, size = stored, stored.shape[-2:]
        else:
            mask = decode_mask(stored, header, None if placement is None else placement.rows_needed(row))
            size = header.height, header.width
        if placement is not None:
            assert context.sizes is not None
            expected = context.sizes[row].tolist()
            if list(size) != expected:
                what = f"the {self.column.type} is {size[0]}x{size[1]}"
                raise DecodeError(f"{what}, and its image {expected[0]}x{expected[1]}")
            if self.column.traits.blends:
                clip = torch.from_numpy(np.array(mask, out.dtype))
                np.copyto(out, place_clip(placement, row, clip).numpy())
            else:
                place_mask(placement, row, mask.astype(out.dtype, copy=False), self.fill_value, out)
        elif mask.shape == out.shape:
            np.copyto(out, mask)
        else:
            raise SizeError.between(mask.shape, out.shape)


class MaskReader(ColumnReader):
    """Reads a column of masks, volumes or clips for batches.

    The batch is float32 for a float32 column. It is uint8 for a uint8 column whose masks have at most 8 bits, if the
    fill value fits. Otherwise it is int32.
    """

    def __init__(
        self, column: Column, optional: bool, fill_value: int, max_pixels: int, form: str | None = None
    ) -> None:
        """
        Args:
            column: The column.
            optional: Records may have no value.
            fill_value: Value outside the image.
            max_pixels: Limit of a mask's pixels.
            form: ``"list"``, ``"padded"`` or ``"stacked"`` if masks, or volumes, may differ in shape; None for rows of
                one tensor.
        """
        super().__init__(column, optional)
        self._form = form
        self._fill_value = fill_value
        self._max_pixels = max_pixels

    def read_batch(self, context: ColumnContext, new_buffer: NewBuffer) -> ColumnRows:
        """Reads the stored masks and their headers, and allocates the rows; decodes no mask.

        An unreadable mask marks its record as failed, and its error is stored in ``context``. If the batch's
        errors are None, raises the error instead. A :class:`UsageError` is raised in any case."""
        reader, column, missing = context.reader, self.column, self.find_missing(context)
        stored: list[Any] = [None] * len(context.numbers)
        headers: list[MaskHeader | None] = [None] * len(stored)
        for row, record in enumerate(context.numbers):
            if row in context.failed or (missing is not None and missing[row]):
                continue
            try:
                if column.layout is None:
                    data: Buffer = reader.value(column.name, record)
                    headers[row] = read_mask_header(data, self._max_pixels)
                    stored[row] = data
                else:
                    stored[row] = read_stored_array(reader, column, record)
            except PackstoreError as error:
                context.note_failure(row, error, column.name)
        if context.placement is not None:
            context.placement.prepare_masks()
        dtype = self._batch_dtype(headers)
        if self._form is not None:
            shapes = self._row_shapes(context, stored)
            host = new_buffer((int(shapes.prod(1).sum()),), dtype)
            return MaskRows(host, missing, column, stored, headers, self._fill_value, shapes, self._form)
        host = new_buffer((len(stored), *column.shape[:-2], *self._common_size(context, stored, headers)), dtype)
        return MaskRows(host, missing, column, stored, headers, self._fill_value)

    def _row_shapes(self, context: ColumnContext, stored: Sequence[Any]) -> NDArray[np.int64]:
        """Returns the final shape of each row's mask or volume, ``(B, axes)``; 0 along the depth of a missing
        volume."""
        axes = len(self.column.layout or "HW")
        if axes == 2:
            assert context.placement is not None
            return context.placement.sizes
        shapes = np.array([(0,) * axes if each is None else each.shape for each in stored], np.int64).reshape(-1, axes)
        if context.placement is not None:
            shapes[:, -2:] = context.placement.sizes
        return shapes

    def _batch_dtype(self, headers: Sequence[MaskHeader | None]) -> torch.dtype:
        """Returns the smallest dtype that holds the batch's masks and the fill value: uint8, int32 or float32."""
        if self.column.dtype == "float32":
            return torch.float32
        narrow = self.column.dtype == "uint8" and 0 <= self._fill_value <= 255
        narrow = narrow and all(header is None or header.bits <= 8 for header in headers)
        return torch.uint8 if narrow else torch.int32

    def _common_size(
        self, context: ColumnContext, stored: Sequence[Any], headers: Sequence[MaskHeader | None]
    ) -> tuple[int, int]:
        """Returns the common height and width of the batch's masks, which are not checked yet."""
        if context.placement is not None:
            height, width = context.placement.sizes[0].tolist()
            return height, width
        for mask, header in zip(stored, headers, strict=True):
            if mask is not None:
                return (mask.shape[-2], mask.shape[-1]) if header is None else (header.height, header.width)
        return (self.column.shape[-2], self.column.shape[-1]) if self.column.shape else (0, 0)


def pad_to_largest(
    values: Sequence[torch.Tensor], sizes: torch.Tensor, example: torch.Tensor, fill: float = 0
) -> Padded:
    """Pads tensors ``(…, h, w)`` at the end of each axis with ``fill``, to the largest height and width.

    Returns one tensor, with ``sizes``.

    Args:
        values: The tensors; empty if all records of the batch have failed.
        sizes: Heights and widths, int64 ``(B, 2)``. With ``k`` columns instead of 2, the last ``k`` axes are padded.
        example: Tensor with the dtype and the first axes of all, since there may be no tensors.
        fill: The padding.
    """
    axes = sizes.shape[1]
    largest = [max((each.shape[axis] for each in values), default=0) for axis in range(-axes, 0)]
    height, width = largest[-2:]
    if height * width > max([MAX_PIXELS, *(each.shape[-2] * each.shape[-1] for each in values)]):
        shown = f"{height}x{width}"
        raise UsageError(
            f"the padded images of this batch would have {shown} pixels, more than the limit of {MAX_PIXELS:,}: begin "
            "augment= with a resize or a crop, or take the images as a list (collate={'image': 'list'})"
        )
    result = example.new_full((len(values), *example.shape[:-axes], *largest), fill)
    for row, each in zip(result, values, strict=True):
        row[(..., *(slice(length) for length in each.shape[-axes:]))] = each
    return Padded(result, sizes)


@dataclass(eq=False)
class ImageRows(ColumnRows):
    """Images of a batch in a column beside the main one, with a buffer of their own.

    Attributes:
        host: The buffer.
        missing: True for records without an image; None if the column is not optional.
        assembler: Assembler that writes the images.
        plan: The batch, as the assembler has planned it.
        finish: Augments and normalises images on the device.
    """

    host: torch.Tensor
    missing: NDArray[np.bool_] | None
    assembler: Assembler
    plan: BatchPlan
    finish: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

    in_ring = True

    def fill_rows(self, context: ColumnContext, first: int, stop: int, skip: Set[int]) -> list[int]:
        """Decodes and writes the images of rows with the column's assembler.

        Returns the rows that failed. Raises as :meth:`Assembler.fill_rows`."""
        return self.assembler.fill_rows(self.plan, first, stop, skip)

    def host_tensors(self, kept: NDArray[np.int64] | None) -> list[torch.Tensor]:
        """Returns one tensor of the images in the rows ``kept``, or all."""
        return [select_rows(self.host, kept)]

    def build_value(self, there: Iterator[torch.Tensor], kept: NDArray[np.int64] | None, ids: torch.Tensor) -> Any:
        """Augments and normalises the images on the device. For an optional column, returns a list with None for
        missing images."""
        images = self.finish(self.assembler.form.as_images(next(there)), ids)
        return fill_missing(images, self.missing, kept)


class ImageColumnReader(ColumnReader):
    """Reads a column of images beside the main one for batches. A separate assembler decodes these images. Each process
    creates the assembler for its first batch."""

    def __init__(
        self,
        column: Column,
        optional: bool,
        new_assembler: Callable[[Column], Assembler],
        finish: Callable[..., torch.Tensor],
    ) -> None:
        """
        Args:
            column: The column.
            optional: Records may have no value.
            new_assembler: Makes its assembler.
            finish: Processes its images on the device: called with the column, the images, the ids of their records,
                and ``epoch``."""
        super().__init__(column, optional)
        self._new_assembler = new_assembler
        self._finish = finish
        self._assembler: Assembler | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Leaves out the assembler, which belongs to this process."""
        return self.__dict__ | {"_assembler": None}

    def read_batch(self, context: ColumnContext, new_buffer: NewBuffer) -> ColumnRows:
        """Prepares the images for decoding; creates the assembler on first use. Rows that failed or have no image
        become zeros.

        An unreadable image marks its record as failed. If the images move with the main images, both must have one
        size; if not, the record fails, too. Errors are stored in ``context``, or raised if it collects none.

        Raises as :meth:`find_missing`."""
        missing = self.find_missing(context)
        if self._assembler is None:
            self._assembler = self._new_assembler(self.column)
        assembler, absent = self._assembler, set(context.failed)
        if missing is not None:
            absent |= set(np.flatnonzero(missing).tolist())
        host = new_buffer((len(context.plan.ids), *assembler.row_shape_for(context.plan.records)), assembler.dtype)
        batch = context.plan
        plan = assembler.plan_batch(host, batch.ids, batch.seed, batch.epoch, batch.errors, absent)
        context.failed |= set(plan.failed) - absent
        if context.sizes is not None:
            sizes = plan.sizes
            for row in np.flatnonzero((sizes != context.sizes).any(1)).tolist():
                if row not in absent and row not in context.failed:
                    (height, width), (tall, wide) = sizes[row].tolist(), context.sizes[row].tolist()
                    error = DecodeError(f"the image is {height}x{width}, and the first one {tall}x{wide}")
                    context.note_failure(row, error, self.column.name)
        for row in absent:
            host[row] = 0
        finish = partial(self._finish, self.column, epoch=context.plan.epoch)
        return ImageRows(host, missing, assembler, plan, finish)


@dataclass(eq=False)
class ImageListRows(ColumnRows):
    """Lists of images of a batch, decoded and otherwise unchanged.

    Attributes:
        lists: Reader of the column.
        files: The files of each row; None for a row without a list.
        images: The decoded images of each row; empty until they are decoded.
    """

    lists: ImageListReader
    files: list[Sequence[Buffer] | None]
    images: list[list[NDArray[Any]]]

    def fill_rows(self, context: ColumnContext, first: int, stop: int, skip: Set[int]) -> list[int]:
        """Decodes all files of rows. Returns the rows with a file that cannot be decoded, or raises the first error if
        the batch collects no errors."""
        failed = []
        for row in range(first, stop):
            files = self.files[row]
            if files is None or row in skip:
                continue
            images = self.lists.decode_files(files)
            wrong = next((n for n, image in enumerate(images) if isinstance(image, DecodeError)), None)
            if wrong is None:
                self.images[row] = images
            else:
                error = DecodeError(f"image {wrong}: {images[wrong]}")
                context.note_failure(row, error, self.lists.pictures.column.name)
                failed.append(row)
        return failed

    def host_tensors(self, kept: NDArray[np.int64] | None) -> list[torch.Tensor]:
        """Returns one flat tensor of the pixels of all images of the rows ``kept``, or all."""
        pixels = [image.reshape(-1) for images in select_rows(self.images, kept) for image in images]
        return [torch.from_numpy(np.concatenate(pixels) if pixels else np.empty(0, np.uint8))]

    def build_value(self, there: Iterator[torch.Tensor], kept: NDArray[np.int64] | None, ids: torch.Tensor) -> Any:
        """Converts each image to the user's layout and dtype.

        Returns a list of lists, with None for missing lists."""
        rows = select_rows(self.images, kept)
        images = iter(split_flat(next(there), [image.shape for images in rows for image in images]))
        finish = self.lists.pictures.convert_pixels
        lists = [[finish(next(images)) for _ in range(len(row))] for row in rows]
        return [None if files is None else row for files, row in zip(select_rows(self.files, kept), lists, strict=True)]


class ImageListColumnReader(ColumnReader):
    """Reads a column of lists of image files for batches."""

    def __init__(self, lists: ImageListReader, optional: bool) -> None:
        """``lists`` reads and decodes the column; ``optional`` allows records without a list."""
        super().__init__(lists.pictures.column, optional)
        self._lists = lists

    def read_batch(self, context: ColumnContext, new_buffer: NewBuffer) -> ColumnRows:
        """Reads the files of each record; decodes none. A record without a list has None.

        The error of an unreadable record is stored in ``context``, or raised if the batch collects no errors. Raises as
        :meth:`find_missing`."""
        missing = self.find_missing(context)
        files: list[Sequence[Buffer] | None] = [None] * len(context.numbers)
        for row, record in enumerate(context.numbers):
            if row in context.failed or (missing is not None and missing[row]):
                continue
            try:
                files[row] = read_stored_files(context.reader, self.column, record)
            except PackstoreError as error:
                context.note_failure(row, error, self.column.name)
        return ImageListRows(self._lists, files, [[] for _ in files])
