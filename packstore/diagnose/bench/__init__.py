"""``packstore bench``: what limits training with a store on this machine.

Every stage of loading is timed by itself (reading, decoding, augmenting, copying), then the loader end to end; then
samples of the images are packed in other ways and loaded as well. What follows from the rates is arithmetic, in
:mod:`packstore.diagnose.bench.advice`.
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

from packstore.core.arguments import whole_number
from packstore.core.errors import UsageError
from packstore.core.files import refuse_empty
from packstore.core.manifest import Manifest
from packstore.core.parallel import default_workers
from packstore.core.progress import ProgressCallback, progress_callback
from packstore.diagnose.bench.advice import Advice, Rates, Trial, Verdict, advise, judge
from packstore.diagnose.bench.measure import (
    Clock,
    EndToEnd,
    augmenting,
    copying,
    decoding,
    end_to_end,
    make_loader,
    operation_rates,
    reading,
    take_sample,
)
from packstore.diagnose.bench.trials import candidates, try_out
from packstore.seeing.augment_text import parse_options
from packstore.training.augment import RandomCrop, RandomHorizontalFlip, RandomResizedCrop, Resize
from packstore.training.dataset import PackedDataset
from packstore.training.loader.residence import free_memory

__all__ = ["AUGMENTS", "Advice", "BenchOptions", "BenchReport", "Rates", "Stage", "Trial", "Verdict", "bench"]

AUGMENTS = ("crop", "none")
DEFAULT_SIZE = 224


@dataclass(frozen=True, slots=True)
class BenchOptions:
    """Options of :func:`bench`.

    Attributes:
        split: The split; None for the only one.
        batch_size: Images a batch.
        size: Side of the crops in pixels; None for 224, or for a store of one image size its own.
        augment: ``crop`` (random resized crop and flip; random crop with padding and flip where the size stays),
            ``none`` (whole images; of differing sizes they are resized to the size), or operations of
            :mod:`packstore.augment` as text, such as ``"RandomResizedCrop(160), RandomHorizontalFlip()"``.
        workers: Threads of the loader; None for one a core.
        seconds: Time for each stage.
        device: Where batches go.
        target: Images a second that training takes, or None.
        cold: First ask the system to forget what it keeps of the store in its page cache.
        tries: Pack samples in other ways and load them too.
    """

    split: str | None = None
    batch_size: int = 256
    size: int | None = None
    augment: str = "crop"
    workers: int | None = None
    seconds: float = 2.0
    device: str = "cpu"
    target: float | None = None
    cold: bool = False
    tries: bool = True

    def __post_init__(self) -> None:
        for name in ("batch_size", "size", "workers"):
            if getattr(self, name) is not None or name == "batch_size":
                whole_number(name, getattr(self, name))
        for name in ("seconds", "target"):
            value = getattr(self, name)
            if value is not None and not (0 < value < float("inf")):
                raise UsageError(f"{name} should be above 0, got {value!r}")
        if self.augment not in AUGMENTS:
            try:
                parse_options(self.augment)
            except UsageError as error:
                raise UsageError(f"augment should be crop, none or operations: {error}") from None
            if self.size is not None:
                raise UsageError("size= is for augment='crop' and 'none': operations say their own")


@dataclass(frozen=True, slots=True)
class Stage:
    """A row of the report.

    Attributes:
        name: ``read``, ``read again``, ``decode``, ``decode crop``, ``augment``, the name of an operation, ``copy`` or
            ``end to end``.
        one: Images a second with one thread; None where that was not measured.
        all: Images a second with all threads; None where that was not measured.
        note: What belongs to it, in words.
    """

    name: str
    one: float | None
    all: float | None
    note: str = ""


@dataclass(frozen=True, slots=True, repr=False)
class BenchReport:
    """What was measured, and what follows.

    Attributes:
        path: The store.
        split: Its split, or None.
        manifest: Its manifest.
        records: Records of the split.
        record_bytes: Mean bytes of an image's record.
        disk_bytes: Mean bytes that a record takes on disk.
        sizes: ``(height, width)``: medians of a sample.
        augment: What was done to the images, in words.
        options: As given; ``threads`` filled in.
        rates: What was measured.
        stages: The same for a table.
        verdict: What limits.
        trials: Other ways of packing that were tried, the first one as it is; empty when there was none to try.
        advice: What to do.
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
    """Measures the store at ``path``; takes about ten times ``options.seconds``.

    Args:
        path: The store.
        options: How to measure; defaults where None.
        progress: True for a bar; or a function that is called as each stage begins.

    Raises:
        StoreError: There is no whole store.
        UsageError: An unknown split, or options that do not go together with this store.
        DecodeError, CorruptRecordError: A record is damaged; it is named.
    """
    options = options or BenchOptions()
    refuse_empty(path)
    if options.cold:
        forget(Path(path))
    with (
        closing(PackedDataset(path, options.split, device=options.device)) as dataset,
        progress_callback(progress, count_stages=True) as report,
    ):
        return _bench(dataset, options, report)


