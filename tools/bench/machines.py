"""What limits a loader on machines with many cores: prints Markdown.

    python tools/bench/machines.py IMAGES [--seconds 3]

- GIL: Python's microseconds an image in batches of 64, of each mode and recipe (``python_seconds`` of loader.py); of
  resident images, those of the thread that asks for batches, copies included.
- model: images a second predicted for each number of cores of this machine, ``min(cores / processor seconds, 1 / GIL
  seconds)``, beside what is measured. The processor seconds are of one thread on one core.
- waits: the rate of 32 threads beside that of one thread a core, and how often a thread gave its core away an image.
- memory: the resident set's growth by threads, each in a process of its own.

IMAGES is an image folder. Run it on an otherwise idle machine.
"""

from __future__ import annotations

import argparse
import os
import resource
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from common import machine, table
from loader import CROP, python_seconds

import packstore
from packstore import PackedDataset, PackedLoader
from packstore.augment import RandomHorizontalFlip

BATCH = 64
STORES: dict[str, dict[str, Any]] = {
    "streaming JPEG": {"encoding": "original"},
    "streaming JPEG without index": {"encoding": "original", "index": False},
    "streaming uint8": {"encoding": "uint8", "max_side": 256},
    "streaming float16": {"encoding": "float16", "size": 256},
}
# Those of one view, for images of any sizes.
RECIPES = (
    "crop and flip",
    "torchvision-resnet50-v2",
    "timm-rsb-a1",
    "timm-rsb-a2",
    "timm-rsb-a3",
    "deit3",
    "mae-pretrain",
    "mae-finetune",
    "open-clip",
    "segmentation-reference",
    "yolo-cls",
)
MANY = 32


@dataclass(frozen=True)
class Rate:
    """A measured loader: wall-clock and processor seconds an image, and voluntary context switches an image."""

    wall: float
    processor: float
    switches: float


def options_of(recipe: str) -> dict[str, Any]:
    """Arguments of a PackedLoader for a recipe."""
    return {"augment": CROP if recipe == "crop and flip" else packstore.augment.recipe(recipe)}


def predict(cores: int, processor: float, gil: float) -> float:
    """Images a second of ``cores`` threads, by processor seconds and seconds under the GIL an image."""
    return min(cores / processor, 1 / gil)


def resident_seconds(dataset: PackedDataset) -> float:
    """Processor seconds an image of the thread that asks for resident batches: Python, and the copies of its pixels."""
    loader = PackedLoader(dataset, 512, shuffle=True, augment=RandomHorizontalFlip(), resident=True)
    found = []
    for _ in range(20):
        start = time.thread_time()
        images = sum(len(batch) for batch, *_ in loader)
        found.append((time.thread_time() - start) / images)
    return min(found)


def in_process(function: Callable[..., Any], *arguments: Any) -> Any:
    """Calls ``function`` in a process of its own: threads keep the cores that they began with."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()


def measure(path: Path, split: str | None, cores: Sequence[int], workers: int, seconds: float) -> Rate:
    """Epochs with crop and flip on these cores for about ``seconds``, after one that is not counted."""
    os.sched_setaffinity(0, cores)
    loader = PackedLoader(PackedDataset(path, split), BATCH, shuffle=True, augment=CROP, workers=workers)
    for _ in loader:
        pass
    images, usage = 0, resource.getrusage(resource.RUSAGE_SELF)
    start = time.perf_counter()
    while (elapsed := time.perf_counter() - start) < seconds:
        images += sum(len(batch) for batch, *_ in loader)
    after = resource.getrusage(resource.RUSAGE_SELF)
    processor = after.ru_utime + after.ru_stime - usage.ru_utime - usage.ru_stime
    return Rate(elapsed / images, processor / images, (after.ru_nvcsw - usage.ru_nvcsw) / images)


def peak_megabytes(path: Path, split: str | None, workers: int) -> float:
    """The peak resident set of this process after an epoch."""
    for _ in PackedLoader(PackedDataset(path, split), BATCH, shuffle=True, augment=CROP, workers=workers):
        pass
    # ru_maxrss would be that of the process that started this one, if larger.
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("images", type=Path)
    parser.add_argument("--seconds", type=float, default=3)
    arguments = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))
    print(machine())
    with tempfile.TemporaryDirectory() as scratch:
        opened = {}
        for name, options in STORES.items():
            path = Path(scratch) / f"{name.replace(' ', '-')}.lmdb"
            manifest = packstore.convert(arguments.images, path, **options).manifest
            split = manifest.splits[0].name if manifest.splits else None
            opened[name] = path, split, PackedDataset(path, split, checksums="never")  # they release the GIL
        gil_rows, model_rows, wait_rows = [], [], []
        for name, (path, split, dataset) in opened.items():
            # On floating point, all of a recipe but its crop runs on whole batches.
            recipes = RECIPES[:1] if dataset.manifest.holds_floats else RECIPES
            found = [python_seconds(dataset, **options_of(recipe)) for recipe in recipes]
            gil_rows += [(name, recipe, f"{1e6 * each:.1f}") for recipe, each in zip(recipes, found, strict=True)]
            rates = [
                in_process(measure, path, split, cores[: n + 1], n + 1, arguments.seconds) for n in range(len(cores))
            ]
            for count, rate in enumerate(rates, 1):
                said = predict(count, rates[0].processor, found[0])
                model_rows.append((name, count, f"{said:,.0f}", f"{1 / rate.wall:,.0f}", f"{rate.wall * said:.2f}"))
            many = in_process(measure, path, split, cores, MANY, arguments.seconds)
            wait_rows.append((name, f"{rate.wall / many.wall:.2f}", f"{rate.switches:.2f}", f"{many.switches:.2f}"))
        path = Path(scratch) / "resident.lmdb"
        packstore.convert(arguments.images, path, encoding="uint8", size=32)
        seconds = resident_seconds(PackedDataset(path, split))
        gil_rows.append(("resident uint8, 32 x 32", "flip, with copies", f"{1e6 * seconds:.1f}"))
        path, split, _ = opened["streaming JPEG"]
        memory_rows = [(n, f"{in_process(peak_megabytes, path, split, n):.0f}") for n in (1, 2, 8, MANY)]
    print("\n" + table(["mode", "recipe", "Python µs an image"], gil_rows))
    print("\n" + table(["mode", "cores", "predicted images/s", "measured", "predicted / measured"], model_rows))
    print("\n" + table(["mode", f"rate of {MANY} threads", "switches an image", f"of {MANY} threads"], wait_rows))
    print("\n" + table(["threads", "peak MB"], memory_rows))


if __name__ == "__main__":
    main()
