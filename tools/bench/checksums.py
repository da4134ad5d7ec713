"""What comparing with checksums costs beside reading and decoding: `tools/bench/loader.py --only checksums`."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from common import table

import packstore
from packstore import PackedDataset, PackedLoader
from packstore.augment import Operation, RandomCrop, RandomHorizontalFlip, RandomResizedCrop

SIDE = 224
RESIZED: list[Operation] = [RandomResizedCrop(SIDE), RandomHorizontalFlip()]
SHIFTED: list[Operation] = [RandomCrop(32, padding=4), RandomHorizontalFlip()]
Measure = Callable[[int], tuple[float, float]]
"""Seconds of processor time an image, without checks and with them; given the number of the repeat."""
FORMATS = ("lmdb", "h5", "pth")
STORES: dict[str, dict[str, Any]] = {
    "photos, original": {"encoding": "original"},
    "photos, without index": {"encoding": "original", "index": False},
    f"photos, uint8 of {SIDE}": {"encoding": "uint8", "size": SIDE},
    f"photos, float16 of {SIDE}": {"encoding": "float16", "size": SIDE, "normalize": "imagenet"},
    "CIFAR, original": {"encoding": "original"},
    "CIFAR, uint8": {"encoding": "uint8"},
}


def checksums(images: Path | None, cifar: Path | None, scratch: Path, repeats: int, threads: int) -> None:
    """`checksums="auto"`, the default, against `"never"`: processor time, which other work on the machine disturbs the
    least, in turn; the median of the ratios of neighbours, and their quartiles."""
    rows = []
    for name, options in STORES.items():
        source = cifar if name.startswith("CIFAR") else images
        if source is None:
            continue
        for suffix in FORMATS:
            path = scratch / f"checksums.{suffix}"
            packstore.convert(source, path, overwrite=True, **options)
            for way, measure in _ways(path, name, threads).items():
                never, auto = map(np.array, zip(*[measure(repeat) for repeat in range(repeats + 1)][1:], strict=True))
                low, middle, high = np.quantile(auto / never - 1, [0.25, 0.5, 0.75])
                shown = f"{low:+.1%} … {high:+.1%}"
                rows.append([name, suffix, way, f"{np.median(never) * 1e6:.1f}", f"{middle:+.1%}", shown])
                print(*rows[-1], sep="  ", flush=True)
    print(f"\n## checksums=auto against never, {threads} threads, batches of 256, shuffled: processor time\n")
    print(table(["store", "format", "way", "µs an image", "auto", "quartiles"], rows))


def _ways(path: Path, name: str, threads: int) -> dict[str, Measure]:
    """Ways to read a store."""
    splits = [split.name for split in packstore.open(path).manifest.splits]
    split = splits[0] if splits else None
    never, auto = (PackedDataset(path, split, checksums="never"), PackedDataset(path, split))
    files, small = never.manifest.holds_files, name.startswith("CIFAR")
    operations: dict[str, list[Operation]] = {} if files else {"loader": []}
    if small or not never.manifest.holds_floats:
        operations["loader, crop and flip"] = SHIFTED if small else RESIZED
    order = np.random.default_rng(0).permutation(len(never))[: 4096 if small else 256].tolist()
    ways = {"items": _items(never, auto, order)}
    indices = np.tile(np.arange(len(never)), 1 + (8192 if small else 1024) // len(never))
    for way, augment in operations.items():
        loaders = [
            PackedLoader(d, 256, True, augment=augment, workers=threads, indices=indices, resident=False)
            for d in (never, auto)
        ]
        ways[way] = _epochs(*loaders)
    return ways


def _items(never: PackedDataset, auto: PackedDataset, order: list[int]) -> Measure:
    def measure(repeat: int) -> tuple[float, float]:
        seconds = {never: 0.0, auto: 0.0}
        for number, index in enumerate(order):
            for dataset in (never, auto) if (number + repeat) % 2 else (auto, never):
                start = time.process_time()
                dataset[index]
                seconds[dataset] += time.process_time() - start
        return seconds[never] / len(order), seconds[auto] / len(order)

    return measure


def _epochs(never: PackedLoader, auto: PackedLoader) -> Measure:
    def measure(repeat: int) -> tuple[float, float]:
        seconds = {}
        for loader in (never, auto) if repeat % 2 else (auto, never):
            start, images = time.process_time(), 0
            for batch, *_ in loader:
                images += len(batch)
            seconds[loader] = (time.process_time() - start) / images
        return seconds[never], seconds[auto]

    return measure
