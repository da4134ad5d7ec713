"""Rasterises COCO's segmentations, polygons and run lengths, with the same pixels as pycocotools.

Written after ``maskApi.c`` of https://github.com/cocodataset/cocoapi: a polygon is followed in steps of a fifth of a
pixel, and the columns that it crosses are filled between crossings; run lengths go down the columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packstore.images.annotations import fill_run_lengths

_SCALE = 5
_MAX_STEPS = 1 << 23
_MAX_COORDINATE = 1e8


def coco_masks(segmentations: Sequence[Any], height: int, width: int, *, max_bytes: int = 1 << 30) -> NDArray[np.uint8]:
    """Rasterises the segmentations of objects, as ``pycocotools`` does.

    Args:
        segmentations: The ``segmentation`` of each object: a list of polygons ``[x, y, x, y, …]`` in pixels, or run
            lengths ``{"size": [height, width], "counts": …}`` as a list or as COCO's string.
        height: Height of the image in pixels.
        width: Width of the image in pixels.
        max_bytes: Limit of the result's bytes.

    Returns:
        uint8 ``(len(segmentations), height, width)``: 1 inside the object, else 0.

    Raises:
        ValueError: The image has no pixels. All other errors name the number of the segmentation:

            - The masks up to this segmentation have more than ``max_bytes``.
            - It is neither polygons nor run lengths, or does not fit the image.
            - A polygon has fewer than three points, is longer than 1.6 million pixels, or has an invalid coordinate: no
              number, or beyond 100 million.
    """
    if height < 1 or width < 1:
        raise ValueError(f"an image of {height} x {width} pixels: expected at least one pixel")
    if len(segmentations) > (allowed := max_bytes // (height * width)):
        raise ValueError(
            f"segmentation {allowed}: with its mask, {allowed + 1} masks of {height} x {width} pixels have more than "
            f"{max_bytes} bytes; ask for fewer objects at once, or give a larger max_bytes"
        )
    masks = np.zeros((len(segmentations), height, width), np.uint8)
    for number, segmentation in enumerate(segmentations):
        try:
            if isinstance(segmentation, dict):
                fill_run_lengths(segmentation, masks[number])
            elif isinstance(segmentation, (list, tuple)):
                for polygon in segmentation:
                    _fill_polygon(polygon, masks[number])
            else:
                raise ValueError(f"found {type(segmentation).__name__}; expected polygons or run lengths")
        except (ValueError, TypeError) as error:
            raise ValueError(f"segmentation {number}: {error}") from None
    return masks


def _fill_polygon(polygon: Any, mask: NDArray[np.uint8]) -> None:
    """Sets the pixels of a polygon in ``mask`` to 1."""
    height, width = mask.shape
    points = np.asarray(polygon, np.float64)
    if points.ndim != 1 or len(points) % 2 or len(points) < 6:
        raise ValueError(f"found a polygon of shape {points.shape}; expected x, y of at least three points")
    if not (np.abs(points) <= _MAX_COORDINATE).all():
        raise ValueError("a polygon has a coordinate that is no number, or beyond 100 million pixels")
    # Corners, in fifths of a pixel.
    places = (_SCALE * points.reshape(-1, 2) + 0.5).astype(np.int64)
    begin, end = places, np.roll(places, -1, 0)
    distance = np.abs(end - begin)
    steps = distance.max(1)
    if int((steps + 1).sum()) > _MAX_STEPS:
        raise ValueError(f"a polygon is longer than {_MAX_STEPS // _SCALE} pixels")
    # Each edge is followed along its longer axis towards larger coordinates, so its direction does not matter.
    along_x = distance[:, 0] >= distance[:, 1]
    flipped = np.where(along_x, begin[:, 0] > end[:, 0], begin[:, 1] > end[:, 1])
    first, last = np.where(flipped[:, None], end, begin), np.where(flipped[:, None], begin, end)
    across = np.where(along_x, last[:, 1] - first[:, 1], last[:, 0] - first[:, 0])
    slope = across / np.maximum(steps, 1)
    edge = np.repeat(np.arange(len(steps)), steps + 1)
    step = np.arange(len(edge)) - np.repeat(np.cumsum(steps + 1) - steps - 1, steps + 1)
    step = np.where(flipped[edge], steps[edge] - step, step)
    main = step + np.where(along_x, first[:, 0], first[:, 1])[edge]
    other = (np.where(along_x, first[:, 1], first[:, 0])[edge] + slope[edge] * step + 0.5).astype(np.int64)
    x, y = np.where(along_x[edge], (main, other), (other, main))
    # Points at which the outline passes from one column to the next.
    crossing = x[1:] != x[:-1]
    before, after = np.stack([x[:-1], y[:-1]])[:, crossing], np.stack([x[1:], y[1:]])[:, crossing]
    column = (np.where(after[0] < before[0], after[0], after[0] - 1) + 0.5) / _SCALE - 0.5
    row = (np.minimum(after[1], before[1]) + 0.5) / _SCALE - 0.5
    inside = (np.floor(column) == column) & (column >= 0) & (column <= width - 1)
    at = column[inside].astype(np.int64) * height + np.ceil(np.clip(row[inside], 0, height)).astype(np.int64)
    # Down the columns, a pixel is inside after an odd number of crossings.
    toggles = np.bincount(at, minlength=height * width + 1)[: height * width]
    mask |= (np.cumsum(toggles) & 1).astype(np.uint8).reshape(width, height).T
