"""Computes the stage that limits training, and advice, from measured rates.

The model: reading from the disk, copying to the device and the training step have fixed rates for any number of cores
(ceilings). Reading from memory, decoding and augmenting take processor time for each image and share the cores. The
lowest of these rates limits training. The loader's measured rate is a share of that limit (its efficiency), by which
estimates for other numbers of cores are scaled. Advice about encoding and format is tried on a few records.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from packstore.core.columns import SEEK_INDEX
from packstore.core.manifest import Manifest
from packstore.core.registry import FORMATS
from packstore.diagnose.bench.measure import Clock, SampledRecords, make_loader, measure_loader
from packstore.images.sniff import image_suffix
from packstore.packing.conversion import convert
from packstore.training.dataset import PackedDataset

WORTHWHILE = 1.15
"""Packing options are advised if the loader was at least so many times as fast with them."""

FROM_DISK = 0.2
"""Reading counts as reading from the disk if at least this share of the bytes came from it."""

REACHED = 0.7
"""Lowest efficiency that needs no advice. Below it, something other than the stages slows the loader."""

WASTEFUL = 1.5
"""A store is called wasteful if its size on disk is so many times the bytes of its images."""

CPU_STAGES = ("read", "decode", "augment")
RECORDS = 128
ROOM = 256 / 224
"""Shorter side of shrunk images over the crop's side, as usual for ImageNet."""
MUCH_LARGER = 1.2
"""Shrinking is tried if images' shorter sides are on average so many times the shrunk side."""
SMALL_SIDE = 64
"""Images of one size with sides up to this are tried as uint8 pixels, which can stay in device memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Measured rates, in images a second, and facts about the measurement.

    Attributes:
        threads: Threads of the loader.
        cores: Cores that the process may use.
        read_first: First reading of records in random order, with all threads.
        read_again: Reading the same records again, from the page cache, with all threads.
        read: Reading them again with one thread.
        decode: Decoding in the loader with one thread; None for stores of pixels.
        augment: Augmenting with one thread; None without operations.
        copy: Copying batches to the device; for the CPU one pass over memory.
        loader: The loader end to end, with ``threads``.
        resident: The loader held all images in device memory. Nothing was read or decoded.
        disk_share: Share of the bytes of the first reading that came from the disk. Above 1 if the disk reads ahead.
        held: The page cache can hold all records: only the first epoch reads from the disk.
        target: Rate of the model; None if unknown.
        on_gpu: The device is a GPU.
    """

    threads: int
    cores: int
    read_first: float
    read_again: float
    read: float
    decode: float | None
    augment: float | None
    copy: float
    loader: float
    resident: bool = False
    disk_share: float = 0.0
    held: bool = False
    target: float | None = None
    on_gpu: bool = False

    @property
    def from_disk(self) -> bool:
        """True if the first reading was slower than the second, and at least 20% of its bytes came from the disk."""
        return self.disk_share >= FROM_DISK and self.read_first < self.read_again

    @property
    def disk_limits(self) -> bool:
        """True if every epoch will wait for the disk."""
        return self.from_disk and not self.held


@dataclass(frozen=True, slots=True)
class Trial:
    """Rate of the loader with a sample of the images packed with other options.

    Attributes:
        how: Options of ``packstore convert``; empty for the present options.
        images_per_second: Rate end to end, with all threads.
        record_bytes: Mean bytes of a record's image.
        mode: ``resident`` or ``streaming``.
        changes: Description of the changes of images; empty if pixels stay the same.
        augment: Description of the operations. Empty if the first trial has the same operations.
    """

    how: str
    images_per_second: float
    record_bytes: float
    mode: str = "streaming"
    changes: str = ""
    augment: str = ""


