"""Streams batches: threads read and decode into a ring of buffers, which are copied to the device."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, nullcontext
from typing import TYPE_CHECKING, Any

from packstore.core.parallel import default_workers
from packstore.training.loader.batch_plan import group_batches
from packstore.training.loader.epochs import Epochs
from packstore.training.loader.job import BatchJob
from packstore.training.loader.pipeline import LoadedBatch, Pipeline
from packstore.training.ring import Ring, Transport, transport_to
from packstore.training.single_threaded import make_single_threaded

if TYPE_CHECKING:
    from packstore.training.loader.shards_ahead import ShardsAhead


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

            reads, following = self._epochs.list_shard_reads(epoch), self._epochs.list_shard_reads(epoch + 1)
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
