#!/usr/bin/env python3
"""What augmentations cost: images a second of crop and flip with each operation and recipe, as shares of crop and flip.

    .venv/bin/python tools/bench/recipes.py STORE [--split train] [--threads 2] [--seconds 2] [--repeats 3]
        [--only NAME …] [--reference FOLDER] [--before FOLDER]

STORE holds image files, such as ImageNet's. All loaders of a run are measured in turn (A B A B …), each for some
seconds, with a warm page cache, and shares are of medians within the run: by the clock, and by processor time, which
other programs on the machine disturb less. A second table counts the decoded files a record, and says how long Python
holds the interpreter's lock for an image, as `loader.py --only gil` does.

With `--reference FOLDER`, a folder of images by class, the same lists also run in torchvision, and in timm and
albumentations where those are installed, in a DataLoader with as many workers, from its first batch on; take 10 seconds
then. So they do in DALI, with as many threads, if it is installed as `peers.py` says. A table says how many times as
fast packstore is. With `--before FOLDER`, an earlier checkout with an environment
in .venv, crop and flip also run there.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

from common import machine, table
from loader import python_seconds

from packstore import PackedDataset, PackedLoader
from packstore import augment as A  # noqa: N812

BATCH = 128

CROP = [A.RandomResizedCrop(224), A.RandomHorizontalFlip()]

LISTS: dict[str, dict[str, Any]] = {
    "crop and flip": {"augment": CROP},
    "bicubic": {"augment": [A.RandomResizedCrop(224, interpolation="bicubic"), A.RandomHorizontalFlip()]},
    "ColorJitter(.4, .4, .4)": {"augment": [*CROP, A.ColorJitter(0.4, 0.4, 0.4)]},
    "ColorJitter with hue": {"augment": [*CROP, A.ColorJitter(0.4, 0.4, 0.4, 0.1)]},
    "RandAugment(2, 9)": {"augment": [*CROP, A.RandAugment(2, 9)]},
    "TrivialAugmentWide": {"augment": [*CROP, A.TrivialAugmentWide()]},
    "RandomErasing": {"augment": [*CROP, A.RandomErasing()]},
    "GaussianBlur(23)": {"augment": [*CROP, A.GaussianBlur(23)]},
    "AugMix": {"augment": [*CROP, A.AugMix()]},
    "crop and flip, normalised": {"augment": CROP, "normalize": "imagenet"},
}


WANTED = {
    "bicubic": 0.9,
    "ColorJitter(.4, .4, .4)": 0.85,
    "ColorJitter with hue": 0.75,
    "RandAugment(2, 9)": 0.7,
    "TrivialAugmentWide": 0.8,
    "RandomErasing": 0.97,
    "GaussianBlur(23)": 0.6,
    "AugMix": 0.35,
    "timm-rsb-a2": 0.65,
}
"""Least shares of crop and flip."""

WANTED_TIMES = {"timm-rsb-a2": 6, "dinov2": 8}
"""How many times as fast as the fastest of the others."""

BEFORE = """
import sys, time
from packstore import PackedDataset, PackedLoader
from packstore.augment import RandomHorizontalFlip, RandomResizedCrop
store, split, threads, seconds, batch = sys.argv[1:]
loader = PackedLoader(
    PackedDataset(store, split or None), int(batch), shuffle=True, workers=int(threads), resident=False,
    augment=[RandomResizedCrop(224), RandomHorizontalFlip()],
)
for _ in range(2):
    start, busy, total = time.perf_counter(), time.process_time(), 0
    while time.perf_counter() - start < float(seconds):
        for _, labels in loader:
            total += len(labels)
            if time.perf_counter() - start > float(seconds):
                break
