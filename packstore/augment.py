"""Augmentations in torchvision's words: the public names of :mod:`packstore.training.augment`."""

from packstore.training.augment import *  # noqa: F403
from packstore.training.augment import __all__ as __all__
