"""Engine requests for images of equal shape in memory: crop, resize, mirror, augment and normalise in one call."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from packstore.core.manifest import Column
from packstore.images.engine import MODES, MOST_SIDE, Requests
from packstore.training.augment.base import Crops, GeometricOperation, Size
from packstore.training.augment.operations import output_size, plan_each
from packstore.training.loader.finish import RowFormat, stored_format
from packstore.training.loader.programs import Programs
from packstore.training.loader.rows import as_numpy
from packstore.training.random_draws import Draws

_CHANNELS = [mode.channels for mode in MODES]


def engine_supports(image: Column) -> bool:
    """Tells if the engine can process a column's stored pixels. They must be arrays of one shape, with 1 or 3 channels;
    whole numbers must be uint8."""
    if image.kind != "fixed" or image.layout is None or len(image.shape) != 3:
        return False
    return image.pixels in MODES if image.layout == "HWC" else image.shape[0] in _CHANNELS


def height_width(image: Column) -> Size:
    """Returns height and width of the images of a column whose arrays have one shape."""
    height, width = image.shape[1:] if image.layout == "CHW" else image.shape[:2]
    return height, width


class EngineKernel:
    """Builds the engine's requests for arrays of one size.

    The engine crops, resizes and flips, runs programs, and converts to the final format, all in one pass.

    Attributes:
        shape: Shape of a result row.
        finish: Format of the result rows.
    """

    def __init__(
        self, size: tuple[int, int], operations: Sequence[GeometricOperation], finish: RowFormat, programs: Programs
    ) -> None:
        """
        Args:
            size: Height and width of all images.
            operations: The first operations of the user's list.
            finish: Format of the rows after all operations.
            programs: Operations after the crops.
        """
        self._programs = programs
        self._size = np.array(size, np.int64)
        self._operations = operations
        self.finish = finish
        after = output_size(operations, size)
        assert after is not None
        self.shape = finish.row_shape(after)

    @classmethod
    def for_column(
        cls, image: Column, operations: Sequence[GeometricOperation], finish: RowFormat | None, programs: Programs
    ) -> EngineKernel | None:
        """Creates the kernel for a column of arrays. Returns None if the engine does not support them or their sizes on
        the way, or if there is nothing to do.

        ``finish``: format of the rows; None for that of the stored pixels."""
        if not engine_supports(image) or not (operations or programs or finish is not None):
            return None
        sizes: list[Size | None] = [height_width(image)]
        for operation in operations:
            sizes.append(operation.size_after(sizes[-1]))
        if any(size is not None and max(size) > MOST_SIDE for size in sizes):
            return None
        return cls(height_width(image), operations, finish or stored_format(image, image.pixels), programs)

    def repeat_size(self, count: int) -> NDArray[np.int64]:
        """Returns the common height and width ``count`` times, ``(count, 2)``."""
        return np.tile(self._size, (count, 1))

    def plan_crops(self, draws: Draws) -> list[Crops]:
        """Draws the crops of the records' images.

        The first crops are the whole images; those after each operation follow. Raises :class:`UsageError` if the
        images are too small for a crop."""
        return plan_each(self._operations, self.repeat_size(len(draws)), draws)

    def make_requests(
        self, images: NDArray[np.generic], places: NDArray[np.int64], crops: Crops, out: torch.Tensor, draws: Draws
    ) -> Requests:
        """Builds the engine's requests for a batch; the engine writes to ``out`` when they run.

        Args:
            images: uint8 ``(N, H, W, C)``, or floating point ``(N, C, H, W)``, bfloat16 as uint16.
            places: Indices of the batch's images, ``(B,)``.
            crops: The last crops of :meth:`plan_crops`.
            out: Rows to write, ``(B, *shape)``.
            draws: Draws of the records.
        """
        requests = Requests.of_array(images, places)
        program = self._programs.draw_program(draws, self.finish.image_size(self.shape))
        form = self.finish.engine_format(crops)
        requests.set_outputs(
            crops.box, crops.size, crops.window, crops.flip, as_numpy(out), form, program, crops.sampling
        )
        return requests
