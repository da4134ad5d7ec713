"""Augmentations in torchvision's words, for whole batches, with random numbers that depend on the record alone.

An operation works on a batch of a loader's images, on any device. Geometric ones can instead be planned for images of
any sizes, so that only the pixels they need are decoded and resized. Either way the same seed gives the same crops and
flips.
"""

from packstore.training.augment.base import Operation
from packstore.training.augment.geometry import CenterCrop, RandomCrop, RandomResizedCrop, Resize
from packstore.training.augment.in_place import InPlace
from packstore.training.augment.per_image import PerImage
from packstore.training.augment.pixels import Cutout, RandomHorizontalFlip
from packstore.training.random_draws import Draws

__all__ = [
    "CenterCrop",
    "Cutout",
    "Draws",
    "InPlace",
    "Operation",
    "PerImage",
    "RandomCrop",
    "RandomHorizontalFlip",
    "RandomResizedCrop",
    "Resize",
]
