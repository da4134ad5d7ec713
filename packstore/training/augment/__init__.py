"""Augmentations in torchvision's words, for whole batches, with random numbers that depend on the record alone.

An operation works on a batch of a loader's images, on any device. Geometry (:class:`Geometry`) can instead be planned
for images of any sizes, so that only the pixels it needs are decoded and resized. Either way the same seed gives the
same crops and flips.
"""

from packstore.training.augment.base import Crops, Geometry, Operation
from packstore.training.augment.crop import Padded
from packstore.training.augment.geometry import CenterCrop, RandomCrop, RandomResizedCrop, Resize
from packstore.training.augment.pipeline import apply_ops, cut_ops, output_size, plan_ops, render, split_ops
from packstore.training.augment.pixels import Cutout, RandomHorizontalFlip

__all__ = [
    "CenterCrop",
    "Crops",
    "Cutout",
    "Geometry",
    "Operation",
    "Padded",
    "RandomCrop",
    "RandomHorizontalFlip",
    "RandomResizedCrop",
    "Resize",
    "apply_ops",
    "cut_ops",
    "output_size",
    "plan_ops",
    "render",
    "split_ops",
]
