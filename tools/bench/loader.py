#!/usr/bin/env python3
"""The loader against bare threads that do the same work with nothing around it.

    .venv/bin/python tools/bench/loader.py --images IMAGES --cifar CIFAR [--repeats 5] [--threads N] [--only modes …]

CIFAR is a CIFAR-10 folder or archive, IMAGES an image folder. In one run, in turn, with a warm page cache:

- cifar: uint8 in .pth, resident on the CPU, batches of 512 in random order; against `torch.index_select` alone; and
  with random crop (padding 4) and flip.
- jpeg: an LMDB of the files, random resized crop to 224 and flip, batches of 256; against as many plain threads that
  decode (simplejpeg), crop and resize (antialiased) into batch buffers.
- raw: the same of uint8 images with the longer side at most 256.
- gray: the crops of jpeg in RGB, in gray (`mode="L"`), and in gray by another decoder than the engine; and the engine
  alone, in one thread, with the seek index and without.
- modes: stores of images of one shape on the CPU, resident beside streaming, and which of them is the default.
- gil: the loader's own Python time an image: what is left when everything that releases the GIL is stubbed out.
- memory: what a process has resident after 2 and after 20 epochs, of images below a megapixel, and of all (a large one
  leaves a hole in the heap that the usual ones do not fill).
- checksums: what `checksums="auto"` costs, of image files and arrays in each format, items and batches.
- first: the time to the first batch.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import simplejpeg
import torch
from checksums import checksums
from common import interleaved, machine, table, timed
from PIL import Image

import packstore
from packstore import PackedDataset, PackedLoader
from packstore.augment import RandomCrop, RandomHorizontalFlip, RandomResizedCrop
from packstore.core.parallel import default_workers
from packstore.images.engine import Engine, Requests, get_engine
from packstore.training.augment.base import Crops
from packstore.training.loader.stored_images import COLD_BATCHES
from packstore.training.loader.streaming import RECORDS_TOGETHER, group_batches
from packstore.training.random_draws import Draws

SIZE = 224
CROP = [RandomResizedCrop(SIZE), RandomHorizontalFlip()]


def epoch(loader: PackedLoader) -> float:
    """Seconds an image."""
    start, images = time.perf_counter(), 0
    for batch, *_ in loader:
        images += len(batch)
    return (time.perf_counter() - start) / images


def random_box(height: int, width: int, rng: np.random.Generator) -> tuple[int, int, int, int]:
    """torchvision's RandomResizedCrop.get_params, as plainly as it can be written."""
    for _ in range(10):
        area = height * width * rng.uniform(0.08, 1.0)
        ratio = np.exp(rng.uniform(np.log(3 / 4), np.log(4 / 3)))
        w, h = round(np.sqrt(area * ratio)), round(np.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            return int(rng.integers(0, height - h + 1)), int(rng.integers(0, width - w + 1)), h, w
    side = min(height, width)
    return (height - side) // 2, (width - side) // 2, side, side


def bare_threads(pixels: list[Callable[[], np.ndarray]], threads: int, batch_size: int) -> float:
    """Seconds an image of plain threads: pixels, crop, resize into a row of a batch, flip every other one."""
    resize: Any = torch._C._nn._upsample_bilinear2d_aa

    def work(part: list[Callable[[], np.ndarray]]) -> None:
        rng = np.random.default_rng(0)
        batch = torch.empty((batch_size, SIZE, SIZE, 3), dtype=torch.uint8)
        rows = batch.permute(0, 3, 1, 2)
        for number, get in enumerate(part):
            image = get()
            top, left, height, width = random_box(*image.shape[:2], rng)
            crop = np.ascontiguousarray(image[top : top + height, left : left + width])
            row = number % batch_size
            resize(
                torch.from_numpy(crop).permute(2, 0, 1)[None], (SIZE, SIZE), False, None, None, out=rows[row : row + 1]
            )
            if number % 2:
                for first in range(0, SIZE, 48):
                    lines = batch[row, first : first + 48]
                    lines.copy_(torch.flip(lines, (1,)))

    start = time.perf_counter()
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(work, [pixels[i::threads] for i in range(threads)]))
    return (time.perf_counter() - start) / len(pixels)


