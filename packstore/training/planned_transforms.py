"""Transforms of torchvision on planned images: the user's objects draw, and the image notes what to do.

Pixels equal those of torchvision with PIL images: bit for bit, but for blurring, where at most one value in 10,000
differs by 1 because torch sums in another order. Transforms that are not here call methods of the image.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageEnhance
from PIL.Image import Resampling, Transpose

from packstore.images.programs import AS_PILLOW, MOST_KERNEL, Code
from packstore.training.planned_images import PlannedImage, plan_pixels

_FILTERS = {way.name.lower(): way for way in Resampling}
_OF_FACTORS = (Code.BRIGHTNESS, Code.CONTRAST, Code.SATURATION)


def call_transform(transform: Any, image: Any) -> Any:
    """Calls a transform of torchvision with an image. Only plans what it does if it is known, and the image is one of
    PIL."""
    name = type(transform).__name__
    planned = image if isinstance(image, PlannedImage) and not image.is_made else None
    if planned is not None and name in _MOVES:
        return _MOVES[name](transform, planned)
    if name not in _COLOURS or not isinstance(image, Image.Image) or image.mode != "RGB" or not is_like_pillow():
        return transform(image)
    planned = planned or plan_pixels(np.asarray(image))
    return transform(image) if planned.is_tensor else _COLOURS[name](transform, planned)


# The first two do what torchvision's own do: its functions in between take a third of the time of planning.


def _crop_and_resize(transform: Any, image: PlannedImage) -> Any:
    way = _FILTERS.get(getattr(transform.interpolation, "value", transform.interpolation))
    if way is None or image.is_tensor:
        return transform(image)
    top, left, height, width = transform.get_params(image, transform.scale, transform.ratio)
    return image.resize_crop(top, left, height, width, tuple(transform.size), way)


def _mirror(transform: Any, image: PlannedImage) -> Image.Image:
    return image.transpose(Transpose.FLIP_LEFT_RIGHT) if torch.rand(1) < transform.p else image


def _jitter(transform: Any, image: PlannedImage) -> PlannedImage:
    order, *values = transform.get_params(transform.brightness, transform.contrast, transform.saturation, transform.hue)
    for number in order.tolist():
        value = values[number]
        if value is not None and number < 3:
            image = image.recolour(_OF_FACTORS[number], value, flags=AS_PILLOW)
        elif value is not None:
            image = _turn_hue(image, value)
    return image


def _turn_hue(image: PlannedImage, shift: float) -> PlannedImage:
    if not -0.5 <= shift <= 0.5:
        raise ValueError(f"a shift of the hue should be -0.5 to 0.5, got {shift}")
    return image.recolour(Code.HUE, shift, int(shift * 255) & 255, flags=AS_PILLOW)


def _gray_at_random(transform: Any, image: PlannedImage) -> PlannedImage:
    return _make_gray(transform, image) if torch.rand(1) < transform.p else image


def _make_gray(transform: Any, image: PlannedImage) -> Any:
    if getattr(transform, "num_output_channels", 3) != 3:
        return transform(image)
    return image.recolour(Code.GRAY, flags=AS_PILLOW)


def _blur(transform: Any, image: PlannedImage) -> Any:
    width, height = transform.kernel_size
    if max(width, height) > MOST_KERNEL or width // 2 >= image.width or height // 2 >= image.height:
        return transform(image)
    sigma = transform.get_params(*transform.sigma)
    return image.recolour(Code.BLUR, width, height, sigma, sigma)


_MOVES = {"RandomResizedCrop": _crop_and_resize, "RandomHorizontalFlip": _mirror}
_COLOURS = {"ColorJitter": _jitter, "RandomGrayscale": _gray_at_random, "Grayscale": _make_gray, "GaussianBlur": _blur}

COLOUR_TRANSFORMS = {*_COLOURS}
"""Names of the transforms of colours that the engine does."""


@functools.cache
def is_like_pillow() -> bool:
    """Tells if the engine changes colours as this Pillow does, which on some processors rounds otherwise."""
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8)
    image, planned = Image.fromarray(noise), plan_pixels(noise)
    hue, *others = image.convert("HSV").split()
    turned = Image.merge("HSV", (Image.fromarray(np.asarray(hue) + np.uint8(25)), *others)).convert("RGB")
    pairs = [
        (planned.recolour(Code.HUE, 0.1, 25, flags=AS_PILLOW), turned),
        (planned.recolour(Code.GRAY, flags=AS_PILLOW), image.convert("L").convert("RGB")),
    ]
    enhancers = (ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color)
    for code, enhancer in zip(_OF_FACTORS, enhancers, strict=True):
        for factor in (0.7, 1.3):
            pairs.append((planned.recolour(code, factor, flags=AS_PILLOW), enhancer(image).enhance(factor)))
    return all(np.array_equal(np.asarray(found), np.asarray(expected)) for found, expected in pairs)
