"""``PackedLoader``: from a packed store to batches on the device.

Two ways lead there, chosen by themselves: *resident*, where the whole split lies in device memory, and *streaming*,
where threads read and decode into a ring of page-locked buffers that a stream of its own copies to the device.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields, replace
from time import perf_counter
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from packstore.core.errors import UsageError
from packstore.core.manifest import Manifest
from packstore.core.parallel import default_workers
from packstore.images.decoders import get_decoder
from packstore.training.augment import Geometry, Padded, RandomResizedCrop, Resize, split_ops
from packstore.training.dataset import PackedDataset
from packstore.training.loader.alone import work_alone
from packstore.training.loader.assemble import Assembler
from packstore.training.loader.finish import Finish
from packstore.training.loader.job import Job
from packstore.training.loader.options import OF_DATALOADER, LoaderOptions, as_indices, check_dataset, ranks
from packstore.training.loader.prefetch import prefetch
from packstore.training.loader.resident import choose, load_images
from packstore.training.loader.stats import Stats
from packstore.training.order import Order
from packstore.training.ring import Made, Ring, Transport, is_within, transport_to

__all__ = ["LoaderOptions", "PackedLoader", "prefetch"]

_log = logging.getLogger("packstore")
# Pixels of the images that are augmented at once when they are resident (2,048 of CIFAR): more than a batch, since a
# call costs as much as many images. On a GPU, where it is 150 kernel launches of some 5 µs, more still: the indices by
# which pixels are gathered, 8 bytes each, then take 256 MB.
_RESIDENT_PIXELS = {"cpu": 1 << 21, "cuda": 1 << 25}
_ORDERED_AT_ONCE = 65536  # records whose places are worked out at once: 256 take 47 µs, 16,384 0.3 ms, these 0.6 ms
_STATE_VERSION = 1


class PackedLoader:
    """Batches of a :class:`packstore.PackedDataset`, on its device. Used like torch's ``DataLoader``.

    An item is a tuple with one value a column of the dataset, by default ``(images, labels)``: images ``(B, 3, H, W)``,
    uint8, or floating point with ``normalize`` or ``dtype`` or from a floating point store; labels int64 ``(B,)``; keys
    a list. With a single column it is that value itself.

    The order and all random numbers are a pure function of seed, epoch and record: the same with one thread or
    sixteen, on CPU or GPU, resident or streaming, resumed or not. Each ``for`` over the loader is the next epoch.

    Args:
        dataset: What to load. Its ``columns`` and ``device`` count; its ``transform``, ``output`` and ``dtype`` have to
            be the defaults, since they work item by item.
        batch_size: Images a batch (and rank).
        options: A :class:`LoaderOptions`; the keyword arguments replace its fields.

    Attributes:
        epoch: The epoch that the next ``for`` begins.
        mode: ``"resident"`` or ``"streaming"``, and ``mode_reason`` why.

    Raises:
        UsageError: Options that do not go together, or not with this store.
        DecodeError: (while iterating) a record cannot be decoded; names the record and its key.
    """

    def __init__(
        self, dataset: PackedDataset, batch_size: int = 1, options: LoaderOptions | None = None, **overrides: Any
    ) -> None:
        check_dataset(dataset)
        self.dataset = dataset
        unknown = overrides.keys() - {field.name for field in fields(LoaderOptions)}
        if unknown:
            name = min(unknown)
            advice = OF_DATALOADER.get(name, "help(packstore.LoaderOptions) lists the options")
            raise UsageError(f"PackedLoader has no option {name}: {advice}")
        self.options = options = replace(options or LoaderOptions(), **overrides)
        self.batch_size = batch_size
        self.device = dataset.device
        self.epoch = 0
        manifest = dataset.manifest
        self.rank, self.world_size = ranks(options)
        self._first = dataset.reader.split(dataset.split).start
        self._subset = None if options.indices is None else as_indices(options.indices, len(dataset))
        self._order = self._make_order(len(dataset) if self._subset is None else len(self._subset))
        planned, _ = split_ops(options.augment, flip=True)
        wanted = True if options.pre_transform is not None else options.resident
        self._residence = choose(manifest, len(dataset), self.device, wanted, options.augment)
        resident, self.mode_reason = self._residence.resident, self._residence.reason
        self.mode = "resident" if resident else "streaming"
        _log.info("%s: %s (%s)", dataset.path, self.mode, self.mode_reason)
        self._stats = Stats()
        self._at_decoding = () if resident else _at_decoding(manifest, planned)
        self._finish = Finish(
            manifest, options, len(self._at_decoding), in_threads=not resident and self.device.type == "cpu"
        )
        self._assembler: Assembler | None = None
        self._transport: Transport | None = None  # from epoch to epoch: it has memory to use again
        self._images: torch.Tensor | Padded | None = None
        self._columns: dict[str, torch.Tensor] = {}
        self._made = Made(self.device)  # the images; for the columns the host waits when they are copied
        self._running: tuple[int, int] | None = None  # epoch and batches given, of the latest iteration
        self._resume: tuple[int, int] | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Without what belongs to this process: unpickled, it opens and loads everything anew."""
        own: dict[str, Any] = {
            "_assembler": None,
            "_transport": None,
            "_images": None,
            "_columns": {},
            "_made": Made(self.device),
        }
        return self.__dict__ | own

    def __repr__(self) -> str:
        counted = self.options.sampler is None or hasattr(self.options.sampler, "__len__")
        batches = f"{len(self):,} batches of {self.batch_size}" if counted else f"batches of {self.batch_size}"
        batches += f" (rank {self.rank} of {self.world_size})" if self.world_size > 1 else ""
        return (
            f"PackedLoader of {str(self.dataset.path)!r}: {batches}, {self.mode} on {self.device} ({self.mode_reason})"
        )

    def __len__(self) -> int:
        """Batches an epoch, on this rank."""
        if self.options.sampler is None:
            return int(self._order.batches(self.epoch))
        return self._sampler_order(len(self.options.sampler)).batches(0)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[Any]:
        if self._resume is not None:
            (epoch, first), self._resume = self._resume, None
        else:
            epoch, first = self.epoch, 0
        self.epoch = epoch + 1
        self._running = epoch, first
        return self._resident(epoch, first) if self.mode == "resident" else self._streaming(epoch, first)

    def set_epoch(self, epoch: int) -> None:
        """Makes the next iteration the one of ``epoch``, as ``DistributedSampler.set_epoch`` does."""
        if not isinstance(epoch, int) or epoch < 0:
            raise UsageError(f"an epoch is a whole number from 0, got {epoch!r}")
        self.epoch = epoch
        self._resume = None

    def stats(self) -> dict[str, float]:
        """Where the time went since the loader was made or ``reset_stats()``.

        ``images``, ``batches``, ``skipped``, ``seconds``, ``images_per_second``, and seconds of each stage:
        ``wait`` (the consumer stood idle), ``read`` and ``decode`` (summed over threads), ``augment`` and ``copy``.
        """
        return self._stats.snapshot()

    def reset_stats(self) -> None:
        self._stats.reset()

    # Resume -----------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Where the latest iteration stands; what it has given by then, a resumed one leaves out."""
        epoch, batches = self._resume or self._running or (self.epoch, 0)
        return {
            "version": _STATE_VERSION,
            "epoch": epoch,
            "batches": batches,
            "seed": self.options.seed,
            "length": self._order.length,
            "global_batch_size": self.batch_size * self.world_size,
            "shuffle": self.options.shuffle,
            "block": self.options.block,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Makes the next iteration go on after the batches of ``state``, also with another number of ranks when the
        global batch size is the same.

        Raises:
            UsageError: The state is that of another dataset, seed, order or global batch size.
        """
        if state.get("version") != _STATE_VERSION:
            raise UsageError(f"the loader's state has version {state.get('version')!r}, expected {_STATE_VERSION}")
        own = self.state_dict()
        for name in ("seed", "length", "global_batch_size", "shuffle", "block"):
            if state.get(name) != own[name]:
                raise UsageError(f"the loader's state has {name} {state.get(name)!r}, this loader {own[name]!r}")
        self._resume = int(state["epoch"]), int(state["batches"])
        self.epoch = self._resume[0]

    # Order ------------------------------------------------------------------------------------------------------

    def _make_order(self, length: int) -> Order:
        o = self.options
        return Order(
            length=length,
            batch_size=self.batch_size,
            seed=o.seed,
            shuffle=o.shuffle,
            drop_last=o.drop_last,
            rank=self.rank,
            world_size=self.world_size,
            block=o.block,
        )

    def _sampler_order(self, length: int) -> Order:
        return replace(self._order, length=length, shuffle=False, block=None)

    def _epoch_order(self, epoch: int) -> tuple[Order, int, NDArray[np.int64] | None]:
        """The order of an epoch, the epoch number that it wants, and the dataset indices of its positions."""
        sampler = self.options.sampler
        if sampler is None:
            return self._order, epoch, self._subset
        if hasattr(sampler, "set_epoch"):
            sampler.set_epoch(epoch)
        drawn = as_indices(np.fromiter((int(i) for i in sampler), np.int64), len(self.dataset), "what sampler gives")
        return self._sampler_order(len(drawn)), 0, drawn

    def _batches(self, epoch: int, first: int) -> Iterator[NDArray[np.int64]]:
        """Record numbers of this rank's batches, from batch ``first`` on."""
        for records, sizes in self._groups(epoch, first, _ORDERED_AT_ONCE):
            offset = 0
            for size in sizes:
                yield records[offset : offset + size]
                offset += size

    def _groups(self, epoch: int, first: int, images: int) -> Iterator[tuple[NDArray[np.int64], list[int]]]:
        """As many batches at once as have so many ``images``: all their record numbers, and how many each has."""
        order, numbered, indices = self._epoch_order(epoch)
        count = order.batches(numbered)
        at_once = max(1, images // self.batch_size)
        for start in range(first, count, at_once):
            bounds = [order.bounds(number) for number in range(start, min(start + at_once, count))]
            if order.world_size == 1:  # one batch begins where another ends
                places = np.arange(bounds[0][0], bounds[-1][1])
            else:
                places = np.concatenate([np.arange(*pair) for pair in bounds])
            positions = order.sequence(numbered, places)
            records = (positions if indices is None else indices[positions]) + self._first
            yield records, [end - begin for begin, end in bounds]

    # Streaming --------------------------------------------------------------------------------------------------

    def _make_assembler(self) -> Assembler:
        if self._assembler is None:
            decoder = self.dataset.decoder
            # All decoders give the same pixels; this one costs the least under the GIL.
            if self.dataset.decoder_name == "auto":
                decoder = get_decoder("simplejpeg", max_pixels=decoder.max_pixels)
            self._assembler = Assembler(
                self.dataset.reader, decoder, self._at_decoding, self._stats, self.options.dct_scaling
            )
        return self._assembler

    def _streaming(self, epoch: int, first: int) -> Iterator[Any]:
        if self._transport is None:
            self._transport = transport_to(self.device)
        ring = Ring(self._transport, self.options.prefetch + 1)
        if self._finish.foreign:  # it may use tensors that the caller has just made
            self._transport.catch_up()
        threads = self.options.threads or default_workers()
        pool = ThreadPoolExecutor(threads, thread_name_prefix="packstore-loader", initializer=work_alone)
        pending: deque[Job] = deque()
        self._stats.start()
        try:
            batches = self._batches(epoch, first)
            given = first
            while True:
                while len(pending) < self.options.prefetch:
                    records = next(batches, None)
                    slot = None if records is None else ring.acquire()
                    if records is None or slot is None:
                        break
                    pending.append(Job(self, slot, records, epoch).start(ring, pool, threads))
                if not pending:
                    return
                job = pending.popleft()
                value, skipped = job.result(ring)
                given += 1
                self._stats.batch(len(job.records) - skipped, skipped)
                if pending and self._transport.asynchronous:
                    pending[0].send_early(ring)
                self._running = epoch, given  # last, for Ctrl-C in the line before would lose this batch
                yield value
                del value  # the consumer's alone from here on, so that its memory is free before the next batch
        finally:
            for job in pending:
                job.cancel()
            pool.shutdown(wait=True, cancel_futures=True)

    # Resident ---------------------------------------------------------------------------------------------------

    def _load(self) -> torch.Tensor | Padded:
        if self._images is None:
            self._images = load_images(
                self._make_assembler(),
                self._first,
                len(self.dataset),
                self.device,
                self.options.pre_transform,
                self._residence.memory,
            )
            self._made.now()
            everything = self._fixed_columns(np.arange(self._first, self._first + len(self.dataset)))
            self._columns = {name: values.to(self.device) for name, values in everything.items()}
        return self._images

    def _resident(self, epoch: int, first: int) -> Iterator[Any]:
        images = self._load()
        self._stats.start()
        # On a GPU all steps are for many batches at once, of which each is then a copy. On the CPU a batch stays in the
        # caches from step to step, and without operations each is gathered by itself.
        together = self.device.type != "cpu"
        whole = not together and not isinstance(images, Padded) and not self._finish.batched
        pixels = _RESIDENT_PIXELS.get(self.device.type, _RESIDENT_PIXELS["cpu"])
        at_once = _ORDERED_AT_ONCE if whole else pixels // self._finish.largest(images)
        gathered: torch.Tensor | None = None
        given, made = first, Made(self.device)
        for places, numbers, sizes in self._placed_groups(epoch, first, at_once):
            start = perf_counter()
            chunk = images
            if together:
                self._made.use(images)  # type: ignore[arg-type]  # padded it is on the CPU alone
                made.use(places, *([] if gathered is None else [gathered]))
                made.now()
            if isinstance(images, Padded):
                chunk = self._finish.cut(images, places, places + self._first, epoch)
            elif not whole:
                mode = torch.is_inference_mode_enabled()
                if gathered is not None and len(gathered) == len(places) and gathered.is_inference() == mode:
                    torch.index_select(images, 0, places, out=gathered)
                else:
                    gathered = images.index_select(0, places)
                chunk = self._finish.augment(gathered, places + self._first, epoch)
                if together:
                    chunk = self._finish.convert(chunk)
                if is_within(chunk, gathered):
                    gathered = None  # the consumer gets it; otherwise it is used again, since fresh memory costs more
            offset = 0
            # The user's tensors are no views that split makes: autograd would take all of them for one.
            for own in torch.split(places, sizes):
                rows = slice(offset, offset + len(own))
                offset += len(own)
                if together:
                    made.use(places, chunk)  # type: ignore[arg-type]
                # Nor, on a GPU, parts of the chunk: each would keep all of it, and in-place operations count for all.
                batch = images.index_select(0, own) if whole else chunk[rows]  # type: ignore[union-attr,index]
                batch = batch.clone() if together else self._finish.convert(batch)
                columns = {name: column.index_select(0, own) for name, column in self._columns.items()}
                self._stats.add("augment", perf_counter() - start)
                value = self._assembled(self._finish.last(batch), numbers[rows], columns)
                given += 1
                self._running = epoch, given
                self._stats.batch(len(own))
                yield value
                start = perf_counter()

    def _placed_groups(
        self, epoch: int, first: int, images: int
    ) -> Iterator[tuple[torch.Tensor, NDArray[np.int64], list[int]]]:
        """:meth:`_groups` with the images' places in the split, int64 on the device, before the record numbers.

        The order of an epoch is worked out on the device where that is not the CPU, so that the host neither computes
        nor copies it while batches are gathered. Record numbers, which the host needs for keys alone, are then empty.
        """
        if self.device.type == "cpu" or "key" in self.dataset.columns:
            for numbers, sizes in self._groups(epoch, first, images):
                yield torch.from_numpy(numbers - self._first).to(self.device, non_blocking=True), numbers, sizes
            return
        order, numbered, indices = self._epoch_order(epoch)
        bounds = [order.bounds(number) for number in range(first, order.batches(numbered))]
        if not bounds:
            return
        if order.world_size == 1:
            positions = torch.arange(bounds[0][0], bounds[-1][1], device=self.device)
        else:
            positions = torch.from_numpy(np.concatenate([np.arange(*pair) for pair in bounds])).to(self.device)
        places = order.sequence(numbered, positions)
        if indices is not None:
            places = torch.from_numpy(indices).to(self.device)[places]
        at_once = max(1, images // self.batch_size)
        offset, none = 0, np.empty(0, np.int64)
        for start in range(0, len(bounds), at_once):
            sizes = [end - begin for begin, end in bounds[start : start + at_once]]
            yield places[offset : offset + sum(sizes)], none, sizes
            offset += sum(sizes)

    # Items ------------------------------------------------------------------------------------------------------

    def _values(self, name: str, records: NDArray[np.int64]) -> torch.Tensor:
        values = self.dataset.reader.fixed(name)[records]
        return torch.from_numpy(values.view(np.int64) if values.dtype == np.uint64 else np.array(values))

    def _fixed_columns(self, records: NDArray[np.int64]) -> dict[str, torch.Tensor]:
        """The columns of numbers, on the CPU: a tensor ``(B,)`` each."""
        return {name: self._values(name, records) for name in self.dataset.columns if name not in ("image", "key")}

    def _assembled(self, images: Any, records: NDArray[np.int64], columns: dict[str, torch.Tensor]) -> Any:
        """A batch as the user gets it; ``columns`` are those of numbers, on the device."""
        values: list[Any] = []
        for name in self.dataset.columns:
            if name == "image":
                values.append(images)
            elif name == "key":
                values.append([self.dataset.reader.key(int(record)) for record in records])
            else:
                values.append(self._finish.labels(columns[name]) if name == "label" else columns[name])
        return values[0] if len(values) == 1 else tuple(values)


def _at_decoding(manifest: Manifest, planned: tuple[Geometry, ...]) -> tuple[Geometry, ...]:
    """Which of the operations that can run while images are decoded do so. Those of images that have one size already
    run on whole batches, unless they resize, since that is done image by image anyway."""
    if manifest.image.layout == "CHW":
        return ()
    if manifest.image.kind == "ragged" or any(isinstance(op, (RandomResizedCrop, Resize)) for op in planned):
        return planned
    return ()