print(total / (time.perf_counter() - start), 1000 * (time.process_time() - busy) / total)
"""
"""Crop and flip as any version of packstore has them; prints what :func:`rate` returns."""


def measured(names: list[str]) -> dict[str, dict[str, Any]]:
    """What is loaded, by name: operations, then recipes."""
    found = dict(LISTS)
    for name in A.RECIPES:
        recipe = A.recipe(name)
        if name not in ("cifar-airbench", "ssd", "detr"):  # of images of one size, and of boxes
            what = {"augment": recipe} if recipe.views is None else {"views": recipe.views}
            found[name] = {**what, "normalize": recipe.normalize}
    first = next(iter(found))
    return {name: options for name, options in found.items() if not names or name in names or name == first}


def rate(loader: Any, seconds: float) -> tuple[float, float]:
    """Records a second, and milliseconds of processor time a record, of this process alone.

    The loader begins and ends in here: batches that it still had under way would disturb the next.
    """
    start, busy, total = time.perf_counter(), time.process_time(), 0
    while time.perf_counter() - start < seconds:
        batches = iter(loader)
        for _, labels in batches:
            total += len(labels)
            if time.perf_counter() - start > seconds:
                break
        del batches
    return total / (time.perf_counter() - start), 1000 * (time.process_time() - busy) / total


def rate_of_peer(loader: Any, seconds: float) -> tuple[float, float]:
    """Images a second of a DataLoader, from each first batch on: its processes take long to start."""
    spent, total = 0.0, 0
    while spent < seconds:
        batches = iter(loader)
        next(batches)
        start = time.perf_counter()
        for _, labels in batches:
            total += len(labels)
            if spent + time.perf_counter() - start > seconds:
                break
        spent += time.perf_counter() - start
        del batches
    return total / spent, float("nan")


def rate_of_checkout(python: str, folder: str, given: argparse.Namespace) -> tuple[float, float]:
    """:func:`rate` of crop and flip by another checkout, in a process of its own."""
    numbers = map(str, (given.store, given.split or "", given.threads, given.seconds, BATCH))
    command = [python, "-c", BEFORE, *numbers]
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=folder)
    found, busy = map(float, done.stdout.split())
    return found, busy


def count_decodings(dataset: PackedDataset, options: dict[str, Any]) -> float:
    """Decoded files a record."""
    records = range(min(BATCH, len(dataset)))
    loader = PackedLoader(dataset, BATCH, indices=records, resident=False, **options)
    for _ in loader:
        pass
    stats = loader.stats()
    return stats["decoded"] / stats["images"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store")
    parser.add_argument("--split")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--reference")
    parser.add_argument("--before")
    given = parser.parse_args()
    given.store = str(Path(given.store).resolve())
    dataset, lists = PackedDataset(given.store, given.split), measured(given.only)
    running: dict[str, Any] = {}
    for name, options in lists.items():
        running[name] = PackedLoader(dataset, BATCH, shuffle=True, workers=given.threads, resident=False, **options)
    theirs = {}
    if given.reference is not None:
        from recipes_peers import peers

        found = peers(given.reference, given.threads)
        theirs = {name: peer for name, peer in found.items() if peer[0] in lists}
    jobs = {name: lambda loader=loader: rate(loader, given.seconds) for name, loader in running.items()}
    jobs |= {name: lambda loader=loader: rate_of_peer(loader, given.seconds) for name, (_, loader) in theirs.items()}
    if given.before is not None:
        environment = str(Path(given.before).resolve() / ".venv" / "bin" / "python")
        for name, folder in (("now", str(Path(__file__).resolve().parents[2])), ("before", given.before)):
            python = environment if name == "before" else sys.executable
            jobs[f"crop and flip, {name}"] = lambda p=python, f=folder: rate_of_checkout(p, f, given)
    rates: dict[str, list[tuple[float, float]]] = {}
    for repeat in range(given.repeats + 1):
        for name, job in jobs.items():
            found = job()
            if repeat:  # the first is for warming up
                rates.setdefault(name, []).append(found)
    report(given, {name: tuple(map(median, zip(*pairs, strict=True))) for name, pairs in rates.items()}, theirs)
    checked = PackedDataset(given.store, given.split, checksums="never")
    rows = [
        (name, f"{count_decodings(dataset, options):.2f}", f"{1e6 * python_seconds(checked, **options):.1f}")
        for name, options in lists.items()
    ]
    print("\n" + table(("operations", "decoded files a record", "Python, µs a record"), rows))


def report(given: argparse.Namespace, medians: dict[str, tuple[float, ...]], theirs: dict[str, Any]) -> None:
    """Prints shares of crop and flip, and how many times as fast as others the same lists are."""
    speed, spent = medians["crop and flip"]
    print(machine())
    print(f"{given.threads} threads, batches of {BATCH}, {given.repeats} times {given.seconds:g} s each\n")
    rows = []
    for name, (found, busy) in medians.items():
        by_time = "" if name in theirs else f"{spent / busy:.2f}"  # the processes of a DataLoader are not counted
        rows.append((name, f"{found:,.0f}", f"{found / speed:.2f}", by_time, WANTED.get(name, "")))
    print(table(("operations", "images/s", "share of crop and flip", "by processor time", "wanted"), rows))
    if theirs:
        rows = []
        for name, (ours, _) in theirs.items():
            rows.append((name, f"{medians[ours][0] / medians[name][0]:.1f}", WANTED_TIMES.get(ours, "")))
        print("\n" + table(("in a DataLoader, or in DALI", "packstore is so many times as fast", "wanted"), rows))
    if given.before is not None:
        (now, used), (then, spent) = (medians[f"crop and flip, {name}"] for name in ("now", "before"))
        print(f"\ncrop and flip, each in its own process: {now / then:.3f} times as fast as before, by processor time")
        print(f"{spent / used:.3f} times")


if __name__ == "__main__":
    main()
