"""Measures what limits training with a store on this machine.

It times each stage of loading by itself (reading, decoding, augmenting, copying), then the loader end to end. Then it
packs samples of the images with other options and loads those. :mod:`packstore.diagnose.bench.advice` computes the
verdict and the advice from the rates.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from packstore.core.errors import UsageError
from packstore.core.manifest import Manifest
from packstore.core.parallel import default_workers
from packstore.core.progress import ProgressCallback, progress_callback
from packstore.core.urls import location
from packstore.diagnose.bench import AUGMENTS, BenchOptions
from packstore.diagnose.bench.advice import (
    Advice,
    Rates,
    Trial,
    Verdict,
    advise,
    choose_candidates,
    find_limiting_stage,
    run_trials,
)
from packstore.diagnose.bench.measure import (
    Clock,
    EndToEnd,
    make_loader,
    measure_augmenting,
    measure_copying,
    measure_decoding,
    measure_loader,
    measure_operations,
    measure_reading,
    take_sample,
)
from packstore.seeing.loaded import parse_options
from packstore.training.augment import RandomCrop, RandomHorizontalFlip, RandomResizedCrop, Resize
from packstore.training.dataset import PackedDataset
from packstore.training.loader.division import free_memory

DEFAULT_SIZE = 224


@dataclass(frozen=True, slots=True)
class Stage:
    """A row of the report: the rate of a stage of loading.

    Attributes:
        name: ``read``, ``read again``, ``decode``, ``decode crop``, ``augment``, the name of an operation, ``copy`` or
            ``end to end``.
        one: Images a second with one thread; None if not measured.
        all: Images a second with all threads; None if not measured.
        note: Explanation of the figures.
    """

    name: str
    one: float | None
    all: float | None
    note: str = ""


@dataclass(frozen=True, slots=True, repr=False)
class BenchReport:
    """Measurements of a bench, and the conclusions.

    Attributes:
        path: The store.
        split: The measured split, or None.
        manifest: The store's manifest.
        records: Number of records of the split.
        record_bytes: Mean bytes of a record's image.
        disk_bytes: Mean bytes of a record on disk.
        sizes: ``(height, width)`` of images: medians of a sample.
        augment: Description of the operations.
        options: The given options.
        rates: The measured rates.
        stages: Rows of the table of rates.
        verdict: The stage that limits training.
        trials: Results of other packing options. The first is the sample with the present options. Empty if none were
            tried.
        advice: Advice, the most useful first.
    """

    path: Path
    split: str | None
    manifest: Manifest
    records: int
    record_bytes: float
    disk_bytes: float
    sizes: tuple[int, int]
    augment: str
    options: BenchOptions
    rates: Rates
    stages: tuple[Stage, ...]
    verdict: Verdict
    trials: tuple[Trial, ...]
    advice: tuple[Advice, ...]

    def __repr__(self) -> str:
        return f"<BenchReport of {str(self.path)!r}: {self.rates.loader:,.0f} images/s, limit {self.verdict.stage}>"


def bench(
    path: str | os.PathLike[str], options: BenchOptions | None = None, progress: bool | ProgressCallback = False
) -> BenchReport:
    """Measures the store at ``path``. This takes about ten times ``options.seconds``.

    Unless ``options.tries`` is False, packs samples in a temporary directory.

    Args:
        path: The store.
        options: How to measure; None for the defaults.
        progress: True for a bar, or a function that is called when each stage begins.

    Raises:
        StoreError: The store does not open.
        UsageError: The split is unknown or empty, or the options do not fit the store. Or the system cannot drop the
            page cache.
        DecodeError, CorruptRecordError: A record is damaged; the message names it.
    """
    options = options or BenchOptions()
    if options.cold:
        drop_page_cache(location(path))
    with (
        closing(PackedDataset(path, options.split, device=options.device)) as dataset,
        progress_callback(progress, count_stages=True) as report,
    ):
        return _run_bench(dataset, options, report)


def _run_bench(dataset: PackedDataset, options: BenchOptions, progress: ProgressCallback) -> BenchReport:
    """Measures all stages, tries packing options if asked, and makes the report."""
    if not len(dataset):
        raise UsageError(f"{dataset.path} has no records to load")
    manifest, threads = dataset.manifest, options.workers or default_workers()
    how, words = make_augmentation(manifest, options)
    encoded, payload = manifest.holds_files, manifest.image.nbytes / max(1, manifest.records)
    pipeline = make_loader(dataset, options.batch_size, threads, how).pipeline
    several = () if pipeline.views is None else pipeline.views.looks
    clock = Clock(options.seconds, 13 + len(pipeline.division.programs) + len(several), progress)

    read = measure_reading(clock, dataset, threads)
    clock.begin("sample")
    sample = take_sample(dataset)
    whole = measure_decoding(clock, dataset, sample, threads) if encoded else None
    loader = make_loader(dataset, options.batch_size, threads, how)
    augment = measure_augmenting(clock, loader, sample)
    each = measure_operations(clock, loader, sample)
    single = measure_loader(clock, "loader, 1 thread", make_loader(dataset, options.batch_size, 1, how))
    together = measure_loader(clock, "loader", loader) if threads > 1 else single
    assembler = loader.pipeline.assembler
    row = tuple(sample.pixels[0].shape) if loader.pipeline.form is not None else assembler.shape
    copied = measure_copying(clock, row, assembler.dtype, options.batch_size, dataset.device)
    decode = None if whole is None else compute_loader_decode_rate(whole[0], augment, single)

    rates = Rates(
        threads=threads,
        cores=default_workers(),
        read_first=read.first,
        read_again=read.again,
        read=read.one,
        decode=decode,
        augment=augment,
        copy=copied,
        loader=together.images_per_second,
        disk_share=read.disk_share,
        held=not options.cold and payload * len(dataset) < free_memory(torch.device("cpu")),
        resident=together.mode == "resident",
        target=options.target,
        on_gpu=dataset.device.type == "cuda",
    )
    planes = manifest.image.layout == "CHW"
    sizes: list[tuple[int, int]] = [tuple(each.shape[1:] if planes else each.shape[:2]) for each in sample.pixels]
    trials: list[Trial] = []
    if options.tries:
        crop = _choose_crop_side(manifest, options) if options.augment == "crop" else None
        ways = choose_candidates(manifest, sizes, crop)
        trials = run_trials(
            clock, dataset, sample, ways, lambda m: make_augmentation(m, options), options.batch_size, threads
        )
    verdict = find_limiting_stage(rates)
    disk = dataset.reader.disk_bytes() / max(1, manifest.records)
    return BenchReport(
        path=dataset.path,
        split=dataset.split,
        manifest=manifest,
        records=len(dataset),
        record_bytes=payload,
        disk_bytes=disk,
        sizes=(int(np.median([s[0] for s in sizes])), int(np.median([s[1] for s in sizes]))),
        augment=words,
        options=options,
        rates=rates,
        stages=_make_stages(rates, whole, bool(loader.pipeline.division.crops), single, together, payload, each),
        verdict=verdict,
        trials=tuple(trials),
        advice=tuple(advise(rates, verdict, trials, format=manifest.format, payload_bytes=payload, disk_bytes=disk)),
    )


def make_augmentation(manifest: Manifest, options: BenchOptions) -> tuple[dict[str, Any], str]:
    """Returns the loader options with the operations to measure, and a description of the operations.

    The options are ``augment`` or ``views``; empty for whole images of one size.
    """
    if options.augment not in AUGMENTS:
        return parse_options(options.augment), options.augment
    own, side = _find_fixed_size(manifest), _choose_crop_side(manifest, options)
    if options.augment == "none":
        if own is not None:
            return {}, "whole images"
        return {"augment": (Resize((side, side)),)}, f"whole images, resized to {side}"
    if own is not None and own == (side, side):
        padding = max(1, side // 8)
        return (
            {"augment": (RandomCrop(side, padding=padding), RandomHorizontalFlip())},
            f"random crop to {side} (padding {padding}) and flip",
        )
    return {"augment": (RandomResizedCrop(side), RandomHorizontalFlip())}, f"random resized crop to {side} and flip"


def compute_loader_decode_rate(whole: float, augment: float | None, alone: EndToEnd) -> float:
    """Computes the images a second that one thread of the loader decodes. The loader may decode only the region of a
    crop.

    The loader measures decoding and augmenting together. This function subtracts the time of augmenting.

    ``whole``: rate of decoding whole images. The result is at least ``whole``. It is at most 20 times the measured
    rate, since the subtraction is noisy. If the loader decoded nothing, the result is ``whole``.
    """
    spent = alone.decode_seconds - (1 / augment if augment else 0.0)
    # The difference of two measurements is noisy: it is at least a twentieth, and at most the time of whole images.
    return 1 / min(1 / whole, max(spent, alone.decode_seconds / 20)) if alone.decode_seconds else whole


def drop_page_cache(path: Path) -> None:
    """Drops the files at ``path`` from the page cache, except mapped pages. Raises :class:`UsageError` if the system
    has no call for this."""
    if not hasattr(os, "posix_fadvise"):
        raise UsageError("this system cannot drop files from the page cache; leave --cold out")
    for file in [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.is_file()):
        handle = os.open(file, os.O_RDONLY)
        try:
            os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(handle)


def _find_fixed_size(manifest: Manifest) -> tuple[int, int] | None:
    """Returns height and width of all images; None if the store holds files or pixels of different sizes."""
    image = manifest.image
    if image.kind != "fixed":
        return None
    height, width = image.shape[1:] if image.layout == "CHW" else image.shape[:2]
    return height, width


def _choose_crop_side(manifest: Manifest, options: BenchOptions) -> int:
    """Returns the side of crops in pixels: ``options.size``, the images' shorter side, or 224."""
    own = _find_fixed_size(manifest)  # None if images differ in size
    return options.size or (DEFAULT_SIZE if own is None else min(own))


