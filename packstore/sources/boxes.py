"""Recognises the convention of boxes from other formats, and converts them to corners in pixels.

Conventions have torchvision's names (``torchvision.tv_tensors.BoundingBoxFormat``), with an ``n`` at the end if
numbers are fractions of the image's sides.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packstore.images.orientation import upright_size

CONVENTIONS = ("xyxy", "xywh", "cxcywh", "xyxyn", "xywhn", "cxcywhn")
"""Left, top, right, bottom; left, top, width, height; centre, width, height; and the same as fractions."""
CORNERS, VOC = "xyxy", "voc"
"""Corners; and Pascal VOC's: they count pixels from 1, and both belong to the object."""
# Takes the place of a convention: boxes stay in a JSON column.
NOT_CONVERTED = "json"
BOX_NAMES = ("bbox", "bboxes", "boxes", "bounding_boxes")
LABEL_NAMES = (
    *("category", "categories", "category_id", "category_ids", "category_name", "category_names"),
    *("class", "classes", "class_id", "class_ids", "class_name", "class_names"),
    *("label", "labels", "label_id", "label_ids", "label_name", "label_names"),
)
# Tolerance for boxes outside of their image: limits of fractions, and pixels.
_LEAST, _MOST, _PIXEL = -0.01, 1.01, 1.0


@dataclass(slots=True)
class BoxConventionCounter:
    """Counts the boxes that contradict each convention, and finds the possible conventions.

    Attributes:
        count: Number of boxes.
        fractions: All numbers are about 0 to 1; true without boxes.
        whole: All numbers are whole; true without boxes.
        misfits: Number of boxes that contradict each convention: a side is negative, or the box is outside of its image
            of known size.
    """

    count: int = 0
    fractions: bool = True
    whole: bool = True
    misfits: dict[str, int] = field(default_factory=lambda: dict.fromkeys(CONVENTIONS, 0))

    def count_boxes(self, boxes: NDArray[np.float64], sides: NDArray[np.float64] | None = None) -> None:
        """Adds boxes ``(n, 4)`` to the counts. ``sides`` are width and height of the image of each box, ``(n, 2)``, or
        None if unknown. A box may be outside of its image by a pixel, or 1%."""
        if not len(boxes):
            return
        self.count += len(boxes)
        self.fractions &= bool((boxes >= _LEAST).all() and (boxes <= _MOST).all())
        self.whole &= bool((boxes == np.floor(boxes)).all())
        for name in CONVENTIONS:
            fraction = name.endswith("n")
            slack = _MOST - 1 if fraction else _PIXEL
            with np.errstate(invalid="ignore", over="ignore"):  # no number fits
                corners = _convert_to_corners(boxes, name.removesuffix("n"))
            fits = (corners[:, 2:] >= corners[:, :2]) & (corners[:, :2] >= -slack)
            if fraction:
                fits &= corners[:, 2:] <= _MOST
            elif sides is not None:
                fits &= corners[:, 2:] <= sides + slack
            self.misfits[name] += int(len(boxes) - fits.all(1).sum())

    def possible_conventions(self) -> list[str]:
        """Returns the conventions that at least 99% of the boxes fit.

        - If a number is clearly outside of 0 to 1: only conventions in pixels.
        - If all numbers are 0 or 1: all conventions.
        - Otherwise: only conventions in fractions.
        """
        fitting = [name for name in CONVENTIONS if self.misfits[name] * 100 <= self.count]
        pixels, fractions = ([name for name in fitting if name.endswith("n") is of] for of in (False, True))
        if not self.fractions:
            return pixels
        return [*pixels, *fractions] if self.whole else fractions


def to_corners(boxes: Any, convention: str, image: bytes | None = None) -> NDArray[np.float32]:
    """Converts boxes to left, top, right, bottom in pixels: float32 ``(n, 4)``.

    Fractions refer to the sides of the upright image. Raises :class:`ValueError` for boxes of other than four numbers,
    and for fractions if ``image`` is not an image file."""
    array = np.array(boxes, np.float64) if len(boxes) else np.zeros((0, 4))
    if array.ndim != 2 or array.shape[1] != 4:
        raise ValueError("a box has other than four numbers")
    with np.errstate(over="ignore"):
        corners = _convert_to_corners(array, convention.removesuffix("n"))
        if convention.endswith("n"):
            if not isinstance(image, bytes):
                raise ValueError("boxes are fractions of an image that is not a file")
            corners *= np.tile(upright_size(image), 2)
        result = corners.astype(np.float32)
    if np.isinf(result).any():
        raise ValueError("a box has a number too large for float32")
    return result


def _convert_to_corners(boxes: NDArray[np.float64], convention: str) -> NDArray[np.float64]:
    """Converts boxes from a convention to left, top, right, bottom, without a change of unit."""
    first, second = boxes[:, :2], boxes[:, 2:]
    if convention == CORNERS:
        return boxes.copy()
    if convention == VOC:
        return boxes - [1, 1, 0, 0]
    if convention == "cxcywh":
        first = first - second / 2
    return np.concatenate([first, first + second], 1)
