"""Measures the images a second of each stage of loading by itself, and of the loader end to end."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from packstore.core.errors import DecodeError, printable
from packstore.core.progress import Progress, ProgressCallback
from packstore.images.engine import OutputFormat, Requests, get_engine
from packstore.images.programs import Program
from packstore.stores import Reader
from packstore.training.augment.base import Crops
from packstore.training.augment.operations import apply_operations, plan_operations
from packstore.training.augment.sizes import BatchBoxes
from packstore.training.augment.unequal import DrawnOperations
from packstore.training.dataset import PackedDataset
from packstore.training.loader import PackedLoader
from packstore.training.loader.division import default_collate
from packstore.training.loader.looks import DrawnLook, draw_program
from packstore.training.loader.options import Collate
from packstore.training.random_draws import Draws
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


def measure_augmenting(clock: Clock, loader: PackedLoader, sample: SampledRecords) -> float | None:
    """Measures the loader's operations on decoded pixels with one thread. Returns images a second.

    With views (sets of crops), returns records a second. Returns None without operations and views.
    """
    operations = tuple(loader.options.augment)
    if loader.pipeline.views is not None:
        return _measure_views(clock, loader, sample)
    if not operations:
        return None
    if loader.pipeline.division.one_by_one:
        return _measure_one_by_one(clock, loader, sample)
    division = loader.pipeline.division
    if division.crops or division.programs:
        crops = _plan_crops(loader, sample)
        program = _draw_program(division.programs, len(division.crops), sample, crops)
        return clock.measure_rate("augment, 1 thread", _make_engine_work(sample, crops, program)[0])
    batch = torch.from_numpy(np.stack(sample.pixels))
    if loader.dataset.manifest.image.dtype == "bfloat16":
        batch = batch.view(torch.bfloat16)
    if loader.dataset.manifest.image.layout == "HWC":
        batch = batch.permute(0, 3, 1, 2)
    draws = Draws(0, 0, torch.tensor(sample.records[: len(batch)], device="cpu"))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return clock.measure_rate("augment, 1 thread", lambda _: len(apply_operations(operations, batch, draws)))
    finally:
        torch.set_num_threads(threads)


def _measure_one_by_one(clock: Clock, loader: PackedLoader, sample: SampledRecords) -> float:
    """Measures operations that give images different sizes, in images per second with one thread."""
    planes = loader.dataset.manifest.image.layout == "CHW"
    images = [torch.from_numpy(np.array(image)) for image in sample.pixels]
    images = [(image if planes else image.permute(2, 0, 1))[None] for image in images]
    sizes = np.array([image.shape[2:] for image in images], np.int64)
    ids = np.array(sample.records[: len(sizes)], np.int64)
    # One box in the middle of each image.
    boxes = BatchBoxes(
        np.concatenate([sizes * 0.25, sizes * 0.75], 1)[:, [1, 0, 3, 2]].astype(np.float32), np.arange(len(ids))
    )

    def work(number: int) -> int:
        # Plans a whole batch at once.
        course = DrawnOperations(sizes, loader.options.augment, Draws(0, number, ids), boxes)
        for row, image in enumerate(images):
            course.run_on_image(row, image)
        return len(images)

    return clock.measure_rate("augment, 1 thread", work)


def _measure_views(clock: Clock, loader: PackedLoader, sample: SampledRecords) -> float | None:
    """Measures cutting all crops of the views, in records per second; None if no views are cut."""
    cuts = [one for _, one, _ in _make_view_cutters(loader, sample)]

    def work(number: int) -> int:
        for one in cuts:
            one(number)
        return 1

    return clock.measure_rate("augment, 1 thread", work) if cuts else None


def _cut_crops(one: Callable[[int], int], count: int, number: int) -> int:
    """Cuts all ``count`` crops of record ``number``, and returns 1: the records done."""
    for crop in range(count):
        one(number * count + crop)
    return 1


def _make_view_cutters(loader: PackedLoader, sample: SampledRecords) -> list[tuple[str, Callable[[int], int], int]]:
    """Returns each view's name, the function that cuts its crops of a sampled record, and their number."""
    assert loader.pipeline.views is not None
    cutters: list[tuple[str, Callable[[int], int], int]] = []
    sizes = np.array([image.shape[:2] for image in sample.pixels], np.int64)
    ids = np.array(sample.records[: len(sizes)], np.int64)
    for look in loader.pipeline.views.looks:
        count, name = look.count, "" if look.view is None else look.view.name
        drawn = look.draw(sizes, ids, 0, 0, torch.empty((0, *look.row_shape())))
        assert isinstance(drawn, DrawnLook)
        several = SampledRecords(
            np.repeat(ids, count).tolist(), [], [image for image in sample.pixels for _ in range(count)]
        )
        one, _ = _make_engine_work(several, drawn.crops, drawn.program)

        cutters.append((name, partial(_cut_crops, one, count), count))
        for number in range(len(ids)):  # the first write to new memory takes longer
            cutters[-1][1](number)
    return cutters


