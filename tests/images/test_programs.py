"""Programs in the engine give torchvision's pixels for the same parameters."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import packstore.images.engine
from packstore.images.engine.native import Engine, _library, engine_problem
from packstore.images.programs import INTERPOLATIONS, STEP, Code, Program, step, warp_flags
from tests.makers.torchvision import import_torchvision

pytestmark = pytest.mark.skipif(engine_problem() is not None, reason=f"no engine: {engine_problem()}")

Images = NDArray[np.uint8]

SIZES = [(1, 1), (1, 7), (2, 5), (7, 3), (32, 32), (61, 47), (224, 224), (2, 3000)]


@pytest.fixture(scope="module")
def functional() -> Any:
    return import_torchvision().transforms.v2.functional


def photos(count: int, height: int, width: int, seed: int = 0) -> Images:
    """Bytes with large structures and noise, all values among them, ``(count, height, width, 3)``."""
    generator = torch.Generator().manual_seed(seed)
    coarse = torch.randint(-40, 296, (count, 3, 4, 5), generator=generator).float()
    smooth = torch.nn.functional.interpolate(coarse, (height, width), mode="bilinear")
    noise = torch.randint(-20, 21, (count, 3, height, width), generator=generator)
    images = (smooth + noise).clamp(0, 255).to(torch.uint8).permute(0, 2, 3, 1)
    return np.ascontiguousarray(images.numpy())


def run(images: Images, program: Program, vectors: bool = True) -> Images:
    """The images after their programs."""
    library = _library()[0]
    assert library is not None
    result = images.copy()
    Engine(library, vectors).augment(result, program)
    return result


def by_torchvision(image: Images, each: Callable[[Any], Any]) -> Images:
    """Result of a function of torchvision on one image, given as its planes."""
    found: Images = each(torch.from_numpy(image).permute(2, 0, 1).contiguous()).permute(1, 2, 0).numpy()
    return found


def agree(found: Images, expected: Images, share: float = 0.0, most: int = 1) -> None:
    """At most ``share`` of the bytes differ, none by more than ``most``."""
    difference = np.abs(found.astype(int) - expected.astype(int))
    assert difference.max(initial=0) <= most
    assert (difference > 0).sum() <= (max(1, share * difference.size) if share else 0)


FACTORS = [float(np.float32(factor)) for factor in (0.0, 0.3, 0.999, 1.0, 1.4, 2.0, 5.0)]
"""As programs hold them."""

HUES = [float(np.float32(shift)) for shift in (-0.5, -0.1, 0.0, 0.07, 0.25, 0.5)]
CASES: list[tuple[str, Code, tuple[float, ...], Callable[[Any, Any], Any], float]] = [
    *(("brightness", Code.BRIGHTNESS, (f,), lambda F, i, f=f: F.adjust_brightness(i, f), 0) for f in FACTORS),
    *(("contrast", Code.CONTRAST, (f,), lambda F, i, f=f: F.adjust_contrast(i, f), 0.001) for f in FACTORS),
    *(("saturation", Code.SATURATION, (f,), lambda F, i, f=f: F.adjust_saturation(i, f), 0.001) for f in FACTORS),
    *(("sharpness", Code.SHARPNESS, (f,), lambda F, i, f=f: F.adjust_sharpness(i, f), 0.001) for f in FACTORS),
    *(("hue", Code.HUE, (f,), lambda F, i, f=f: F.adjust_hue(i, f), 0) for f in HUES),
    *(("posterize", Code.POSTERIZE, (n,), lambda F, i, n=n: F.posterize(i, n), 0) for n in range(9)),
    *(("solarize", Code.SOLARIZE, (n,), lambda F, i, n=n: F.solarize(i, n), 0) for n in (0, 1, 127.5, 128, 255)),
    ("gray", Code.GRAY, (), lambda F, i: F.rgb_to_grayscale(i, 3), 0),
    ("invert", Code.INVERT, (), lambda F, i: F.invert(i), 0),
    ("autocontrast", Code.AUTOCONTRAST, (), lambda F, i: F.autocontrast(i), 0),
    ("equalize", Code.EQUALIZE, (), lambda F, i: F.equalize(i), 0),
    ("permute", Code.PERMUTE, (2, 0, 1), lambda F, i: F.permute_channels(i, [2, 0, 1]), 0),
    ("mirror", Code.MIRROR, (), lambda F, i: F.horizontal_flip(i), 0),
    ("flip", Code.FLIP, (), lambda F, i: F.vertical_flip(i), 0),
]
"""Name, code, parameters, the function of torchvision, and the share of bytes that may differ by one.

