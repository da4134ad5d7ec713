#!/usr/bin/env python3
"""Trains a small network on CIFAR-10 by torchvision's loader and by packstore's: test accuracies should agree.

    .venv/bin/python tools/bench/accuracy.py IMAGES [--seeds 5] [--train 10000] [--test 10000] [--epochs 6]
        [--threads 1] [--only NAME …]

IMAGES is CIFAR-10 as image files, `train/CLASS/*.jpg` and `test/CLASS/*.jpg`: a folder, or a tar archive of one. Each
list of augmentations is trained once a seed by each loader, from the same weights: torchvision's `ImageFolder` and
`transforms.v2` in a DataLoader, and the same files packed. Prints a table, and exits 1 if mean accuracies differ by
more than two standard errors of their difference. By chance one list in 12 does so with five seeds: then more tell.
"""

from __future__ import annotations

import argparse
import itertools
import math
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, variance
from typing import Any

import torch
from common import machine, table
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import packstore
from packstore import PackedDataset, PackedLoader
from packstore import augment as A  # noqa: N812
from packstore.images.reading import parse_normalization
from tests.makers.torchvision import import_torchvision

BATCH, RATE, ALPHA = 128, 0.2, 0.2
CIFAR10 = parse_normalization("cifar10")
FILL = tuple(round(255 * value) for value in CIFAR10.mean)
"""The colour that is 0 after normalisation, which torchvision's RandomErasing puts in."""

Batches = Callable[[], Iterable[tuple[torch.Tensor, torch.Tensor]]]
"""Makes the batches of the next epoch: normalised images, and labels or shares of classes."""


@dataclass(frozen=True)
class Comparison:
    """Test accuracies of the same trainings by two loaders, one a seed."""

    theirs: list[float]
    ours: list[float]

    @property
    def difference(self) -> float:
        return mean(self.ours) - mean(self.theirs)

    @property
    def error(self) -> float:
        """Standard error of the difference."""
        return math.sqrt(sum(variance(each) / len(each) for each in (self.theirs, self.ours)))

    @property
    def agrees(self) -> bool:
        return abs(self.difference) <= 2 * self.error


def augmentations() -> dict[str, dict[str, Any]]:
    """Options of a PackedLoader, by name."""
    crop = [A.RandomCrop(32, padding=4), A.RandomHorizontalFlip()]
    trivial = [*crop, A.TrivialAugmentWide(), A.RandomErasing(0.5, value=FILL)]
    return {
        "crop and flip": {"augment": crop},
        "TrivialAugment and erasing": {"augment": trivial},
        "mixup": {"augment": crop, "mix": A.MixUp(ALPHA)},
    }


def their_transforms(name: str) -> Any:
    """The same in torchvision's words, for one image."""
    from torchvision.transforms import v2

    chain: list[Any] = [v2.RandomCrop(32, padding=4), v2.RandomHorizontalFlip()]
    if name == "TrivialAugment and erasing":
        chain.append(v2.TrivialAugmentWide())
    chain += [v2.PILToTensor(), v2.ToDtype(torch.float32, scale=True), v2.Normalize(CIFAR10.mean, CIFAR10.std)]
    if name == "TrivialAugment and erasing":
        chain.append(v2.RandomErasing(0.5))
    return v2.Compose(chain)


def their_batches(images: Path, name: str, seed: int) -> Batches:
    from torchvision import datasets
    from torchvision.transforms import v2

    folder = datasets.ImageFolder(str(images / "train"), their_transforms(name))
    order = torch.Generator().manual_seed(seed)
    loader = torch.utils.data.DataLoader(folder, BATCH, shuffle=True, drop_last=True, generator=order)
    if name != "mixup":
        return lambda: loader
    mixup = v2.MixUp(alpha=ALPHA, num_classes=len(folder.classes))
    return lambda: (mixup(*batch) for batch in loader)


def our_batches(store: Path, name: str, seed: int, threads: int) -> Batches:
    dataset = PackedDataset(store, "train")
    loader = PackedLoader(
        *(dataset, BATCH, True), seed=seed, drop_last=True, workers=threads, normalize=CIFAR10, **augmentations()[name]
    )
    return lambda: loader


