#!/usr/bin/env python3
"""The loader on a CUDA device: epochs of resident CIFAR, copies against bare ones, and whether they hold up steps.

    .venv/bin/python tools/bench/gpu.py --images IMAGES --cifar CIFAR [--repeats 5] [--models resnet50 …]

CIFAR is a CIFAR-10 folder or archive, IMAGES a folder of JPEG files by class. In one run, in turn:

- resident: an epoch of CIFAR in uint8 `.pth`, batches of 512, random crop (padding 4), flip, normalised to float16, and
  the same without any of these; milliseconds.
- copies: batches of the ring against plain copies of one page-locked buffer to the device, as bytes a second.
- streaming: uint8 images of 224 x 224 from LMDB to the device, as bytes a second.
- a step: products of matrices that take some five copies' time, with a batch that is there already; with the loader's
  batches; and with these and a `loss.item()` in each step, after which the host has nothing under way. What is above 1
  is a gap in which the device waits.
- training: steps of `--models` of torchvision, in bfloat16, on random crops of the JPEG files, with a batch that is
  there already, with packstore's loader, and with `ImageFolder` in a `DataLoader` of torch.

`--trace FOLDER` writes epochs with the loader's batches as Chrome traces there, to look for gaps in.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import interleaved, machine, table
from peers_task import torchvision
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, RandomSampler

import packstore
from packstore import PackedDataset, PackedLoader
from packstore.augment import RandomCrop, RandomHorizontalFlip, RandomResizedCrop
from packstore.training.ring import Ring, transport_to

DEVICE = torch.device("cuda", 0)


def finished(function: Callable[[], object]) -> float:
    """Seconds until the device has done what ``function`` queues."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    function()
    torch.cuda.synchronize()
    return time.perf_counter() - start


def drain(batches: Iterable[Any]) -> None:
    for _batch in batches:
        pass


def resident(source: Path, scratch: Path, options: argparse.Namespace) -> None:
    packstore.convert(source, scratch / "cifar.pth", encoding="uint8", size=32)
    dataset = PackedDataset(scratch / "cifar.pth", "train", device=DEVICE)
    form: dict[str, Any] = {"shuffle": True, "resident": True}
    shift = [RandomCrop(32, padding=4), RandomHorizontalFlip()]
    augmented = PackedLoader(dataset, 512, augment=shift, normalize="cifar10", dtype=torch.float16, **form)
    plain = PackedLoader(dataset, 512, **form)
    jobs = {
        "crop, flip, float16": lambda: finished(lambda: drain(augmented)),
        "uint8 as it is": lambda: finished(lambda: drain(plain)),
    }
    seconds = interleaved(jobs, options.repeats)
    print(f"\n## An epoch of {len(dataset):,} CIFAR images, resident, batches of 512, shuffled\n")
    rows = [[name, f"{1000 * s:.2f}", f"{len(dataset) / s:,.0f}"] for name, s in seconds.items()]
    print(table(["", "milliseconds", "images/s"], rows))


def copies(dataset: PackedDataset, options: argparse.Namespace) -> None:
    count, shape = options.batches, (options.batch_size, *dataset.manifest.image.shape)
    host = torch.ones(shape, dtype=torch.uint8).pin_memory()
    there = torch.empty_like(host, device=DEVICE)
    ring = Ring(transport_to(DEVICE), 3)

    def bare() -> None:
        for _ in range(count):
            there.copy_(host, non_blocking=True)

    def by_ring() -> None:
        for _ in range(count):
            slot = ring.acquire()
            assert slot is not None
            buffer = ring.get_buffer(slot, 0, shape, torch.uint8)
            slot.shipment = ring.transport.send((buffer,), lambda tensors: tensors[0])
            ring.release(slot, slot.shipment.receive())

    repeated = np.resize(np.arange(len(dataset)), count * options.batch_size)
    loader = PackedLoader(dataset, options.batch_size, indices=repeated, resident=False)
    jobs = {
        "plain copies": lambda: finished(bare),
        "the ring": lambda: finished(by_ring),
        "streaming from the store": lambda: finished(lambda: drain(loader)),
    }
    seconds = interleaved(jobs, options.repeats)
    print(f"\n## {count} batches of {options.batch_size} x {shape[1]} x {shape[2]} x 3 bytes to the device\n")
    rows = [
        [name, f"{count * host.nbytes / s / 1e9:.1f}", f"{seconds['plain copies'] / s:.2f}"]
        for name, s in seconds.items()
    ]
    print(table(["", "GB/s", "of plain copies"], rows))
    steps(loader, there, seconds["plain copies"] / count, options)


