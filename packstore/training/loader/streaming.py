"""Streams batches: threads read and decode into a ring of buffers, which are copied to the device."""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, nullcontext
from functools import partial
from itertools import pairwise
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from packstore.core.errors import UsageError
from packstore.core.parallel import default_workers
from packstore.stores.proven import DamagedCopies
from packstore.training.loader.assembler import BatchGroup, GroupShare
from packstore.training.loader.batch_plan import BatchPlan
from packstore.training.loader.columns import BatchColumns
from packstore.training.loader.device_steps import DrawnForBatch, ImageSet
from packstore.training.loader.epochs import Epochs
from packstore.training.loader.looks import split_flat
from packstore.training.loader.pipeline import LoadedBatch, Pipeline
from packstore.training.random_draws import MASK
from packstore.training.record_notes import naming_records
from packstore.training.ring import Ring, Slot, Transport, transport_to
from packstore.training.single_threaded import make_single_threaded

if TYPE_CHECKING:
    from packstore.training.loader.shards_ahead import ShardsAhead
    from packstore.training.loader.views import ViewColumns


RECORDS_TOGETHER = 1024
"""Records that are planned at once. Python takes 3.8 µs an image for crops and flips of 256, and 1.5 of 1,024."""


class Streaming:
    """Streams the batches of an epoch: threads read and decode several batches ahead of the consumer.

    Attributes:
        transport: Copies batches to the device; created in the first epoch of a process and kept, so that its memory is
            reused.
    """

    def __init__(self, pipeline: Pipeline, epochs: Epochs) -> None:
        self._pipeline = pipeline
        self._epochs = epochs
        self.transport: Transport | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Leaves out the transport, which belongs to this process."""
        return self.__dict__ | {"transport": None}

    def iterate_epoch(self, epoch: int, first: int) -> Generator[LoadedBatch, None, None]:
        """Yields the batches of ``epoch`` from number ``first`` on. Fetches the shards of a remote store ahead.

        Afterwards fetches the first shards of the next epoch. Those threads may outlive this generator; threads that
        decode end with it."""
        reader, ahead = self._pipeline.dataset.reader, None
        if reader.table.cache is not None:
            from packstore.training.loader.shards_ahead import ShardsAhead

            reads, following = (self._epochs.order.list_shard_reads(each) for each in (epoch, epoch + 1))
            ahead = ShardsAhead.for_reader(reader, reads, first, following)
        if ahead is None:
            yield from self._iterate_batches(epoch, first)
            return
        with ahead, closing(self._iterate_batches(epoch, first, ahead)) as batches:
            for batch in batches:  # enumerate would hold the batch
                first += 1
                ahead.mark_done(first)
                yield batch
                del batch

    def _iterate_batches(
        self, epoch: int, first: int, ahead: ShardsAhead | None = None
    ) -> Generator[LoadedBatch, None, None]:
        """Yields the batches in order, with ``prefetch`` batches in progress in a pool of threads."""
        pipeline, options = self._pipeline, self._pipeline.options
        if pipeline.dataset.reader.table.can_refetch:
            pipeline.dataset.reader.check_files()
        transport = self.transport = self.transport or transport_to(pipeline.dataset.device)
        ring = Ring(transport, options.prefetch + 1)
        if pipeline.calls_user_code:  # it may use tensors that the caller has just made
            transport.wait_for_current_stream()
        threads = options.workers or default_workers()
        pool = ThreadPoolExecutor(threads, thread_name_prefix="packstore-loader", initializer=make_single_threaded)
        process, pending = os.getpid(), deque[BatchJob]()
        starting = True

        def end() -> None:
            if os.getpid() == process:  # a forked child has no threads, and their locks may stay locked
                for job in pending:
                    job.cancel()
                pool.shutdown(wait=True, cancel_futures=True)

        pipeline.stats.start_clock()
        try:
            ids_of_batches = group_batches(self._epochs.iterate_batches(epoch, first))
            while True:
                while len(pending) < options.prefetch:
                    following = next(ids_of_batches, None)
                    slot = None if following is None else ring.acquire()
                    if following is None or slot is None:
                        break
                    ids, share = following
                    pending.append(BatchJob(pipeline, slot, ids, epoch, share).start(ring, pool, threads))
                    if starting:  # opening hundreds of shards for later batches would delay the first one
                        pending[0].wait_prepared()
                        starting = False
                if not pending:
                    return
                batch = pending.popleft().result(ring)
                if pending and transport.asynchronous:
                    pending[0].send_early(ring)
                yield batch
                del batch  # the consumer's alone from here on, so that its memory is free before the next batch
        except KeyboardInterrupt:
            with nullcontext() if ahead is None else ahead.aborted_fetches():
                end()
            raise
        finally:
            end()


_log = logging.getLogger("packstore")
_DECODED_SLICE, _PIXELS_SLICE, _SMALL_BYTES, _LEAST_SLICE, _MOST_PIXELS = 16, 64, 1 << 20, 4, 1 << 23
_LEAST_BYTES = 1 << 18
"""Sizes of the slices that a thread takes at a time. Image files: few, for balance, since their costs differ much (with
two threads 16 give 5 percent more images a second than 32), and at most ``_MOST_PIXELS`` of large ones. Arrays: more,
so that threads contend less; of small images as many as fill ``_SMALL_BYTES``, or ``_LEAST_BYTES`` where there are many
threads. At least ``_LEAST_SLICE``, except of large images."""

_FIRST_OF_COLUMNS = 1
"""Number of the slot's first buffer that does not hold images."""


