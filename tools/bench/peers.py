#!/usr/bin/env python3
"""PackedLoader against the loaders of others: the same files, threads, work and run.

    .venv/bin/python tools/bench/peers.py IMAGES [--repeats 5] [--threads 2] [--only jpeg q90 raw]

IMAGES is an image folder (root/class/…; of root/train/class/… the training split). All give uint8 batches of 256 in
random order: random resized crop to 224, antialiased unless the table says otherwise, and flip; page cache warm.

- jpeg: the files as they are; an LMDB of them, and DALI's CPU pipeline with its fused random crop.
- q90: records encoded anew as JPEG of quality 90 at their size, by each packer itself (both 4:2:0); FFCV's `jpg`.
- raw: uint8 with the longer side at most 256; FFCV's `raw`.

Every loader lives in a process of its own, since importing FFCV alone changes torch's number of threads. Before the
clock starts, each shows that it decodes every file: an epoch of whole images is compared with what Pillow makes of the
files. Then comes an epoch for warm-up, and the epochs that count, in turn (A B C A B C …). An epoch begins with nothing
prefetched and ends with nothing under way; it goes through the files several times where they are few, so that starting
up does not count. "Cores busy" is processor time by the clock: it shows who takes more threads than were given.

A peer that is not installed is skipped, by name. To install them, beside packstore and its constraints:

    pip install -c tools/constraints.txt -e .
    pip install -c tools/constraints.txt numpy astunparse gast makefun nvtx optree packaging six
    pip install -c tools/constraints.txt --no-deps nvidia-dali-cuda120==2.4.0 nvidia-nvimgcodec-cu12==0.9.0.20
    apt-get install g++ pkg-config libopencv-dev libturbojpeg0-dev
    pip install -c tools/constraints.txt setuptools wheel assertpy fastargs numba opencv-python-headless psutil \
        pytorch_pfn_extras terminaltables
    pip install -c tools/constraints.txt --no-deps --no-build-isolation ffcv==1.0.2

DALI then runs without a GPU, and says of some codecs for GPUs that it cannot load them. FFCV exists as source only.
"""

from __future__ import annotations

import argparse
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from importlib.metadata import version
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from common import interleaved, machine, table
from numpy.typing import NDArray
from PIL import Image

import packstore
from packstore import PackedDataset, PackedLoader
from packstore.augment import RandomHorizontalFlip, RandomResizedCrop

BATCH, SIZE, MAX_SIDE, QUALITY = 256, 224, 256, 90
CELL = 16  # images are compared by the means of cells of this many pixels a side
TOLERANCE = 8.0  # of 255, mean over an image; loaders differ by at most 1.6, other images by 19 and more (ImageNet)


@dataclass(frozen=True)
class Task:
    """What a loader is to load. Travels to its process.

    Attributes:
        files: The image files; a loader names an image by its place here.
        store: What packstore packed them into.
        scratch: A folder for what a peer packs.
        images: How many to load in an epoch, a multiple of the batch size.
        threads: How many the loader may use.
        whole: For the comparison: crops are whole images.
    """

    files: tuple[str, ...]
    store: Path
    scratch: Path
    images: int
    threads: int
    whole: bool = False

    @property
    def scale(self) -> tuple[float, float]:
        return (1.0, 1.0) if self.whole else (0.08, 1.0)

    @property
    def ratio(self) -> tuple[float, float]:
        return (0.1, 10.0) if self.whole else (3 / 4, 4 / 3)  # a whole image, unless it is longer than 10 to 1

    @property
    def order(self) -> NDArray[np.int64]:
        """The files of an epoch, for loaders that shuffle indices."""
        return np.arange(self.images) % len(self.files)


Batches = Iterator[tuple[NDArray[np.uint8], Sequence[int]]]
"""Batches ``(B, 224, 224, 3)`` and the numbers of their files; packstore gives numbers only of whole images."""

Loader = Callable[[Task], Callable[[], Batches]]
"""Makes what is called for each epoch."""


