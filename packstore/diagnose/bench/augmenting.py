"""Measures the images a second of augmenting: of all operations together, and of each operation or view."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from packstore.diagnose.bench.measure import Clock, SampledRecords
from packstore.images.engine import OutputFormat, Requests, get_engine
from packstore.images.programs import Program
from packstore.training.augment.base import Crops
from packstore.training.augment.detection import BatchBoxes
from packstore.training.augment.operations import apply_operations, plan_operations
from packstore.training.augment.unequal import DrawnOperations
from packstore.training.loader import PackedLoader
from packstore.training.loader.looks import DrawnLook, draw_program
from packstore.training.random_draws import Draws


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
