"""Trials: packs a sample of the images with other options and measures the loader with it."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from packstore.core.column import SEEK_INDEX
from packstore.core.manifest import Manifest
from packstore.diagnose.bench.advice import Trial
from packstore.diagnose.bench.measure import Clock, SampledRecords, make_loader, measure_loader
from packstore.images.sniff import image_suffix
from packstore.packing.conversion import convert
from packstore.training.dataset import PackedDataset

RECORDS = 128
ROOM = 256 / 224
"""Shorter side of shrunk images over the crop's side, as usual for ImageNet."""
MUCH_LARGER = 1.2
"""Shrinking is tried if images' shorter sides are on average so many times the shrunk side."""
SMALL_SIDE = 64
"""Images of one size with sides up to this are tried as uint8 pixels, which can stay in device memory."""


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
