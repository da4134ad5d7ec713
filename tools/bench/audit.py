#!/usr/bin/env python3
"""What an audit finds, and what it costs: the figures of the guide's page `seeing`.

    python tools/bench/audit.py --recall IMAGES     how many of pairs made of up to 300 image files are found
    python tools/bench/audit.py --records 1000000   time and memory of the comparison alone, with random hashes

Times are of the processor; memory is the most that the process had at a time.
"""

from __future__ import annotations

import argparse
import io
import random
import resource
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from packstore.checking.audit.same import RecordHashes, find_nearest_before, group_equal
from packstore.core.progress import no_progress
from packstore.images.perceptual import (
    CROPS,
    THRESHOLD,
    WHOLE,
    WORDS,
    hamming_distances,
    hash_windows,
    shrink_to_side,
    to_grey,
)

_SUFFIXES = (".jpg", ".jpeg", ".png")
_MOST = 300
_COPIES = 20
"""Of so many records one is a copy of an earlier one, with a few bits changed."""


def compressed(quality: int) -> Callable[[Image.Image], Image.Image]:
    def change(image: Image.Image) -> Image.Image:
        file = io.BytesIO()
        image.save(file, "JPEG", quality=quality)
        return Image.open(file).convert("RGB")

    return change


def resized(share: float) -> Callable[[Image.Image], Image.Image]:
    return lambda image: image.resize(
        (max(1, round(image.width * share)), max(1, round(image.height * share))), Image.Resampling.BICUBIC
    )


def cropped(share: float, one_side: bool = False) -> Callable[[Image.Image], Image.Image]:
    def change(image: Image.Image) -> Image.Image:
        kept_x, kept_y = 1 - share, 1.0 if one_side else 1 - share
        x, y = random.uniform(0, 1 - kept_x), random.uniform(0, 1 - kept_y)
        edges = (x * image.width, y * image.height, (x + kept_x) * image.width, (y + kept_y) * image.height)
        return image.crop(tuple(map(round, edges)))  # type: ignore[arg-type]

    return change


CHANGES: dict[str, Callable[[Image.Image], Image.Image]] = {
    "compressed again, quality 50": compressed(50),
    "compressed again, quality 20": compressed(20),
    "resized to half": resized(0.5),
    "resized to 128 x 128": lambda image: image.resize((128, 128), Image.Resampling.BICUBIC),
    "cropped by 5% of both sides, anywhere": cropped(0.05),
    "cropped by 5% of the width": cropped(0.05, one_side=True),
    "cropped by 10% of both sides, anywhere": cropped(0.1),
    "mirrored (with --mirrored)": lambda image: image.transpose(Image.Transpose.FLIP_LEFT_RIGHT),
}


def all_hashes(greys: NDArray[np.float32]) -> NDArray[np.uint64]:
    """Of the whole, of the crops, of the mirrored image."""
    return np.concatenate([hash_windows(greys, (WHOLE, *CROPS)), hash_windows(greys[:, :, ::-1])], 1)


def recall(folder: Path) -> None:
    files = sorted(file for file in folder.rglob("*") if file.suffix.lower() in _SUFFIXES)
    random.seed(1)
    files = random.sample(files, min(_MOST, len(files)))
    images = [Image.open(file).convert("RGB") for file in files]
    count = len(images)
    small = to_grey(np.stack([shrink_to_side(np.asarray(image)) for image in images]))
    whole = hash_windows(small)
    print(f"{count} images, at most {THRESHOLD} of 256 bits")
    for name, change in CHANGES.items():
        other = to_grey(np.stack([shrink_to_side(np.asarray(change(image))) for image in images]))
        width = len(CROPS) + 1 if "mirrored" in name else len(CROPS)
        with closing(RecordHashes(2 * count, width)) as kept:
            for start, greys in ((0, small), (count, other)):
                kept.store(start, np.ones(count, np.bool_), all_hashes(greys)[:, : 1 + width])
            numbers = np.arange(2 * count).astype(np.uint64)
            within, _ = find_nearest_before(kept, np.zeros(2 * count, np.int32), numbers, no_progress)
        found = int((within.partners[count:] == np.arange(count)).sum())
        print(f"  {name:<40} {found / count:7.1%}")
    pairs = hamming_distances(whole[:, None, 0], whole[None, :, 0])[np.triu_indices(count, 1)]
    print(f"  of {len(pairs):,} pairs of different images the nearest differ in {int(pairs.min())} bits")


def comparison(count: int) -> None:
    rng = np.random.default_rng(1)
    checksums = rng.integers(0, 1 << 63, count).astype(np.uint64)
    copies = np.arange(_COPIES, count, _COPIES)
    checksums[copies] = checksums[copies - 1]
    start = time.process_time()
    groups = sum(1 for _ in group_equal(checksums, np.ones(count, np.bool_)))
    print(f"{count:,} records; checksums: {groups:,} groups in {time.process_time() - start:.1f} s")
    with closing(RecordHashes(count, len(CROPS))) as kept:
        for first in range(0, count, 1 << 16):
            shape = min(1 << 16, count - first), 1 + len(CROPS), WORDS
            some = rng.integers(0, (1 << 64) - 1, shape, np.uint64, endpoint=True)
            kept.store(first, np.ones(len(some), np.bool_), some)
        changed = np.uint64(1) << rng.integers(0, 64, (len(copies), WORDS), np.uint64)
        kept.whole[copies] = kept.whole[copies - 1] ^ changed
        start = time.process_time()
        within, _ = find_nearest_before(
            kept, np.zeros(count, np.int32), np.arange(count).astype(np.uint64), no_progress
        )
        seconds = time.process_time() - start
    found = int((within.partners[copies] == copies - 1).sum())
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    print(
        f"hashes, each with {len(CROPS)} crops: {found:,} of {len(copies):,} copies, {seconds:.0f} s, {memory:.0f} MB"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recall", type=Path, metavar="IMAGES", help="a folder of image files")
    parser.add_argument("--records", type=int, metavar="N", help="records to compare")
    arguments = parser.parse_args()
    if arguments.recall is not None:
        recall(arguments.recall)
    if arguments.records is not None:
        comparison(arguments.records)


if __name__ == "__main__":
    main()
