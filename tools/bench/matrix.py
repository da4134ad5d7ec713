#!/usr/bin/env python3
"""The loader over all stores and options, against bare threads that do the same work with nothing around it.

    .venv/bin/python tools/bench/matrix.py --images IMAGES [--only WORD …] [--quick] [--rounds 5] [--python]
    .venv/bin/python tools/bench/matrix.py --images IMAGES --share 0.4 --seed 1

IMAGES is an image folder. Each cell is a format, an encoding with the images' size, a list of operations, and what
comes out; only those with every WORD are measured, of which --share takes some as --seed says, and all common
ones: all 477 take about half an hour on two cores. In turn, each for a short while, with a warm page cache and batches
of 256 in random order on the CPU:

- the loader streaming and resident, of which one is the default;
- bare: as many threads as cores, which call the engine with requests that were planned before (or numpy.take, where
  there is nothing to do), the same images into the same number of buffers.

Rates are the best of the rounds. A cell is marked where the better mode is below half of bare (0.8 for the common
cells, which are those with ``*``), and where the default is below 0.95 of the better mode. Processor time is µs an
image over all threads, the least of the rounds, in the order of the rates; --processor compares that, for a machine
that is not quiet.

--python adds the loader's own µs of Python an image: with one thread, and without the engine's calls and checksums,
which are C.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch
from common import machine, table
from PIL import Image

import packstore
from packstore import PackedDataset, PackedLoader
from packstore.augment import CenterCrop, RandomCrop, RandomHorizontalFlip, RandomResizedCrop, Resize
from packstore.core.parallel import default_workers
from packstore.images.engine import Engine, get_engine
from packstore.training.random_draws import MASK
from packstore.training.values import as_numpy

BATCH, BARE, COMMON_BARE, DEFAULT = 256, 0.5, 0.8, 0.95
SECONDS = 0.15  # of a way in a round, at least
STORE_BYTES = 96 << 20  # of a store of arrays, more than a processor's caches hold
FLIP = RandomHorizontalFlip()
FILES = {
    "resized crop, flip": [RandomResizedCrop(224), FLIP],
    "resize, centre": [Resize(256), CenterCrop(224)],
}
LARGE = {
    "none": [],
    "flip": [FLIP],
    "resized crop, flip": FILES["resized crop, flip"],
    "resize": [Resize(224)],
    "centre": [CenterCrop(224)],
    "crop, flip": [RandomCrop(224), FLIP],
    "padded crop, flip": [RandomCrop(256, padding=16, padding_mode="reflect"), FLIP],
}
SMALL = {"none": [], "flip": [FLIP], "padded crop, flip": [RandomCrop(32, padding=4), FLIP], "resize": [Resize(48)]}
OUT: dict[str, dict[str, Any]] = {
    "as stored": {},
    "float32": {"normalize": "imagenet"},
    "float16": {"normalize": "imagenet", "dtype": torch.float16},
    "float32, channels last": {"normalize": "imagenet", "channels_last": True},
}
FLOATS_OUT: dict[str, dict[str, Any]] = {
    "as stored": {},
    "float32": {"dtype": torch.float32},
    "channels last": {"channels_last": True},
}


@dataclass(frozen=True)
class Cell:
    format: str
    encoding: str
    size: int | None
    operations: str
    out: str
    augment: list[Any]
    options: dict[str, Any]

    @property
    def name(self) -> str:
        return f"{self.format} {self.encoding}{self.size or ''} {self.operations} {self.out}"

    @property
    def common(self) -> bool:
        """What most people train with: crops of files and of 256 x 256, CIFAR; bytes, or normalised."""
        usual = self.operations in (
            "resized crop, flip",
            "resize, centre",
            "padded crop, flip" if self.size == 32 else "",
        )
        return usual and self.encoding in ("original", "uint8") and self.out in ("as stored", "float32")


def cells(quick: bool) -> Iterator[Cell]:
    for suffix in ("pth",) if quick else ("lmdb", "h5", "pth"):
        for name, augment in FILES.items():
            for out, options in OUT.items():
                yield Cell(suffix, "original", None, name, out, augment, options)
        for size, lists in ((32, SMALL), (256, LARGE)):
            for encoding in ("uint8", "float16") if quick else ("uint8", "float16", "bfloat16", "float32"):
                for name, augment in lists.items():
                    for out, options in (OUT if encoding == "uint8" else FLOATS_OUT).items():
                        yield Cell(suffix, encoding, size, name, out, augment, options)


def _images(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.suffix.lower() in (".jpeg", ".jpg", ".png"))


class Stores:
    """Stores of the images, each made when it is first asked for."""

    def __init__(self, source: Path, scratch: Path) -> None:
        self._source = source
        self._scratch = scratch

    def path(self, cell: Cell) -> Path:
        path = self._scratch / f"{cell.encoding}{cell.size or ''}.{cell.format}"
        if not path.exists():
            source = self._files() if cell.size is None else self._of_one_size(cell.size)
            size = {} if cell.size is None else {"size": cell.size}
            packstore.convert(source, path, encoding=cell.encoding, **size)
        return path

    def _files(self) -> Path:
        """All images as one split."""
        folder = self._scratch / "files"
        if not folder.exists():
            (folder / "all").mkdir(parents=True)
            for number, file in enumerate(_images(self._source)):
                (folder / "all" / f"{number:05}{file.suffix}").symlink_to(file.resolve())
        return folder

    def _of_one_size(self, size: int) -> Path:
        """A folder of a few images, over and over."""
        folder = self._scratch / f"images{size}"
        if not folder.exists():
            (folder / "all").mkdir(parents=True)
            images = [Image.open(file).convert("RGB").resize((size, size)) for file in _images(self._source)[:64]]
            for number in range(min(20000, STORE_BYTES // (3 * size * size))):
                images[number % len(images)].save(folder / "all" / f"{number:05}.bmp")
        return folder


class Bare:
    """The same work without a loader: planned before, done by plain threads."""

    def __init__(self, loader: PackedLoader, threads: int) -> None:
        """``loader`` streams."""
        assembler, count = loader.pipeline.assembler, len(loader.dataset)
        order = np.random.default_rng(0).permutation(count)
        self._buffers = [torch.empty((BATCH, *assembler.shape), dtype=assembler.dtype) for _ in range(4)]
        self._max_pixels = loader.dataset.max_pixels
        self._array = getattr(assembler, "_array", None)
        self._batches = [
            assembler.plan_batch(
                self._buffers[n % 4][: len(order[first : first + BATCH])], order[first : first + BATCH], 0, 0, None
            )
            for n, first in enumerate(range(0, len(order), BATCH))
        ]
        self._threads = threads
        self._pool = ThreadPoolExecutor(threads)

    def epoch(self) -> int:
        """All batches once; the number of images."""
        done = 0
        for batch in self._batches:
            count = len(batch.ids)
            bounds = np.linspace(0, count, self._threads + 1).astype(int).tolist()
            parts = [self._pool.submit(self._part, batch, *pair) for pair in pairwise(bounds)]
            for part in parts:
                part.result()
            done += count
        return done

    def _part(self, batch: Any, first: int, stop: int) -> None:
        if batch.requests is None:
            out = as_numpy(batch.out[first:stop])
            np.take(self._array, batch.ids[first:stop] & MASK, axis=0, out=out, mode="clip")
            return
        engine = get_engine()
        engine.run(batch.requests, first, stop, self._max_pixels)


def epoch(loader: PackedLoader) -> int:
    return sum(len(images) for images, *_ in loader)


@dataclass
class Way:
    """Best rate, and least processor time, of something that is run again and again."""

    run: Callable[[], int]
    rate: float = 0.0
    cpu: float = float("inf")

    def round(self) -> None:
        start = time.perf_counter()
        while time.perf_counter() - start < SECONDS:
            begin, cpu = time.perf_counter(), time.process_time()
            images = self.run()
            self.rate = max(self.rate, images / (time.perf_counter() - begin))
            self.cpu = min(self.cpu, (time.process_time() - cpu) / images * 1e6)


def python_time(dataset: PackedDataset, cell: Cell) -> float:
    """The loader's own µs of Python an image, by default, with one thread."""
    run = Engine.run
    dataset = PackedDataset(dataset.path, checksums="never")
    loader = PackedLoader(dataset, BATCH, shuffle=True, augment=cell.augment, workers=1, **cell.options)
    way = Way(lambda: epoch(loader))
    epoch(loader)
    Engine.run = lambda self, requests, first, stop, max_pixels: np.zeros(stop - first, np.bool_)  # type: ignore[method-assign]
    try:
        for _ in range(5):
            way.round()
    finally:
        Engine.run = run  # type: ignore[method-assign]
    return way.cpu


