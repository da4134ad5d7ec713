"""Resident mode: loads all images of a split into device memory once; an epoch then only gathers them by index."""

from __future__ import annotations

import logging
import os
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, nullcontext
from itertools import pairwise
from time import perf_counter
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from packstore.core.errors import PackstoreError, StoreError
from packstore.core.parallel import default_workers
from packstore.images.engine import Requests, get_engine
from packstore.stores.proven import DamagedCopies
from packstore.training.augment.base import is_channels_last
from packstore.training.loader.epochs import Epochs
from packstore.training.loader.looks import Look
from packstore.training.loader.pipeline import LoadedBatch, Pipeline
from packstore.training.loader.shards_ahead import ShardsAhead, find_lost_records
from packstore.training.random_draws import MASK
from packstore.training.record_notes import naming_records, note_records
from packstore.training.ring import HostTransport, ProducerStream, Ring, shares_memory, transport_to
from packstore.training.single_threaded import make_fork_single_threaded
from packstore.training.values import as_numpy, as_tensor

_log = logging.getLogger("packstore")
_LOADED_BYTES = 32 << 20  # of images that are loaded at a time

# Pixels of the images that are augmented at once (2,048 of CIFAR): more than a batch, since a call costs as much as
# many images. On a GPU even more, since a call is 150 kernel launches of some 5 µs; the indices that gather pixels,
# 8 bytes each, then take 256 MB.
_PIXELS_AT_ONCE = {"cpu": 1 << 21, "cuda": 1 << 25}
_GATHERED_AT_ONCE = 65536  # images that are not augmented, on the CPU


