#!/usr/bin/env python3
"""The loop that people have: torch's DataLoader over ImageFolder, and over PackedDataset with the same transforms.

    .venv/bin/python tools/bench/dataloader.py [IMAGES] [--workers 2] [--batch 64] [--copies 4] [--repeats 3]
        [--only NAME …] [--device cuda]

IMAGES is a folder of JPEG files by class, such as ImageNet's; without it, photos are made. All loops of a row are
measured in turn (A B A B …) with a warm page cache, from the second batch of an epoch on, and rates are of medians. An
epoch goes through the images `--copies` times. The rows of timm are left out where timm is not installed. With
`--device cuda` batches go to the GPU, those of a DataLoader from page-locked memory; until the last is there counts.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from against_cases import make_photos
from common import interleaved, machine, table
from peers_task import torchvision
from torch.utils.data import DataLoader, RandomSampler

import packstore
from packstore import PackedDataset, PackedLoader
from packstore import augment as A  # noqa: N812

NORMAL: tuple[list[float], list[float]] = ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])
Job = Callable[[], float]


def make_pipelines() -> dict[str, Any]:
    """Transforms by name."""
    from torchvision import transforms as v1
    from torchvision.transforms import v2

    first = [v1.RandomResizedCrop(224), v1.RandomHorizontalFlip()]
    second = [v2.RandomResizedCrop(224), v2.RandomHorizontalFlip(), v2.ToImage()]
    float_end = [v1.ToTensor(), v1.Normalize(*NORMAL)]
    pipelines = {
        "training, float32": v1.Compose([*first, *float_end]),
        "training, uint8": v1.Compose([*first, v1.PILToTensor()]),
        "training of v2, float32": v2.Compose([*second, v2.ToDtype(torch.float32, scale=True), v2.Normalize(*NORMAL)]),
        "validation, float32": v1.Compose([v1.Resize(256), v1.CenterCrop(224), *float_end]),
        "training with erasing": v1.Compose([*first, *float_end, v1.RandomErasing(0.25)]),
        "training with colours": v1.Compose([*first, v1.ColorJitter(0.4, 0.4, 0.4), *float_end]),
    }
    if find_spec("timm") is not None:
        from timm.data import create_transform

        pipelines["timm's create_transform"] = create_transform(224, is_training=True, color_jitter=None)
    return pipelines


def rate_of(batches: Iterator[Any], device: torch.device) -> float:
    """Seconds for each image of an epoch, from its second batch on. Ends the epoch's workers."""
    next(batches)
    start, count = time.perf_counter(), 0
    for images, labels in batches:
        images.to(device, non_blocking=True)
        labels.to(device, non_blocking=True)
        count += len(images)
    if device.type == "cuda":
        torch.cuda.synchronize()
    return (time.perf_counter() - start) / count


def make_loop(data: Any, arguments: argparse.Namespace) -> Job:
    """The loop over a dataset by torch's DataLoader."""
    count = len(data) * arguments.copies
    loader: DataLoader[Any] = DataLoader(
        data,
        arguments.batch,
        sampler=RandomSampler(data, replacement=True, num_samples=count),
        num_workers=arguments.workers,
        drop_last=True,
        pin_memory=arguments.device.type == "cuda",
    )
    return lambda: rate_of(iter(loader), arguments.device)


def make_timm_loop(data: Any, arguments: argparse.Namespace) -> Job:
    """The loop by timm's create_loader, whose transforms give uint8 and whose prefetcher normalises."""
    from timm.data import create_loader

    loader = create_loader(
        data,
        (3, 224, 224),
        arguments.batch,
        is_training=True,
        color_jitter=None,
        num_workers=arguments.workers,
        device=arguments.device,
        pin_memory=arguments.device.type == "cuda",
        persistent_workers=False,
    )
    return lambda: rate_of(iter(loader), arguments.device)


def make_packed_loop(store: Path, arguments: argparse.Namespace) -> Job:
    """The loop by packstore's own loader, with the same work as the first pipeline."""
    loader = PackedLoader(
        PackedDataset(store, device=arguments.device),
        arguments.batch,
        shuffle=True,
        indices=np.tile(np.arange(len(PackedDataset(store))), arguments.copies),
        augment=[A.RandomResizedCrop(224), A.RandomHorizontalFlip()],
        normalize="imagenet",
        workers=arguments.workers,
        resident=False,
    )
    return lambda: rate_of(iter(loader), arguments.device)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("images", nargs="?", type=Path, metavar="IMAGES")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--copies", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME")
    parser.add_argument("--device", type=torch.device, default=torch.device("cpu"))
    arguments = parser.parse_args()
    torchvision()
    from torchvision.datasets import ImageFolder

    with tempfile.TemporaryDirectory() as made:
        images = arguments.images
        if images is None:
            images = Path(made, "photos")
            make_photos(images, None)
        store = Path(made, "photos.lmdb")
        packstore.convert(images, store)
        pairs = {
            name: (
                make_loop(ImageFolder(images, transform), arguments),
                make_loop(PackedDataset(store, transform=transform), arguments),
            )
            for name, transform in make_pipelines().items()
        }
        if find_spec("timm") is not None:
            pairs["timm's create_loader"] = (
                make_timm_loop(ImageFolder(images), arguments),
                make_timm_loop(PackedDataset(store), arguments),
            )
        rows = []
        for name, (old, new) in pairs.items():
            if arguments.only and not any(word in name for word in arguments.only):
                continue
            jobs = {"ImageFolder": old, "PackedDataset": new}
            if not rows:
                jobs["PackedLoader"] = make_packed_loop(store, arguments)
            seconds = interleaved(jobs, arguments.repeats)
            rates = [f"{1 / value:,.0f}" for value in seconds.values()]
            ratio = seconds["ImageFolder"] / seconds["PackedDataset"]
            rows.append([name, *rates, *[""] * (3 - len(rates)), f"{ratio:.2f}"])
    print(table(["images/s", "ImageFolder", "PackedDataset", "PackedLoader", "PackedDataset / ImageFolder"], rows))
    print(f"\n{arguments.workers} workers, batches of {arguments.batch}, to {arguments.device}; {machine()}")


if __name__ == "__main__":
    main()