def steps(loader: PackedLoader, batch: torch.Tensor, copy: float, options: argparse.Namespace) -> None:
    weights = torch.randn(options.width, options.width, dtype=torch.float16, device=DEVICE)
    torch.matmul(weights, weights)
    one = finished(lambda: [torch.matmul(weights, weights) for _ in range(10)]) / 10
    products = max(1, min(1000, round(5 * copy / one)))

    def step(images: torch.Tensor) -> torch.Tensor:
        total = images[:, 0, 0].float().sum()
        for _ in range(products):
            total = total + torch.matmul(weights, weights)[0, 0]
        return total

    def train(batches: Iterable[Any], wait: bool) -> None:
        for images, *_ in batches:
            loss = step(images)
            if wait:
                loss.item()

    given = [(batch,)] * len(loader)
    jobs = {
        "a batch that is there": lambda: finished(lambda: train(given, False)),
        "the loader's": lambda: finished(lambda: train(loader, False)),
        "a batch that is there, item()": lambda: finished(lambda: train(given, True)),
        "the loader's, item()": lambda: finished(lambda: train(loader, True)),
    }
    seconds = interleaved(jobs, options.repeats)
    print(f"\n## Steps of {products} products of {options.width} x {options.width}, float16\n")
    names = list(seconds)
    rows = [
        [name, f"{1000 * seconds[name] / len(loader):.3f}", f"{seconds[name] / seconds[names[place // 2 * 2]]:.3f}"]
        for place, name in enumerate(names)
    ]
    print(table(["", "milliseconds a step", "of a batch that is there"], rows))
    trace("steps", lambda: train(loader, False), options)


def trace(name: str, function: Callable[[], object], options: argparse.Namespace) -> None:
    """Writes what ``function`` does as a Chrome trace, if it is wanted."""
    if options.trace:
        options.trace.mkdir(parents=True, exist_ok=True)
        with torch.profiler.profile() as profile:
            finished(function)
        profile.export_chrome_trace(str(options.trace / f"{name}.json.gz"))


def training(store: Path, options: argparse.Namespace) -> None:
    torchvision()
    from torchvision import models, transforms
    from torchvision.datasets import ImageFolder

    torch.backends.cudnn.benchmark = True
    batch_size, count = options.batch_size, options.steps * options.batch_size
    dataset = PackedDataset(store, device=DEVICE)
    crop: dict[str, Any] = {"augment": [RandomResizedCrop(224), RandomHorizontalFlip()], "normalize": "imagenet"}
    repeated = np.resize(np.arange(len(dataset)), count)
    packed = PackedLoader(
        dataset, batch_size, shuffle=True, indices=repeated, resident=False, channels_last=True, **crop
    )
    normal = [transforms.ToTensor(), transforms.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])]
    files = ImageFolder(
        options.images,
        transforms.Compose([transforms.RandomResizedCrop(224), transforms.RandomHorizontalFlip(), *normal]),
    )
    by_torch: DataLoader[Any] = DataLoader(
        files,
        batch_size,
        sampler=RandomSampler(files, replacement=True, num_samples=count),
        num_workers=options.workers,
        pin_memory=True,
        persistent_workers=True,
    )
    given = [next(iter(packed))] * options.steps
    for name in options.models:
        model = getattr(models, name)().to(DEVICE, memory_format=torch.channels_last)
        optimizer = torch.optim.SGD(model.parameters(), 1e-3, momentum=0.9)

        def train(batches: Iterable[Any], model: Any = model, optimizer: Any = optimizer) -> None:
            for images, labels in batches:
                images = images.to(DEVICE, memory_format=torch.channels_last, non_blocking=True)
                with torch.autocast("cuda", torch.bfloat16):
                    loss = cross_entropy(model(images), labels.to(DEVICE, non_blocking=True))
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()

        def rate(batches: Iterable[Any], train: Callable[[Iterable[Any]], None] = train) -> float:
            """Seconds for an image, once each worker has brought a batch: processes take long to start."""
            others = iter(batches)
            for _ in range(options.workers):
                next(others)
            return finished(lambda: train(others)) / (count - options.workers * batch_size)

        jobs = {
            "a batch that is there": lambda rate=rate: rate(given),
            "PackedLoader": lambda rate=rate: rate(packed),
            f"ImageFolder and DataLoader, {options.workers} workers": lambda rate=rate: rate(by_torch),
        }
        seconds = interleaved(jobs, options.repeats)
        print(f"\n## Training {name}, {options.steps} batches of {batch_size} crops of JPEG files, bfloat16\n")
        first = next(iter(seconds.values()))
        print(
            table(
                ["", "images/s", "of a batch that is there"],
                [[n, f"{1 / s:,.0f}", f"{first / s:.3f}"] for n, s in seconds.items()],
            )
        )
        trace(name, lambda train=train: train(packed), options)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=Path, required=True)
    parser.add_argument("--cifar", type=Path, required=True)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--batches", type=int, default=100)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--width", type=int, default=4096, help="of the matrices")
    parser.add_argument("--models", nargs="*", default=["resnet50"], metavar="NAME", help="of torchvision")
    parser.add_argument("--steps", type=int, default=60, help="of training, more than there are workers")
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)), help="of the DataLoader")
    parser.add_argument("--trace", type=Path, metavar="FOLDER", help="write Chrome traces here")
    options = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        parser.error("torch finds no CUDA device here; packstore doctor says why")
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        resident(options.cifar, scratch, options)
        packstore.convert(options.images, scratch / "images.lmdb", encoding="uint8", size=options.size)
        names = [split.name for split in packstore.open(scratch / "images.lmdb").manifest.splits]
        copies(PackedDataset(scratch / "images.lmdb", names[0] if names else None, device=DEVICE), options)
        if options.models:
            packstore.convert(options.images, scratch / "files.lmdb")
            training(scratch / "files.lmdb", options)
    device = f"{torch.cuda.get_device_name(0)}, CUDA {torch.version.cuda}"
    print(f"\nmedians of {options.repeats}; {machine()}, torch {torch.__version__}, {device}")


if __name__ == "__main__":
    main()