class Resident:
    """Keeps all images of a split in device memory, and gathers the batches of an epoch from them.

    Keeps columns of numbers there, too. With ``on_error="skip"``, leaves records that cannot be loaded out of all
    epochs. Pickles without the images.

    Attributes:
        images: All images of the split; None until they are loaded.
    """

    def __init__(self, pipeline: Pipeline, epochs: Epochs) -> None:
        self.images: torch.Tensor | None = None
        self._pipeline = pipeline
        self._epochs = epochs
        self._numbers: dict[str, torch.Tensor] = {}
        self._left_out = np.empty(0, np.int64)  # indices of damaged records
        # For the images; the host waits for the columns when they are copied.
        self._producer = ProducerStream(pipeline.dataset.device)

    def __getstate__(self) -> dict[str, Any]:
        """Leaves out the images and streams, which belong to this process."""
        producer = ProducerStream(self._pipeline.dataset.device)
        return self.__dict__ | {"images": None, "_numbers": {}, "_producer": producer}

    def iterate_epoch(self, epoch: int, first: int) -> Generator[LoadedBatch, None, None]:
        """Yields the batches of ``epoch`` from number ``first`` on. The first call loads all images.

        In a forked child, stops torch from computing in several threads, also after this epoch. Raises the errors of
        :meth:`_load_images`.
        """
        make_fork_single_threaded()
        images, pipeline = self._load_once(), self._pipeline
        if pipeline.resident_look is None:
            yield from self._iterate_batches(epoch, first, images, None)
            return
        with closing(EngineGatherer(pipeline, pipeline.resident_look, images)) as by_engine:
            yield from self._iterate_batches(epoch, first, images, by_engine)

    def _iterate_batches(
        self, epoch: int, first: int, images: torch.Tensor, by_engine: EngineGatherer | None
    ) -> Generator[LoadedBatch, None, None]:
        """Yields the batches, gathered by the engine or by torch."""
        pipeline, first_record = self._pipeline, self._epochs.first_record
        device, steps = pipeline.dataset.device, pipeline.device_steps
        pipeline.stats.start_clock()
        # On a GPU all steps are for many batches at once, of which each is then a copy. On the CPU a batch stays in the
        # caches from step to step, and without operations each is gathered by itself.
        together = device.type != "cpu"
        views = pipeline.views
        gathers = not together and not steps.works_on_batches and by_engine is None
        whole = gathers or views is not None
        last = whole and images.ndim == 4 and is_channels_last(images)
        stored_rows = images.permute(0, 2, 3, 1) if last else images  # torch copies contiguous rows as they are
        pixels = _PIXELS_AT_ONCE.get(device.type, _PIXELS_AT_ONCE["cpu"])
        at_once = (
            _GATHERED_AT_ONCE
            if whole
            else pixels // (steps.largest_pixels(images) if by_engine is None else by_engine.pixels)
        )
        gathered: torch.Tensor | None = None
        producer = ProducerStream(device)
        with_keys = "key" in pipeline.dataset.columns
        draws_on_host = together and (steps if views is None else views).draws_on_host
        on_host = with_keys or len(self._left_out) > 0 or pipeline.options.draws_for_batches or draws_on_host
        for ids, record_ids, sizes in self._epochs.iterate_groups_on(device, epoch, first, at_once, on_host):
            start = perf_counter()
            ids, record_ids, sizes, skipped = self._without_damaged(ids, record_ids, sizes)
            chunk = images
            if together:
                self._producer.wait(images)
                producer.wait(ids, *([] if gathered is None else [gathered]))
                producer.record()
            places = ids & MASK
            with naming_records(pipeline.dataset.reader, ids, first_record):
                if by_engine is not None:
                    cropped = by_engine(places, ids + first_record, epoch)
                    chunk = steps.augment_batch(cropped, ids + first_record, epoch)
                elif not whole:
                    mode = torch.is_inference_mode_enabled()
                    if gathered is not None and len(gathered) == len(places) and gathered.is_inference() == mode:
                        torch.index_select(images, 0, places, out=gathered)
                    else:
                        gathered = images.index_select(0, places)
                    host_ids = record_ids if on_host else None
                    chunk = steps.augment_batch(gathered, ids + first_record, epoch, host_ids)
                    if together:
                        chunk = steps.convert_batch(chunk)
                    if shares_memory(chunk, gathered):
                        gathered = None  # the consumer gets it; else it is used again, since fresh memory costs more
            offset = 0
            # Do not give the user views made by split: autograd would treat all of them as one.
            for own, size, skip in zip(torch.split(places, sizes), sizes, skipped, strict=True):
                rows = slice(offset, offset + size)
                offset += size
                if together:
                    producer.wait(places, chunk)
                # Nor, on a GPU, parts of the chunk: each would keep all of it, and in-place operations count for all.
                batch = stored_rows.index_select(0, own) if whole else chunk[rows]
                if last:
                    batch = batch.permute(0, 3, 1, 2)
                if views is None:
                    batch = batch.clone() if together else steps.convert_batch(batch)
                columns: dict[str, Any] = {name: c.index_select(0, own) for name, c in self._numbers.items()}
                if with_keys:
                    columns["key"] = [pipeline.dataset.reader.key(i) for i in (record_ids[rows] & MASK).tolist()]
                pipeline.stats.add(augment_seconds=perf_counter() - start - pipeline.stats.take_timed())
                # No variable here: it would hold the batch while the next is made.
                yield LoadedBatch(self._make_item(batch, columns, ids, record_ids, rows, epoch), size, skip)
                start = perf_counter()

    def _make_item(
        self,
        images: torch.Tensor,
        columns: dict[str, Any],
        ids: torch.Tensor,
        record_ids: NDArray[np.int64],
        rows: slice,
        epoch: int,
    ) -> Any:
        """Mixes a batch's images or makes its views, calls the user's ``transform``, and builds the user's batch."""
        pipeline, first_record = self._pipeline, self._epochs.first_record
        try:  # naming_records() would take a tenth of the time in which a small batch is made
            if pipeline.views is None:
                made, drawn = pipeline.device_steps.mix_batch(images, record_ids[rows], epoch)
                return pipeline.make_batch(made, columns, drawn)
            # Sliced only here: few batches need their ids, and slicing takes a while.
            there, here = ids[rows] + first_record, record_ids[rows] if len(record_ids) else None
            crops = pipeline.views.build_from_images(images, there, epoch, here)
            return pipeline.make_batch(pipeline.device_steps.call_transform(crops), columns)
        except Exception as error:
            note_records(error, pipeline.dataset.reader, ids[rows] + first_record)
            raise

    def _load_once(self) -> torch.Tensor:
        """Returns all images on the device; loads them, and the columns of numbers, on the first call."""
        if self.images is None:
            pipeline = self._pipeline
            errors: dict[int, Exception] | None = {} if pipeline.options.on_error == "skip" else None
            images = self._load_images(errors)
            self._producer.record()
            first, count = self._epochs.first_record, len(pipeline.dataset)
            for error in (errors or {}).values():
                _log.warning("skipped: %s", error)
            self._left_out = np.union1d(self._left_out, np.array(sorted(errors or ()), np.int64) - first)
            sound = np.setdiff1d(np.arange(count), self._left_out)
            reader, columns = pipeline.dataset.reader, pipeline.dataset.columns
            for name in [name for name in columns if name not in ("image", "key")]:  # numbers of one shape
                values = as_tensor(reader.manifest.column(name), reader.values(name, sound + first))
                column = torch.zeros((count, *values.shape[1:]), dtype=values.dtype, device="cpu")
                column[torch.from_numpy(sound)] = values
                self._numbers[name] = column.to(pipeline.dataset.device)
            self.images = images
        return self.images

    def _without_damaged(
        self, ids: torch.Tensor, record_ids: NDArray[np.int64], sizes: list[int]
    ) -> tuple[torch.Tensor, NDArray[np.int64], list[int], list[int]]:
        """Removes damaged records from a group of batches, and counts those removed from each batch."""
        if not len(self._left_out):
            return ids, record_ids, sizes, [0] * len(sizes)
        sound = ~np.isin((record_ids & MASK) - self._epochs.first_record, self._left_out)
        kept = [int(part.sum()) for part in np.split(sound, np.cumsum(sizes)[:-1])]
        skipped = [size - left for size, left in zip(sizes, kept, strict=True)]
        left = torch.from_numpy(np.flatnonzero(sound)).to(ids.device, non_blocking=True)
        return ids.index_select(0, left), record_ids[sound], kept, skipped

    def _load_images(self, errors: dict[int, Exception] | None) -> torch.Tensor:
        """Reads, verifies and copies all images of the split to the device, ``(N, 3, H, W)``, and calls
        ``pre_transform``."""
        pipeline, assembler, start = self._pipeline, self._pipeline.assembler, self._epochs.first_record
        device, count = pipeline.dataset.device, len(pipeline.dataset)
        # Images of damaged records stay undefined: they are left out of all epochs.
        pre_transform = pipeline.options.pre_transform
        if pipeline.dataset.reader.table.can_refetch:
            pipeline.dataset.reader.check_files()
        step = max(1, _LOADED_BYTES // max(1, int(np.prod(assembler.shape)) * assembler.dtype.itemsize))
        ring = Ring(transport_to(device), 2)
        whole: torch.Tensor | None = None
        ahead = ShardsAhead.for_reader(pipeline.dataset.reader, self._epochs.list_sequential_reads(step))
        with ahead or nullcontext():
            for chunk in range(0, count, step):
                for first, last in self._sound_runs(chunk, min(chunk + step, count), errors is not None):
                    slot = ring.acquire()
                    assert slot is not None
                    buffer = ring.get_buffer(slot, 0, (last - first, *assembler.shape), assembler.dtype)
                    self._fill_rows(buffer, np.arange(start + first, start + last), errors)
                    slot.shipment = ring.transport.send((buffer,), lambda tensors: assembler.form.as_images(tensors[0]))
                    images = slot.shipment.receive()
                    if pre_transform is not None:
                        with naming_records(pipeline.dataset.reader, np.arange(first, last), start):
                            images = pre_transform(images)
                    whole = self._allocate(images) if whole is None else whole
                    whole[first:last] = images
                    ring.release(slot, ())
                if ahead is not None:
                    ahead.mark_done(chunk // step + 1)
        if whole is None:
            raise StoreError(
                f"{pipeline.dataset.path}: none of its shards can be read, so there is nothing to train on"
            )
        return whole

    def _allocate(self, images: torch.Tensor) -> torch.Tensor:
        """Allocates memory on the device for all images, in the format in which they are gathered."""
        pipeline, options = self._pipeline, self._pipeline.options
        shape, on_host = (len(pipeline.dataset), *images.shape[1:]), images.device.type == "cpu"
        gathers = on_host and not pipeline.device_steps.works_on_batches and pipeline.views is None
        last = gathers and options.channels_last if pipeline.resident_look is None else is_channels_last(images)
        last = last and images.ndim == 4
        if not on_host:
            layout = torch.channels_last if last else torch.contiguous_format
            return torch.empty(shape, dtype=images.dtype, device=images.device, memory_format=layout)
        # In memory of numpy, which asks Linux for huge pages: random rows are gathered from it a quarter faster.
        host = HostTransport().allocate((shape[0], *shape[2:], shape[1]) if last else shape, images.dtype)
        return host.permute(0, 3, 1, 2) if last else host

    def _fill_rows(self, buffer: torch.Tensor, records: NDArray[np.int64], errors: dict[int, Exception] | None) -> None:
        """Reads, verifies and writes ``records`` to ``buffer``. Reads again if damaged shards can be fetched again.

        ``errors`` receives damaged records; None raises the first error."""
        assembler, copies = self._pipeline.assembler, DamagedCopies(self._pipeline.dataset.reader)
        while True:
            failed: dict[int, Exception] | None = None if errors is None else {}
            try:
                prepared = assembler.plan_batch(buffer, records, 0, 0, failed, check_all=True)
                assembler.fill_rows(prepared, 0, len(records))
            except PackstoreError as error:
                if not copies.refetch([error], records):
                    raise
            else:
                if not copies.refetch((failed or {}).values(), records):
                    break
        if errors is not None:
            errors.update(failed or {})

    def _sound_runs(self, first: int, last: int, skip: bool) -> Iterator[tuple[int, int]]:
        """Yields ranges of indices whose shards can be opened; marks the records of the others as damaged."""
        lost = np.zeros(last - first, np.bool_)
        if skip:
            reader = self._pipeline.dataset.reader
            lost = find_lost_records(reader, np.arange(first, last) + self._epochs.first_record)
            self._left_out = np.concatenate([self._left_out, first + np.flatnonzero(lost)])
        edges = first + np.flatnonzero(np.diff(lost, prepend=True, append=True))
        yield from zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True)


_LEAST = 1 << 15
"""Minimum number of pixels per thread."""


class EngineGatherer:
    """Gathers resident images by index. In the same pass, the engine crops, resizes, mirrors and normalises them.

    Small batches take the calling thread alone. Threads start with the first batch that has enough pixels for two.

    Attributes:
        pixels: Number of pixels of an image, or of its result if that is larger.
    """

    def __init__(self, pipeline: Pipeline, look: Look, images: torch.Tensor) -> None:
        """``images``: all images, ``(N, C, H, W)``. Bytes are channels-last, floating point is contiguous."""
        self._look = look
        self._size = np.array([images.shape[2:]], np.int64)
        self._shape = look.row_shape((images.shape[2], images.shape[3]))
        self._images = as_numpy(images.permute(0, 2, 3, 1) if images.dtype == torch.uint8 else images)
        self._seed = pipeline.seed
        self._threads = pipeline.options.workers or default_workers()
        self._pool: ThreadPoolExecutor | None = None
        self._process = os.getpid()
        self._memory = HostTransport()
        self.pixels = max(images.shape[2] * images.shape[3], int(np.prod(self._shape)) // images.shape[1])

    def __call__(self, places: torch.Tensor, ids: torch.Tensor, epoch: int) -> torch.Tensor:
        """Returns the images at ``places``, int64 ``(B,)``, of records ``ids``, cropped and finished: ``(B, C, h, w)``.
        Raises :class:`MemoryError` if the engine has no memory."""
        form = self._look.form
        with torch.inference_mode(False):
            rows = self._memory.allocate((len(places), *self._shape), form.dtype)
        requests = Requests.of_array(self._images, places.numpy())
        sizes = np.repeat(self._size, len(places), 0)
        self._look.draw(sizes, ids.numpy(), self._seed, epoch, rows).set_outputs(requests)
        parts = max(1, min(self._threads, len(places), len(places) * self.pixels // _LEAST))
        bounds = [len(places) * part // parts for part in range(parts + 1)]
        if self._pool is None and parts > 1:
            self._pool = ThreadPoolExecutor(self._threads, thread_name_prefix="packstore-resident")
        others = (
            [self._pool.submit(_run_requests, requests, *pair) for pair in list(pairwise(bounds))[1:]]
            if self._pool
            else []
        )
        _run_requests(requests, bounds[0], bounds[1])
        for other in others:
            other.result()
        return form.as_images(rows)

    def close(self) -> None:
        """Waits for the threads and stops them; larger batches then fail. Does nothing in a forked child."""
        if self._pool is not None and os.getpid() == self._process:
            self._pool.shutdown()


def _run_requests(requests: Requests, first: int, stop: int) -> None:
    """Lets the engine process images ``first`` … ``stop - 1``. Raises :class:`MemoryError` if it refuses any."""
    if get_engine().run(requests, first, stop, 0).any():
        raise MemoryError("the engine has no memory for what is made of resident images")