def packed(task: Task) -> Callable[[], Batches]:
    columns = ("image", "key" if task.whole else "label")
    dataset = PackedDataset(task.store, columns=columns)
    numbers = {key: number for number, key in enumerate(dataset.keys)}
    loader = PackedLoader(
        dataset,
        BATCH,
        shuffle=True,
        indices=task.order,
        threads=task.threads,
        augment=[RandomResizedCrop(SIZE, scale=task.scale, ratio=task.ratio), RandomHorizontalFlip()],
    )

    def batches() -> Batches:
        for images, names in loader:
            yield images.permute(0, 2, 3, 1).numpy(), [numbers[key] for key in names] if task.whole else names

    return batches


def packed_bytes(task: Task) -> int:
    """Bytes of all records, without what the store adds."""
    records = PackedDataset(task.store, columns=("image",), output="bytes")
    return sum(len(records[number]) for number in range(len(records)))


def dali(task: Task, antialias: bool = True) -> Callable[[], Batches]:
    from nvidia.dali import fn, pipeline_def, types

    @pipeline_def
    def crops() -> Any:
        encoded, number = fn.readers.file(
            files=list(task.files), labels=list(range(len(task.files))), shuffle_after_epoch=True
        )
        images = fn.decoders.image_random_crop(
            encoded,
            device="cpu",
            output_type=types.RGB,
            random_area=task.scale,
            random_aspect_ratio=task.ratio,
            adjust_orientation=False,  # the others take pixels as they are stored
        )
        images = fn.resize(images, size=(SIZE, SIZE), interp_type=types.INTERP_LINEAR, antialias=antialias)
        return fn.flip(images, horizontal=fn.random.coin_flip()), number

    depth = 2  # DALI's own default
    pipeline = crops(batch_size=BATCH, num_threads=task.threads, device_id=None, prefetch_queue_depth=depth, seed=1)
    pipeline.build()
    # Left alone, DALI prepares the next batches between epochs: while others are timed, and before its own clock
    # starts. So its batches are ordered one by one. The very first order is for as many as the queue holds.
    pipeline.schedule_run()
    while not pipeline.empty():
        pipeline.share_outputs()
        pipeline.release_outputs()

    def batches() -> Batches:
        count = task.images // BATCH
        for _ in range(min(depth, count)):
            pipeline.schedule_run()
        for given in range(count):
            images, numbers = (np.asarray(output.as_tensor()) for output in pipeline.share_outputs())  # no copies
            yield images, numbers.ravel().tolist()
            pipeline.release_outputs()
            if given + depth < count:
                pipeline.schedule_run()
        if not pipeline.empty():
            raise AssertionError("DALI still has batches under way")

    return batches


def dali_aliased(task: Task) -> Callable[[], Batches]:
    return dali(task, antialias=False)


def file_bytes(task: Task) -> int:
    return sum(Path(file).stat().st_size for file in task.files)


class _Pixels:
    """The files as FFCV's writer wants them."""

    def __init__(self, files: Sequence[str]) -> None:
        self.files = files

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, number: int) -> tuple[NDArray[np.uint8], int]:
        with Image.open(self.files[number]) as image:
            return np.asarray(image.convert("RGB")), number


def ffcv(task: Task, **how: Any) -> Callable[[], Batches]:
    from ffcv.fields import IntField, RGBImageField
    from ffcv.fields.basics import IntDecoder
    from ffcv.fields.rgb_image import RandomResizedCropRGBImageDecoder
    from ffcv.loader import Loader as FFCVLoader
    from ffcv.loader import OrderOption
    from ffcv.transforms import RandomHorizontalFlip, ToTensor, ToTorchImage
    from ffcv.writer import DatasetWriter

    path = _beton(task)
    if not path.exists():
        fields = {"image": RGBImageField(**how), "number": IntField()}
        DatasetWriter(str(path), fields, num_workers=task.threads).from_indexed_dataset(_Pixels(task.files))
    crop = RandomResizedCropRGBImageDecoder((SIZE, SIZE), scale=task.scale, ratio=task.ratio)
    loader = FFCVLoader(
        str(path),
        batch_size=BATCH,
        num_workers=task.threads,
        order=OrderOption.RANDOM,
        indices=task.order.astype(np.uint64),
        seed=0,
        pipelines={
            "image": [crop, RandomHorizontalFlip(), ToTensor(), ToTorchImage()],
            "number": [IntDecoder(), ToTensor()],
        },
    )

    def batches() -> Batches:
        for images, numbers in loader:
            yield images.permute(0, 2, 3, 1).numpy(), numbers.flatten().tolist()

    return batches


