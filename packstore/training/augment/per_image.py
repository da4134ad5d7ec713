"""Anybody's functions in a user's list: called image by image, or refused where they would treat a batch alike."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from packstore.core.errors import UsageError
from packstore.training.augment.base import Operation, Size
from packstore.training.augment.in_place import InPlace, named
from packstore.training.random_draws import Draws

_RANDOM = {
    "AugMix",
    "AutoAugment",
    "ColorJitter",
    "ElasticTransform",
    "RandAugment",
    "ScaleJitter",
    "TrivialAugmentWide",
}
_RANDOM_IN_A_RANGE = {"GaussianBlur": "sigma", "JPEG": "quality"}  # and the attribute that has the range
_RANDOM_EACH = {"GaussianNoise"}  # for each pixel of a batch, from torch's own generator
_OURS = {"RandomCrop", "RandomHorizontalFlip", "RandomResizedCrop"}


@dataclass(frozen=True, repr=False)
class PerImage(Operation):
    """Calls a function image by image, so that a random one draws for each image.

    torch's, numpy's and Python's own generators are seeded before each call, from seed, epoch, record and place in the
    list, and restored after the last. So the results do not depend on threads, ranks, mode or resuming.

    Args:
        fn: Called with a tensor ``(C, H, W)``; returns one, of the same shape for all images of a batch.

    Raises:
        UsageError: ``fn`` is not callable; (while iterating) it returns anything else.
    """

    fn: Callable[[Tensor], Tensor]

    def __post_init__(self) -> None:
        if not callable(self.fn):
            raise UsageError(f"PerImage calls a function with each image, got {self.fn!r}")

    def __repr__(self) -> str:
        return f"PerImage({named(self.fn)})"

    def size_after(self, size: Size | None) -> Size | None:
        return None

    def __call__(self, images: Tensor, draws: Draws) -> Tensor:
        seeds = draws.bits(0).tolist()
        cuda = [images.device] if images.device.type == "cuda" else []
        numpys, pythons = np.random.get_state(), random.getstate()
        results = []
        try:
            with torch.random.fork_rng(cuda):
                for image, seed in zip(images, seeds, strict=True):
                    torch.default_generator.manual_seed(seed)
                    for device in cuda:
                        with torch.cuda.device(device):
                            torch.cuda.manual_seed(seed)
                    np.random.seed(seed)
                    random.seed(seed)
                    results.append(self.fn(image.clone()))
        finally:
            np.random.set_state(numpys)
            random.setstate(pythons)
        for result in results:
            if not isinstance(result, Tensor) or result.shape != results[0].shape:
                found = tuple(result.shape) if isinstance(result, Tensor) else type(result).__name__
                raise UsageError(f"{self!r} should give tensors of one shape, and gave {found}")
        return torch.stack(results) if results else images


def as_operations(augment: Any) -> tuple[Any, ...]:
    """A user's ``augment=`` as a flat tuple: torchvision's ``Compose`` and ``nn.Sequential`` taken apart.

    Raises:
        UsageError: An operation of torchvision's draws random numbers; or this is no list of operations.
    """
    if _is_list(augment) or callable(augment):
        augment = [augment]
    if not isinstance(augment, Iterable):
        raise UsageError(f"augment should be a list of operations, got {augment!r}")
    flat: list[Any] = []
    for operation in augment:
        if _is_list(operation):
            parts = operation if isinstance(operation, torch.nn.Sequential) else operation.transforms
            flat += as_operations(list(parts))
        else:
            for part in parts_of(operation):
                _refuse_random(part)
            flat.append(operation)
    return tuple(flat)


def _is_list(operation: Any) -> bool:
    kind = type(operation)
    return kind is torch.nn.Sequential or (is_of_torchvision(kind) and kind.__name__ == "Compose")


def is_of_torchvision(kind: type) -> bool:
    """Whether a class is one of torchvision's transforms, of either version."""
    return kind.__module__.startswith("torchvision.transforms")


def parts_of(operation: Any) -> Iterator[Any]:
    """``operation`` and, where it is one of torchvision's that holds others (or a subclass) or :class:`InPlace`, all
    that it holds."""
    yield operation
    if isinstance(operation, InPlace):
        yield from parts_of(operation.fn)
    elif any(map(is_of_torchvision, type(operation).__mro__)):
        for part in getattr(operation, "transforms", ()):
            yield from parts_of(part)


def _refuse_random(operation: Any) -> None:
    """torchvision itself is not imported: its classes are known by name."""
    for kind in filter(is_of_torchvision, type(operation).__mro__):
        name = kind.__name__
        bounds = getattr(operation, _RANDOM_IN_A_RANGE.get(name, ""), None)
        ranged = isinstance(bounds, tuple | list) and len(set(bounds)) > 1
        if name.startswith("Random") or name in _RANDOM or ranged:
            fault = "would treat the whole batch alike"
        elif name in _RANDOM_EACH:
            fault = "would draw other numbers in each run, whatever the seed"
        else:
            continue
        ours = f"packstore.augment.{name}, " if name in _OURS else ""
        raise UsageError(f"torchvision's {name} {fault}; use {ours}augment.PerImage({name}(...)), or a DataLoader")
