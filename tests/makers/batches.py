"""Operations for tests of the loader, and comparisons of its batches."""

from __future__ import annotations

from typing import Any

import torch

from packstore.training.augment import Cutout, RandomCrop, RandomHorizontalFlip, RandomResizedCrop

RAGGED = [RandomResizedCrop(32), RandomHorizontalFlip()]
FIXED = [RandomCrop(32, padding=4), RandomHorizontalFlip(), Cutout(8)]


def joined(batches: list[Any]) -> list[torch.Tensor]:
    """Returns each column of all batches as one tensor."""
    return [torch.cat(parts) for parts in zip(*batches, strict=True)]


def same(a: list[Any], b: list[Any]) -> bool:
    """Tells if two lists of batches are equal."""
    return len(a) == len(b) and all(
        torch.equal(x, y) for one, two in zip(a, b, strict=True) for x, y in zip(one, two, strict=True)
    )
