"""Writes images of records into the rows of a batch buffer, in worker threads: files, which are decoded, and arrays.

Everything except decoding and resizing runs under the GIL, so it is kept short. Values that can be computed for a whole
batch at once are computed before slices go to the threads. Less Python also means fewer waits between threads, and
fewer cache lines that move between cores.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import dataclass, field, replace
from threading import Lock
from time import perf_counter
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from packstore.core.errors import CorruptRecordError, DecodeError, PackstoreError, UsageError
from packstore.images.decoders import Box
from packstore.images.engine import Requests, get_engine
from packstore.images.orientation import map_to_stored_box, upright
from packstore.images.sniff import excess_pixels_message
from packstore.training.augment.operations import output_size
from packstore.training.loader.batch_plan import BatchPlan, ChecksumPolicy, Failures, ImagesByNumber
from packstore.training.loader.looks import ANY_SIZE, DrawnLook, Look, SizeError, engine_takes, height_width
from packstore.training.loader.stats import Stats
from packstore.training.loader.stored_images import COLD_BATCHES, StoredImages
from packstore.training.pictures import locate_error
from packstore.training.random_draws import MASK

try:
    import resource

    _THREAD: int | None = getattr(resource, "RUSAGE_THREAD", None)  # Linux
except ImportError:  # Windows
    _THREAD = None


@dataclass(eq=False)
class BatchGroup:
    """Consecutive batches that are planned together, by the first thread that prepares any of them. Thread-safe.

    Attributes:
        ids: Ids of the records of all batches in the group.
    """

    ids: NDArray[np.int64]
    _plan: BatchPlan | None = None
    _planned: bool = False
    _lock: Lock = field(default_factory=Lock)

    def plan_once(self, make: Callable[[NDArray[np.int64]], BatchPlan | None]) -> BatchPlan | None:
        """Returns the plan of all batches in the group. Calls ``make`` only the first time, while other threads wait.

        None means that each batch must be planned by itself."""
        with self._lock:
            if not self._planned:
                self._plan, self._planned = make(self.ids), True
            return self._plan


@dataclass(frozen=True)
class GroupShare:
    """Group of batches that are planned together, and the rows of one batch in the group's plan."""

    group: BatchGroup
    rows: slice


