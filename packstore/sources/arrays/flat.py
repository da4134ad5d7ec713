"""Images that lie flat in a matrix, a row or a column each: layouts with sizes, such as ``NHW:28x28``."""

from __future__ import annotations

import math
import re
from dataclasses import replace

from packstore.core.errors import AmbiguousSourceError, Answer, SourceError
from packstore.sources.arrays.stored import ArrayInfo

LEAST = 64
"""Numbers of the smallest image, 8 x 8."""
_SIZED = re.compile(r"(N[HWC]{2,3}|[HWC]{2,3}N):(\d{1,6}(?:x\d{1,6}){1,2})")
_MOST = 4


def parse_layout(layout: str) -> tuple[str, tuple[int, ...]]:
    """Axes of a layout, and the sizes of those but N; no sizes if it has none."""
    match = _SIZED.fullmatch(layout)
    return (layout, ()) if match is None else (match[1], tuple(map(int, match[2].split("x"))))


def is_layout(layout: str) -> bool:
    """Whether a text is an order of axes, with or without sizes."""
    axes, sizes = parse_layout(layout)
    named = sorted(axes) in (sorted("NHW"), sorted("NHWC"))
    return named and len(sizes) in (0, len(axes) - 1)


def is_flat(info: ArrayInfo) -> bool:
    """Whether an array is a matrix that may hold images."""
    return info.what == "numbers" and len(info.shape) == 2 and min(info.shape) >= 1 and max(info.shape) >= LEAST


def unflatten(shown: str, info: ArrayInfo, layout: str | None, length: int | None) -> ArrayInfo:
    """A matrix as the array of images that ``layout`` says. Raises :class:`AmbiguousSourceError` without its sizes, and
    :class:`SourceError` for other sizes than the matrix has. ``length`` is the number of labels."""
    axes, sizes = parse_layout(layout or "")
    if not sizes:
        proposed = _propose(info, length)
        asked = " or ".join(f"--layout {each}" for each in proposed) or "--layout NHW:28x28"
        raise AmbiguousSourceError(
            f"{shown}: {info.shown} holds a matrix: say the sizes of its images, in the order in which their numbers "
            f"lie, by {asked}",
            [Answer(("--layout", each)) for each in proposed],
        )
    first = axes[0] == "N"
    count, pixels = info.shape if first else info.shape[::-1]
    if math.prod(sizes) != pixels:
        raise SourceError(f"{shown}: {info.shown} has {pixels:,} numbers an image, and --layout {layout} others")
    return replace(info, shape=(count, *sizes) if first else (*sizes, count), flat=True)


def _propose(info: ArrayInfo, length: int | None) -> list[str]:
    found = []
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
                found += [f"N{each}" if place == 0 else each.replace(":", "N:") for each in named]
                break
    return found[: 2 * _MOST]
