"""Measures the images a second of each stage of loading by itself, and of the loader end to end."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import count
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from packstore.core.errors import DecodeError, printable
from packstore.core.progress import Progress, ProgressCallback
from packstore.stores import Reader
from packstore.training.dataset import PackedDataset
from packstore.training.loader import PackedLoader
from packstore.training.loader.division import default_collate
from packstore.training.loader.options import Collate
from packstore.training.single_threaded import make_single_threaded

CHUNK = 16  # records that a thread reads at a time
_SAMPLE_BYTES = 96 << 20
_SAMPLE_RECORDS = 512
_PIXEL_BYTES = 64 << 20
_ORDERED = 1 << 20
_EPOCH_BATCHES = 64  # batches of an epoch, so that its start takes no larger share than with a real dataset


class Clock:
    """Runs work for a given time, and reports the beginning of each stage to a progress callback."""

    def __init__(self, seconds: float, stages: int, progress: ProgressCallback) -> None:
        self.seconds = seconds
        self._progress = progress
        self._stages = stages
        self._begun = 0

    def begin(self, stage: str) -> None:
        """Reports the beginning of a stage."""
        self._progress(Progress(stage, self._begun, self._stages, 0))
        self._begun += 1

    def measure_rate(self, stage: str, work: Callable[[int], int], threads: int = 1, share: float = 1.0) -> float:
        """Calls ``work`` with 0, 1, 2 … in ``threads`` threads until ``share`` of the clock's time is over. Returns
        images a second.

        ``work`` returns the number of images done, or 0 to end its thread early. Every thread calls ``work`` at least
        once.

        In these threads torch uses one thread, like in the loader. With several, small work would take many times as
        long.
        """
        self.begin(stage)
        numbers, until = count(), time.perf_counter() + self.seconds * share

        def worker(_: int) -> int:
            """Calls ``work`` until the time is over. Returns the number of images done."""
            done = 0
            for number in numbers:  # next() of a count is one operation under the GIL
                did = work(number)
                done += did
                if not did or time.perf_counter() >= until:
                    break
            return done

        start = time.perf_counter()
        with ThreadPoolExecutor(
            threads, thread_name_prefix="packstore-bench", initializer=make_single_threaded
        ) as pool:
            images = sum(pool.map(worker, range(threads)))
        return images / max(time.perf_counter() - start, 1e-9)


@dataclass(frozen=True, slots=True)
class ReadRates:
    """Images a second of reading.

    Attributes:
        first: First reading, with all threads.
        again: Reading the same records again, with all threads.
        one: Reading them again with one thread.
        disk_share: See :attr:`packstore.diagnose.bench.advice.Rates.disk_share`.
    """

    first: float
    again: float
    one: float
    disk_share: float


def measure_reading(clock: Clock, dataset: PackedDataset, threads: int) -> ReadRates:
    """Measures reading records in random order. The first reading may be from the disk; the others read the same
    records from the page cache."""
    reader, order = dataset.reader, choose_random_records(dataset, _ORDERED)
    chunks = [order[i : i + CHUNK].tolist() for i in range(0, len(order), CHUNK)]
    seen: list[int] = []
    blocks = resource.getrusage(resource.RUSAGE_SELF).ru_inblock

    def fresh(number: int) -> int:
        """Reads the next records, and notes that they were read. Returns 0 after the last."""
        if number >= len(chunks):
            return 0
        seen.append(number)
        return _copy_records(reader, chunks[number])

    first = clock.measure_rate("read", fresh, threads)
    known = sorted(seen)
    from_disk = (resource.getrusage(resource.RUSAGE_SELF).ru_inblock - blocks) * 512
    wanted = sum(len(reader.view(record)) for number in known for record in chunks[number])

    def again(number: int) -> int:
        """Reads records that were read before."""
        return _copy_records(reader, chunks[known[number % len(known)]])

    many, one = (
        clock.measure_rate("read again", again, threads, 0.5),
        clock.measure_rate("read, 1 thread", again, share=0.5),
    )
    return ReadRates(first, many, one, from_disk / max(1, wanted))


def _copy_records(reader: Reader, records: Sequence[int]) -> int:
    """Reads records by copying their bytes, and returns the number of records."""
    for record in records:
        source = np.frombuffer(reader.view(record), np.uint8)
        # numpy releases the GIL while it copies, so that threads wait for the disk in parallel, as decoders do.
        np.copyto(np.empty_like(source), source)
    return len(records)


def choose_random_records(dataset: PackedDataset, most: int) -> NDArray[np.int64]:
    """Returns at most ``most`` record numbers of the split in random order. The choice is the same each time."""
    rng, length = np.random.default_rng(0), len(dataset)
    chosen = rng.permutation(length) if length <= most else np.unique(rng.integers(0, length, most))
    return np.asarray(rng.permutation(chosen)[:most] + dataset.reader.split(dataset.split).start, np.int64)


@dataclass(frozen=True, slots=True)
class SampledRecords:
    """Sampled records in memory.

    Attributes:
        records: Numbers of the records.
        data: Bytes of their images.
        pixels: Decoded images of the first records.
    """

    records: list[int]
    data: list[bytes]
    pixels: list[NDArray[Any]]


def take_sample(dataset: PackedDataset) -> SampledRecords:
    """Reads a random sample of at most 512 records and about 96 MiB. The sample is the same each time.

    Decodes the first of them to about 64 MiB of pixels. Raises :class:`DecodeError` that names the record.
    """
    reader, held = dataset.reader, 0
    records: list[int] = []
    data: list[bytes] = []
    pixels: list[NDArray[Any]] = []
    encoded = dataset.manifest.holds_files
    for record in choose_random_records(dataset, _SAMPLE_RECORDS).tolist():
        if data and held >= _SAMPLE_BYTES:
            break
        records.append(record)
        data.append(bytes(reader.view(record)))
        held += len(data[-1])
        if sum(image.nbytes for image in pixels) < _PIXEL_BYTES:
            pixels.append(decode_whole(dataset, record, data[-1]) if encoded else np.array(reader.array(record)))
    return SampledRecords(records, data, pixels)


def decode_whole(dataset: PackedDataset, record: int, data: bytes) -> NDArray[np.uint8]:
    """Decodes a whole image. Raises :class:`DecodeError` that names the record."""
    try:
        return dataset.decoder.decode(data)
    except DecodeError as error:
        key = printable(dataset.reader.key(record))
        raise DecodeError(f"record {record} ({key}) of {printable(str(dataset.path))}: {error}") from None


def measure_decoding(clock: Clock, dataset: PackedDataset, sample: SampledRecords, threads: int) -> tuple[float, float]:
    """Measures decoding of whole images. Returns images a second with one thread, and with ``threads``."""

    def work(number: int) -> int:
        index = number % len(sample.data)
        decode_whole(dataset, sample.records[index], sample.data[index])
        return 1

    return clock.measure_rate("decode, 1 thread", work), clock.measure_rate("decode", work, threads, 0.5)


def _count_batch_records(item: Any) -> int:
    """Returns the number of records in a batch: a tensor, a list, or tuples and dicts of these."""
    while not isinstance(item, torch.Tensor | list):
        item = next(iter(item.values())) if isinstance(item, dict) else item[0]
    return len(item)


def measure_copying(
    clock: Clock, row: tuple[int, ...], dtype: torch.dtype, batch_size: int, device: torch.device
) -> float:
    """Measures copying of batches. Returns images a second.

    To a GPU, copies from page-locked memory. For any other ``device``, copies within memory.
    """
    host = torch.ones((batch_size, *row), dtype=dtype, device="cpu")
    if device.type == "cuda":
        host = host.pin_memory()
    there = torch.empty_like(host, device=device)

    def work(_: int) -> int:
        there.copy_(host, non_blocking=True)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return batch_size

    work(0)
    return clock.measure_rate("copy", work, share=0.5)


@dataclass(frozen=True, slots=True)
class EndToEnd:
    """Measurement of a loader.

    Attributes:
        images_per_second: Rate of the loader.
        cores_busy: Mean number of busy cores.
        decode_seconds: Thread seconds of decoding an image.
        mode: ``resident`` or ``streaming``.
    """

    images_per_second: float
    cores_busy: float
    decode_seconds: float
    mode: str


def make_loader(dataset: PackedDataset, batch_size: int, threads: int, how: dict[str, Any]) -> PackedLoader:
    """Creates a shuffling loader with the options ``how``. Collates columns that may lack values as lists.

    Repeats the records of a small dataset until an epoch has 64 batches.
    """
    times = -(-_EPOCH_BATCHES * batch_size // len(dataset))
    indices = np.tile(np.arange(len(dataset)), times) if times > 1 else None
    collate: dict[str, Collate] = {
        name: "optional" for name in dataset.columns if dataset.manifest.column(name).nullable
    }
    if "augment" in how:
        collate |= default_collate(dataset, how["augment"])
    return PackedLoader(dataset, batch_size, shuffle=True, workers=threads, indices=indices, collate=collate, **how)


def measure_loader(clock: Clock, stage: str, loader: PackedLoader, share: float = 1.0) -> EndToEnd:
    """Measures the loader for ``share`` of the clock's time, over several epochs if needed. Resets the loader's
    statistics.

    Does not count the first batch, which includes the start.
    """
    clock.begin(stage)
    images, start, cpu, elapsed = 0, 0.0, 0.0, 0.0
    while not images or elapsed < clock.seconds * share:
        for item in loader:
            now = time.perf_counter()
            if not start:
                start, cpu = now, _cpu_seconds()
                loader.reset_stats()
                continue
            images += _count_batch_records(item)
            elapsed = now - start
            if elapsed >= clock.seconds * share:
                break
    if loader.device.type == "cuda":
        torch.cuda.synchronize(loader.device)
        elapsed = time.perf_counter() - start
    elapsed = max(elapsed, 1e-9)
    stats = loader.stats()
    decode_seconds = stats["decode_seconds"] / max(1.0, stats["images"])
    return EndToEnd(images / elapsed, (_cpu_seconds() - cpu) / elapsed, decode_seconds, loader.mode)


def _cpu_seconds() -> float:
    """Returns the CPU time of this process in seconds."""
    times = os.times()
    return times.user + times.system
