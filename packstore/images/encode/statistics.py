"""Computes mean and standard deviation of a dataset in one pass."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packstore.core.errors import UsageError
from packstore.core.manifest import Normalization
from packstore.core.modes import RGB, Mode

_VALUES = {"uint8": 1 << 8, "uint16": 1 << 16}
"""Number of values of the dtypes whose values are counted."""


class DatasetStatistics:
    """Accumulates mean and standard deviation, independent of the order of images and threads.

    Pixels of 8 and 16 bits are counted by value, so the result is exact. For other dtypes each image is summed in
    float64, and the sums are added exactly. Takes 6 KiB for RGB, 512 KiB per channel of 16 bits.

    Not thread-safe: each thread has its own object, and :meth:`merge` joins them.

    Attributes:
        mode: Mode of the images.
        pixels: Number of pixels counted.
    """

    def __init__(self, mode: Mode = RGB) -> None:
        self.mode = mode
        self.pixels = 0
        values = _VALUES.get(mode.dtype)
        self._counts = None if values is None else np.zeros((mode.channels, values), np.int64)
        self._sums = [[Fraction(0), Fraction(0)] for _ in range(0 if values else mode.channels)]

    def update(self, image: NDArray[Any]) -> None:
        """Adds an image, ``(H, W, C)`` of the mode. Raises :class:`UsageError` for values that are not finite."""
        self.pixels += image.shape[0] * image.shape[1]
        for channel in range(self.mode.channels):
            values = image[..., channel].reshape(-1)
            if self._counts is not None:
                self._counts[channel] += np.bincount(values, minlength=self._counts.shape[1])
                continue
            wide = values.astype(np.float64)
            sums = float(wide.sum()), float((wide * wide).sum())
            if not all(map(math.isfinite, sums)):
                raise UsageError("some pixels are infinite or not a number, so there is no mean; give the values")
            for place, value in enumerate(sums):
                self._sums[channel][place] += Fraction(value)

    def merge(self, other: DatasetStatistics) -> None:
        """Adds the counts and sums of ``other``. Does not check that both have the same mode."""
        self.pixels += other.pixels
        if self._counts is not None and other._counts is not None:
            self._counts += other._counts
        for own, others in zip(self._sums, other._sums, strict=True):
            own[0], own[1] = own[0] + others[0], own[1] + others[1]

    def normalization(self) -> Normalization:
        """Returns mean and population standard deviation of pixels scaled as :class:`Normalization` says.

        Raises:
            UsageError: No pixels, or a channel whose pixels are all equal, so that its deviation is 0.
        """
        if self.pixels == 0:
            raise UsageError("there are no pixels to compute mean and standard deviation from; name a normalisation")
        means, deviations = [], []
        number, white = self.pixels, int(self.mode.white)
        for total, squares in self._compute_totals():
            # Whole numbers and fractions: sums of squares of 10^12 pixels leave neither int64 room nor float64 digits.
            variance = number * squares - total * total  # times number squared
            if variance <= 0:
                raise UsageError("all pixels of a channel are the same, so it has no standard deviation; use none")
            means.append(float(total / (number * white)))
            deviations.append(math.sqrt(variance / (number * number)) / white)
        return Normalization(tuple(means), tuple(deviations))

    def _compute_totals(self) -> list[tuple[Any, Any]]:
        """Returns the sum and the sum of squares of each channel."""
        if self._counts is None:
            return [(total, squares) for total, squares in self._sums]
        return [
            (
                sum(value * count for value, count in enumerate(counts)),
                sum(value * value * count for value, count in enumerate(counts)),
            )
            for counts in self._counts.tolist()
        ]
