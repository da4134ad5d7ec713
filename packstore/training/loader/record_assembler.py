"""Assembles images that are read record by record: files, which are decoded, and arrays."""

from __future__ import annotations

from collections.abc import Sequence, Set
from time import perf_counter
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from packstore.core.errors import DecodeError, PackstoreError, UsageError
from packstore.images.decoders import Box
from packstore.images.engine import OutputFormat, Requests, get_engine
from packstore.images.orientation import map_to_stored_box, upright
from packstore.images.sniff import excess_pixels_message
from packstore.training.augment.base import Crops, GeometricOperation
from packstore.training.augment.operations import output_size, plan_each
from packstore.training.loader.assemble import Assembler, wrong_header_error
from packstore.training.loader.checks import ChecksumPolicy
from packstore.training.loader.fields import Failures
from packstore.training.loader.finish import RowFormat
from packstore.training.loader.kernel import EngineKernel
from packstore.training.loader.prepared import Header, PreparedBatch
from packstore.training.loader.programs import NO_PROGRAMS, Programs
from packstore.training.loader.rows import RowWriter, SizeError, as_numpy
from packstore.training.loader.stats import Stats
from packstore.training.loader.stored_images import COLD_BATCHES, StoredImages
from packstore.training.pictures import locate_error
from packstore.training.random_draws import MASK, Draws

try:
    import resource

    _THREAD: int | None = getattr(resource, "RUSAGE_THREAD", None)  # Linux
except ImportError:  # Windows
    _THREAD = None