def network() -> nn.Module:
    layers: list[nn.Module] = []
    for before, after, stride in ((3, 16, 1), (16, 32, 2), (32, 64, 2)):
        layers += [nn.Conv2d(before, after, 3, stride, 1, bias=False), nn.BatchNorm2d(after), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(4 * 64, 10))


def train(batches: Batches, steps: int, epochs: int, seed: int, test: tuple[torch.Tensor, torch.Tensor]) -> float:
    """Trains a network from the weights of ``seed``; returns its share of right answers on ``test``."""
    torch.manual_seed(seed)
    model = network().to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), RATE, momentum=0.9, nesterov=True, weight_decay=5e-4)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, total_steps=epochs * steps)
    for _ in range(epochs):
        for images, labels in batches():
            loss = nn.functional.cross_entropy(model(images.contiguous(memory_format=torch.channels_last)), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    model.eval()
    with torch.no_grad():
        right = [
            (model(images).argmax(1) == labels)
            for images, labels in zip(*(each.split(500) for each in test), strict=True)
        ]
    return torch.cat(right).double().mean().item()


def take_images(source: Path, out: Path, counts: dict[str, int]) -> None:
    """Extracts, or links, the first images of each split, as many of each class."""
    if source.is_dir():
        names = [path.relative_to(source).as_posix() for path in sorted(source.glob("*/*/*"))]
    else:
        with tarfile.open(source) as tar:
            names = sorted(member.name for member in tar if member.isfile())
    chosen = set()
    for split, count in counts.items():
        classes = itertools.groupby((n for n in names if n.startswith(f"{split}/")), lambda n: n.split("/")[1])
        found = [list(itertools.islice(group, -(-count // 10))) for _, group in classes]
        chosen.update(itertools.chain(*found))
    if source.is_dir():
        for name in chosen:
            (out / name).parent.mkdir(parents=True, exist_ok=True)
            (out / name).symlink_to(source.resolve() / name)
        return
    with tarfile.open(source) as tar:
        tar.extractall(out, (member for member in tar if member.name in chosen), filter="data")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("images", type=Path)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--train", type=int, default=10_000, help="images to train on")
    parser.add_argument("--test", type=int, default=10_000, help="images to test on")
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--only", nargs="*", choices=augmentations(), default=list(augmentations()))
    given = parser.parse_args()
    if given.seeds < 2:
        parser.error("--seeds: one training a loader says nothing of how much accuracies vary; take two or more")
    import_torchvision()
    torch.set_num_threads(given.threads)
    rows, agree = [], True
    with tempfile.TemporaryDirectory() as place:
        images, store = Path(place) / "images", Path(place) / "cifar.lmdb"
        take_images(given.images, images, {"train": given.train, "test": given.test})
        packstore.convert(images, store)
        testing = PackedDataset(store, "test")
        test = next(iter(PackedLoader(testing, len(testing), normalize=CIFAR10)))
        steps = len(PackedDataset(store, "train")) // BATCH
        for name in given.only:
            accuracies: dict[str, list[float]] = {"torchvision": [], "packstore": []}
            for seed in range(given.seeds):
                for loader, found in accuracies.items():
                    start = time.perf_counter()
                    batches = (
                        their_batches(images, name, seed)
                        if loader == "torchvision"
                        else our_batches(store, name, seed, given.threads)
                    )
                    found.append(train(batches, steps, given.epochs, seed, test))
                    spent = time.perf_counter() - start
                    print(f"{name}, {loader}, seed {seed}: {found[-1]:.2%} in {spent:.0f} s", file=sys.stderr)
            compared = Comparison(accuracies["torchvision"], accuracies["packstore"])
            agree &= compared.agrees
            shares = [f"{mean(found):.2%} ± {math.sqrt(variance(found)):.2%}" for found in accuracies.values()]
            verdict = "yes" if compared.agrees else "NO"
            rows.append((name, *shares, f"{compared.difference:+.2%}", f"{2 * compared.error:.2%}", verdict))
    print(machine())
    print(f"{given.seeds} seeds, {given.train} images, {given.epochs} epochs; mean and deviation of test accuracies\n")
    print(table(("augmentations", "torchvision", "packstore", "difference", "two standard errors", "agree"), rows))
    sys.exit(not agree)


if __name__ == "__main__":
    main()
