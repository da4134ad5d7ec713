#!/usr/bin/env python3
"""Masks and boxes: what they cost, beside torchvision and beside images alone.

    .venv/bin/python tools/bench/targets.py --images IMAGES [--repeats 7] [--threads 2] [--only segmentation …]

IMAGES is a folder of JPEG files. The script makes masks (PNG with a palette, 21 classes, rectangles and ellipses) and
boxes with labels (8 an image, as COCO has on average) for them. In one run, in turn, with a warm page cache:

- segmentation: image and mask, random resized crop to 224 and flip, batches of 32 in random order: an LMDB with
  `--threads` threads, against torchvision's transforms v2 in a DataLoader with as many workers, which reads the same
  files from a folder; with images as Pillow's and as tensors, as `references/segmentation` has both.
- detection: images with boxes and labels through the same crop and flip, against the images alone.
- labels: images and labels, in tuples and in dicts.
"""

from __future__ import annotations

import argparse
import io
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import interleaved, machine, table
from numpy.typing import NDArray
from PIL import Image, ImageDraw
from torch.utils.data import DataLoader, Dataset

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import packstore
from packstore import PackedDataset, PackedLoader
from packstore.augment import RandomHorizontalFlip, RandomResizedCrop
from tests.makers.torchvision import import_torchvision

SIZE, BATCH, CLASSES, BOXES = 224, 32, 21, 8
CROP = [RandomResizedCrop(SIZE), RandomHorizontalFlip()]
FIELDS = {
    "image": "image",
    "label": "label",
    "mask": "mask",
    "boxes": "boxes",
    "labels": packstore.Labels(of="boxes"),
}


def make_mask(width: int, height: int, seed: int) -> bytes:
    """Objects in front of a background, as a PNG file with a palette."""
    rng = np.random.default_rng(seed)
    mask = Image.new("P", (width, height))
    mask.putpalette(rng.integers(0, 256, 768).tolist())
    draw = ImageDraw.Draw(mask)
    for left, top, right, bottom in make_boxes(width, height, seed).tolist():
        shape = draw.ellipse if rng.random() < 0.5 else draw.rectangle
        shape((left, top, right, bottom), fill=int(rng.integers(1, CLASSES)))
    file = io.BytesIO()
    mask.save(file, "PNG")
    return file.getvalue()


def make_boxes(width: int, height: int, seed: int) -> NDArray[np.float32]:
    rng = np.random.default_rng(seed)
    sides = rng.uniform(0.05, 0.6, (BOXES, 2)) * (width, height)
    corners = rng.uniform(0, 1, (BOXES, 2)) * ((width, height) - sides)
    return np.concatenate([corners, corners + sides], 1).astype(np.float32)


def prepare(images: list[Path], scratch: Path) -> tuple[Path, list[tuple[Path, Path]]]:
    """The store, and the files of the same images and masks."""
    store, pairs = scratch / "targets.lmdb", []
    with packstore.Writer(store, FIELDS) as writer:
        for number, path in enumerate(images):
            with Image.open(path) as image:
                width, height = image.size
            pairs.append((path, scratch / f"{number}.png"))
            pairs[-1][1].write_bytes(make_mask(width, height, number))
            boxes = make_boxes(width, height, number)
            values = {"label": number % CLASSES, "mask": pairs[-1][1], "boxes": boxes, "labels": list(range(BOXES))}
            writer.add(key=str(number), image=path, **values)
    return store, pairs


class Folder(Dataset[Any]):
    """What torchvision's segmentation sets do, with the transforms of its references."""

    def __init__(self, pairs: list[tuple[Path, Path]], tensors: bool) -> None:
        from torchvision import tv_tensors
        from torchvision.transforms import v2

        self.pairs, self.wrap = pairs, tv_tensors.Mask
        crop = [v2.RandomResizedCrop(SIZE, antialias=True), v2.RandomHorizontalFlip()]
        self.transform = v2.Compose([v2.PILToTensor(), *crop] if tensors else [*crop, v2.PILToTensor()])

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, index: int) -> Any:
        image, mask = self.pairs[index]
        target = self.wrap(torch.from_numpy(np.array(Image.open(mask))))
        return self.transform(Image.open(image).convert("RGB"), target)


def epoch(loader: Callable[[], Iterable[Any]]) -> Callable[[], float]:
    """A job that gives seconds an image; a loader with workers is made anew, and its start is not counted."""

    def job() -> float:
        images, batches = 0, iter(loader())
        next(batches)
        start = time.perf_counter()
        for batch in batches:
            first = batch["image"] if isinstance(batch, dict) else batch
            images += len(first[0] if isinstance(first, (tuple, list)) else first)
        return (time.perf_counter() - start) / images

    return job


def packed(store: Path, columns: tuple[str, ...], threads: int, output: Any = "tensor") -> Callable[[], float]:
    dataset = PackedDataset(store, columns=columns, output=output)
    loader = PackedLoader(dataset, BATCH, shuffle=True, augment=CROP, workers=threads, drop_last=True)
    return epoch(lambda: loader)


def torchvisions(pairs: list[tuple[Path, Path]], tensors: bool, workers: int) -> Callable[[], float]:
    loader = DataLoader(Folder(pairs, tensors), BATCH, shuffle=True, num_workers=workers, drop_last=True)
    return epoch(lambda: loader)


def report(title: str, seconds: dict[str, float], base: str) -> None:
    rows = [(name, f"{1 / value:,.0f}", f"{seconds[base] / value:.3f}") for name, value in seconds.items()]
    print(f"\n{title}\n\n{table(('loader', 'images/s', f'times {base}'), rows)}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=Path, required=True)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--limit", type=int, help="use the first so many images")
    names = ("segmentation", "detection", "labels")
    parser.add_argument("--only", choices=names, nargs="+", default=names)
    options = parser.parse_args()
    threads, repeats = options.threads, options.repeats
    images = sorted(p for p in options.images.rglob("*") if p.suffix.lower() in (".jpg", ".jpeg"))[: options.limit]
    if len(images) < 3 * BATCH:
        sys.exit(f"{options.images} has {len(images)} JPEG files; {3 * BATCH} are needed")
    with tempfile.TemporaryDirectory() as scratch:
        store, pairs = prepare(images, Path(scratch))
        if "segmentation" in options.only:
            import_torchvision()
            jobs = {
                "torchvision, Pillow": torchvisions(pairs, False, threads),
                "torchvision, tensors": torchvisions(pairs, True, threads),
                "packstore": packed(store, ("image", "mask"), threads),
                "packstore, images alone": packed(store, ("image",), threads),
            }
            seconds = interleaved(jobs, repeats)
            best = min(("torchvision, Pillow", "torchvision, tensors"), key=seconds.__getitem__)
            report(f"segmentation, {threads} threads or workers", seconds, best)
        if "detection" in options.only:
            boxes = ("image", "boxes", "labels")
            jobs = {"images alone": packed(store, ("image",), threads), "boxes": packed(store, boxes, threads)}
            report(f"detection, {threads} threads", interleaved(jobs, repeats), "images alone")
        if "labels" in options.only:
            jobs = {
                "tuples": packed(store, ("image", "label"), threads),
                "dicts": packed(store, ("image", "label"), threads, "dict"),
            }
            report(f"labels, {threads} threads", interleaved(jobs, repeats), "tuples")
    print(f"\n{machine()}, {len(images)} images")


if __name__ == "__main__":
    main()