def modes(source: Path, scratch: Path, repeats: int, sizes: list[int]) -> None:
    """Resident beside streaming, over sizes, encodings and operations: the measurement behind the default.

    Rates are the best of short windows, in turn: what else runs on the machine slows resident batches, which torch's
    threads gather together, more than it slows streaming ones.
    """
    rows = []
    for size in sizes:
        for encoding in ("uint8", "float16"):
            dataset = PackedDataset(_of_one_shape(source, scratch, size, encoding))
            crop, part = [RandomCrop(size, padding=4), RandomHorizontalFlip()], min(SIZE, size * 7 // 8)
            cells: dict[str, dict[str, Any]] = {
                "none": {},
                "flip": {"augment": crop[1:]},
                "crop, flip": {"augment": crop},
                f"resized crop to {part}, flip": {"augment": [RandomResizedCrop(part), *crop[1:]]},
            }
            if encoding == "uint8":
                cells |= {"normalise": {"normalize": "imagenet"}}
                cells |= {"crop, flip, normalise": {"augment": crop, "normalize": "imagenet"}}
            for name, options in cells.items():
                ways: dict[str, bool | str] = {"resident": True, "streaming": False, "default": "auto"}
                loaders = {
                    way: PackedLoader(dataset, 256, shuffle=True, resident=r, **options) for way, r in ways.items()
                }
                best = dict.fromkeys(ways, 0.0)
                for _ in range(repeats + 1):  # the first loads, and warms up
                    for way, loader in loaders.items():
                        best[way] = max(best[way], best_rate(loader, 0.15))
                numbers = [f"{best[way]:,.0f}" for way in ("resident", "streaming")]
                ratio, lost = best["resident"] / best["streaming"], best["default"] / max(best.values())
                mode = loaders["default"].mode
                rows.append([size, encoding, name, *numbers, f"{ratio:.2f}", mode, f"{lost:.2f}"])
    print("\n## Stores of one shape on the CPU, batches of 256, shuffled: images/s\n")
    print(table(["pixels", "encoding", "operations", "resident", "streaming", "ratio", "default", "of the best"], rows))


def best_rate(loader: PackedLoader, seconds: float) -> float:
    """Images a second of the best 30 ms within ``seconds``."""
    start = window = time.perf_counter()
    images, best = 0, 0.0
    while window - start < seconds:
        for batch, *_ in loader:
            images += len(batch)
            now = time.perf_counter()
            if now - window > 0.03:
                best, window, images = max(best, images / (now - window)), now, 0
            if now - start > seconds:
                break
    return best


def _of_one_shape(source: Path, scratch: Path, size: int, encoding: str) -> Path:
    """A store of some 96 MiB, more than a processor's caches hold, of a few images over and over."""
    images = scratch / f"{size}-{encoding}" / "all"
    images.mkdir(parents=True)
    count = min(20000, (96 << 20) // (size * size * 3 * (2 if encoding == "float16" else 1)))
    files = [path for path in sorted(source.rglob("*")) if path.is_file()][:64]
    for number, path in enumerate(files):
        Image.open(path).convert("RGB").resize((size, size)).save(images / f"{number:05d}.jpg")
    for number in range(len(files), count):
        os.link(images / f"{number % len(files):05d}.jpg", images / f"{number:05d}.jpg")
    store = scratch / f"{size}-{encoding}.pth"
    packstore.convert(images.parent, store, encoding=encoding, size=size)
    return store


def rates(seconds: dict[str, float], against: str) -> str:
    rows = [[name, f"{1 / s:,.0f}", f"{seconds[against] / s:.2f}"] for name, s in seconds.items()]
    return table(["", "images/s", f"of {against}"], rows)


def cifar(source: Path, scratch: Path, repeats: int) -> None:
    packstore.convert(source, scratch / "cifar.pth", encoding="uint8")
    dataset = PackedDataset(scratch / "cifar.pth", "train")
    plain = PackedLoader(dataset, 512, shuffle=True, resident=True)
    augmented = PackedLoader(
        dataset, 512, shuffle=True, resident=True, augment=[RandomCrop(32, padding=4), RandomHorizontalFlip()]
    )
    images = torch.cat([batch for batch, _ in PackedLoader(dataset, 512, resident=True)]).contiguous()
    labels = torch.tensor(dataset.targets)

    def bare() -> float:
        start = time.perf_counter()
        order = torch.randperm(len(images))
        for indices in order.split(512):
            # Kept until the next ones are there, as in any training loop.
            batch = images.index_select(0, indices)
            targets = labels.index_select(0, indices)
        assert len(batch) == len(targets)
        return (time.perf_counter() - start) / len(images)

    jobs = {
        "index_select": bare,
        "packstore": lambda: epoch(plain),
        "packstore, crop and flip": lambda: epoch(augmented),
    }
    print("\n## CIFAR-10, resident on the CPU, batches of 512, shuffled\n")
    print(rates(interleaved(jobs, repeats), "index_select"))


def streamed(source: Path, scratch: Path, repeats: int, threads: int, raw: bool) -> None:
    path = scratch / ("raw.lmdb" if raw else "jpeg.lmdb")
    if raw:
        packstore.convert(source, path, encoding="uint8", max_side=256)
    else:
        packstore.convert(source, path)
    names = [split.name for split in packstore.open(path).manifest.splits]
    dataset = PackedDataset(path, names[0] if names else None)
    # An epoch of some thousand images, whatever the folder: the start of an epoch should not weigh more than it does.
    times = max(1, 4096 // len(dataset))
    indices = np.tile(np.arange(len(dataset)), times)
    loader = PackedLoader(dataset, 256, shuffle=True, augment=CROP, workers=threads, indices=indices)
    records = [dataset._record_of_item(i) for i in range(len(dataset))]
    reader = dataset.reader
    if raw:
        arrays = [np.array(reader.array(r)) for r in records]
        pixels: list[Callable[[], np.ndarray]] = [lambda a=a: a for a in arrays]  # type: ignore[misc]
    else:
        files = [bytes(reader.read(r)) for r in records]
        pixels = [lambda f=f: simplejpeg.decode_jpeg(f, "RGB") for f in files]  # type: ignore[misc]
    pixels = [pixels[i] for i in np.random.default_rng(0).permutation(indices)]
    jobs = {"bare threads": lambda: bare_threads(pixels, threads, 256), "packstore": lambda: epoch(loader)}
    what = "uint8 of at most 256 pixels a side" if raw else "JPEG files"
    print(f"\n## {len(records):,} {what}, {times} times an epoch\n")
    print(f"From LMDB, random resized crop to {SIZE} and flip, {threads} threads:\n")
    print(rates(interleaved(jobs, repeats), "bare threads"))
    print(f"\nwhere the threads' time went: {_shares(loader)}")


def gray(source: Path, scratch: Path, repeats: int, threads: int) -> None:
    packstore.convert(source, scratch / "rgb.lmdb")
    packstore.convert(source, scratch / "gray.lmdb", mode="L")
    datasets = {
        "RGB": PackedDataset(scratch / "rgb.lmdb"),
        "gray": PackedDataset(scratch / "gray.lmdb"),
        "gray of a store in RGB": PackedDataset(scratch / "rgb.lmdb", mode="L"),
        "gray, simplejpeg": PackedDataset(scratch / "gray.lmdb", decoder="simplejpeg"),
    }
    loaders = {
        name: PackedLoader(dataset, 256, shuffle=True, augment=CROP, workers=threads)
        for name, dataset in datasets.items()
    }
    print(f"\n## Gray of {len(datasets['RGB']):,} files, random resized crop to {SIZE} and flip, {threads} threads\n")
    jobs = {name: lambda loader=loader: epoch(loader) for name, loader in loaders.items()}
    print(rates(interleaved(jobs, repeats), "RGB"))

    reader, engine = datasets["RGB"].reader, get_engine()
    files = [bytes(reader.read(record)) for record in range(len(datasets["RGB"]))]
    sizes = Requests(files).read_sizes()
    files, sizes = [file for file, size in zip(files, sizes, strict=True) if size[0]], sizes[sizes[:, 0] > 0]
    kinds = {"index": engine.make_indexes(files), "lengths": engine.make_indexes(files, True), "no index": None}
    shares = [f"{name} {sum(map(len, kind)) / sum(map(len, files)):.2%}" for name, kind in kinds.items() if kind]
    print(f"\nShare of the files' bytes: {', '.join(shares)}")
    crops = RandomResizedCrop(SIZE).plan_crops(Crops.full(sizes), Draws(0, 0, np.arange(len(files))))
    jobs = {}
    for known, index in kinds.items():
        for name, channels in (("RGB", 3), ("gray", 1)):
            requests = Requests(files, indexes=index)
            out = np.empty((len(files), SIZE, SIZE, channels), np.uint8)
            requests.set_outputs(crops.box, crops.size, crops.window, None, out)
            work = partial(engine.run, requests, 0, len(files), 1 << 30)
            jobs[f"{name}, {known}"] = lambda work=work: timed(work) / len(files)
    print("\nThe engine alone, one thread:\n")
    print(rates(interleaved(jobs, repeats), "RGB, index"))


def _shares(loader: PackedLoader) -> str:
    stats = loader.stats()
    return (
        ", ".join(f"{n} {stats[n + '_seconds'] / stats['images'] * 1e6:.0f} µs" for n in ("read", "decode"))
        + " an image"
    )


def gil(source: Path, scratch: Path) -> None:
    """What an image costs under the GIL, which is what caps a machine with many cores.

    The engine's work, which releases the GIL, is left out, and so are checksums. What is left is Python, in processor
    time.
    """
    for name, index in (("with index", True), ("without index", False)):
        path = scratch / f"gil-{index}.lmdb"
        packstore.convert(source, path, index=index)
        names = [split.name for split in packstore.open(path).manifest.splits]
        dataset = PackedDataset(path, names[0] if names else None, checksums="never")
        print(f"\nPython an image in JPEG streaming ({name}), under the GIL: {python_seconds(dataset) * 1e6:.1f} µs")


def python_seconds(dataset: PackedDataset, batch: int = 64, **options: Any) -> float:
    """Python's seconds an image, with crop and flip or other options of a PackedLoader: all but decoding.

    Reading headers is counted, though the engine does it without the GIL."""
    assembler = PackedLoader(dataset, batch, **(options or {"augment": CROP}), workers=1).pipeline.assembler
    records = np.arange(max(batch, RECORDS_TOGETHER)) % len(dataset)
    out = torch.empty((batch, *assembler.shape), dtype=assembler.dtype)
    for _ in range(COLD_BATCHES):
        assembler.plan_batch(out, records[:batch], 0, 0, None)

    def fill() -> float:
        start = time.thread_time()
        for ids, share in group_batches(iter(records.reshape(-1, batch))):
            assembler.fill_rows(assembler.plan_batch(out, ids, 0, 0, None, share=share), 0, batch)
        return (time.thread_time() - start) / len(records)

    run = Engine.run
    Engine.run = lambda self, requests, first, stop, max_pixels: np.zeros(stop - first, np.bool_)  # type: ignore[method-assign]
    try:
        fill()
        return min(fill() for _ in range(200))
    finally:
        Engine.run = run  # type: ignore[method-assign]


def first_batch(source: Path, scratch: Path) -> None:
    path = scratch / "first.lmdb"
    packstore.convert(source, path)
    names = [split.name for split in packstore.open(path).manifest.splits]
    dataset = PackedDataset(path, names[0] if names else None)
    start = time.perf_counter()
    next(iter(PackedLoader(dataset, 32, shuffle=True, augment=CROP)))
    print(f"time to the first batch of 32: {time.perf_counter() - start:.3f} s")


def memory(source: Path, scratch: Path) -> None:
    path = scratch / "memory.lmdb"
    packstore.convert(source, path)
    names = [split.name for split in packstore.open(path).manifest.splits]
    dataset = PackedDataset(path, names[0] if names else None)
    usual = [n for n in range(len(dataset)) if np.prod(dataset[n][0].shape[1:]) < 1e6]
    for what, indices in (("usual images", usual), ("all images", None)):
        # Each in a process of its own: what else this one did has left holes in its heap.
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
            sizes = pool.submit(_memory, dataset, indices).result()
        print(f"memory, {what}, without maps: {sizes[2]:.0f} MB after 2 epochs, {sizes[20]:.0f} MB after 20")


def _memory(dataset: PackedDataset, indices: list[int] | None) -> dict[int, float]:
    """Megabytes by number of epochs."""
    loader = PackedLoader(dataset, 64, shuffle=True, augment=CROP, indices=indices)
    sizes = {}
    for number in range(1, 21):
        epoch(loader)
        pages, shared = map(int, Path("/proc/self/statm").read_text().split()[1:3])
        sizes[number] = (pages - shared) * os.sysconf("SC_PAGE_SIZE") / 1e6
    return sizes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=Path)
    parser.add_argument("--cifar", type=Path)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=default_workers())
    parser.add_argument("--sizes", type=int, nargs="+", default=[32, 64, 96, 128, 160, 224, 256], help="of modes")
    names = ("memory", "cifar", "jpeg", "raw", "gray", "modes", "gil", "checksums", "first")
    parser.add_argument("--only", choices=names, nargs="+", default=names)
    options = parser.parse_args()
    images, repeats, threads = options.images, options.repeats, options.threads
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        jobs: dict[str, Callable[[], object]] = {
            "memory": lambda: memory(images, scratch),
            "cifar": lambda: cifar(options.cifar, scratch, repeats),
            "jpeg": lambda: streamed(images, scratch, repeats, threads, raw=False),
            "raw": lambda: streamed(images, scratch, repeats, threads, raw=True),
            "gray": lambda: gray(images, scratch, repeats, threads),
            "modes": lambda: modes(images, scratch, repeats, options.sizes),
            "gil": lambda: gil(images, scratch),
            "checksums": lambda: checksums(images, options.cifar, scratch, repeats, threads),
            "first": lambda: first_batch(images, scratch),
        }
        for name in names:
            needed = {"cifar": options.cifar, "checksums": images or options.cifar}.get(name, images)
            if name in options.only and needed:
                jobs[name]()
    print(f"\nmedians of {options.repeats}; {machine()}, torch {torch.__version__}")


if __name__ == "__main__":
    main()
