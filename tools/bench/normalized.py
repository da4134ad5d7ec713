#!/usr/bin/env python3
"""Normalised float32 batches: what they cost beside bytes, and TurboLoader's raw store beside ours.

    .venv/bin/python tools/bench/normalized.py --images IMAGES [--repeats 5] [--epoch 4096] [--threads N]

IMAGES is an image folder. Random resized crop to 224 and flip, batches of 256 in random order, page cache warm, epochs
in turn (A B C A B C …). From files: uint8 out, and normalised float32. From images of
256 x 256: packstore's uint8 store, and TurboLoader's `.tbl` of the same files, where turboloader is installed; it takes
a thread a core.
"""

from __future__ import annotations

import argparse
import tarfile
import tempfile
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from statistics import median

from common import machine, table

import packstore
from packstore import PackedDataset, PackedLoader
from packstore.augment import RandomHorizontalFlip, RandomResizedCrop
from packstore.core.parallel import default_workers

BATCH, SIDE, STORED = 256, 224, 256
TITLES = ("original", "original, normalised", "uint8 256, normalised")


def ours(images: Path, scratch: Path, threads: int) -> dict[str, Callable[[], int]]:
    ways: dict[str, Callable[[], int]] = {}
    for encoding, options in (("original", {}), ("uint8", {"size": STORED})):
        path = scratch / f"{encoding}.lmdb"
        packstore.convert(images, path, encoding=encoding, **options)
        for normalize in (None, "imagenet"):
            augment = [RandomResizedCrop(SIDE), RandomHorizontalFlip()]
            loader = PackedLoader(
                PackedDataset(path), BATCH, shuffle=True, augment=augment, workers=threads, normalize=normalize
            )
            title = f"{encoding}{f' {STORED}' if options else ''}{', normalised' if normalize else ''}"
            if title in TITLES:
                ways[title] = lambda loader=loader: sum(len(batch[0]) for batch in loader)  # type: ignore[misc]
    return ways


def turboloader(images: Path, scratch: Path) -> dict[str, Callable[[], int]]:
    if find_spec("turboloader") is None:
        return {}
    from turboloader import TblRawImageLoader, preprocess_to_tbl

    files = sorted(path for path in images.rglob("*") if path.suffix.lower() in (".jpeg", ".jpg"))
    with tarfile.open(scratch / "files.tar", "w") as tar:
        for number, file in enumerate(files):
            tar.add(file, f"{number:06}.jpg")
    preprocess_to_tbl(str(scratch / "files.tar"), str(scratch / "raw.tbl"), STORED)
    ways: dict[str, Callable[[], int]] = {}
    for last in (False, True):
        loader = TblRawImageLoader(
            scratch / "raw.tbl", BATCH, hflip_prob=0.5, train_aug=True, image_size=SIDE, channels_last=last
        )
        title = f"TurboLoader .tbl {STORED}, normalised{', channels last' if last else ''}"
        ways[title] = lambda loader=loader: sum(len(batch) for batch, _ in loader)  # type: ignore[misc]
    return ways


def rate(way: Callable[[], int], images: int) -> float:
    """Images/s of as many epochs as hold ``images``."""
    start, done = time.perf_counter(), 0
    while done < images:
        done += way()
    return done / (time.perf_counter() - start)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=Path, required=True)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--epoch", type=int, default=4096, help="images, at least")
    parser.add_argument("--threads", type=int, default=default_workers())
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        ways = ours(args.images, scratch, args.threads) | turboloader(args.images, scratch)
        rates: dict[str, list[float]] = {title: [] for title in ways}
        for way in ways.values():
            way()
        for _ in range(args.repeats):
            for title, way in ways.items():
                rates[title].append(rate(way, args.epoch))
    rows = []
    for title, found in rates.items():
        beside = TITLES[-1] if title.startswith("TurboLoader") else title.partition(", normalised")[0]
        ratio = (
            f"{median(found) / median(rates[beside]):.2f} of {beside}" if beside in rates and title != beside else ""
        )
        rows.append([title, f"{median(found):,.0f}", f"{min(found):,.0f} – {max(found):,.0f}", ratio])
    print(f"{table(['', 'images/s', 'runs', ''], rows)}\n\n{args.threads} threads; {machine()}")


if __name__ == "__main__":
    main()