def _beton(task: Task) -> Path:
    return task.scratch / "ffcv.beton"


def ffcv_jpg(task: Task) -> Callable[[], Batches]:
    return ffcv(task, write_mode="jpg", jpeg_quality=QUALITY)


def ffcv_raw(task: Task) -> Callable[[], Batches]:
    return ffcv(task, write_mode="raw", max_resolution=MAX_SIDE)


def beton_bytes(task: Task) -> int:
    from ffcv.reader import Reader

    return int(Reader(str(_beton(task))).alloc_table["size"].sum())


@dataclass(frozen=True)
class Contender:
    """A loader, what tells the bytes of its records, the modules it needs, and the package whose version is told."""

    name: str
    loader: Loader
    record_bytes: Callable[[Task], int]
    modules: tuple[str, ...] = ()
    package: str = "packstore"


DALI = {"modules": ("nvidia.dali", "nvidia.nvimgcodec"), "package": "nvidia-dali-cuda120"}
FFCV = {"modules": ("ffcv.loader", "ffcv.writer"), "package": "ffcv"}


@dataclass(frozen=True)
class Workload:
    title: str
    convert: dict[str, Any]
    contenders: tuple[Contender, ...]


WORKLOADS = {
    "jpeg": Workload(
        "JPEG files as they are",
        {"encoding": "original"},
        (
            Contender("packstore LMDB", packed, packed_bytes),
            Contender("DALI CPU, fused crop", dali, file_bytes, **DALI),
            Contender("DALI CPU, fused crop, not antialiased", dali_aliased, file_bytes, **DALI),
        ),
    ),
    "q90": Workload(
        f"JPEG encoded anew, quality {QUALITY}",
        {"encoding": "jpeg", "quality": QUALITY},
        (Contender("packstore LMDB", packed, packed_bytes), Contender("FFCV `jpg`", ffcv_jpg, beton_bytes, **FFCV)),
    ),
    "raw": Workload(
        f"uint8, longer side at most {MAX_SIDE}",
        {"encoding": "uint8", "max_side": MAX_SIDE},
        (Contender("packstore LMDB", packed, packed_bytes), Contender("FFCV `raw`", ffcv_raw, beton_bytes, **FFCV)),
    ),
}


# In a loader's process ---------------------------------------------------------------------------------------------

_epoch: Callable[[], Batches] | None = None


def missing(modules: Sequence[str]) -> str | None:
    """Why a peer cannot be used; None when it can."""
    try:
        for name in modules:
            import_module(name)
    except (ImportError, OSError) as error:
        return f"{type(error).__name__}: {error}"
    return None


def check(loader: Loader, task: Task, expected: NDArray[np.float32]) -> float:
    """The largest difference between a whole image and Pillow's, of 255, mean over the image; and all have to come."""
    seen, worst = np.zeros(len(task.files), np.int64), 0.0
    for images, numbers in loader(replace(task, whole=True))():
        _check_batch(images)
        found, wanted = cells(images), expected[numbers]
        straight = np.abs(found - wanted).mean((1, 2, 3))
        mirrored = np.abs(found[:, :, ::-1] - wanted).mean((1, 2, 3))
        worst = max(worst, float(np.minimum(straight, mirrored).max()))
        np.add.at(seen, numbers, 1)
    if not seen.all() or seen.sum() != task.images:
        raise AssertionError(f"{np.sum(seen == 0)} files never came; {seen.sum()} images of {task.images}")
    if worst > TOLERANCE:
        raise AssertionError(f"an image differs by {worst:.1f} of 255 from Pillow's")
    return worst


def prepare(loader: Loader, task: Task) -> None:
    global _epoch
    _epoch = loader(task)


def epoch(expected: int) -> tuple[float, float]:
    """Seconds an image, and cores busy."""
    if _epoch is None:
        raise AssertionError("prepare() comes first")
    before, start, count, touched = _cpu(), time.perf_counter(), 0, 0
    for images, numbers in _epoch():
        _check_batch(images)
        touched += int(images[:, :: SIZE - 1, :: SIZE - 1].sum())  # the corners: what is not there yet cannot be read
        count += len(numbers)
    seconds = time.perf_counter() - start
    if count != expected or not touched:
        raise AssertionError(f"{count} images instead of {expected}")
    return seconds / count, (_cpu() - before) / seconds


