"""The surface on which column types draw values: a picture, or shapes for the page of ``packstore view``."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray


class RowClasses(NamedTuple):
    """Classes of the rows of a value, such as those of boxes.

    Attributes:
        numbers: Class number of each row. There may be more or fewer than rows.
        names: Class names by number; None if the classes have no names.
        crowds: 1 for each row that is a crowd or a region to ignore; None if nothing flags them.
    """

    numbers: NDArray[Any]
    names: Sequence[str] | None
    crowds: NDArray[Any] | None = None

    @property
    def texts(self) -> list[str]:
        """Name of each row's class; the number as text if the class has no name. Crowds have ``(crowd)`` behind it."""
        names = self.names or ()
        texts = [names[n] if 0 <= n < len(names) else str(n) for n in np.asarray(self.numbers).tolist()]
        flags = [] if self.crowds is None else self.crowds.tolist()
        return [f"{text} (crowd)" if crowd else text for text, crowd in zip_longest(texts, flags[: len(texts)])]


class Canvas(Protocol):
    """The image of a record, over which values are drawn. Coordinates are pixels of the whole image."""

    def draw_mask(self, mask: NDArray[Any]) -> None:
        """Blends a mask ``(H, W)`` of class numbers over the image, each class in its own colour. 0 is transparent.

        Stretches the mask over the image.
        """
        ...

    def draw_boxes(self, boxes: NDArray[Any], classes: RowClasses | None = None) -> None:
        """Draws boxes ``(n, 4)``: left, top, right, bottom. Skips boxes that are not finite.

        With ``classes``, each class has its own colour, and boxes have names.
        """
        ...

    def draw_points(self, points: NDArray[Any]) -> None:
        """Draws points ``(n, k)`` or ``(n, points, k)``: x, y, and with k = 3 visibility. Each row has its own colour.

        Skips points that are not finite, and those of visibility 0. Points of visibility 1 are hollow.
        """
        ...
