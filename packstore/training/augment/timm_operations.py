"""The operations of timm's policies: their codes, and their parameters by the magnitude."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packstore.images.programs import Code
from packstore.training.augment.base import Size
from packstore.training.augment.matrices import inverse_rotation

Floats = NDArray[np.float64]

_BLUR_KERNEL = 15
"""Side of the kernel that approximates Pillow's blur, of a deviation of at most 2."""

ParameterWriter = Callable[[Any, Floats, Floats, Size, NDArray[np.int32], Floats], None]
"""Writes parameters into steps ``(N,)``.

Arguments: the steps; magnitudes as shares of 10; signs, -1 or 1; height and width of the images; flags of warps;
uniform numbers."""


def _write_factor(steps: Any, part: Floats, sign: Floats, size: Size, flags: Any, uniform: Floats) -> None:
    """Writes factors that grow with the magnitude from 0.1 to 1.9."""
    steps["p"][:, 0] = part * 1.8 + 0.1  # timm ignores the sign, too


def _write_growing_factor(steps: Any, part: Floats, sign: Floats, size: Size, flags: Any, uniform: Floats) -> None:
    """Writes factors ``1 ± 0.9 * magnitude``, but none below 0.1."""
    steps["p"][:, 0] = np.maximum(0.1, 1 + sign * part * 0.9)


def _write_nothing(steps: Any, part: Floats, sign: Floats, size: Size, flags: Any, uniform: Floats) -> None:
    """Writes nothing, for operations without parameters."""


def _write_posterize(steps: Any, part: Floats, sign: Floats, size: Size, flags: Any, uniform: Floats) -> None:
    """Writes numbers of kept bits, from 0 up for larger magnitudes."""
    steps["p"][:, 0] = np.trunc(part * 4).clip(0, 8)


def _write_growing_posterize(steps: Any, part: Floats, sign: Floats, size: Size, flags: Any, uniform: Floats) -> None:
    """Writes numbers of kept bits, from 4 down for larger magnitudes."""
    steps["p"][:, 0] = (4 - np.trunc(part * 4)).clip(0, 8)


def _write_original_posterize(steps: Any, part: Floats, sign: Floats, size: Size, flags: Any, uniform: Floats) -> None:
    """Writes numbers of kept bits, from 4 up for larger magnitudes, as in AutoAugment's paper."""
    steps["p"][:, 0] = (4 + np.trunc(part * 4)).clip(0, 8)


def _write_solarize(steps: Any, part: Floats, sign: Floats, size: Size, flags: Any, uniform: Floats) -> None:
    """Writes thresholds, higher for larger magnitudes, which invert fewer values."""
    steps["p"][:, 0] = np.trunc(part * 256).clip(max=256)


def _write_growing_solarize(steps: Any, part: Floats, sign: Floats, size: Size, flags: Any, uniform: Floats) -> None:
    """Writes thresholds, lower for larger magnitudes, which invert more values."""
    steps["p"][:, 0] = 256 - np.trunc(part * 256).clip(max=256)


def _write_solarize_add(steps: Any, part: Floats, sign: Floats, size: Size, flags: Any, uniform: Floats) -> None:
    """Writes numbers to add, which grow with the magnitude, and the threshold 128."""
    steps["p"][:, 0], steps["p"][:, 1] = np.trunc(part * 110).clip(max=128), 128


def _write_desaturation(steps: Any, part: Floats, sign: Floats, size: Size, flags: Any, uniform: Floats) -> None:
    """Writes factors of saturation, from 0.5 down to 0 for larger magnitudes."""
    steps["p"][:, 0] = (0.5 - 0.5 * part).clip(0, 1)


def _write_blur(steps: Any, part: Floats, sign: Floats, size: Size, flags: Any, uniform: Floats) -> None:
    """Writes the kernel's side, and deviations that grow with the magnitude from 0.1 to 2."""
    most = (0.1 + 1.9 * part).clip(0.1, 2.0)
    steps["p"][:, :2], steps["p"][:, 2:4] = _BLUR_KERNEL, most[:, None]


def _write_random_blur(steps: Any, part: Floats, sign: Floats, size: Size, flags: Any, uniform: Floats) -> None:
    """Writes the kernel's side, and random deviations up to a limit that grows with the magnitude."""
    # Between 0.1 and the limit, which is below 0.1 for magnitudes below 0.5.
    most = 0.1 + (2.0 * part.clip(0, 1) - 0.1) * uniform
    steps["p"][:, :2], steps["p"][:, 2:4] = _BLUR_KERNEL, most.clip(0.01)[:, None]