def measure_operations(clock: Clock, loader: PackedLoader, sample: SampledRecords) -> list[tuple[str, float]]:
    """Measures each pixel operation of the decoding threads, or each view, with one thread. Returns name and images a
    second.

    A view's rate is in records a second. Returns none without such operations.
    """
    programs = loader.pipeline.division.programs
    if loader.pipeline.views is not None:
        return [
            (f"view {name} × {count}", clock.measure_rate(f"view {name}, 1 thread", cut, share=0.5))
            for name, cut, count in _make_view_cutters(loader, sample)
        ]
    if not programs:
        return []
    crops = _plan_crops(loader, sample)
    one, images = _make_engine_work(sample, crops, None)
    for number in range(len(crops)):
        one(number)
    rates = []
    for place, operation in enumerate(programs, len(loader.pipeline.division.crops)):
        program, name = _draw_program([operation], place, sample, crops), type(operation).__name__
        rates.append((name, _measure_operation(clock, name, program, images)))
    return rates


def _measure_operation(clock: Clock, name: str, program: Program | None, images: NDArray[Any]) -> float:
    """Measures one pixel operation on fresh copies of ``images``, in images per second with one thread."""
    assert program is not None
    pixels = images.copy()

    def one(number: int) -> int:
        # The measured time includes the copy below.
        index = number % len(pixels)
        pixels[index] = images[index]  # fresh pixels: on its own output an operation may have less work
        get_engine().augment(pixels[index : index + 1], program[index : index + 1])
        return 1

    return clock.measure_rate(f"{name}, 1 thread", one, share=0.5)


def _draw_program(operations: Sequence[Any], first: int, sample: SampledRecords, crops: Crops) -> Program | None:
    """Draws the random values of pixel operations for the sampled records; None if nothing is to run."""
    height, width = crops.window[0, 2:].tolist()
    draws = Draws(0, 0, np.array(sample.records[: len(crops)], np.int64))
    return draw_program(operations, first, draws, (height, width))


def _make_engine_work(
    sample: SampledRecords, crops: Crops, program: Program | None
) -> tuple[Callable[[int], int], NDArray[Any]]:
    """Returns a function that augments a sampled image with the engine, and the array it writes to."""
    pixels = [np.ascontiguousarray(image) for image in sample.pixels[: len(crops)]]
    planes = pixels[0].dtype != np.uint8
    height, width = crops.window[0, 2:].tolist()
    out = np.empty((len(crops), 3, height, width) if planes else (len(crops), height, width, 3), pixels[0].dtype)
    sizes = np.array([image.shape[1:] if planes else image.shape[:2] for image in pixels])
    requests = Requests(pixels, sizes, pixels[0].dtype)
    form = OutputFormat(planes, crops.pads, crops.fill)
    requests.set_outputs(crops.box, crops.size, crops.window, crops.flip, out, form, program, crops.sampling)

    def one(number: int) -> int:
        index = number % len(pixels)
        get_engine().run(requests, index, index + 1, 0)
        return 1

    return one, out


def _plan_crops(loader: PackedLoader, sample: SampledRecords) -> Crops:
    """Plans the crops of the sampled images by the operations that run while decoding."""
    planes = loader.dataset.manifest.image.layout == "CHW"
    sizes = np.array([image.shape[1:] if planes else image.shape[:2] for image in sample.pixels], np.int64)
    return plan_operations(
        loader.pipeline.division.crops, sizes, Draws(0, 0, np.array(sample.records[: len(sizes)], np.int64))
    )