class Assembler:
    """Reads, decodes, crops and resizes records into batch buffers: by the engine, or image by image if it refuses.
    Thread-safe.

    Verifies checksums of the images, and adds the seconds to the statistics. With views, a buffer is ``(B, elements)``:
    all crops of the first view come first, and so on.

    While threads wait for the disk, asks the operating system to read the next batches ahead.

    Attributes:
        shape: Shape of a row: ``(H, W, C)``, ``(C, H, W)`` for a floating point store, or the shape of the final
            format.
        dtype: Dtype of a row.
        form: Format of a row, or of a crop in a row.
    """

    _stage = "decode_seconds"

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
        self._images = images
        self._stats = stats
        self._checks = checks
        self.form, self.dtype = looks[0].form, looks[0].form.dtype
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
        one = np.array([record])
        alone = BatchPlan(torch.empty(0), one, 0, 0, one, buffers=[view])
        images.make_requests(alone)
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
        """Divides a buffer like :meth:`split_buffer`, and copies the rows of the records ``kept``.

        If ``kept`` is None, returns all rows without a copy."""
        sections = self.split_buffer(buffer)
        if kept is None:
            return sections
        places = (torch.from_numpy(look.crop_places(kept)) for look in self._looks)
        return [section[rows] for section, rows in zip(sections, places, strict=True)]

    def plan_batch(
        self,
        out: torch.Tensor,
        ids: NDArray[np.int64],
        seed: int,
        epoch: int,
        errors: Failures,
        absent: Set[int] = frozenset(),
        check_all: bool = False,
        share: GroupShare | None = None,
    ) -> BatchPlan:
        """Reads the records of ``ids`` and plans their rows; chooses the checksums to verify. Decodes nothing. Adds the
        seconds to the statistics.

        Args:
            out: Rows of a batch buffer, ``(B, *shape)``.
            ids: Ids of the records, from :class:`Epochs`, ``(B,)``.
            seed: Seed of random operations.
            epoch: Epoch of random operations.
            errors: Receives failed records with their errors; None raises the first.
            absent: Rows without an image, which are not written.
            check_all: Verify every image, also of arrays, of which by default only some are verified.
            share: Group of batches that are planned at once, and the rows of this one; None to plan it on its own.

        Raises:
            CorruptRecordError: ``errors`` is None, and a record is damaged; names the record and its key.
            DecodeError: ``errors`` is None, and a record cannot be read; names the record and its key.
            UsageError: An image is too small for its crop, whatever ``errors`` is.
        """
        start = perf_counter()
        records = ids & MASK
        plan = BatchPlan(out, ids, seed, epoch, records, records.tolist(), errors, failed=[*absent])
        if self._checks is not None:
            plan.pending = self._checks.choose_checksums(records, epoch, check_all)
            if plan.pending.faults:
                self._note_faults(plan)
        group = None
        if share is not None and not plan.failed:
            group = share.group.plan_once(lambda ids: self._plan_group(ids, seed, epoch))
        if share is None or group is None:
            read = self._plan_batch(plan)
        else:
            read = perf_counter()
            plan.take_group_rows(group, share.rows)
        self._stats.add(read_seconds=read - start, decode_seconds=perf_counter() - read)
        return plan

    def _plan_batch(self, plan: BatchPlan) -> float:
        """Gets the stored bytes of the records, plans their rows, and returns the time between the two."""
        images = self._images
        # A cold store is not in memory yet: the operating system is asked to read the records ahead.
        fetch = images.cold > 0
        images.cold -= fetch
        if fetch or plan.failed or not self._try_view_all(plan):
            self._view_each(plan, fetch=fetch)
        read = perf_counter()
        self._plan_rows(plan)
        for row, error in plan.looks[0].too_large.items():
            plan.failed.append(self._note_error(plan, row, error))
        return read

    def _plan_group(self, ids: NDArray[np.int64], seed: int, epoch: int) -> BatchPlan | None:
        """Plans the records of several batches at once; None if each batch has to be planned by itself."""
        # A cold store is read by many threads.
        if not self._plans_groups or self._images.cold or self._own_sizes:
            return None
        none = torch.empty((0, *self.shape), dtype=self.dtype, device="cpu")
        plan = BatchPlan(none, ids, seed, epoch, ids & MASK)
        if not self._try_view_all(plan):
            return None
        try:
            self._plan_rows(plan)
        except PackstoreError:
            return None  # the batch that has the record says so
        return plan if plan.requests is not None else None

    def _plan_rows(self, plan: BatchPlan) -> None:
        """Plans the rows of a batch: reads headers, draws crops, and makes requests to the engine."""
        requests = self._images.make_requests(plan)
        unread = plan.sizes[:, 0] == 0
        if unread.any():
            # The batch's largest size: no operation then refuses them as too small, and decoding raises later.
            own = self._has_views or self._one_by_one
            least = (ANY_SIZE, ANY_SIZE) if own else self._looks[0].form.image_size(self.shape)
            plan.sizes[unread] = np.maximum(plan.sizes.max(0), least)
        plan.requests = self._request_rows(plan, requests)

    def _try_view_all(self, plan: BatchPlan) -> bool:
        """Gets the stored bytes of all records of the batch at once; False if any record fails."""
        try:
            plan.buffers = self._images.view_all(plan.records)
        except PackstoreError:
            return False  # one by one it shows which
        return True

    def _view_each(self, plan: BatchPlan, *, fetch: bool) -> None:
        """Gets the stored bytes of the records one by one; a record that fails is noted and gets empty bytes."""
        left_out, images = {*plan.failed}, self._images
        for row, record in enumerate(plan.numbers):
            if row in left_out:
                plan.buffers.append(b"")
                continue
            try:
                plan.buffers.append(images.view(record, ahead=fetch))
            except PackstoreError as error:
                plan.failed.append(self._note_error(plan, row, error))
                plan.buffers.append(b"")

    def _request_rows(self, plan: BatchPlan, requests: Requests | None) -> Requests | None:
        """Draws the looks, and adds their crops, programs and outputs to ``requests``; None if the engine cannot do
        them."""
        plan.looks = [
            look.draw(plan.sizes, plan.ids, plan.seed, plan.epoch, out)
            for look, out in zip(self._looks, self.split_buffer(plan.out), strict=True)
        ]
        if requests is None:
            return None
        parts = [requests.repeat(look.look.count) if self._has_views else requests for look in plan.looks]
        if not all(look.set_outputs(part) for look, part in zip(plan.looks, parts, strict=True)):
            return None  # the row that has another size says so
        if not self._has_views:
            return requests
        return Requests.interleave(parts, [look.count for look in self._looks])

    def fill_rows(self, plan: BatchPlan, first: int, stop: int, skip: Set[int] = frozenset()) -> list[int]:
        """Verifies, decodes and writes rows ``first`` … ``stop - 1`` of a planned batch. Adds the seconds to the
        statistics.

        Rows in ``skip`` need not be written.

        Returns:
            Rows that failed here, not those that failed while preparing.

        Raises:
            CorruptRecordError: The plan's ``errors`` are None, and a record is damaged; names the record and its key.
            DecodeError: The plan's ``errors`` are None, and a record cannot be decoded; names the record and its key.
            UsageError: An image cannot become a row, such as one of another size (:class:`SizeError`), whatever
                ``errors`` are.
        """
        start = perf_counter()
        failed = self._write_rows(plan, first, stop, skip)
        self._stats.add(**{self._stage: perf_counter() - start})
        return failed

    def _write_rows(self, plan: BatchPlan, first: int, stop: int, skip: Set[int]) -> list[int]:
        """Verifies checksums, lets the engine write the rows, decodes those that it refuses, and returns the failed
        ones."""
        faults = _count_major_faults()
        failed = self._verify_images(plan, first, plan.buffers[first:stop])
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
                failed.append(self._note_error(plan, row, error))
        for look in plan.looks if decoded else ():
            for row, large in look.write_pixels(decoded, self._images.column, self._images.mode).items():
                failed.append(self._note_error(plan, row, large))
        for look in plan.looks if self._one_by_one else ():
            for row, wrong in look.finish_rows(first, stop, {*left_out, *failed}):
                failed.append(self._note_error(plan, row, wrong))
        if self._images.are_files:
            left_out.update(failed)
            self._stats.add(decoded=stop - first - sum(first <= row < stop for row in left_out))
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
            self._stats.add(unindexed=engine.unindexed)
        rows: list[int] = (first + np.unique(np.flatnonzero(refused) // count)).tolist()
        return rows

    def _write_refused(self, plan: BatchPlan, row: int) -> NDArray[Any] | None:
        """Decodes a record that the engine has refused, and returns its pixels; None if its crops are written
        already."""
        images, turn = self._images, plan.turned.get(row, 1)
        column, cropped = images.column, bool(self._looks[0].operations)
        header = images.read_header(plan.buffers[row]) if plan.headers[row] is None else plan.headers[row]
        if cropped and not self._has_views and images.can_decode_part(header):
            (planned,) = plan.looks
            assert isinstance(planned, DrawnLook)
            look = planned.select_records(row, row + 1)
            box: Box = tuple(look.crops.box[0].tolist())
            if turn != 1:
                box = map_to_stored_box(box, turn, *plan.sizes[row].tolist())
            part = upright(images.decode_crop(plan.buffers[row], box, header), turn)
            whole = np.array([(0, 0, *part.shape[:2])])
            replace(look, crops=replace(look.crops, box=whole)).write_alone(0, part, None, column, images.mode)
            return None
        pixels = upright(images.read_pixels(plan.numbers[row], plan.buffers[row], header), turn)
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
            drawn.write_alone(row, pixels, of_record, column, images.mode)
        return None

    def _note_faults(self, plan: BatchPlan) -> None:
        """Marks records with damaged values in other columns as failed; raises the first error if the plan's
        ``errors`` are None."""
        assert plan.pending is not None
        faults = plan.pending.faults
        if plan.errors is None:
            # The first damaged record may be one before, with a damaged image.
            self._verify_images(plan, 0, [self._images.view(i) for i in plan.numbers[: min(faults)]])
        for row, error in sorted(faults.items()):
            plan.failed.append(self._note_error(plan, row, error))

    def _verify_images(self, plan: BatchPlan, first: int, images: ImagesByNumber) -> list[int]:
        """Verifies pending checksums of the images of the rows from ``first`` on, and returns the damaged rows."""
        if plan.pending is None:
            return []
        damaged = plan.pending.find_damaged(first, images, plan.failed)
        return [self._note_error(plan, row, error) for row, error in damaged]

    def _note_error(self, plan: BatchPlan, row: int, error: PackstoreError) -> int:
        """Stores the error of a row's record in the plan's errors, with the record's key in its text; returns ``row``.
        Raises the error if they are None."""
        record, named = plan.numbers[row], error
        if not isinstance(error, CorruptRecordError):  # which names the record itself
            named = locate_error(error, self._images.reader, record, self._images.column.name)
            named.record, named.__cause__ = record, error
        if plan.errors is None:
            raise named
        plan.errors[record] = named
        return row


def wrong_header_error(said: Sequence[int], found: Sequence[int]) -> DecodeError:
    """Returns the error for an image whose height and width ``found`` differ from those its header ``said``."""
    return DecodeError(f"its header says {said[0]}x{said[1]}, and it is {found[0]}x{found[1]}")


def _count_major_faults() -> int:
    """Returns how often this thread has waited for a page from disk. Returns 0 if the system does not count that."""
    return resource.getrusage(_THREAD).ru_majflt if _THREAD is not None else 0
