"""Assembles images that are read record by record: files, which are decoded, and arrays."""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from dataclasses import replace
from time import perf_counter
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from packstore.core.errors import DecodeError, PackstoreError, UsageError
from packstore.images.decoders import Box
from packstore.images.engine import Requests, get_engine
from packstore.images.orientation import map_to_stored_box, upright
from packstore.images.sniff import excess_pixels_message
from packstore.training.augment.base import Crops
from packstore.training.augment.operations import output_size
from packstore.training.loader.assemble import Assembler, wrong_header_error
from packstore.training.loader.batch_plan import BatchPlan, Header
from packstore.training.loader.checks import ChecksumPolicy
from packstore.training.loader.column_rows import Failures
from packstore.training.loader.looks import ANY_SIZE, DrawnLook, Look, engine_takes
from packstore.training.loader.rows import SizeError, height_width
from packstore.training.loader.stats import Stats
from packstore.training.loader.stored_images import COLD_BATCHES, StoredImages
from packstore.training.pictures import locate_error
from packstore.training.random_draws import MASK

try:
    import resource

    _THREAD: int | None = getattr(resource, "RUSAGE_THREAD", None)  # Linux
except ImportError:  # Windows
    _THREAD = None


class RecordAssembler(Assembler):
    """Reads, decodes, crops and resizes records into batch buffers: by the engine, or image by image if it refuses.

    With views, a buffer is ``(B, elements)``: all crops of the first view come first, and so on.

    While threads wait for the disk, asks the operating system to read the next batches ahead."""

    def __init__(
        self,
        images: StoredImages,
        looks: Sequence[Look],
        max_pixels: int,
        stats: Stats,
        alone: bool = True,
        checks: ChecksumPolicy | None = None,
    ) -> None:
        """
        Args:
            images: Images of the records.
            looks: What is made of a record: one look, or one for each view. Looks have one dtype.
            max_pixels: An image with more pixels is not decoded.
            stats: Collects the seconds of each stage.
            alone: No other column is cropped with the images. If False, decoding refuses a file whose size
                differs from its header, by which crops are planned.
            checks: Policy of checksum verification; None for none.

        Reads the size of the first image if no operation sets one.

        Raises:
            UsageError: Operations other than flips leave images of different sizes.
            DecodeError: The first image is read, and has too many pixels.
        """
        super().__init__(images, stats, checks, looks[0].form)
        self._looks = looks
        self._max_pixels = max_pixels
        self._alone = alone
        self._own_sizes = False
        self._has_views = looks[0].view is not None
        self._one_by_one = looks[0].one_by_one
        # A remote store is fetched batch by batch.
        self._plans_groups = not (self._has_views or self._one_by_one or images.reader.table.cache is not None)
        self._crops_per_record = sum(look.count for look in looks)
        self._is_taken = engine_takes(images.column, looks[0].operations)
        self.shape = self._row_shape()

    def _row_shape(self) -> tuple[int, ...]:
        """Returns the shape of a row. Raises :class:`UsageError` if images come out in different sizes, and
        :class:`DecodeError` if the first image is too large."""
        if self._has_views:
            return (sum(look.elements() for look in self._looks),)
        (look,), column = self._looks, self._images.column
        if look.one_by_one:
            return look.row_shape()
        if column.kind == "fixed" and (column.layout == "CHW" or self._is_taken):
            return look.row_shape(height_width(column))
        return look.form.row_shape(self._common_size(look))

    def _common_size(self, look: Look) -> tuple[int, int]:
        """Returns height and width of all rows after the operations; those of the first image if no operation sets
        them."""
        images = self._images
        size = output_size(look.operations, height_width(images.column) if images.column.kind == "fixed" else None)
        if size is not None:
            return size
        # Decoding then refuses other sizes, except in a batch of one.
        self._own_sizes = True
        if any(not operation.mirrors for operation in look.operations):
            names = ", ".join(type(operation).__name__ for operation in look.operations)
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
        alone = BatchPlan(
            torch.empty(0), np.array([record]), 0, 0, buffers=[view], turned=images.read_orientations([view])
        )
        images.make_requests(alone.ids, alone)
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
        return self._looks[0].form.row_shape((height, width))

    def split_buffer(self, buffer: torch.Tensor) -> list[torch.Tensor]:
        """Divides a buffer of B records by look, without copies: ``(B * count, *row)`` for each."""
        if not self._has_views:
            return [buffer]
        flat, sections, start = buffer.view(-1), [], 0
        for look in self._looks:
            stop = start + len(buffer) * look.elements()
            sections.append(flat[start:stop].view(len(buffer) * look.count, *look.row_shape()))
            start = stop
        return sections

    def select_sections(self, buffer: torch.Tensor, kept: NDArray[np.int64] | None) -> list[torch.Tensor]:
        sections = self.split_buffer(buffer)
        if kept is None:
            return sections
        places = (torch.from_numpy(look.crop_places(kept)) for look in self._looks)
        return [section[rows] for section, rows in zip(sections, places, strict=True)]

    def _plan_batch(self, plan: BatchPlan, records: NDArray[np.int64], errors: Failures) -> float:
        """Gets the stored bytes of ``records``, plans their rows, and returns the time between the two."""
        images = self._images
        # A cold store is not in memory yet: the operating system is asked to read the records ahead.
        fetch = images.cold > 0
        images.cold -= fetch
        if fetch or plan.failed or not self._try_view_all(plan, records):
            self._view_each(plan, errors, fetch=fetch)
        read = perf_counter()
        self._plan_rows(plan, records)
        for row, error in plan.looks[0].too_large.items():
            plan.failed.append(self._note_error(errors, row, plan.numbers[row], error))
        return read

    def estimate_bytes(self, plan: BatchPlan) -> int:
        """Returns the bytes of all crops; of images one by one, those of the decoded images."""
        return sum(look.nbytes for look in plan.looks)

    def _plan_group(self, ids: NDArray[np.int64], seed: int, epoch: int) -> BatchPlan | None:
        """Plans the records of several batches at once; None if each batch has to be planned by itself."""
        # A cold store is read by many threads.
        if not self._plans_groups or self._images.cold or self._own_sizes:
            return None
        none = torch.empty((0, *self.shape), dtype=self.dtype, device="cpu")
        plan, records = BatchPlan(none, ids, seed, epoch), ids & MASK
        if not self._try_view_all(plan, records):
            return None
        try:
            self._plan_rows(plan, records)
        except PackstoreError:
            return None  # the batch that has the record says so
        return plan if plan.requests is not None else None

    def _plan_rows(self, plan: BatchPlan, records: NDArray[np.int64]) -> None:
        """Plans the rows of a batch: reads headers, draws crops, and makes requests to the engine."""
        plan.turned = self._images.read_orientations(plan.buffers)
        requests = self._images.make_requests(records, plan)
        self._replace_unread(plan)
        plan.requests = self._request_rows(plan, requests)

    def _try_view_all(self, plan: BatchPlan, records: NDArray[np.int64]) -> bool:
        """Gets the stored bytes of all records of the batch at once; False if any record fails."""
        try:
            plan.buffers = self._images.view_all(records)
        except PackstoreError:
            return False  # one by one it shows which
        return True

    def _view_each(self, plan: BatchPlan, errors: Failures, *, fetch: bool) -> None:
        """Gets the stored bytes of the records one by one; a record that fails is noted and gets empty bytes."""
        left_out, images = {*plan.failed}, self._images
        for row, record in enumerate(plan.numbers):
            if row in left_out:
                plan.buffers.append(b"")
                continue
            try:
                view = images.view(record)
                if fetch:
                    images.will_need(view)
                plan.buffers.append(view)
            except PackstoreError as error:
                plan.failed.append(self._note_error(errors, row, record, error))
                plan.buffers.append(b"")

    def _replace_unread(self, plan: BatchPlan) -> None:
        """Sets the size of images with unreadable headers to the batch's largest. No operation then refuses them as too
        small; decoding raises later."""
        unread = plan.sizes[:, 0] == 0
        if unread.any():
            own = self._has_views or self._one_by_one
            least = (ANY_SIZE, ANY_SIZE) if own else self._looks[0].form.image_size(self.shape)
            plan.sizes[unread] = np.maximum(plan.sizes.max(0), least)

    def _request_rows(self, plan: BatchPlan, requests: Requests | None) -> Requests | None:
        """Draws the looks, and adds their crops, programs and outputs to ``requests``; None if the engine cannot do
        them."""
        plan.looks = [
            look.draw(plan.sizes, plan.ids, plan.seed, plan.epoch, out)
            for look, out in zip(self._looks, self.split_buffer(plan.out), strict=True)
        ]
        if requests is None or not all(look.fits_engine for look in plan.looks):
            return None  # the row that has another size says so
        parts = [requests.repeat(look.look.count) if self._has_views else requests for look in plan.looks]
        for look, part in zip(plan.looks, parts, strict=True):
            look.set_outputs(part)
        return Requests.interleave(parts, [look.count for look in self._looks])

    def _write_rows(self, plan: BatchPlan, first: int, stop: int, errors: Failures, skip: Set[int]) -> list[int]:
        """Verifies checksums, lets the engine write the rows, decodes those that it refuses, and returns the failed
        ones."""
        faults = _count_major_faults()
        failed = self._verify_images(plan, first, plan.buffers[first:stop], errors)
        left_out = {*failed, *plan.failed, *skip}
        decoded: dict[int, NDArray[Any]] = {}
        for row in self._run_engine(plan, first, stop):
            if row in left_out:
                continue
            try:
                pixels = self._write_refused(plan, row)
                if pixels is not None:
                    decoded[row] = pixels
            except SizeError:
                raise
            except PackstoreError as error:
                failed.append(self._note_error(errors, row, plan.numbers[row], error))
        for look in plan.looks if decoded else ():
            for row, large in look.write_pixels(decoded, self._images.column, self._images.mode).items():
                failed.append(self._note_error(errors, row, plan.numbers[row], large))
        for look in plan.looks:
            for row, wrong in look.finish_rows(first, stop, {*left_out, *failed}):
                failed.append(self._note_error(errors, row, plan.numbers[row], wrong))
        if self._images.are_files:
            left_out.update(failed)
            self._stats.add_decoded(stop - first - sum(first <= row < stop for row in left_out))
        # This thread waited for the disk: the next batches are read ahead again.
        if _count_major_faults() - faults > stop - first:
            self._images.cold = COLD_BATCHES
        return failed

    def _run_engine(self, plan: BatchPlan, first: int, stop: int) -> Iterable[int]:
        """Lets the engine write a slice of rows, and returns those that it refused: all if there are no requests."""
        if plan.requests is None:
            return range(first, stop)
        engine, count = get_engine(), self._crops_per_record
        refused = engine.run(plan.requests, first * count, stop * count, self._max_pixels)
        if engine.unindexed:
            self._stats.add_unindexed(engine.unindexed)
        rows: list[int] = (first + np.unique(np.flatnonzero(refused) // count)).tolist()
        return rows

    def _write_refused(self, plan: BatchPlan, row: int) -> NDArray[Any] | None:
        """Decodes a record that the engine has refused, and returns its pixels; None if its crops are written
        already."""
        header, column, cropped = self._row_header(plan, row), self._images.column, bool(self._looks[0].operations)
        if cropped and not self._has_views and self._images.can_decode_part(header):
            (planned,) = plan.looks
            assert isinstance(planned, DrawnLook)
            look = planned.select_records(row, row + 1)
            box = _box_in_stored_image(plan, row, look.crops)
            part = upright(self._images.decode_crop(plan.buffers[row], box, header), plan.turned.get(row, 1))
            whole = np.array([(0, 0, *part.shape[:2])])
            replace(look, crops=look.crops.replace(box=whole)).write_alone(0, part, None, column, self._images.mode)
            return None
        pixels = self._read_pixels(plan, row, header)
        if self._is_taken and plan.requests is not None:  # refused, but its shape is right
            raise MemoryError(f"the engine has no memory for an image of {pixels.shape}")
        found = pixels.shape[1:] if column.layout == "CHW" else pixels.shape[:2]
        said = plan.sizes[row].tolist()
        if [*found] == said and plan.requests is not None:  # then all crops have their rows' size
            return pixels
        if [*found] != said and (cropped or self._one_by_one) and not self._alone:
            raise wrong_header_error(said, found)
        # An image of another size than its header says is planned again, by what it has.
        of_record = None if [*found] == said else (plan.ids[row : row + 1], plan.seed, plan.epoch)
        for drawn in plan.looks:
            drawn.write_alone(row, pixels, of_record, column, self._images.mode)
        return None

    def _row_header(self, plan: BatchPlan, row: int) -> Header:
        """Returns the header of a row's image file; parses it if that was not done before. None if unreadable."""
        header = plan.headers[row]
        return self._images.read_header(plan.buffers[row]) if header is None else header

    def _read_pixels(self, plan: BatchPlan, row: int, header: Header) -> NDArray[Any]:
        """Decodes the whole image of a row, and rotates it by EXIF. Raises the errors of decoding."""
        pixels = self._images.read_pixels(plan.numbers[row], plan.buffers[row], header)
        return upright(pixels, plan.turned.get(row, 1))


def _box_in_stored_image(plan: BatchPlan, row: int, crops: Crops) -> Box:
    """Returns the crop box of a row in its image as stored, before EXIF rotation."""
    box, orientation = tuple(crops.box[0].tolist()), plan.turned.get(row, 1)
    return box if orientation == 1 else map_to_stored_box(box, orientation, *plan.sizes[row].tolist())


def _count_major_faults() -> int:
    """Returns how often this thread has waited for a page from disk. Returns 0 if the system does not count that."""
    return resource.getrusage(_THREAD).ru_majflt if _THREAD is not None else 0
