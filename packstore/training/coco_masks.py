"""Rasterises COCO's segmentations, polygons and run lengths, with the same pixels as pycocotools."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packstore.core.columns import to_stored
from packstore.images.annotations import fill_run_lengths
from packstore.images.segment_masks import PIXELS, fill_segments


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
            - A polygon has fewer than three points, or a coordinate that is no number or beyond 100 million.

        EngineError: The compiled engine cannot be loaded.
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
                continue
            stored = to_stored(PIXELS, [segmentation])
            if segmentation is None or any(len(polygon) < 6 for polygon in segmentation):
                raise ValueError("expected polygons of at least three points, or run lengths")
            fill_segments(stored, np.ones(1, np.bool_), (height, width), masks[number : number + 1])
        except (ValueError, TypeError) as error:
            raise ValueError(f"segmentation {number}: {error}") from None
    return masks