@dataclass(frozen=True, slots=True)
class Advice:
    """A piece of advice.

    Attributes:
        what: The action to take.
        why: The measurement behind it.
        options: Options of ``packstore convert``; empty if none.
    """

    what: str
    why: str
    options: str = ""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The stage that limits training.

    Attributes:
        stage: ``read``, ``decode``, ``augment``, ``copy`` or ``model``. ``loader`` if all images are resident:
            assembling batches limits.
        why: The figures behind it, as text.
        shares: Shares of processor time by stage; their sum is 1. Empty if resident.
        cores: Smallest number of cores with which processor time is not the limit; None if resident.
        then: Stage that limits training with ``cores`` cores: ``read``, ``copy`` or ``model``. None if resident.
        then_rate: Images a second of the stage ``then``; None if resident.
    """

    stage: str
    why: str
    shares: dict[str, float]
    cores: int | None
    then: str | None
    then_rate: float | None


def compute_core_seconds(rates: Rates) -> dict[str, float]:
    """Computes the seconds of one core that an image takes, for each stage of the processor. Leaves out stages that
    were not measured."""
    rate_of = {name: getattr(rates, name) for name in CPU_STAGES}
    return {name: 1 / rate for name, rate in rate_of.items() if rate}


def find_ceilings(rates: Rates) -> dict[str, float]:
    """Returns the rates that do not depend on the number of cores, by stage, in images a second.

    - ``copy``: always.
    - ``read``: if every epoch waits for the disk.
    - ``model``: if the model's rate is known.
    """
    ceilings = {"copy": rates.copy}
    if rates.disk_limits:
        ceilings["read"] = rates.read_first
    if rates.target is not None:
        ceilings["model"] = rates.target
    return ceilings


def compute_efficiency(rates: Rates) -> float:
    """Computes the loader's rate as a share of the rate that its stages allow: at least 0.05, at most 1."""
    allowed = min(_processor_rate(rates), *(rate for name, rate in find_ceilings(rates).items() if name != "model"))
    return min(1.0, max(0.05, rates.loader / allowed))


def count_cores_for(rate: float, rates: Rates) -> int:
    """Computes the number of cores, at least 1, for ``rate`` images a second at the loader's measured efficiency."""
    return max(1, math.ceil(rate * sum(compute_core_seconds(rates).values()) / compute_efficiency(rates) - 1e-9))


def find_limiting_stage(rates: Rates) -> Verdict:
    """Finds the stage that limits training. Also finds the number of cores with which another stage limits it.

    If the loader reaches the target, the model limits training.
    """
    if rates.resident:
        enough = rates.target is not None and rates.loader >= rates.target
        where = "device memory" if rates.on_gpu else "memory"
        why = f"all images are in {where}: nothing is read or decoded, {rates.loader:,.0f} images/s"
        return Verdict("model" if enough else "loader", why, {}, None, None, None)
    costs = compute_core_seconds(rates)
    total = sum(costs.values())
    shares = {name: cost / total for name, cost in costs.items()}
    limits = find_ceilings(rates)
    then = min(limits, key=lambda name: limits[name])
    if rates.target is not None and rates.loader >= rates.target:
        why = f"the loader gives {rates.loader:,.0f} images/s, and the model takes {rates.target:,.0f}"
        return Verdict("model", why, shares, count_cores_for(limits[then], rates), then, limits[then])
    busiest = max(shares, key=lambda name: shares[name])
    fixed = {name: rate for name, rate in limits.items() if name != "model"}
    lowest = min(fixed, key=lambda name: fixed[name])
    if fixed[lowest] < _processor_rate(rates):
        what = "the disk allows" if lowest == "read" else "copying allows" if rates.on_gpu else "memory allows"
        why = f"{what} {fixed[lowest]:,.0f} images/s, the processor {_processor_rate(rates):,.0f}"
        stage = lowest
    else:
        why = f"{shares[busiest]:.0%} of the {total * 1e3:.2g} ms of one core that an image takes"
        stage = busiest
    return Verdict(stage, why, shares, count_cores_for(limits[then], rates), then, limits[then])


