"""The loader's rate with a sample of the images packed in other ways."""

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
from packstore.diagnose.bench.measure import Clock, Sample, end_to_end, make_loader
from packstore.images.sniff import HeaderError, sniff
from packstore.packing.conversion import convert
from packstore.training.dataset import PackedDataset

RECORDS = 128
ROOM = 256 / 224
"""Shorter side that is kept for a random resized crop, by the crop's size, as everybody packs ImageNet."""
MUCH_LARGER = 1.2
"""Images are worth shrinking where their shorter side is that many times what is kept."""
SMALL_SIDE = 64
"""Images of one size and at most this side are tried as pixels that stay in device memory."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A way of packing: its options, as ``packstore convert`` spells them and as Python does."""

    how: str
    options: dict[str, Any]
    changes: str = ""


def candidates(manifest: Manifest, sizes: Sequence[tuple[int, int]], crop: int | None) -> list[Candidate]:
    """What could be faster for a store of image files; nothing for stores of pixels.

    Args:
        manifest: The store's.
        sizes: ``(height, width)`` of some of its images.
        crop: The side that training crops to; None where it takes whole images.
    """
    if not manifest.holds_files or not sizes:
        return []
    found = []
    if manifest.encoding == "original" and not manifest.has_column(SEEK_INDEX.name) and crop is not None:
        found.append(Candidate("--encoding original --index", {"encoding": "original", "index": True}))
    if len(set(sizes)) == 1 and max(sizes[0]) <= SMALL_SIDE:
        found.append(
            Candidate("--encoding uint8 --size {}x{}".format(*sizes[0]), {"encoding": "uint8", "size": sizes[0]})
        )
        return found
    kept = round((crop or min(map(min, sizes))) * ROOM)
    shorter = sum(map(min, sizes)) / len(sizes)
    if crop is not None and shorter > MUCH_LARGER * kept:
        changes = f"images shrink to a shorter side of {kept} pixels"
        for encoding in ("jpeg", "uint8"):
            found.append(
                Candidate(f"--encoding {encoding} --resize {kept}", {"encoding": encoding, "resize": kept}, changes)
            )
    else:
        found.append(Candidate("--encoding uint8", {"encoding": "uint8"}))
    return found


def try_out(
    clock: Clock,
    dataset: PackedDataset,
    sample: Sample,
    ways: Sequence[Candidate],
    make_augment: Callable[[Manifest], tuple[dict[str, Any], str]],
    batch_size: int,
    threads: int,
) -> list[Trial]:
    """The loader's rate with the sample as it is, and then packed in each of ``ways``; nothing without any."""
    trials: list[Trial] = []
    if not ways:
        return trials
    usual = ""
    with tempfile.TemporaryDirectory(prefix="packstore-bench-") as scratch:
        folder = Path(scratch) / "images" / "sample"
        folder.mkdir(parents=True)
        for number, data in enumerate(sample.data[:RECORDS]):
            (folder / f"{number:05}{_suffix(data)}").write_bytes(data)
        indexed = dataset.manifest.has_column(SEEK_INDEX.name)
        for number, way in enumerate([Candidate("", {"encoding": "original", "index": indexed}), *ways]):
            path = Path(scratch) / str(number)
            convert(folder.parent, path, format=dataset.manifest.format, check="none", workers=threads, **way.options)
            with_device = PackedDataset(path, device=dataset.device)
            how, words = make_augment(with_device.manifest)
            loader = make_loader(with_device, batch_size, threads, how)
            found = end_to_end(clock, f"try {way.how or 'as it is'}", loader, 0.5)
            image = with_device.manifest.image
            each = image.nbytes / max(1, with_device.manifest.records)
            usual = usual or words
            other = "" if words == usual else words
            trials.append(Trial(way.how, found.images_per_second, each, found.mode, way.changes, other))
            with_device.close()
    if dataset.device.type == "cuda":
        torch.cuda.empty_cache()
    return trials


def _suffix(data: bytes) -> str:
    """The suffix for an image file's content."""
    try:
        kind = sniff(data).kind
    except HeaderError:
        kind = "jpeg"
    return {"jpeg": ".jpg", "pnm": ".ppm", "tiff": ".tif"}.get(kind, f".{kind}")
