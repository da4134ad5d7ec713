"""Small data sets in the folders that torchvision's classes read, for those that need a name or a rule of their own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tests.makers.all_layouts import idx
from tests.makers.annotated import fill, jpeg

Files = dict[str, str | bytes]


def _gray(seed: int, side: int) -> Any:
    return np.random.default_rng(seed).integers(0, 256, (side, side), np.uint8)


def _numbered(*folders: str, count: int = 2, suffix: str = ".jpg") -> Files:
    """Images in folders, each another one; ``{n}`` in a folder is the number within it."""
    names = [folder.format(n=n) if "{n}" in folder else f"{folder}/{n}" for folder in folders for n in range(count)]
    return {f"{name}{suffix}": jpeg(seed) for seed, name in enumerate(names)}


def emnist(root: Path) -> None:
    for seed, (split, count) in enumerate((("train", 4), ("test", 2))):
        images = np.stack([_gray(10 * seed + n, 28) for n in range(count)])
        base = f"EMNIST/raw/emnist-letters-{split}"
        fill(root, {f"{base}-images-idx3-ubyte": idx(images)})
        fill(root, {f"{base}-labels-idx1-ubyte": idx(np.arange(1, 1 + count, dtype=np.uint8))})


def fer2013(root: Path) -> None:
    rows = "emotion,pixels,Usage\n"
    for n in range(5):
        rows += f"{n},{' '.join(map(str, _gray(n, 48).ravel()))},{'PublicTest' if n > 2 else 'Training'}\n"
    fill(root, {"fer2013/fer2013.csv": rows})


def imagenet(root: Path) -> None:
    import torch

    fill(root, _numbered(*(f"{split}/{kind}" for split in ("train", "val") for kind in ("n01", "n02"))))
    torch.save(({"n01": ("crane",), "n02": ("crane",)}, []), root / "meta.bin")


SETS: Mapping[
    str, tuple[Callable[[Path], None], Mapping[str, int], Mapping[str, Mapping[str, Any]], tuple[str, ...] | None]
] = {
    "EMNIST,split=letters": (
        emnist,
        {"train": 4, "test": 2},
        {split: {"split": "letters", "train": split == "train"} for split in ("train", "test")},
        ("N/A", *"abcdefghijklmnopqrstuvwxyz"),
    ),
    "FER2013": (fer2013, {"train": 3, "test": 2}, {split: {"split": split} for split in ("train", "test")}, None),
    "ImageNet": (
        imagenet,
        {"train": 4, "val": 4},
        {split: {"split": split} for split in ("train", "val")},
        ("crane (0)", "crane (1)"),
    ),
}
"""Datasets with arguments: maker, records by split, the arguments of each split, and names of the classes."""