def advise(
    rates: Rates, verdict: Verdict, trials: Sequence[Trial], *, format: str, payload_bytes: float, disk_bytes: float
) -> list[Advice]:
    """Returns advice that the measurements support, the most useful first. May be empty.

    If the model limits training, the first advice says that. Any further advice is on disk space that small images
    waste.

    Args:
        rates: The measured rates.
        verdict: The result of :func:`find_limiting_stage`.
        trials: Tried packing options; the first is the sample with the present options.
        format: Name of the store's format.
        payload_bytes: Mean bytes of a record's image.
        disk_bytes: Mean bytes of a record on disk.
    """
    advice: list[Advice] = []
    if verdict.stage == "model":
        advice.append(Advice("nothing for loading: only a faster model step would help", verdict.why))
    else:
        advice += _advise_threads(rates, verdict)
        advice += _advise_packing(rates, verdict, trials)
        advice += _advise_reading(rates, verdict)
        if not rates.resident and compute_efficiency(rates) < REACHED:
            why = f"the loader reaches {compute_efficiency(rates):.0%} of the rate that its stages allow"
            advice.append(
                Advice("measure again while nothing else runs: something other than the stages slows loading", why)
            )
        if verdict.stage == "copy" and rates.on_gpu:
            what = "a store of one image size that fits into device memory can stay there: resident=True"
            advice.append(Advice(what, verdict.why))
    padding = FORMATS[format].padding
    if padding and disk_bytes > WASTEFUL * payload_bytes:
        why = f"{disk_bytes:,.0f} bytes on disk for {payload_bytes:,.0f} of image: {padding}"
        advice.append(Advice("pack such small images into HDF5 or .pth", why))
    return advice


def _processor_rate(rates: Rates) -> float:
    """Computes the images per second that the CPU allows with the loader's threads."""
    # Threads beyond the number of cores do not count.
    return min(rates.threads, rates.cores) / sum(compute_core_seconds(rates).values())


def _advise_threads(rates: Rates, verdict: Verdict) -> list[Advice]:
    """Advises more threads, or more cores if all are used, when CPU time is the limit."""
    if verdict.stage not in CPU_STAGES or find_ceilings(rates).get(verdict.stage) is not None:
        return []
    per_thread = rates.loader / rates.threads
    if rates.threads < rates.cores:
        why = f"{rates.threads} of {rates.cores} cores were used, at {per_thread:,.0f} images/s each"
        return [Advice(f"use more threads: workers={rates.cores}", why)]
    needed = None if rates.target is None else count_cores_for(rates.target, rates)
    if rates.target is None or needed is None or needed <= rates.cores:
        return []
    why = f"the model takes {rates.target:,.0f} images/s, and a core gives {per_thread:,.0f} with this store"
    return [Advice(f"use a machine with {needed} cores, or pack the store so that an image takes less work", why)]


def _advise_packing(rates: Rates, verdict: Verdict, trials: Sequence[Trial]) -> list[Advice]:
    """Advises packing options that loaded a sample at least 1.15 times as fast, the fastest first."""
    if len(trials) < 2 or verdict.stage not in (*CPU_STAGES, "loader"):
        return []
    now, others = trials[0], trials[1:]
    gains: list[tuple[float, Advice]] = []
    for trial in others:
        gain = trial.images_per_second / now.images_per_second
        size = trial.record_bytes / now.record_bytes
        faster = f"{gain:.1f} times as fast on a sample, "
        if verdict.stage == "read" and rates.disk_limits:
            gain, faster = 1 / size, ""  # a disk's rate only depends on the bytes
        if gain < WORTHWHILE:
            continue
        kept = f"; {trial.changes}" if trial.changes else "; the pixels stay the same"
        if trial.augment:
            kept += f"; with a {trial.augment}"
        bytes_ = "about the same bytes" if 0.95 <= size <= 1.05 else f"{size:.2g} times the bytes"
        why = f"{faster}{bytes_}{kept}"
        what = f"pack it with {trial.how}" + (": it fits into device memory" if trial.mode == "resident" else "")
        gains.append((gain, Advice(what, why, trial.how)))
    return [advice for _, advice in sorted(gains, key=lambda pair: -pair[0])]


def _advise_reading(rates: Rates, verdict: Verdict) -> list[Advice]:
    """Advises more memory, and shuffling in blocks, if every epoch waits for the disk."""
    if verdict.stage != "read" or not rates.disk_limits:
        return []
    why = f"{rates.read_first:,.0f} images/s at first, {rates.read_again:,.0f} when they were read again"
    return [
        Advice("give the machine enough RAM to keep the store in its page cache, or put it on a faster disk", why),
        Advice("shuffle in blocks (PackedLoader: block=1024), which reads neighbouring records together", why),
    ]


