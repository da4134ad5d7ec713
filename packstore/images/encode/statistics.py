"""Mean and standard deviation of a dataset, exactly, in one streaming pass."""

from __future__ import annotations

import math

import numpy as np

from packstore.core.errors import UsageError
from packstore.core.manifest import Normalization
from packstore.images.resize import Pixels


class DatasetStatistics:
    """Counts how often each value occurs in each channel, so that the result is exact whatever the order of images.

    One object belongs to one thread; :meth:`merge` brings several together. Memory is 6 KiB.

    Attributes:
        counts: int64, shape ``(3, 256)``.
    """

    def __init__(self) -> None:
        self.counts = np.zeros((3, 256), np.int64)

    def update(self, image: Pixels) -> None:
        """Adds an image, uint8 ``(H, W, 3)``."""
        for channel in range(3):
            self.counts[channel] += np.bincount(image[..., channel].reshape(-1), minlength=256)

    def merge(self, other: DatasetStatistics) -> None:
        """Adds what ``other`` has counted."""
        self.counts += other.counts

    @property
    def pixels(self) -> int:
        """Number of pixels counted."""
        return int(self.counts[0].sum())

    def normalization(self) -> Normalization:
        """Mean and population standard deviation of pixels scaled to 0 … 1.

        Raises:
            UsageError: No pixels, or a channel in which all pixels are the same, so that nothing can be divided by
                its deviation.
        """
        if self.pixels == 0:
            raise UsageError("there are no pixels to compute mean and standard deviation from; name a normalisation")
        means, deviations = [], []
        for counts in self.counts.tolist():
            # Python's integers: sums of squares of 10^12 pixels leave neither int64 room nor float64 digits.
            number = sum(counts)
            total = sum(value * count for value, count in enumerate(counts))
            squares = sum(value * value * count for value, count in enumerate(counts))
            variance = number * squares - total * total  # times number squared
            if variance == 0:
                raise UsageError("all pixels of a channel are the same, so it has no standard deviation; use none")
            means.append(total / (number * 255))
            deviations.append(math.sqrt(variance / (number * number)) / 255)
        return Normalization(tuple(means), tuple(deviations))
