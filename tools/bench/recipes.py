#!/usr/bin/env python3
"""What augmentations cost: images a second of crop and flip with each operation and recipe, as shares of crop and flip.

    .venv/bin/python tools/bench/recipes.py STORE [--split train] [--threads 2] [--seconds 2] [--repeats 3]
        [--only NAME …] [--reference FOLDER]

STORE holds image files, such as ImageNet's. All loaders of a run are measured in turn (A B A B …), each for some
seconds, with a warm page cache, and shares are of medians within the run: by the clock, and by processor time, which
other programs on the machine disturb less. With `--reference FOLDER`, a folder
of images by class, the same recipes also run in torchvision with DataLoader and as many workers.
"""

from __future__ import annotations

import argparse
import time
from statistics import median
from typing import Any

from common import machine, table

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


def measured(names: list[str]) -> dict[str, dict[str, Any]]:
    """What is loaded, by name: operations, then recipes."""
    found = dict(LISTS)
    for name in A.RECIPES:
        recipe = A.recipe(name)
        if name != "cifar-airbench":  # of images of one size
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


def reference(folder: str, workers: int) -> dict[str, Any]:
    """The same in torchvision's and timm's words, with DataLoader."""
    import torch
    from torchvision import datasets
    from torchvision.transforms import v2

    crop = [v2.RandomResizedCrop(224), v2.RandomHorizontalFlip()]
    tensor = [v2.PILToTensor(), v2.ToDtype(torch.float32, scale=True), v2.Normalize([0.5] * 3, [0.25] * 3)]
    lists = {
        "crop and flip, normalised": [*crop, *tensor],
        "timm-rsb-a2": [*crop, v2.RandAugment(2, 9), *tensor],
    }
    return {
        f"DataLoader: {name}": torch.utils.data.DataLoader(
            datasets.ImageFolder(folder, v2.Compose(chain)), BATCH, shuffle=True, num_workers=workers
        )
        for name, chain in lists.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store")
    parser.add_argument("--split")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--reference")
    given = parser.parse_args()
    dataset = PackedDataset(given.store, given.split)
    running = {}
    for name, options in measured(given.only).items():
        running[name] = PackedLoader(dataset, BATCH, shuffle=True, workers=given.threads, resident=False, **options)
    theirs = {} if given.reference is None else reference(given.reference, given.threads)
    rates: dict[str, list[tuple[float, float]]] = {}
    for repeat in range(given.repeats + 1):
        for name, loader in (running | theirs).items():
            found = rate(loader, given.seconds)
            if repeat:  # the first is for warming up
                rates.setdefault(name, []).append(found)
    medians = {name: [median(values) for values in zip(*pairs, strict=True)] for name, pairs in rates.items()}
    speed, spent = medians["crop and flip"]
    print(machine())
    print(f"{given.threads} threads, batches of {BATCH}, {given.repeats} times {given.seconds:g} s each\n")
    rows = [
        (name, f"{found:,.0f}", f"{found / speed:.2f}", "" if name in theirs else f"{spent / busy:.2f}")
        for name, (found, busy) in medians.items()
    ]
    print(table(("operations", "images/s", "share of crop and flip", "by processor time"), rows))


if __name__ == "__main__":
    main()