def _check_batch(images: NDArray[np.uint8]) -> None:
    if images.shape != (BATCH, SIZE, SIZE, 3) or images.dtype != np.uint8:
        raise AssertionError(f"a batch has shape {images.shape} of {images.dtype}")


def _cpu() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def cells(images: NDArray[np.uint8]) -> NDArray[np.float32]:
    """``(B, 14, 14, 3)`` means."""
    count, side = len(images), SIZE // CELL
    return images.reshape(count, side, CELL, side, CELL, 3).mean((2, 4), dtype=np.float32)


# In the process that asks ------------------------------------------------------------------------------------------


def pillow(files: Sequence[str]) -> NDArray[np.float32]:
    """What :func:`check` expects."""

    def whole(file: str) -> NDArray[np.uint8]:
        with Image.open(file) as image:
            return np.asarray(image.convert("RGB").resize((SIZE, SIZE), Image.Resampling.BILINEAR))

    return np.concatenate([cells(whole(file)[None]) for file in files])


def measure(workload: Workload, source: Path, scratch: Path, options: argparse.Namespace) -> None:
    split = "train" if (source / "train").is_dir() else None
    report = packstore.convert(source, scratch / "store.lmdb", split=split, **workload.convert)
    dataset = PackedDataset(report.destination)
    files = tuple(str(source / key) for key in dataset.keys)
    images = -(-max(options.epoch, 2 * len(files)) // BATCH) * BATCH  # twice: DALI may begin amid the files
    expected = pillow(files)
    print(f"\n## {workload.title}: {len(files):,} files, {options.threads} thread(s)\n", flush=True)
    jobs: dict[str, Callable[[], float]] = {}
    cores: dict[str, list[float]] = {}
    sizes: dict[str, int] = {}
    labels: dict[str, str] = {}
    with ExitStack() as stack:
        for number, contender in enumerate(workload.contenders):
            process = stack.enter_context(ProcessPoolExecutor(1, get_context("spawn")))
            reason = process.submit(missing, contender.modules).result()
            if reason is not None:
                print(f"skipped: {contender.name} ({reason})\n", flush=True)
                continue
            own = scratch / str(number)
            own.mkdir()
            task = Task(files, report.destination, own, images, options.threads)
            worst = process.submit(check, contender.loader, task, expected).result()
            print(f"{contender.name} gives every file, at most {worst:.1f} of 255 from Pillow", file=sys.stderr)
            process.submit(prepare, contender.loader, task).result()
            jobs[contender.name] = partial(_run, process, images, cores.setdefault(contender.name, []))
            labels[contender.name] = f"{contender.name} {version(contender.package)}"
            sizes[contender.name] = process.submit(contender.record_bytes, task).result()
        seconds = interleaved(jobs, options.repeats)
    first = seconds[workload.contenders[0].name]
    rows = [
        [
            labels[name],
            f"{1 / s:,.0f}",
            "" if s == first else f"{s / first:.2f}",
            f"{median(cores[name][1:]):.2f}",
            f"{sizes[name] / len(files) / 1e3:.0f}",
        ]
        for name, s in seconds.items()
    ]
    header = ["", "images/s", "packstore is … times as fast", "cores busy", "KB a record"]
    print(table(header, rows), flush=True)


def _run(process: ProcessPoolExecutor, images: int, cores: list[float]) -> float:
    seconds, busy = process.submit(epoch, images).result()
    cores.append(busy)
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("images", type=Path)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--only", nargs="+", choices=list(WORKLOADS), default=list(WORKLOADS))
    parser.add_argument("--epoch", type=int, default=4096, help="images an epoch, at least (default: %(default)s)")
    parser.add_argument("--scratch", type=Path, help="where to write (default: a temporary directory)")
    options = parser.parse_args()
    for name in options.only:
        with tempfile.TemporaryDirectory(dir=options.scratch) as scratch:
            measure(WORKLOADS[name], options.images.resolve(), Path(scratch), options)
    print(f"\nmedians of {options.repeats} epochs; {machine()}, torch {torch.__version__}")


if __name__ == "__main__":
    main()
