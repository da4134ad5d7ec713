"""Augmentations in torchvision's words, for whole batches, with random numbers that depend only on the record.

An operation works on a batch of a loader's images, on any device. Geometric operations can also be planned for images
of any sizes: then only the pixels that they show are decoded and resized. Most other operations draw a program, which
the engine can run on each image while it is in the cache. Either way the same seed gives the same images.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from packstore.training.augment.albumentations import Albumentations
    from packstore.training.augment.base import Operation
    from packstore.training.augment.colour import (
        ColorJitter,
        GaussianBlur,
        GaussianNoise,
        Grayscale,
        RandomAdjustSharpness,
        RandomAutocontrast,
        RandomChannelPermutation,
        RandomEqualize,
        RandomGrayscale,
        RandomInvert,
        RandomPhotometricDistort,
        RandomPosterize,
        RandomSolarize,
    )
    from packstore.training.augment.erasing import Cutout, Masking, RandomErasing, RandomMasking
    from packstore.training.augment.geometry import (
        CenterCrop,
        RandomCrop,
        RandomHorizontalFlip,
        RandomResizedCrop,
        Resize,
    )
    from packstore.training.augment.logic import Compose, RandomApply, RandomChoice, RandomOrder
    from packstore.training.augment.mixing import BatchMixer, CutMix, MixedLabels, MixUp
    from packstore.training.augment.mosaic import Mosaic
    from packstore.training.augment.per_image import PerImage
    from packstore.training.augment.policies import AugMix, AutoAugment, RandAugment, ThreeAugment, TrivialAugmentWide
    from packstore.training.augment.recipes import RECIPES, Recipe, recipe
    from packstore.training.augment.sizes import (
        Pad,
        RandomIoUCrop,
        RandomResize,
        RandomShortestSize,
        RandomSizeCrop,
        RandomZoomOut,
        ScaleJitter,
    )
    from packstore.training.augment.steps import InPlace
    from packstore.training.augment.timm_policies import TimmAugment
    from packstore.training.augment.views import RASampler
    from packstore.training.augment.warps import RandomAffine, RandomPerspective, RandomRotation, RandomVerticalFlip
    from packstore.training.random_draws import Draws

_MODULES = {
    name: module
    for module, names in {
        "augment.albumentations": "Albumentations",
        "augment.base": "Operation",
        "augment.colour": "ColorJitter GaussianBlur GaussianNoise Grayscale RandomAdjustSharpness "
        "RandomAutocontrast RandomChannelPermutation RandomEqualize RandomGrayscale RandomInvert "
        "RandomPhotometricDistort RandomPosterize RandomSolarize",
        "augment.erasing": "Cutout Masking RandomErasing RandomMasking",
        "augment.geometry": "CenterCrop RandomCrop RandomHorizontalFlip RandomResizedCrop Resize",
        "augment.logic": "Compose RandomApply RandomChoice RandomOrder",
        "augment.mixing": "BatchMixer CutMix MixedLabels MixUp",
        "augment.mosaic": "Mosaic",
        "augment.per_image": "PerImage",
        "augment.policies": "AugMix AutoAugment RandAugment ThreeAugment TrivialAugmentWide",
        "augment.recipes": "RECIPES Recipe recipe",
        "augment.sizes": "Pad RandomIoUCrop RandomResize RandomShortestSize RandomSizeCrop RandomZoomOut ScaleJitter",
        "augment.steps": "InPlace",
        "augment.timm_policies": "TimmAugment",
        "augment.views": "RASampler",
        "augment.warps": "RandomAffine RandomPerspective RandomRotation RandomVerticalFlip",
        "random_draws": "Draws",
    }.items()
    for name in names.split()
}
"""Module of each name below ``packstore.training``; it is imported when the name is first used."""

__all__ = [
    "RECIPES",
    "Albumentations",
    "AugMix",
    "AutoAugment",
    "BatchMixer",
    "CenterCrop",
    "ColorJitter",
    "Compose",
    "CutMix",
    "Cutout",
    "Draws",
    "GaussianBlur",
    "GaussianNoise",
    "Grayscale",
    "InPlace",
    "Masking",
    "MixUp",
    "MixedLabels",
    "Mosaic",
    "Operation",
    "Pad",
    "PerImage",
    "RASampler",
    "RandAugment",
    "RandomAdjustSharpness",
    "RandomAffine",
    "RandomApply",
    "RandomAutocontrast",
    "RandomChannelPermutation",
    "RandomChoice",
    "RandomCrop",
    "RandomEqualize",
    "RandomErasing",
    "RandomGrayscale",
    "RandomHorizontalFlip",
    "RandomInvert",
    "RandomIoUCrop",
    "RandomMasking",
    "RandomOrder",
    "RandomPerspective",
    "RandomPhotometricDistort",
    "RandomPosterize",
    "RandomResize",
    "RandomResizedCrop",
    "RandomRotation",
    "RandomShortestSize",
    "RandomSizeCrop",
    "RandomSolarize",
    "RandomVerticalFlip",
    "RandomZoomOut",
    "Recipe",
    "Resize",
    "ScaleJitter",
    "ThreeAugment",
    "TimmAugment",
    "TrivialAugmentWide",
    "recipe",
]


def __getattr__(name: str) -> Any:
    """Imports a name on first use, and keeps it."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"packstore.training.{_MODULES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