class BatchJob:
    """Batch in progress. One thread of a pool prepares the batch, and all threads decode slices of it. The consumer's
    thread sends the batch to the device.

    With ``on_error="skip"``, leaves out records that fail, and logs a warning for each."""

    def __init__(
        self, pipeline: Pipeline, slot: Slot, ids: NDArray[np.int64], epoch: int, share: GroupShare | None
    ) -> None:
        self.ids = ids
        self._pipeline = pipeline
        self._slot = slot
        self._epoch = epoch
        self._share = share
        self._errors: dict[int, Exception] | None = {} if pipeline.options.on_error == "skip" else None
        self._buffer = torch.empty(0, device="cpu")
        self._prepared: Future[BatchColumns | ViewColumns] | None = None
        self._plan: BatchPlan | None = None
        self._shapes: list[torch.Size] = []  # of the sent rows
        self._slices: list[Future[list[int]]] = []
        self._failed: list[int] = []
        self._called: list[list[torch.Tensor | None]] = []  # results of functions that threads call, by set of images
        self._cancelled = False
        self._error: Exception | None = None
        self._given = ids
        reader = pipeline.dataset.reader
        self._copies = DamagedCopies(reader) if reader.table.can_refetch else None
        self._pool: tuple[ThreadPoolExecutor, int] | None = None
        self._torch_modes: tuple[bool, ...] = ()
        self._drawn = DrawnForBatch()
        self._sent_ids = ids  # of the records in the batch, once it is sent

    def start(self, ring: Ring, pool: ThreadPoolExecutor, threads: int) -> BatchJob:
        """Allocates the batch's buffer, and submits its preparation to the pool; returns this job."""
        self._pool = pool, threads
        assembler = self._pipeline.assembler
        self._buffer = ring.get_buffer(
            self._slot, 0, (len(self.ids), *assembler.row_shape_for(self.ids & MASK)), assembler.dtype
        )
        self._prepared = pool.submit(self._prepare_batch, ring, pool, threads)
        return self

    def _prepare_batch(self, ring: Ring, pool: ThreadPoolExecutor, threads: int) -> BatchColumns | ViewColumns:
        """Reads records and columns, plans the rows, and submits slices to all threads."""
        with naming_records(self._pipeline.dataset.reader, self.ids):
            if self._errors is not None:
                self._leave_out_lost_shards()
            pipeline, count = self._pipeline, len(self.ids)
            assembler = pipeline.assembler
            self._called = [[None] * len(each.ids) for each in self._image_sets()]
            share = self._share if count == len(self._given) else None
            plan = assembler.plan_batch(self._buffer, self.ids, pipeline.seed, self._epoch, self._errors, share=share)
            self._plan = plan
            columns = pipeline.columns.read_batch(plan, partial(self._allocate_rows, ring))
            decoded = pipeline.dataset.manifest.holds_files
            made = sum(look.decoded_nbytes for look in plan.looks) or plan.out.nbytes
            if not decoded and made <= _SMALL_BYTES:  # done sooner than waking another thread
                self._failed = self._fill_slice(plan, columns, 0, count)
                return columns
            most = _DECODED_SLICE if decoded else _PIXELS_SLICE
            most = max(most, _SMALL_BYTES * count // max(1, made))
            # With 16 threads CIFAR's batches of 512 come a quarter faster than in slices of 32 images.
            least = _LEAST_SLICE if decoded else max(_LEAST_SLICE, _LEAST_BYTES * count // max(1, made))
            parts = min(max(threads, -(-count // most)), -(-count // least)) or 1
            if decoded and count:
                parts = min(count, max(parts, int(plan.sizes.prod(1).sum()) // _MOST_PIXELS))
            bounds = [count * part // parts for part in range(parts + 1)]
            for first, stop in pairwise(bounds):
                if self._cancelled:
                    break
                self._slices.append(pool.submit(self._fill_slice, plan, columns, first, stop))
            return columns

    def _allocate_rows(self, ring: Ring, place: int, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Allocates host memory for the rows of the column with the index ``place``."""
        if ring.transport.asynchronous:  # page-locked memory is the consumer's to make
            return torch.empty(tuple(shape), dtype=dtype, device="cpu")
        return ring.get_buffer(self._slot, _FIRST_OF_COLUMNS + place, shape, dtype)

    def _leave_out_lost_shards(self) -> None:
        """Removes records of shards that cannot be opened from the batch; logs a warning for each shard. Raises
        :class:`UnreachableError` if the network fails."""
        from packstore.training.loader.shards_ahead import find_lost_records

        lost = find_lost_records(self._pipeline.dataset.reader, self.ids & MASK)
        if lost.any():
            self.ids = self.ids[~lost]
            self._buffer, self._sent_ids = self._buffer[: len(self.ids)], self.ids

    def _fill_slice(self, plan: BatchPlan, columns: BatchColumns | ViewColumns, first: int, stop: int) -> list[int]:
        """Writes images and columns of a slice of rows, calls the user's functions, and returns the rows that
        failed."""
        with naming_records(self._pipeline.dataset.reader, self.ids[first:stop]):
            failed = self._pipeline.assembler.fill_rows(plan, first, stop)
            failed += columns.fill_rows(first, stop, failed)
            if self._called:
                skip = {row for row in (*failed, *columns.failed_rows) if first <= row < stop}
                for results, images in zip(self._called, self._image_sets(), strict=True):
                    if images.steps.in_decoding:
                        rows = slice(first * images.per_record, stop * images.per_record)
                        results[rows] = images.call_per_image(first, stop, self._epoch, skip)
        return failed

    def _image_sets(self) -> list[ImageSet]:
        """Returns the images, or the crops of each view, with which threads call user functions. Empty if they call
        none."""
        assembler, views = self._pipeline.assembler, self._pipeline.views
        if views is not None and views.looks:
            sets = list(views.iterate_image_sets(assembler.split_buffer(self._buffer), self.ids))
        else:
            sets = [ImageSet(self._pipeline.device_steps, assembler.form.as_images(self._buffer), self.ids)]
        return sets if any(each.steps.in_decoding for each in sets) else []

    def wait_prepared(self) -> None:
        """Waits until the preparation of the batch has ended or failed; raises nothing."""
        assert self._prepared is not None
        self._prepared.exception()

    def send_early(self, ring: Ring) -> None:
        """Sends the batch to the device if it is ready. The copy then overlaps the model's work on the previous batch.

        Does nothing if the batch is not ready, or if the device has no memory yet. Keeps an error for :meth:`result`.
        """
        if self._prepared is None or not self._prepared.done() or not all(future.done() for future in self._slices):
            return
        if self._copies is not None and self._list_errors():
            return  # :meth:`result` has damaged shards fetched again
        try:
            self._send(ring)
        except torch.OutOfMemoryError:
            return  # the previous batch may be freed when this one is due
        except Exception as error:
            self._error = error

    def result(self, ring: Ring) -> LoadedBatch:
        """Waits until the batch is decoded, receives it on the device, and returns it.

        First sends the batch to the device. Does not send it again, unless torch's modes (such as ``no_grad``) have
        changed since.

        Frees the slot of the ring. If a thread has failed, raises its error instead, and keeps the slot. Adds the
        seconds of waiting to the statistics."""
        try:
            if self._error is not None:
                raise self._error
            start = perf_counter()
            self._wait_for_slices()
            while self._copies is not None and self._copies.refetch(self._list_errors(), self._given & MASK):
                self._start_again(ring)
                self._wait_for_slices()
            self._pipeline.stats.add(wait_seconds=perf_counter() - start)
            if self._slot.shipment is None or self._torch_modes != _torch_modes():
                self._send(ring)
            assert self._slot.shipment is not None
            with self._pipeline.stats.measure("copy"), naming_records(self._pipeline.dataset.reader, self.ids):
                images, columns, shared = self._slot.shipment.receive()
                item = self._pipeline.make_batch(images, columns, self._drawn)
                ring.release(self._slot, (images, shared))
            sent = len(self._sent_ids)
            return LoadedBatch(item, sent, len(self._given) - sent, self._sent_ids)
        finally:
            self._break_cycle()

    def _wait_for_slices(self) -> None:
        """Waits until all slices are written or have failed. Raises nothing."""
        assert self._prepared is not None
        if self._prepared.exception() is None and self._slices:
            # Wait for the last slice first: waking for each slice would take the GIL from the working threads.
            self._slices[-1].exception()
            for future in self._slices:
                future.exception()

    def _list_errors(self) -> list[BaseException]:
        """Lists the errors of the threads, which have ended, and of the records that are left out."""
        raised = (future.exception() for future in (self._prepared, *self._slices) if future is not None)
        return [*(error for error in raised if error is not None), *(self._errors or {}).values()]

    def _start_again(self, ring: Ring) -> None:
        """Starts the whole batch again. No thread may work on it."""
        assert self._pool is not None
        self.ids, self._share, self._slices, self._failed = self._given, None, [], []
        self._sent_ids = self._given
        self._errors = None if self._errors is None else {}
        self.start(ring, *self._pool)

    def _send(self, ring: Ring) -> None:
        """Starts the copy of the batch's tensors to the device, without failed records; measures the seconds."""
        with self._pipeline.stats.measure("copy"), naming_records(self._pipeline.dataset.reader, self.ids):
            assert self._prepared is not None
            self._slot.shipment, self._torch_modes = None, _torch_modes()
            columns = self._prepared.result()
            failed = [*columns.failed_rows, *self._failed, *(row for future in self._slices for row in future.result())]
            ids, kept = self.ids, None
            sets, assembler = self._image_sets(), self._pipeline.assembler
            if failed:
                kept = np.setdiff1d(np.arange(len(ids)), failed)
                ids = ids[kept]
                for error in (self._errors or {}).values():
                    _log.warning("skipped: %s", error)
                self._errors = None  # logged once, however often the batch is sent
            self._sent_ids = ids
            images = assembler.select_sections(self._buffer, kept)
            for look in self._plan.looks if self._plan is not None and self._pipeline.division.one_by_one else ():
                look.run_deferred()
            others = [torch.from_numpy(ids)]
            if self._pipeline.form is not None:
                assert self._plan is not None
                own = self._plan.looks[0].images
                rows = range(len(own)) if kept is None else kept.tolist()
                images = self._collect_rows(ring, [image for row in rows if (image := own[row]) is not None])
                sizes = [assembler.form.image_size(shape) for shape in self._shapes]
                others.append(torch.tensor(sizes, dtype=torch.int64, device="cpu").view(-1, 2))
            made = [bool(each.steps.in_decoding) for each in sets] or [False] * len(images)
            for number, each in enumerate(sets):
                if made[number]:
                    results = [result for result in self._called[number] if result is not None]
                    images[number] = each.steps.in_decoding[-1].stack_results(results) if results else each.images[:0]
            others += columns.host_tensors(kept)
            if ring.transport.asynchronous:
                # Sending from other memory may make the host wait.
                others = [
                    ring.get_buffer(self._slot, number, tensor.shape, tensor.dtype).copy_(tensor)
                    for number, tensor in enumerate(others, _FIRST_OF_COLUMNS)
                ]
            finish = partial(self._finish_on_device, columns, made, kept, ids)
            self._slot.shipment = ring.transport.send((*images, *others), finish)

    def _collect_rows(self, ring: Ring, rows: list[torch.Tensor]) -> list[torch.Tensor]:
        """Prepares rows of different sizes for sending: as they are, or copied into one page-locked tensor."""
        self._shapes = [row.shape for row in rows]
        if not ring.transport.asynchronous:
            return rows
        dtypes = {row.dtype for row in rows}  # those of a function's results
        if len(dtypes) > 1:
            raise UsageError(f"images of one batch have different dtypes after augment=: {sorted(map(str, dtypes))}")
        dtype = next(iter(dtypes), self._buffer.dtype)
        flat = ring.get_buffer(self._slot, 0, (max(1, sum(row.numel() for row in rows)),), dtype)
        for part, row in zip(split_flat(flat, self._shapes), rows, strict=True):
            part.copy_(row)
        return [flat]

    def _finish_on_device(
        self,
        columns: BatchColumns | ViewColumns,
        made: Sequence[bool],
        kept: NDArray[np.int64] | None,
        host_ids: NDArray[np.int64],
        tensors: tuple[torch.Tensor, ...],
    ) -> tuple[Any, dict[str, Any], list[Any]]:
        """Runs all steps on the device, the user's ``transform`` last. Remembers the draws of ``mix``.

        Returns the batch's images, its other columns by name, and the values that may share memory with the ring.

        Args:
            columns: The batch's other columns.
            made: For each tensor of images: it has results of user functions, ``(B, C, h, w)``, and not rows.
            kept: Rows that have not failed; None for all.
            host_ids: Ids of these rows' records, on the host.
            tensors: Tensors that were sent: images, ids, the sizes of images that differ in size, columns.
        """
        pipeline, there, steps = self._pipeline, iter(tensors), self._pipeline.device_steps
        images, ids = [next(there) for _ in made], next(there)
        as_images = pipeline.assembler.form.as_images
        if pipeline.form is not None:
            sizes = next(there)
            flat = len(images) == 1 and images[0].ndim == 1
            rows = split_flat(images[0], self._shapes) if flat else images
            images = [as_images(row[None])[0] for row in rows]
            finished, self._drawn = steps.convert_unequal(images, sizes, pipeline.form, host_ids, self._epoch)
        else:
            images = [image if done else as_images(image) for image, done in zip(images, made, strict=True)]
            if pipeline.views is not None:
                finished = steps.call_transform(pipeline.views.build(images, ids, self._epoch, host_ids))
            else:
                finished, self._drawn = steps(images[0], ids, self._epoch, host_ids)
        return finished, *columns.build_values(there, kept, ids)

    def cancel(self) -> None:
        """Cancels the preparation and all slices that have not begun; frees the buffers."""
        self._cancelled = True
        for future in (self._prepared, *self._slices):
            if future is not None:
                future.cancel()
        self._break_cycle()

    def _break_cycle(self) -> None:
        """Breaks the reference cycle of job and futures, so that buffers are freed without the garbage collector."""
        self._buffer, self._prepared, self._slices = torch.empty(0, device="cpu"), None, []
        self._called, self._plan, self._error, self._pool = [], None, None, None


def _torch_modes() -> tuple[bool, ...]:
    """Returns torch's grad, inference and autocast modes, to compare them later."""
    return torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.is_autocast_enabled("cuda")


def group_batches(batches: Iterator[NDArray[np.int64]]) -> Iterator[tuple[NDArray[np.int64], GroupShare | None]]:
    """Collects batches into groups of about 1,024 records. Yields the ids of each batch with its share of a group.

    The share is None for a batch that is alone in its group."""
    while chunk := list(_take_batches(batches, RECORDS_TOGETHER)):
        group, start = BatchGroup(np.concatenate(chunk)), 0
        for ids in chunk:
            yield ids, GroupShare(group, slice(start, start + len(ids))) if len(chunk) > 1 else None
            start += len(ids)


def _take_batches(batches: Iterator[NDArray[np.int64]], count: int) -> Iterator[NDArray[np.int64]]:
    """Yields the next batches until they contain at least ``count`` records, or none are left."""
    while count > 0 and (ids := next(batches, None)) is not None:
        count -= len(ids)
        yield ids
