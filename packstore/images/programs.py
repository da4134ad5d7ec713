"""Programs: the operations to run on each image of a batch, with their random parameters already drawn.

A program is a structured array ``(B, n)`` of :data:`STEP`: image ``b`` goes through the steps ``program[b, 0]`` …
``program[b, n - 1]``. A program gives the same pixels wherever it runs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packstore.core import compiled

STEP = np.dtype(compiled.list_fields("step"))

Program = NDArray[np.void]
"""Structured ``(B, n)`` of :data:`STEP`."""


class Code(IntEnum):
    """Operations. ``packstore/images/engine/ops/program.h`` has the same numbers.

    ============= ====================================================================================================
    code          parameters ``p`` and ``flags``
    ============= ====================================================================================================
    IDENTITY      none; nothing changes
    BRIGHTNESS    p[0]: factor
    CONTRAST      p[0]: factor; flags :data:`AS_PILLOW`: Pillow's arithmetic
    SATURATION    p[0]: factor; flags as of CONTRAST
    HUE           p[0]: shift, -0.5 … 0.5; flags as of CONTRAST, and p[1] is the shift instead: 0 … 255, whole
    GRAY          none; gray in all three channels; flags as of CONTRAST
    INVERT        none
    POSTERIZE     p[0]: bits kept, 0 … 8
    SOLARIZE      p[0]: threshold
    SOLARIZE_ADD  p[0]: added to values below p[1], up to 255
    AUTOCONTRAST  none; flags as of CONTRAST, or :data:`AS_FIRST`: torchvision's first version
    EQUALIZE      none
    SHARPNESS     p[0]: factor; flags as of CONTRAST
    BLUR          p[0], p[1]: width and height of the kernel, odd, 1 … 255; p[2], p[3]: sigma across and down, above 0
    NOISE         p[0]: mean, p[1]: sigma, in values of 255; p[2], p[3]: seed, 16 bits each, the lower ones first;
                  flags 1: clips, otherwise values wrap around
    PERMUTE       p[0] … p[2]: the channel of the source that each channel shows
    AFFINE        p[0] … p[5]: from pixels of the result to pixels of the source, both counted from the centres;
                  flags: :func:`pack_warp_flags`; those of Pillow are made by :func:`warp_as_pillow`
    PERSPECTIVE   p[0] … p[7]: coefficients as torchvision's; flags: :func:`pack_warp_flags`
    ERASE         p[0] … p[3]: top, left, height, width; p[4] … p[6]: values of the channels; flags 1: p[4], p[5] are
                  the seed of random pixels, as of NOISE; flags 2: the values are bytes
    MIRROR        none; left to right
    FLIP          none; top to bottom
    KEEP          p[0]: share; remembers the image, and begins a sum with its share
    ADD           p[0]: share; adds the image's share to the sum, and brings the remembered image back
    MIX           none; shows the sum, clipped and cut off to whole numbers
    ============= ====================================================================================================

    The engine alone has Pillow's arithmetic. Random numbers are those of :func:`packstore.training.random_draws.mix`:
    value ``i`` of ``(height, width, 3)`` has the bits ``mix((i * 0x9E3779B9 + seed) & 0xFFFFFFFF)``. The sum of their
    four bytes, less 510 and divided by its deviation, is nearly normal.
    """

    IDENTITY = 0
    BRIGHTNESS = 1
    CONTRAST = 2
    SATURATION = 3
    HUE = 4
    GRAY = 5
    INVERT = 6
    POSTERIZE = 7
    SOLARIZE = 8
    SOLARIZE_ADD = 9
    AUTOCONTRAST = 10
    EQUALIZE = 11
    SHARPNESS = 12
    BLUR = 13
    NOISE = 14
    PERMUTE = 15
    AFFINE = 16
    PERSPECTIVE = 17
    ERASE = 18
    MIRROR = 19
    FLIP = 20
    KEEP = 21
    ADD = 22
    MIX = 23


GEOMETRIC = (Code.AFFINE, Code.PERSPECTIVE, Code.MIRROR, Code.FLIP)
"""Operations that move pixels."""

INTERPOLATIONS = ("nearest", "bilinear", "bicubic")
"""Interpolations of warps, by the lowest two bits of ``flags``."""

WARP_FILLS = ("zeros", "blend", "edge")
"""Fill methods, by the next two bits of ``flags``: zeros; a colour that is blended in at the edge, as in torchvision;
or as in Pillow, a colour wherever the centre of a pixel is outside, next to repeated edge pixels. The upper 24 bits are
the colour: red, green, blue from the lowest."""

AS_PILLOW = 1
"""Flag of colours: Pillow's arithmetic, where it is another than torch's."""

AS_FIRST = 2
"""Flag of autocontrast: the arithmetic of torchvision's first version of transforms, for tensors."""

_PILLOW_FIXED, _PILLOW_SCALE = 16, 32

MOST_KERNEL = 255
"""Largest side of a blur's kernel, in pixels."""

ALL_WARP_FILLS = (*WARP_FILLS, "number")
"""The same, and one for images that are not bytes: the upper 24 bits are a number with a sign, which is blended in."""

MOST_FACTOR = 1e6
"""Largest factor of a step that changes colours; the engine refuses larger ones."""