def _make_stages(
    rates: Rates,
    whole: tuple[float, float] | None,  # decoding whole images with one thread and with all; None for stores of pixels
    crops: bool,  # the loader may decode only regions of images
    alone: EndToEnd,  # the loader with one thread
    together: EndToEnd,  # the loader with all threads
    record_bytes: float,  # mean bytes of a record's image
    operations: Sequence[tuple[str, float]],  # name and rate of each operation
) -> tuple[Stage, ...]:
    """Makes the rows of the table of rates, one for each measured stage."""
    # If the page cache holds the store, the second pass is more exact: the first one may be very short.
    rate = rates.read_first if rates.from_disk else rates.read_again
    where = "from the disk" if rates.from_disk else "from the page cache"
    if rates.resident:
        where += ", once, when the store is loaded"
    elif rates.from_disk and rates.held:
        where += ", which only the first epoch waits for"
    note = f"{rate * record_bytes / 1e6:,.0f} MB/s {where}"
    stages = [Stage("read", None if rates.from_disk else rates.read, rate, note)]
    if rates.from_disk:
        stages.append(Stage("read again", rates.read, rates.read_again, "from the page cache"))
    if whole is not None:
        stages.append(Stage("decode", *whole, "whole images" if crops else ""))
        if crops and rates.decode != whole[0]:
            stages.append(Stage("decode crop", rates.decode, None, "what the crops need, as the loader does it"))
    if rates.augment is not None:
        stages.append(Stage("augment", rates.augment, None, "all operations" if operations else ""))
    stages += [Stage(name, rate, None, f"{1e6 / rate:,.0f} µs an image of that") for name, rate in operations]
    way = "page-locked memory to the GPU" if rates.on_gpu else "once through memory, new batches each time"
    stages.append(Stage("copy", None, rates.copy, way))
    mode = f"{together.mode}, {together.cores_busy:.1f} cores busy"
    stages.append(Stage("end to end", alone.images_per_second, together.images_per_second, mode))
    return tuple(stages)


def plot_report(report: BenchReport, path: Path) -> None:
    """Writes a chart of the rates of all stages, and of any trials, to ``path``; replaces the file. Raises
    :class:`UsageError` without matplotlib."""
    from packstore.seeing.charts import draw_bars, draw_legend, new_chart, save_chart, set_titles

    title = f"{report.path.name}: {report.augment}; limit: {report.verdict.stage}"
    figure, axes = new_chart(title, 2 if report.trials else 1)
    series = [
        ("1 thread", [stage.one for stage in report.stages]),
        (f"{report.rates.threads} threads", [stage.all for stage in report.stages]),
    ]
    draw_bars(axes[0], [stage.name for stage in report.stages], series)
    axes[0].set_xscale("log")
    set_titles(axes[0], "each stage by itself, and the whole loader", x="images/s")
    if report.rates.target is not None:
        axes[0].axvline(report.rates.target, color="black", linestyle="--", label="target")
        draw_legend(axes[0])
    if report.trials:
        tried = [trial.how or "as it is" for trial in report.trials]
        draw_bars(axes[1], tried, [(None, [trial.images_per_second for trial in report.trials])])
        set_titles(axes[1], "a sample packed in other ways, end to end", x="images/s")
    save_chart(figure, path)