class RecordAssembler(Assembler):
    """Reads, decodes, crops and resizes records one by one into batch buffers, with the engine if it can.

    While threads wait for the disk, asks the operating system to read the next batches ahead."""

    _plans_groups = True

    def __init__(
        self,
        images: StoredImages,
        operations: Sequence[GeometricOperation],
        max_pixels: int,
        stats: Stats,
        alone: bool = True,
        checks: ChecksumPolicy | None = None,
        finish: RowFormat | None = None,
        programs: Programs = NO_PROGRAMS,
    ) -> None:
        """
        Args:
            images: Images of the records.
            operations: First operations of the user's list, which run here.
            max_pixels: An image with more pixels is not decoded.
            stats: Collects the seconds of each stage.
            alone: No other column is cropped with the images. If False, decoding refuses a file whose size
                differs from its header, by which crops are planned.
            checks: Policy of checksum verification; None for none.
            finish: Final format of cropped pixels; None for none.
            programs: Operations after the crops.

        Reads the size of the first image if no operation sets one.

        Raises:
            UsageError: Operations other than flips leave images of different sizes.
            DecodeError: The first image is read, and has too many pixels.
        """
        super().__init__(images, stats, checks, finish)
        self._operations = operations
        self._max_pixels = max_pixels
        self._alone = alone
        self._programs = programs
        self._own_sizes = False
        self._is_remote = images.reader.table.cache is not None
        self._of_one_size = EngineKernel.for_column(images.column, operations, finish, programs)
        self.shape = self._row_shape()

    def _row_shape(self) -> tuple[int, ...]:
        """Returns the shape of a row. Raises :class:`UsageError` if images come out in different sizes, and
        :class:`DecodeError` if the first image is too large."""
        if self._of_one_size is not None:
            return self._of_one_size.shape
        image, finish = self._images.column, self._finish
        if image.layout == "CHW":
            return image.shape if finish is None else finish.row_shape(image.shape[1:])
        size = self._common_size()
        return (*size, self._images.mode.channels) if finish is None else finish.row_shape(size)

    def _common_size(self) -> tuple[int, int]:
        """Returns height and width of all rows, after the operations.

        If no operation gives all images one size, returns the size of the first image and sets ``_own_sizes``. Decoding
        then refuses other sizes, except in a batch of one. An unreadable header gives 1 x 1.

        Raises :class:`UsageError` for operations that leave images of different sizes, and :class:`DecodeError` if the
        first image is too large."""
        images = self._images
        stored = images.column.shape[:2] if images.column.kind == "fixed" else None
        size = output_size(self._operations, (stored[0], stored[1]) if stored else None)
        if size is not None:
            return size
        self._own_sizes = True
        if any(not operation.mirrors for operation in self._operations):
            names = ", ".join(type(operation).__name__ for operation in self._operations)
            raise UsageError(
                f"the images differ in size after {names}, and other operations work on whole batches: begin with "
                "RandomResizedCrop, or with Resize and then CenterCrop or RandomCrop (no padding, or pad_if_needed)"
            )
        # Nothing brings them to one size; they may have one all the same, which every image is held to.
        view = images.view(0)
        if not images.are_files:
            height, width = images.read_pixels(0, view, None).shape[:2]
            return height, width
        height, width = self._read_upright_size(0, view)
        reason = excess_pixels_message(width, height, self._max_pixels)
        if reason is not None:
            raise locate_error(DecodeError(reason), images.reader, 0, images.column.name)
        return max(1, height), max(1, width)

    def _read_upright_size(self, record: int, view: Any) -> tuple[int, int]:
        """Reads height and width of an image, after EXIF rotation, from its header. Returns 0 and 0 if the header is
        unreadable."""
        images = self._images
        alone = PreparedBatch(
            torch.empty(0), np.array([record]), 0, 0, views=[view], turned=images.read_orientations([view])
        )
        images.read_sizes(alone.ids, alone)
        height, width = alone.sizes[0].tolist()
        return height, width

    def row_shape_for(self, records: NDArray[np.int64]) -> tuple[int, ...]:
        """Returns the shape of a row for ``records``.

        - A single record whose size no operation sets: by the header of its image.
        - All others, and an unreadable header or too large an image: the common shape.
        """
        if not self._own_sizes or len(records) != 1:
            return self.shape
        record = int(records[0])
        try:
            height, width = self._read_upright_size(record, self._images.view(record))
        except PackstoreError:
            return self.shape
        if not height or excess_pixels_message(width, height, self._max_pixels) is not None:
            return self.shape
        if self._finish is None:
            return height, width, self._images.mode.channels
        return self._finish.row_shape((height, width))

    def _plan_batch(self, prepared: PreparedBatch, records: NDArray[np.int64], errors: Failures) -> float:
        """Gets the stored bytes of ``records``, and plans their rows.

        If the store is cold (not in memory yet), asks the operating system to read the records ahead. Counts down the
        batches for which it is cold.

        Stores the errors of failed records in ``errors``, or raises the first error if ``errors`` is None. Raises
        :class:`UsageError` for an image that is too small for its crop.

        Returns the time, of :func:`time.perf_counter`, between getting the bytes and planning."""
        images = self._images
        fetch = images.cold > 0
        images.cold -= fetch
        if fetch or prepared.failed or not self._try_view_all(prepared, records):
            self._view_each(prepared, errors, fetch=fetch)
        read = perf_counter()
        self._plan_rows(prepared, records)
        return read

    def _plan_group(self, ids: NDArray[np.int64], seed: int, epoch: int) -> PreparedBatch | None:
        """Plans the records of several batches at once.

        Returns None for a cold or remote store, and without operations that set the size. Returns None also if a record
        fails, or the engine does not support the pixels."""
        # A cold store is read by many threads; a remote one is fetched batch by batch.
        if not self._plans_groups or self._images.cold or self._own_sizes or self._is_remote:
            return None
        none = torch.empty((0, *self.shape), dtype=self.dtype, device="cpu")
        plan, records = PreparedBatch(none, ids, seed, epoch, finish=self._finish), ids & MASK
        if not self._try_view_all(plan, records):
            return None
        try:
            self._plan_rows(plan, records)
        except PackstoreError:
            return None  # the batch that has the record says so
        return plan if plan.requests is not None else None

    def _plan_rows(self, prepared: PreparedBatch, records: NDArray[np.int64]) -> None:
        """Plans the rows of a batch from the images' bytes in memory.

        Reads headers, draws crops, and makes requests to the engine. Images with unreadable headers get a size, too.
        Raises :class:`UsageError` for an image too small for its crop."""
        images = self._images
        prepared.turned = images.read_orientations(prepared.views)
        requests = images.make_file_requests(records, prepared)
        images.read_sizes(records, prepared, requests)
        self._replace_unread(prepared)
        if self._operations:
            planned = self._plan_crops(prepared, prepared.ids, prepared.sizes)
            prepared.first_crops, prepared.crops = planned[1], planned[-1]
        prepared.requests = self._request_rows(prepared, requests)

    def _try_view_all(self, prepared: PreparedBatch, records: NDArray[np.int64]) -> bool:
        """Gets the stored bytes of all records of the batch at once, into ``prepared.views``.

        Returns False if any record fails. :meth:`_view_each` then finds out which."""
        try:
            prepared.views = self._images.view_all(records)
        except PackstoreError:
            return False  # one by one it shows which
        return True

    def _view_each(self, prepared: PreparedBatch, errors: Failures, *, fetch: bool) -> None:
        """Gets the stored bytes of the records one by one. A record that fails gets empty bytes.

        Adds each failed record to ``prepared.failed`` and its error to ``errors``, or raises the first error if
        ``errors`` is None. With ``fetch``, asks the operating system to read each record ahead."""
        left_out, images = {*prepared.failed}, self._images
        for row, record in enumerate(prepared.numbers):
            if row in left_out:
                prepared.views.append(b"")
                continue
            try:
                view = images.view(record)
                if fetch:
                    images.will_need(view)
                prepared.views.append(view)
            except PackstoreError as error:
                prepared.failed.append(self._note_error(errors, row, record, error))
                prepared.views.append(b"")

    def _replace_unread(self, prepared: PreparedBatch) -> None:
        """Sets the size of images with unreadable headers to the batch's largest. No operation then refuses them as too
        small; decoding raises later."""
        unread = prepared.sizes[:, 0] == 0
        if unread.any():
            prepared.sizes[unread] = np.maximum(prepared.sizes.max(0), self.shape[:2])

    def _request_rows(self, prepared: PreparedBatch, requests: Requests | None) -> Requests | None:
        """Draws the programs into ``prepared``, and adds crops, outputs and programs to ``requests``.

        If ``requests`` is None, makes requests for stored arrays of pixels. Returns None if the engine does not support
        them. Returns None also if an image comes out in another size than the rows."""
        crops, sizes, out = prepared.crops, prepared.sizes, as_numpy(prepared.out)
        window = out.shape[2:] if self.planes else out.shape[1:3]
        draws = Draws(prepared.seed, prepared.epoch, prepared.ids)
        prepared.program = self._programs.draw_program(draws, (window[0], window[1]))
        if crops is None:
            crops = Crops.full(sizes)
        if (crops.window[:, 2:] != window).any():
            return None  # the row that has another size says so
        if requests is None:
            requests = self._images.make_array_requests(prepared.views, sizes)
        if requests is None:
            return None
        form = (
            OutputFormat(self.planes, crops.pads, crops.fill)
            if self._finish is None
            else self._finish.engine_format(crops)
        )
        requests.set_outputs(
            crops.box, crops.size, crops.window, crops.flip, out, form, prepared.program, crops.sampling
        )
        return requests

    def _write_rows(
        self, prepared: PreparedBatch, first: int, stop: int, errors: Failures, skip: Set[int]
    ) -> list[int]:
        """Verifies checksums, lets the engine write the rows, and writes the rows that it refuses one by one.

        Counts the decoded images. If this thread waited for the disk, turns reading ahead on.

        Returns the rows that failed; their errors are in ``errors``. If ``errors`` is None, raises the first error.
        Always raises a :class:`SizeError` or :class:`MemoryError`."""
        faults = _count_major_faults()
        failed = self._verify_images(prepared, first, prepared.views[first:stop], errors)
        for row in self._run_engine(prepared, first, stop):
            if row in prepared.failed or row in failed or row in skip:
                continue
            try:
                self._write_row(prepared, row)
                if prepared.program is not None:
                    self._programs.run_on_image(prepared.rows.array[row : row + 1], prepared.program[row : row + 1])
                if self._finish is not None:
                    self._finish.write_rows(prepared.rows.pixels[row : row + 1], prepared.out[row : row + 1])
            except SizeError:
                raise
            except PackstoreError as error:
                failed.append(self._note_error(errors, row, prepared.numbers[row], error))
        if self._images.are_files:
            left_out = {*failed, *prepared.failed, *skip}
            self._stats.add_decoded(stop - first - sum(first <= row < stop for row in left_out))
        if _count_major_faults() - faults > stop - first:
            self._images.cold = COLD_BATCHES
        return failed

    def _run_engine(self, prepared: PreparedBatch, first: int, stop: int) -> Sequence[int]:
        """Lets the engine write rows ``first`` … ``stop - 1``. Counts invalid seek indexes.

        Returns the rows that the engine refused. Without requests, these are all rows."""
        if prepared.requests is None:
            return range(first, stop)
        engine = get_engine()
        refused = engine.run(prepared.requests, first, stop, self._max_pixels)
        if engine.unindexed:
            self._stats.add_unindexed(engine.unindexed)
        return (first + np.flatnonzero(refused)).tolist()

    def _write_row(self, prepared: PreparedBatch, row: int) -> None:
        """Decodes, crops and writes a row that the engine has refused. Decodes only a part of the image if possible.

        If the image has another size than its header says, draws its crop again, for the true size.

        Raises the errors of decoding, and:

        - :class:`DecodeError` for another size than the header says, if other columns were cropped by the header.
        - :class:`SizeError` without operations, if the image's size differs from the rows'.
        - :class:`MemoryError` if the engine had no memory for the image.
        """
        rows, view, header = prepared.rows, prepared.views[row], self._row_header(prepared, row)
        if self._operations and self._images.can_decode_part(header):
            part = self._images.decode_crop(view, _box_in_stored_image(prepared, row), header)
            rows.write_box(row, upright(part, prepared.turned.get(row, 1)))
            return
        pixels = self._read_pixels(prepared, row, header)
        if self._of_one_size is not None and prepared.requests is not None:  # refused, but its shape is right
            raise MemoryError(f"the engine has no memory for an image of {pixels.shape}")
        if not self._operations:
            if pixels.shape != rows.array.shape[1:]:
                raise SizeError.between(pixels.shape, rows.array.shape[1:])
            rows.array[row] = pixels
        elif pixels.shape[:2] == tuple(prepared.sizes[row].tolist()):
            rows.write_image(row, pixels)
        elif not self._alone:
            raise wrong_header_error(prepared.sizes[row].tolist(), pixels.shape)
        else:
            # Its header says another size than it has: planned again, by what it has.
            sizes = np.array([pixels.shape[:2]], np.int64)
            alone = self._plan_crops(prepared, prepared.ids[row : row + 1], sizes)[-1]
            RowWriter(rows.pixels[row : row + 1], alone).write_image(0, pixels)

    def _row_header(self, prepared: PreparedBatch, row: int) -> Header:
        """Returns the header of a row's image file; parses it if that was not done before. None if unreadable."""
        header = prepared.headers[row]
        return self._images.read_header(prepared.views[row]) if header is None else header

    def _read_pixels(self, prepared: PreparedBatch, row: int, header: Header) -> NDArray[Any]:
        """Decodes the whole image of a row, and rotates it by EXIF. Raises the errors of decoding."""
        pixels = self._images.read_pixels(prepared.numbers[row], prepared.views[row], header)
        return upright(pixels, prepared.turned.get(row, 1))

    def _plan_crops(self, prepared: PreparedBatch, ids: NDArray[np.int64], sizes: NDArray[np.int64]) -> list[Crops]:
        """Draws the crops of records whose images have ``sizes``.

        The first crops are the whole images; those after each operation follow. Raises :class:`UsageError` for an image
        too small for its crop."""
        return plan_each(self._operations, sizes, Draws(prepared.seed, prepared.epoch, ids))


def _box_in_stored_image(prepared: PreparedBatch, row: int) -> Box:
    """Returns the crop box of a row in its image as stored, before EXIF rotation."""
    box, orientation = prepared.rows.boxes[row], prepared.turned.get(row, 1)
    return box if orientation == 1 else map_to_stored_box(box, orientation, *prepared.sizes[row].tolist())


def _count_major_faults() -> int:
    """Returns how often this thread has waited for a page from disk. Returns 0 if the system does not count that."""
    return resource.getrusage(_THREAD).ru_majflt if _THREAD is not None else 0