def new_program(count: int, steps: int = 1) -> Program:
    """Returns a program of ``steps`` identity steps for each of ``count`` images."""
    return np.zeros((count, steps), STEP)


def step(count: int, code: Code, *parameters: Any, flags: Any = 0, where: Any = True) -> Program:
    """Returns a program of one step ``(count, 1)``.

    Args:
        count: Number of images.
        code: The operation.
        parameters: ``p[0]``, ``p[1]``, …: one number for all images, or arrays ``(count,)``.
        flags: One number, or an array ``(count,)``.
        where: bool, or bool ``(count,)``: images to run the step on; the others get an identity step.
    """
    program = new_program(count)
    column = program[:, 0]
    column["code"] = code
    column["flags"] = flags
    for place, values in enumerate(parameters):
        column["p"][:, place] = values
    if where is not True:
        column[~np.asarray(where)] = 0
    return program


def pad_program(program: Program, steps: int) -> Program:
    """Pads ``program`` with identity steps to ``steps`` steps. A longer program is returned unchanged."""
    missing = steps - program.shape[1]
    return np.concatenate([program, new_program(len(program), missing)], 1) if missing > 0 else program


def join_programs(programs: Sequence[Program], count: int) -> Program:
    """Concatenates programs for the same ``count`` images, in order. Returns a single program itself, without a
    copy."""
    if len(programs) == 1:
        return programs[0]
    joined = np.empty((count, sum(each.shape[1] for each in programs)), STEP)
    start = 0
    for each in programs:  # concatenate() would compare the fields of all
        joined[:, start : start + each.shape[1]] = each
        start += each.shape[1]
    return joined


def check_programs(programs: Program, count: int) -> Program:
    """Returns ``programs`` as a contiguous array. Raises :class:`ValueError` unless they are ``(count, n)`` steps."""
    if programs.dtype != STEP or programs.ndim != 2 or len(programs) != count:
        raise ValueError(f"programs of {programs.shape}, {programs.dtype}, for {count} images")
    return np.ascontiguousarray(programs)


def pack_warp_flags(interpolation: Any, fill: Sequence[int] | None, fill_method: str = "blend") -> Any:
    """Packs interpolation, fill method and fill colour of a warp into the ``flags`` of its step, as int32.

    Without a colour, returns ``interpolation`` itself, which means the fill method ``zeros``.

    Args:
        interpolation: Index in :data:`INTERPOLATIONS`, or an array of indices.
        fill: Colour outside the source: red, green, blue, one byte each, or three times one number of 24 bits, which is
            for images that are not bytes. None for zeros.
        fill_method: Treatment of pixels at the source's edge, one of :data:`WARP_FILLS`; ignored without a colour.
    """
    if fill is None:
        return interpolation
    red, green, blue = fill
    colour = red | green << 8 | blue << 16
    if not 0 <= red <= 255:
        colour, fill_method = red & 0xFFFFFF, "number"
    packed = colour << 8 | ALL_WARP_FILLS.index(fill_method) << 2
    return int(np.uint32(packed).view(np.int32)) | interpolation


def warp_as_pillow(matrix: Sequence[float], height: int, width: int, fill: Sequence[int]) -> Program | None:
    """Returns the step, a program ``(1, 1)``, that does what ``Image.transform()`` of Pillow does with an affine
    ``matrix`` and the nearest pixels.

    The bytes of ``p`` are no floats. If the matrix only scales and moves, they are four doubles: the position of the
    first column in the source, the distance of columns, and the same for rows. Otherwise they are six int32 with 16
    fractional bits: the column of the first pixel in the source, its change by a column and by a row; likewise the row.

    Args:
        matrix: Six numbers, from pixels of the result to pixels of the source, as Pillow takes them.
        height: Height of the image.
        width: Width of the image.
        fill: Colour outside the source: red, green, blue, one byte each.

    Returns:
        None if Pillow does not do it with numbers of that kind, because they do not fit.
    """
    a, b, c, d, e, f = matrix
    if b == 0 == d:
        bits, numbers = _PILLOW_SCALE, np.array([c + a * 0.5, a, f + e * 0.5, e], "<f8")
    else:
        corners = [x * u + y * v + w for x in (0, width) for y in (0, height) for u, v, w in ((a, b, c), (d, e, f))]
        exact = [c + a * 0.5 + b * 0.5, a, b, f + d * 0.5 + e * 0.5, d, e]
        if not all(abs(value) < 32767 for value in (*corners, *exact)):
            return None
        bits, numbers = _PILLOW_FIXED, np.array([math.floor(value * 65536 + 0.5) for value in exact], "<i4")
    program = step(1, Code.AFFINE, flags=pack_warp_flags(0, fill) | bits)
    program["p"].view(np.uint8)[..., : numbers.nbytes] = numbers.view(np.uint8)
    return program


def unpack_fill(flags: int) -> tuple[int, int, int]:
    """Returns the fill colour in the ``flags`` of a warp, a signed int32: red, green, blue, or three times a number."""
    if ALL_WARP_FILLS[flags >> 2 & 3] == "number":
        return (flags >> 8,) * 3
    bits = (flags & 0xFFFFFFFF) >> 8
    return bits & 255, bits >> 8 & 255, bits >> 16