def measure(cell: Cell, path: Path, rounds: int, threads: int, python: bool, by_processor: bool) -> list[str]:
    dataset = PackedDataset(path)
    modes = {"streaming": False} if cell.size is None else {"streaming": False, "resident": True}
    options = {"shuffle": True, "augment": cell.augment, **cell.options}
    default = PackedLoader(dataset, BATCH, **options).mode
    loaders = {name: PackedLoader(dataset, BATCH, resident=mode, **options) for name, mode in modes.items()}
    ways = {name: Way(lambda loader=loader: epoch(loader)) for name, loader in loaders.items()}  # type: ignore[misc]
    ways["bare"] = Way(Bare(loaders["streaming"], threads).epoch)
    for way in ways.values():
        way.run()
    for _ in range(rounds):
        for way in ways.values():
            way.round()
    speed = {name: 1 / way.cpu if by_processor else way.rate for name, way in ways.items()}
    best = max(speed[name] for name in modes)
    flags = []
    if best / speed["bare"] < (COMMON_BARE if cell.common else BARE):
        flags.append("below bare")
    if speed[default] / best < DEFAULT:
        flags.append("default")
    row = [
        f"{cell.name} {'*' * cell.common}",
        *(f"{ways[name].rate:,.0f}" if name in ways else "-" for name in ("streaming", "resident", "bare")),
        *(default, f"{best / speed['bare']:.2f}", f"{speed[default] / best:.2f}"),
        " / ".join(f"{ways[name].cpu:.1f}" for name in ways),
    ]
    return [*row, *([f"{python_time(dataset, cell):.1f}"] if python else []), ", ".join(flags)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=Path, required=True)
    parser.add_argument("--only", nargs="*", default=[], metavar="WORD", help="measure cells with all of these words")
    parser.add_argument("--quick", action="store_true", help="one format, uint8 and float16, two rounds")
    parser.add_argument("--share", type=float, default=1.0, help="measure that share of the cells that are not common")
    parser.add_argument("--seed", type=int, default=0, help="which of them")
    parser.add_argument("--rounds", type=int, default=None)
    parser.add_argument("--threads", type=int, default=default_workers())
    parser.add_argument("--processor", action="store_true", help="compare processor time instead of rates")
    parser.add_argument("--python", action="store_true", help="also the loader's own Python an image")
    args = parser.parse_args()
    draws = Random(args.seed)
    wanted = [cell for cell in cells(args.quick) if all(word in cell.name for word in args.only)]
    wanted = [cell for cell in wanted if draws.random() < args.share or cell.common]
    header = ["cell", "streaming", "resident", "bare", "default", "best / bare", "default / best", "processor µs"]
    header += ["Python µs"] * args.python + ["slow"]
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        stores = Stores(args.images, Path(scratch))
        for cell in wanted:
            rounds = args.rounds or (2 if args.quick else 5)
            rows.append(measure(cell, stores.path(cell), rounds, args.threads, args.python, args.processor))
            print(" | ".join(rows[-1]), flush=True)
    print(f"\n## Images/s on the CPU, batches of {BATCH}, shuffled\n\n{table(header, rows)}\n\n{machine()}")
    slow = [row[0] for row in rows if row[-1]]
    print(f"\n{len(slow)} of {len(rows)} cells are slow.")


if __name__ == "__main__":
    main()
