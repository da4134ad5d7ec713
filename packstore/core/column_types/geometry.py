"""Moves of pixels, which rows of coordinates follow."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray


class RowMoves(Protocol):
    """Moves coordinates as operations move the pixels of images. Each method returns new arrays.

    ``images`` is int64 ``(N,)``: the image of each row.
    """

    def move_boxes(self, boxes: NDArray[Any], images: NDArray[np.int64]) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        """Moves boxes ``(N, 4)`` and clips them to the results. Returns them, and bool ``(N,)``: boxes to keep.

        Boxes are left, top, right, bottom, float32. Boxes smaller than the user's minimum are not kept.
        """
        ...

    def move_points(self, points: NDArray[Any], images: NDArray[np.int64]) -> NDArray[Any]:
        """Moves points ``(N, …, k)``, float32. Does not clip them.

        Points are x, y; with k = 3 also visibility. Points with visibility become zeros if they are not visible.
        Mirroring an image of width W maps x to W - 1 - x.
        """
        ...