Not exact is what torch adds up with one rounding in its vector instructions, and with two in what they leave over.
"""


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, (case[0], *case[2]))))
def test_steps_are_those_of_torchvision(functional: Any, case: Any, size: tuple[int, int]) -> None:
    _, code, parameters, function, share = case
    images = photos(3, *size)
    images[2] = images[2, :, :, :1]  # gray
    for found, image in zip(run(images, step(3, code, *parameters)), images, strict=True):
        agree(found, by_torchvision(image, lambda planes: function(functional, planes)), share)


@pytest.mark.slow
@pytest.mark.parametrize("code", [Code.GRAY, Code.SATURATION, Code.HUE], ids=lambda code: code.name.lower())
def test_every_colour_is_that_of_torchvision(functional: Any, code: Code) -> None:
    factor = float(np.float32(0.13 if code == Code.HUE else 1.4))
    functions = {
        Code.GRAY: lambda planes: functional.rgb_to_grayscale(planes, 3),
        Code.SATURATION: lambda planes: functional.adjust_saturation(planes, factor),
        Code.HUE: lambda planes: functional.adjust_hue(planes, factor),
    }
    green, blue = np.indices((256, 256), np.uint8)
    for red in range(256):
        image = np.stack([np.full_like(green, red), green, blue], 2)
        found = run(image[None], step(1, code, factor))[0]
        agree(found, by_torchvision(image, functions[code]))


@pytest.mark.parametrize("size", [(32, 32), (61, 47), (224, 224), (130, 1100)], ids=str)
@pytest.mark.parametrize("kernel", [(1, 1), (3, 3), (23, 23), (5, 9)], ids=str)
@pytest.mark.parametrize("sigma", [0.1, 0.8, 2.0, 10.0])
def test_blur_is_that_of_torchvision(functional: Any, kernel: Any, sigma: float, size: tuple[int, int]) -> None:
    images = photos(1, *size)
    found = run(images, step(1, Code.BLUR, *kernel, sigma, sigma * 0.7))[0]
    expected = by_torchvision(images[0], lambda planes: functional.gaussian_blur(planes, kernel, [sigma, sigma * 0.7]))
    agree(found, expected, 0.001)


def test_blur_reflects_images_smaller_than_its_kernel_again() -> None:
    images = photos(2, 3, 2)
    padded = np.pad(images, ((0, 0), (0, 0), (30, 30), (0, 0)), "reflect")
    padded = np.pad(padded, ((0, 0), (30, 30), (0, 0), (0, 0)), "reflect")
    program = step(2, Code.BLUR, 55, 57, 9, 8)
    assert (run(images, program) == run(padded, program)[:, 30:33, 30:32]).all()
    assert (run(photos(2, 1, 1), program) == photos(2, 1, 1)).all()


@pytest.mark.parametrize("size", [(1, 1), (32, 32), (61, 47), (224, 200)], ids=str)
@pytest.mark.parametrize("fill", [None, (7, 130, 255)], ids=str)
@pytest.mark.parametrize("interpolation", INTERPOLATIONS[:2])
def test_warps_are_those_of_torchvision(functional: Any, interpolation: str, fill: Any, size: tuple[int, int]) -> None:
    tv = import_torchvision()
    from torchvision.transforms.functional import _get_inverse_affine_matrix

    mode = tv.transforms.InterpolationMode(interpolation)
    named = {"fill": list(fill) if fill else None, "interpolation": mode}
    flags = warp_flags(INTERPOLATIONS.index(interpolation), fill)
    image = photos(1, *size)
    for angle, shift, scale, shear in [(0, 0, 1, 0), (33.3, 3, 0.7, 10), (-120, -5, 1.8, -20), (180, 1, 1.1, 5)]:
        matrix = _get_inverse_affine_matrix([0.0, 0.0], angle, [shift, -shift], scale, [shear, shear / 2])
        found = run(image, step(1, Code.AFFINE, *matrix, flags=flags))[0]
        expected = by_torchvision(
            image[0], lambda i: functional.affine(i, angle, [shift, -shift], scale, [shear, shear / 2], **named)
        )
        share_equal(found, expected, interpolation)
    height, width = size
    ends = [[0, 0], [width - 1, 0], [width - 1, height - 1], [0, height - 1]]
    starts = [[2, 3], [width - 4, 1], [width - 2, height - 5], [1, height - 2]]
    if min(size) > 1:
        from torchvision.transforms.functional import _get_perspective_coeffs

        coefficients = _get_perspective_coeffs(ends, starts)
        found = run(image, step(1, Code.PERSPECTIVE, *coefficients, flags=flags))[0]
        expected = by_torchvision(image[0], lambda i: functional.perspective(i, ends, starts, **named))
        share_equal(found, expected, interpolation)


def share_equal(found: Images, expected: Images, interpolation: str) -> None:
    """99.9% equal; by bilinear interpolation within 1 elsewhere."""
    difference = np.abs(found.astype(int) - expected.astype(int))
    assert (difference > (interpolation != "nearest")).sum() <= 0.001 * difference.size
    assert (difference > 0).sum() <= 0.01 * difference.size


def test_codes_are_those_of_the_engine() -> None:
    header = Path(packstore.images.engine.__file__).with_name("augment.h").read_text()
    names = re.findall(r"^    STEP_(\w+),?$", header, re.MULTILINE)
    assert {name: number for number, name in enumerate(names)} == {code.name: int(code) for code in Code}
    assert STEP.itemsize == 40
