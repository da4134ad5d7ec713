"""Colour transforms of torchvision on planned images: the user's objects draw, and the engine changes the pixels.

Pixels equal those of torchvision with PIL images: bit for bit, but for blurring, where at most one value in 10,000
differs by 1 because torch sums in another order.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageEnhance

from packstore.images.programs import AS_PILLOW, MOST_KERNEL, Code
from packstore.training.planned_images import PlannedImage, plan_pixels

_OF_FACTORS = (Code.BRIGHTNESS, Code.CONTRAST, Code.SATURATION)


def change_colours(transform: Any, name: str, image: Any) -> Any:
    """Calls a transform of torchvision with a PIL image. Plans what it does if its class, called ``name``, is known."""
    if not isinstance(image, Image.Image) or image.mode != "RGB" or name not in _CHANGES or not is_like_pillow():
        return transform(image)
    if not isinstance(image, PlannedImage) or image.is_made:
        image = plan_pixels(np.asarray(image))
    return transform(image) if image.is_tensor else _CHANGES[name](transform, image)


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


_CHANGES = {"ColorJitter": _jitter, "RandomGrayscale": _gray_at_random, "Grayscale": _make_gray, "GaussianBlur": _blur}

COLOUR_TRANSFORMS = {*_CHANGES}
"""Names of the transforms that the engine does."""


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