def _write_rotation(steps: Any, part: Floats, sign: Floats, size: Size, flags: Any, uniform: Floats) -> None:
    """Writes matrices of rotations by up to 30 degrees in either direction, and the flags of the warp."""
    steps["flags"], steps["p"][:, :6] = flags, inverse_rotation(len(part), sign * part * 30.0)


def _write_shear_x(steps: Any, part: Floats, sign: Floats, size: Size, flags: Any, uniform: Floats) -> None:
    """Writes matrices that shear rows by up to 0.3 in either direction."""
    _write_shear(steps, sign * part * 0.3, flags, 1, size[0])


def _write_shear_y(steps: Any, part: Floats, sign: Floats, size: Size, flags: Any, uniform: Floats) -> None:
    """Writes matrices that shear columns by up to 0.3 in either direction."""
    _write_shear(steps, sign * part * 0.3, flags, 3, size[1])


def _write_shear(steps: Any, factor: Floats, flags: Any, place: int, length: int) -> None:
    """Writes matrices that shear about the centre, and the flags of the warp."""
    p = steps["p"]
    # Matrices map the result to the source. Place 1 shears rows, and length is the height; place 3 columns, the width.
    p[:, 0] = p[:, 4] = 1
    p[:, place], p[:, 2 if place == 1 else 5] = factor, factor * length / 2
    steps["flags"] = flags


def _write_translation_x(steps: Any, part: Floats, sign: Floats, size: Size, flags: Any, uniform: Floats) -> None:
    """Writes translations by up to 0.45 of the width in either direction."""
    _write_translation(steps, sign * part * 0.45 * size[1], flags, 2)


def _write_translation_y(steps: Any, part: Floats, sign: Floats, size: Size, flags: Any, uniform: Floats) -> None:
    """Writes translations by up to 0.45 of the height in either direction."""
    _write_translation(steps, sign * part * 0.45 * size[0], flags, 5)


def _write_translation(steps: Any, pixels: Floats, flags: Any, place: int) -> None:
    """Writes matrices that translate by ``pixels``, and the flags of the warp."""
    p = steps["p"]
    # Matrices map the result to the source: positive pixels move the picture left (place 2) or up (place 5).
    p[:, 0] = p[:, 4] = 1
    p[:, place], steps["flags"] = pixels, flags


OPERATIONS: dict[str, tuple[Code, ParameterWriter]] = {
    **{
        name + suffix: (code, make)
        for name, code in (
            ("Color", Code.SATURATION),
            ("Contrast", Code.CONTRAST),
            ("Brightness", Code.BRIGHTNESS),
            ("Sharpness", Code.SHARPNESS),
        )
        for suffix, make in (("", _write_factor), ("Increasing", _write_growing_factor))
    },
    "AutoContrast": (Code.AUTOCONTRAST, _write_nothing),
    "Equalize": (Code.EQUALIZE, _write_nothing),
    "Invert": (Code.INVERT, _write_nothing),
    "Posterize": (Code.POSTERIZE, _write_posterize),
    "PosterizeIncreasing": (Code.POSTERIZE, _write_growing_posterize),
    "PosterizeOriginal": (Code.POSTERIZE, _write_original_posterize),
    "Solarize": (Code.SOLARIZE, _write_solarize),
    "SolarizeIncreasing": (Code.SOLARIZE, _write_growing_solarize),
    "SolarizeAdd": (Code.SOLARIZE_ADD, _write_solarize_add),
    "Desaturate": (Code.SATURATION, _write_desaturation),
    "GaussianBlur": (Code.BLUR, _write_blur),
    "GaussianBlurRand": (Code.BLUR, _write_random_blur),
    "Rotate": (Code.AFFINE, _write_rotation),
    "ShearX": (Code.AFFINE, _write_shear_x),
    "ShearY": (Code.AFFINE, _write_shear_y),
    "TranslateXRel": (Code.AFFINE, _write_translation_x),
    "TranslateYRel": (Code.AFFINE, _write_translation_y),
}
"""Code of each of timm's operations, and the function that computes its parameters from the magnitude."""
