"""Augmentations in torchvision's words: the public names of :mod:`packstore.training.augment`."""

from packstore.core.errors import WITHOUT_TORCH as _WITHOUT_TORCH

try:
    from packstore.training.augment import *  # noqa: F403
    from packstore.training.augment import __all__ as __all__
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    raise ModuleNotFoundError(f"packstore.augment {_WITHOUT_TORCH}", name="torch") from None