@dataclass(frozen=True, slots=True)
class Candidate:
    """Packing options to try, as text for ``packstore convert`` and as keyword arguments.

    Attributes:
        how: The options of the command line; empty for the present options.
        options: The keyword arguments.
        changes: Description of the changes of images; empty if pixels stay the same.
    """

    how: str
    options: dict[str, Any]
    changes: str = ""


def choose_candidates(manifest: Manifest, sizes: Sequence[tuple[int, int]], crop: int | None) -> list[Candidate]:
    """Returns packing options that may be faster for a store of image files. Returns none for a store of pixels, or
    without ``sizes``.

    For a store of original files without a seek index, the first option adds that index, if training takes crops. After
    it, the first of these that applies:

    - uint8 with ``--size``, if all images have one size of at most 64 pixels;
    - shrunk images as jpeg, and as uint8, if images are over 1.2 times as large as the crops need;
    - uint8.

    Args:
        manifest: The store's manifest.
        sizes: ``(height, width)`` of some of its images.
        crop: Side of the crops in training; None for whole images.
    """
    if not manifest.holds_files or not sizes:
        return []
    candidates = []
    if manifest.encoding == "original" and not manifest.has_column(SEEK_INDEX.name) and crop is not None:
        candidates.append(Candidate("--encoding original --index", {"encoding": "original", "index": True}))
    if len(set(sizes)) == 1 and max(sizes[0]) <= SMALL_SIDE:
        candidates.append(
            Candidate("--encoding uint8 --size {}x{}".format(*sizes[0]), {"encoding": "uint8", "size": sizes[0]})
        )
        return candidates
    kept = round((crop or min(map(min, sizes))) * ROOM)
    shorter = sum(map(min, sizes)) / len(sizes)
    if crop is not None and shorter > MUCH_LARGER * kept:
        changes = f"images shrink to a shorter side of {kept} pixels"
        for encoding in ("jpeg", "uint8"):
            candidates.append(
                Candidate(f"--encoding {encoding} --resize {kept}", {"encoding": encoding, "resize": kept}, changes)
            )
    else:
        candidates.append(Candidate("--encoding uint8", {"encoding": "uint8"}))
    return candidates


def run_trials(
    clock: Clock,
    dataset: PackedDataset,
    sample: SampledRecords,
    ways: Sequence[Candidate],
    make_augment: Callable[[Manifest], tuple[dict[str, Any], str]],
    batch_size: int,
    threads: int,
) -> list[Trial]:
    """Packs the sample with the present options and with each of ``ways``. Measures the loader with each.

    Packs at most 128 records, in a temporary directory. Returns no trials if ``ways`` is empty.

    Args:
        clock: Time of each measurement.
        dataset: The dataset that the bench measures.
        sample: Sampled records.
        ways: Packing options to try.
        make_augment: Returns the loader options and their description for a store.
        batch_size: Images in a batch.
        threads: Threads of packing and loading.
    """
    trials: list[Trial] = []
    if not ways:
        return trials
    usual = ""
    with tempfile.TemporaryDirectory(prefix="packstore-bench-") as scratch:
        folder = Path(scratch) / "images" / "sample"
        folder.mkdir(parents=True)
        for number, data in enumerate(sample.data[:RECORDS]):
            (folder / f"{number:05}.{image_suffix(data, 'jpg')}").write_bytes(data)
        indexed = dataset.manifest.has_column(SEEK_INDEX.name)
        for number, way in enumerate([Candidate("", {"encoding": "original", "index": indexed}), *ways]):
            path = Path(scratch) / str(number)
            convert(folder.parent, path, format=dataset.manifest.format, check="none", workers=threads, **way.options)
            with_device = PackedDataset(path, device=dataset.device)
            how, words = make_augment(with_device.manifest)
            loader = make_loader(with_device, batch_size, threads, how)
            measurement = measure_loader(clock, f"try {way.how or 'as it is'}", loader, 0.5)
            image = with_device.manifest.image
            each = image.nbytes / max(1, with_device.manifest.records)
            usual = usual or words
            other = "" if words == usual else words
            trials.append(Trial(way.how, measurement.images_per_second, each, measurement.mode, way.changes, other))
            with_device.close()
    if dataset.device.type == "cuda":
        torch.cuda.empty_cache()
    return trials
