"""Images of one shape in memory, cropped, resized, mirrored and normalised by one call of the engine for many."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from packstore.core.manifest import Column
from packstore.images.engine import MODES, Requests
from packstore.training.augment.base import Crops, GeometricOperation
from packstore.training.augment.operations import output_size, plan_each
from packstore.training.loader.finish import Finish
from packstore.training.loader.programs import Programs
from packstore.training.loader.rows import as_numpy
from packstore.training.random_draws import Draws

_CHANNELS = [mode.channels for mode in MODES]


def has_kernel(image: Column) -> bool:
    """Whether the engine knows pixels as a column has them: RGB or gray, of bytes or of floating point."""
    if image.kind != "fixed" or image.layout is None or len(image.shape) != 3:
        return False
    return image.pixels in MODES if image.layout == "HWC" else image.shape[0] in _CHANNELS


class Kernel:
    """The first operations of a list, and what comes after them, for the engine.

    Attributes:
        shape: Shape of a row of what is made.
        finish: What rows are.
    """

    def __init__(
        self, size: tuple[int, int], operations: Sequence[GeometricOperation], finish: Finish, programs: Programs
    ) -> None:
        """
        Args:
            size: Height and width of all images.
            operations: The first operations of the user's list.
            finish: What rows become after them; no operation follows where that changes anything.
            programs: The operations between.
        """
        self._programs = programs
        self._size = np.array(size, np.int64)
        self._operations = operations
        self.finish = finish
        after = output_size(operations, size)
        assert after is not None
        self.shape = finish.shape(after)

    def sizes(self, count: int) -> NDArray[np.int64]:
        """Height and width of ``count`` images, ``(count, 2)``."""
        return np.tile(self._size, (count, 1))

    def plan(self, draws: Draws) -> list[Crops]:
        """The crops of these images, before the first operation and after each."""
        return plan_each(self._operations, self.sizes(len(draws)), draws)

    def requests(
        self, images: NDArray[np.generic], places: NDArray[np.int64], crops: Crops, out: torch.Tensor, draws: Draws
    ) -> Requests:
        """What the engine is asked.

        Args:
            images: uint8 ``(N, H, W, C)``, or floating point ``(N, C, H, W)``, bfloat16 as uint16.
            places: Of the images among those, ``(B,)``.
            crops: The last of :meth:`plan`.
            out: Rows, ``(B, *shape)``.
            draws: Of the images.
        """
        requests = Requests.of_array(images, places)
        program = self._programs.draw(draws, self.finish.size(self.shape))
        form = self.finish.form(crops)
        requests.want(crops.box, crops.size, crops.window, crops.flip, as_numpy(out), form, program, crops.sampling)
        return requests
