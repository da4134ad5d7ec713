"""Augmentations in torchvision's words, for whole batches, with random numbers that depend on the record alone.

An operation works on a batch of a loader's images, on any device. Geometric ones can instead be planned for images of
any sizes, so that only the pixels they need are decoded and resized; most others draw a program, which the engine can
run on each image while it is in the cache. Either way the same seed gives the same images.
"""

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
from packstore.training.augment.detection import RandomIoUCrop, RandomSizeCrop, RandomZoomOut
from packstore.training.augment.erasing import Cutout, RandomErasing
from packstore.training.augment.flips import RandomHorizontalFlip
from packstore.training.augment.geometry import CenterCrop, RandomCrop, RandomResizedCrop, Resize
from packstore.training.augment.in_place import InPlace
from packstore.training.augment.logic import Compose, RandomApply, RandomChoice, RandomOrder
from packstore.training.augment.masking import Masking, RandomMasking
from packstore.training.augment.mixing import BatchMixer, CutMix, MixedLabels, MixUp
from packstore.training.augment.mosaic import Mosaic
from packstore.training.augment.per_image import PerImage
from packstore.training.augment.policies import AugMix, AutoAugment, RandAugment, ThreeAugment, TrivialAugmentWide
from packstore.training.augment.recipes import RECIPES, Recipe, recipe
from packstore.training.augment.repeated import RASampler
from packstore.training.augment.sizes import Pad, RandomResize, RandomShortestSize, ScaleJitter
from packstore.training.augment.timm_policies import TimmAugment
from packstore.training.augment.warps import RandomAffine, RandomPerspective, RandomRotation, RandomVerticalFlip
from packstore.training.random_draws import Draws

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
