"""One batch of a streaming loader under way: prepared by one thread, decoded by all, then shipped to the device."""

from __future__ import annotations

import logging
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from itertools import pairwise
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from packstore.training.loader.assemble import Prepared
from packstore.training.loader.resident import planar
from packstore.training.ring import Ring, Slot

if TYPE_CHECKING:
    from packstore.training.loader import PackedLoader

_log = logging.getLogger("packstore")
_DECODED_SLICE, _PIXELS_SLICE, _SMALL_BYTES, _LEAST_SLICE = 16, 64, 1 << 20, 4
"""Images that a thread takes at a time. Of image files, which differ much in what they cost, few enough to balance
(with two threads 5 percent more images a second by 16 than by 32). Of pixels more, so that threads meet less often; of
small images as many as fill so many bytes. But no fewer than the last, however many threads there are."""


class Job:
    """A batch under way: it is prepared, its slices are decoded, and it is sent to the device."""

    def __init__(self, loader: PackedLoader, slot: Slot, records: NDArray[np.int64], epoch: int) -> None:
        self.records = records
        self._loader = loader
        self._slot = slot
        self._epoch = epoch
        self._errors: dict[int, Exception] | None = {} if loader.options.on_error == "skip" else None
        self._buffer = torch.empty(0, device="cpu")
        self._floats: torch.Tensor | None = None
        self._prepared: Future[Prepared] | None = None
        self._slices: list[Future[list[int]]] = []
        self._cancelled = False
        self._error: Exception | None = None
        self._modes: tuple[bool, ...] = ()
        self._sent = records  # those that are in the batch, once it is sent

    def start(self, ring: Ring, pool: ThreadPoolExecutor, threads: int) -> Job:
        """Hands the batch to the threads: one of them prepares it, and then hands them its slices."""
        assembler, count = self._loader._make_assembler(), len(self.records)
        self._buffer = ring.buffer(self._slot, 0, (count, *assembler.shape), assembler.dtype)
        dtype = self._loader._finish.dtype_in_threads
        if dtype is not None:
            self._floats = ring.buffer(self._slot, 1, self._buffer.shape, dtype)
        self._prepared = pool.submit(self._prepare, pool, threads)
        return self

    def _prepare(self, pool: ThreadPoolExecutor, threads: int) -> Prepared:
        loader, count, floats = self._loader, len(self.records), self._floats
        assembler = loader._make_assembler()
        prepared = assembler.prepare(self._buffer, self.records, loader.options.seed, self._epoch, self._errors)
        most = _DECODED_SLICE if loader.dataset.manifest.holds_files else _PIXELS_SLICE
        most = max(most, _SMALL_BYTES * count // max(1, prepared.out.nbytes))
        parts = min(max(threads, -(-count // most)), -(-count // _LEAST_SLICE))
        bounds = [count * part // parts for part in range(parts + 1)]
        for first, stop in pairwise(bounds):
            if self._cancelled:
                break
            self._slices.append(pool.submit(self._fill, prepared, floats, first, stop))
        return prepared

    def _fill(self, prepared: Prepared, floats: torch.Tensor | None, first: int, stop: int) -> list[int]:
        loader = self._loader
        failed = loader._make_assembler().fill(prepared, first, stop, self._errors)
        if floats is not None:
            start = perf_counter()
            loader._finish.normalize_rows(prepared.out[first:stop], floats[first:stop])
            loader._stats.add("augment", perf_counter() - start)
        return failed

    def send_early(self, ring: Ring) -> None:
        """Sends the batch on its way if it is ready, so that it travels while the model works on the one before.

        What goes wrong is kept for :meth:`result`.
        """
        if self._prepared is None or not self._prepared.done() or not all(future.done() for future in self._slices):
            return
        try:
            self._send(ring)
        except torch.OutOfMemoryError:
            return  # when its turn comes the batch before may be gone
        except Exception as error:
            self._error = error

    def result(self, ring: Ring) -> tuple[Any, int]:
        """The batch, and how many of its records were skipped. Waits for it."""
        try:
            if self._error is not None:
                raise self._error
            start = perf_counter()
            self._wait()
            self._loader._stats.add("wait", perf_counter() - start)
            if self._slot.shipment is None or self._modes != _modes():
                self._send(ring)
            assert self._slot.shipment is not None
            start = perf_counter()
            images, columns = received = self._slot.shipment.receive()
            value = self._loader._assembled(images, self._sent, columns)
            ring.release(self._slot, received)
            self._loader._stats.add("copy", perf_counter() - start)
            return value, len(self.records) - len(self._sent)
        finally:
            self._forget()

    def _wait(self) -> None:
        assert self._prepared is not None
        if self._prepared.exception() is None and self._slices:
            # The last first: this thread would be woken by each of the others, and take the GIL from those that work.
            self._slices[-1].exception()
            for future in self._slices:
                future.exception()

    def _send(self, ring: Ring) -> None:
        start = perf_counter()
        assert self._prepared is not None
        self._slot.shipment, self._modes = None, _modes()
        failed = list(self._prepared.result().failed)
        failed += [row for future in self._slices for row in future.result()]
        batch, records = self._buffer if self._floats is None else self._floats, self.records
        if failed:
            kept = np.setdiff1d(np.arange(len(records)), failed)
            batch, records = batch[torch.from_numpy(kept)], records[kept]
            for error in (self._errors or {}).values():
                _log.warning("skipped: %s", error)
            self._errors = None  # said once, however often the batch is sent
        self._sent = records
        columns = self._loader._fixed_columns(records)
        others = [torch.from_numpy(records), *columns.values()]
        if ring.transport.asynchronous:
            others = [self._page_locked(ring, 2 + number, column) for number, column in enumerate(others)]
        finish = partial(self._finish, tuple(columns))
        self._slot.shipment = ring.transport.send((batch, *others), finish)
        self._loader._stats.add("copy", perf_counter() - start)

    def _page_locked(self, ring: Ring, number: int, column: torch.Tensor) -> torch.Tensor:
        """``column`` in a buffer of the ring: from other memory the host may have to wait for the copy."""
        return ring.buffer(self._slot, number, column.shape, column.dtype).copy_(column)

    def _finish(self, names: tuple[str, ...], tensors: tuple[torch.Tensor, ...]) -> tuple[Any, dict[str, torch.Tensor]]:
        images = planar(tensors[0], self._loader._make_assembler())
        return self._loader._finish(images, tensors[1], self._epoch), dict(zip(names, tensors[2:], strict=True))

    def cancel(self) -> None:
        self._cancelled = True
        for future in (self._prepared, *self._slices):
            if future is not None:
                future.cancel()
        self._forget()

    def _forget(self) -> None:
        """The job and its futures refer to each other: without this, buffers would wait for the garbage collector."""
        self._buffer, self._floats, self._prepared, self._slices = torch.empty(0, device="cpu"), None, None, []
        self._error = None


def _modes() -> tuple[bool, ...]:
    """The modes of torch in which a batch is made ready: those in which it is asked for are the right ones."""
    return torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.is_autocast_enabled("cuda")
