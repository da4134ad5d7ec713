"""What the loaders of `peers.py` are given, and what is done with them in their own processes.

A contender is a pair of functions: one packs (or none, for those that read files as they are), one makes what is called
for each epoch and yields batches. Both run in a process of the contender's own. Before anything is timed, `check`
compares an epoch of whole images with what Pillow (or the source's own pixels) gives, image by image.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
from numpy.typing import NDArray
from PIL import Image

TOLERANCE = 8.0  # of 255, mean over an image; loaders differ by at most 1.6, other images by 19 and more (ImageNet)
CELLS = 14  # images are compared by the means of about so many cells a side


@dataclass(frozen=True)
class Task:
    """What a loader is to load. Travels to its process.

    Attributes:
        files: The image files; a loader names an image by its place here. Of CIFAR, empty.
        count: How many images there are.
        source: The folder they come from.
        split: Its split that is loaded, or None.
        own: A folder for what the contender writes.
        images: How many to load in an epoch: a multiple of batch size times threads, so that each worker process has
            whole batches.
        threads: How many the loader may use (worker processes of those that have processes).
        batch: Images a batch.
        size: Side of the batches' images.
        convert: Options of packstore's conversion, which say what is to be held.
        pixels: File with the images as they are, `.npy`, uint8 (N, H, W, 3); CIFAR only.
        data: What `pack` returned.
        whole: For the comparison: crops are whole images.
    """

    files: tuple[str, ...]
    count: int
    source: Path
    split: str | None
    own: Path
    images: int
    threads: int
    batch: int
    size: int
    convert: Mapping[str, Any] = field(default_factory=dict)
    pixels: Path | None = None
    data: Path | None = None
    whole: bool = False

    @property
    def scale(self) -> tuple[float, float]:
        return (1.0, 1.0) if self.whole else (0.08, 1.0)

    @property
    def ratio(self) -> tuple[float, float]:
        return (0.1, 10.0) if self.whole else (3 / 4, 4 / 3)  # a whole image, unless it is longer than 10 to 1

    @property
    def padding(self) -> int:
        return 0 if self.whole else 4

    @property
    def order(self) -> NDArray[np.int64]:
        """The images of an epoch, for loaders that shuffle indices."""
        return np.arange(self.images) % self.count


Batches = Iterator[tuple[NDArray[np.uint8], Sequence[int]]]
"""Batches ``(B, H, W, 3)`` and the numbers of their images; packstore gives numbers only of whole images."""

Epochs = Callable[[], Batches]
"""Called for each epoch."""


@dataclass(frozen=True)
class Contender:
    """A loader: how it packs (None where it reads the files), how it loads, the modules it needs, its package."""

    name: str
    loader: Callable[[Task], Epochs]
    pack: Callable[[Task], Path] | None = None
    modules: tuple[str, ...] = ()
    package: str = "packstore"
    limit: bool = False  # not a loader but what the machine allows

    @property
    def label(self) -> str:
        try:
            return f"{self.name} {version(self.package)}" if self.package else self.name
        except PackageNotFoundError:
            return self.name


# In a contender's process --------------------------------------------------------------------------------------------

_epochs: Epochs | None = None
_task: Task | None = None


def missing(modules: Sequence[str]) -> str | None:
    """Why a contender cannot be used; None when it can."""
    try:
        for name in modules:
            module = torchvision() if name == "torchvision" else import_module(name)
            if name == "spdl.io":
                module.demux_config()  # only now it looks for FFmpeg's libraries
    except (ImportError, OSError, RuntimeError) as error:
        return f"{type(error).__name__}: {' '.join(str(error).split())}"
    return None


def torchvision() -> Any:
    """torchvision, also where its operators are built for another torch (PyPI's for CUDA, beside a CPU torch): it then
    only misses two that it wants to register itself for, which nothing here needs."""
    try:
        return import_module("torchvision")
    except RuntimeError:
        for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
            del sys.modules[name]
        library = torch.library.Library("torchvision", "DEF")
        for operator in ("nms", "qnms"):
            library.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _KEPT.append(library)  # the operators are gone when it is
        return import_module("torchvision")


_KEPT: list[Any] = []


def pack(contender: Contender, task: Task) -> tuple[float, Path | None]:
    """Seconds of packing, imports and the starting of processes included; and what was written."""
    task.own.mkdir(parents=True)
    start = time.perf_counter()
    written = contender.pack(task) if contender.pack is not None else None
    return time.perf_counter() - start, written


def check(contender: Contender, task: Task, expected: NDArray[np.float32]) -> float:
    """The largest difference of an image from what is expected, of 255, mean over the image; and all have to come."""
    seen, worst = np.zeros(task.count, np.int64), 0.0
    for images, numbers in contender.loader(replace(task, whole=True))():
        _check_batch(images, task)
        images = images if images.dtype == np.uint8 else images * 255
        found, wanted = cells(images), expected[numbers]
        straight = np.abs(found - wanted).mean((1, 2, 3))
        mirrored = np.abs(found[:, :, ::-1] - wanted).mean((1, 2, 3))
        worst = max(worst, float(np.minimum(straight, mirrored).max()))
        np.add.at(seen, numbers, 1)
    if not seen.all() or seen.sum() != task.images:
        raise AssertionError(f"{np.sum(seen == 0)} images never came; {seen.sum()} came instead of {task.images}")
    if worst > TOLERANCE:
        raise AssertionError(f"an image differs by {worst:.1f} of 255 from what it should be")
    return worst


def prepare(contender: Contender, task: Task) -> None:
    global _epochs, _task
    _epochs, _task = contender.loader(task), task


def epoch() -> float:
    """Seconds an image of the prepared loader."""
    if _epochs is None or _task is None:
        raise AssertionError("prepare() comes first")
    start, count, touched = time.perf_counter(), 0, 0
    for images, numbers in _epochs():
        _check_batch(images, _task)
        touched += int(images[:, :: _task.size - 1, :: _task.size - 1].sum())  # the corners: what is not there yet
        count += len(numbers)  # cannot be read
    seconds = time.perf_counter() - start
    if count != _task.images or not touched:
        raise AssertionError(f"{count} images instead of {_task.images}")
    return seconds / count


def cold(contender: Contender, task: Task) -> float:
    """Seconds an image from opening to the end of a first epoch, imports not counted."""
    reason = missing(contender.modules)
    if reason is not None:
        raise AssertionError(reason)
    start = time.perf_counter()
    prepare(contender, task)
    epoch()
    return (time.perf_counter() - start) / task.images


def _check_batch(images: NDArray[np.uint8], task: Task) -> None:
    if images.shape != (task.batch, task.size, task.size, 3) or images.dtype not in (np.uint8, np.float32):
        raise AssertionError(f"a batch has shape {images.shape} of {images.dtype}")


# In the process that asks --------------------------------------------------------------------------------------------


def cells(images: NDArray[np.uint8]) -> NDArray[np.float32]:
    """``(B, k, k, 3)`` means of cells of the images."""
    count, size = images.shape[:2]
    side = max(1, size // CELLS)
    k = size // side
    return images[:, : k * side, : k * side].reshape(count, k, side, k, side, 3).mean((2, 4), dtype=np.float32)


def image_size(file: str | BytesIO) -> tuple[int, int]:
    """``(height, width)`` of an image file."""
    with Image.open(file) as image:
        return image.height, image.width


def pillow(files: Sequence[str], size: int) -> NDArray[np.float32]:
    """What :func:`check` expects of image files."""

    def whole(file: str) -> NDArray[np.uint8]:
        with Image.open(file) as image:
            return np.asarray(image.convert("RGB").resize((size, size), Image.Resampling.BILINEAR))

    return np.concatenate([cells(whole(file)[None]) for file in files])


def processes(pid: int) -> list[psutil.Process]:
    """A process and all that come from it."""
    try:
        process = psutil.Process(pid)
        return [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def cpu_seconds(pid: int) -> float:
    """Processor time of a process and of those that come from it and still live."""
    total = 0.0
    for process in processes(pid):
        try:
            times = process.cpu_times()
        except psutil.Error:
            continue
        total += times.user + times.system
    return total


def memory_bytes(pid: int) -> int:
    """Memory of a process and those that come from it, what they share counted once: anonymous and shared memory, not
    the page cache of mapped files."""
    total = 0
    for process in processes(pid):
        try:
            lines = Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines()
        except OSError:
            continue
        total += sum(int(line.split()[1]) for line in lines if line.startswith(("Pss_Anon:", "Pss_Shmem:")))
    return total * 1024


def disk_bytes(paths: Sequence[Path]) -> int:
    """Bytes that files, and all in folders, really take."""
    found = [file for path in paths for file in ([path] if path.is_file() else path.rglob("*")) if file.is_file()]
    return sum(file.stat().st_blocks * 512 for file in found)


def forget(paths: Sequence[Path]) -> str:
    """Makes the system forget what its page cache has of files; says how."""
    os.sync()  # what has not been written yet cannot be forgotten
    for path in paths:
        for file in [path] if path.is_file() else path.rglob("*"):
            if file.is_file():
                handle = os.open(file, os.O_RDONLY)
                os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
                os.close(handle)
    try:
        Path("/proc/sys/vm/drop_caches").write_text("3")
    except OSError:
        return "posix_fadvise"
    return "drop_caches"