def _bench(dataset: PackedDataset, options: BenchOptions, progress: ProgressCallback) -> BenchReport:
    if not len(dataset):
        raise UsageError(f"{dataset.path} has no records to load")
    manifest, threads = dataset.manifest, options.workers or default_workers()
    how, words = augmentation(manifest, options)
    encoded, payload = manifest.holds_files, manifest.image.nbytes / max(1, manifest.records)
    pipeline = make_loader(dataset, options.batch_size, threads, how).pipeline
    several = () if pipeline.views is None else pipeline.views.plans
    clock = Clock(options.seconds, 13 + len(pipeline.programs) + len(several), progress)

    read = reading(clock, dataset, threads)
    clock.begin("sample")
    sample = take_sample(dataset)
    whole = decoding(clock, dataset, sample, threads) if encoded else None
    loader = make_loader(dataset, options.batch_size, threads, how)
    augment = augmenting(clock, loader, sample)
    each = operation_rates(clock, loader, sample)
    single = end_to_end(clock, "loader, 1 thread", make_loader(dataset, options.batch_size, 1, how))
    together = end_to_end(clock, "loader", loader) if threads > 1 else single
    assembler = loader.pipeline.assembler
    row = tuple(sample.pixels[0].shape) if loader.pipeline.form is not None else assembler.shape
    copied = copying(clock, row, assembler.dtype, options.batch_size, dataset.device)
    decode = None if whole is None else decode_rate(whole[0], augment, single)

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
    sizes = _sizes(manifest, sample.pixels)
    trials: list[Trial] = []
    if options.tries:
        crop = _crop_side(manifest, options) if options.augment == "crop" else None
        ways = candidates(manifest, sizes, crop)
        trials = try_out(clock, dataset, sample, ways, lambda m: augmentation(m, options), options.batch_size, threads)
    verdict = judge(rates)
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
        stages=_stages(rates, whole, bool(loader.pipeline.operations_at_decoding), single, together, payload, each),
        verdict=verdict,
        trials=tuple(trials),
        advice=tuple(advise(rates, verdict, trials, format=manifest.format, payload_bytes=payload, disk_bytes=disk)),
    )


def augmentation(manifest: Manifest, options: BenchOptions) -> tuple[dict[str, Any], str]:
    """The operations to measure with a store, as ``augment`` or ``views`` of a loader, and their names in words."""
    if options.augment not in AUGMENTS:
        return parse_options(options.augment), options.augment
    own, side = _own_size(manifest), _crop_side(manifest, options)
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


def decode_rate(whole: float, augment: float | None, alone: EndToEnd) -> float:
    """Images a second that the loader decodes with one thread: its threads' time for decoding and augmenting, without
    the augmenting. That is less work than whole images where it decodes only what a crop needs."""
    spent = alone.decode_seconds - (1 / augment if augment else 0.0)
    # Two measurements are subtracted: what is left is never taken for less than a twentieth, nor for more than whole.
    return 1 / min(1 / whole, max(spent, alone.decode_seconds / 20)) if alone.decode_seconds else whole


def forget(path: Path) -> None:
    """Asks the system to drop the files at ``path`` from its page cache; mapped pages stay."""
    if not hasattr(os, "posix_fadvise"):
        raise UsageError("this system cannot be asked to forget files; leave --cold out")
    for file in [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.is_file()):
        handle = os.open(file, os.O_RDONLY)
        try:
            os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(handle)


def _own_size(manifest: Manifest) -> tuple[int, int] | None:
    image = manifest.image
    if image.kind != "fixed":
        return None
    height, width = image.shape[1:] if image.layout == "CHW" else image.shape[:2]
    return height, width


def _crop_side(manifest: Manifest, options: BenchOptions) -> int:
    own = _own_size(manifest)
    return options.size or (DEFAULT_SIZE if own is None else min(own))


def _sizes(manifest: Manifest, pixels: Sequence[Any]) -> list[tuple[int, int]]:
    chw = manifest.image.layout == "CHW"
    return [tuple(image.shape[1:] if chw else image.shape[:2]) for image in pixels]


def _stages(
    rates: Rates,
    whole: tuple[float, float] | None,
    crops: bool,
    alone: EndToEnd,
    together: EndToEnd,
    record_bytes: float,
    operations: Sequence[tuple[str, float]],
) -> tuple[Stage, ...]:
    # From the page cache, what is read again tells more: a small store is read too quickly for the first time to count.
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
