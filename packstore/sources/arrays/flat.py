"""Images that are rows or columns of a matrix: layouts with sizes, such as ``NHW:28x28``."""

from __future__ import annotations

import math
import re
from dataclasses import replace

from packstore.core.errors import AmbiguousSourceError, Answer, SourceError
from packstore.sources.arrays.stored import ArrayInfo

LEAST = 64
"""Least numbers of an image, 8 x 8."""
_SIZED = re.compile(r"(N[HWC]{2,3}|[HWC]{2,3}N):(\d{1,6}(?:x\d{1,6}){1,2})")
_MOST = 4


def parse_layout(layout: str) -> tuple[str, tuple[int, ...]]:
    """Splits a layout ``NHW:28x28`` into its axes, and the sizes of all axes but N. Returns ``layout`` unchanged and
    ``()`` if it has no valid sizes."""
    match = _SIZED.fullmatch(layout)
    return (layout, ()) if match is None else (match[1], tuple(map(int, match[2].split("x"))))


def is_layout(layout: str) -> bool:
    """Tells if a text is an order of axes, with or without sizes."""
    axes, sizes = parse_layout(layout)
    named = sorted(axes) in (sorted("NHW"), sorted("NHWC"))
    return named and len(sizes) in (0, len(axes) - 1)


def may_be_flat_images(info: ArrayInfo) -> bool:
    """Tells if an array is a matrix of numbers with a side of at least 64, enough for an image."""
    return info.content == "numbers" and len(info.shape) == 2 and min(info.shape) >= 1 and max(info.shape) >= LEAST


def unflatten_images(shown: str, info: ArrayInfo, layout: str | None, length: int | None) -> ArrayInfo:
    """Returns the description of a matrix as an array of images, by a layout such as ``NHW:28x28``.

    Raises :class:`AmbiguousSourceError` for None or a layout without sizes; its answers are possible layouts. Raises
    :class:`SourceError` if the sizes do not fit. ``length``: number of labels, None if unknown; layouts with another
    number of images are not proposed.
    """
    axes, sizes = parse_layout(layout or "")
    if not sizes:
        proposed = _propose_layouts(info, length)
        asked = " or ".join(f"--layout {each}" for each in proposed) or "--layout NHW:28x28"
        raise AmbiguousSourceError(
            f"{shown}: {info.shown} is a matrix: give the sizes of its images, in the order of their numbers, by "
            f"{asked}",
            [Answer(("--layout", each)) for each in proposed],
        )
    first = axes[0] == "N"
    count, pixels = info.shape if first else info.shape[::-1]
    if math.prod(sizes) != pixels:
        raise SourceError(
            f"{shown}: {info.shown} has {pixels:,} numbers an image, but --layout {layout} needs {math.prod(sizes):,}"
        )
    return replace(info, shape=(count, *sizes) if first else (*sizes, count), flat=True)


def _propose_layouts(info: ArrayInfo, length: int | None) -> list[str]:
    """Proposes up to eight layouts with the sizes closest to a square, for gray or RGB images. One side is at most
    twice the other. If ``length`` is known, proposes only layouts with ``length`` images."""
    layouts = []
    for place in (0, 1):
        count, pixels = info.shape[place], info.shape[1 - place]
        if pixels < LEAST or (length is not None and count != length):
            continue
        for colours in (1, 3):
            for side in sorted(range(1, math.isqrt(pixels // colours) + 1), reverse=True):
                other, rest = divmod(pixels, side * colours)
                if rest or other > 2 * side:
                    continue
                sizes = [(other, side)] if other == side else [(other, side), (side, other)]
                if colours == 1:
                    orders = ("HW", "WH") if info.by_columns else ("HW",)
                    named = [f"{order}:{a}x{b}" for a, b in sizes for order in orders]
                else:
                    named = [f"HWC:{a}x{b}x3" for a, b in sizes] + [f"CHW:3x{a}x{b}" for a, b in sizes]
                layouts += [f"N{each}" if place == 0 else each.replace(":", "N:") for each in named]
                break
    return layouts[: 2 * _MOST]
