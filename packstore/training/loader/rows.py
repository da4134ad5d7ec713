"""Crops, resizes and mirrors pixels into the rows of a batch buffer, for images that the engine does not do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.dlpack import from_dlpack

from packstore.core.errors import UsageError
from packstore.training.augment.base import Crops
from packstore.training.augment.operations import ONE_SIZE, write_crop
from packstore.training.single_threaded import is_single_threaded

# The kernel behind interpolate(antialias=True), with an output to write into and without interpolate's checks, which
# under the GIL cost more than this call.
_resize: Any = torch._C._nn._upsample_bilinear2d_aa
SERIAL_ELEMENTS = 32768
"""torch distributes work of more elements over its threads. If that cannot be switched off, work is cut into pieces of
this size; see :mod:`packstore.training.single_threaded`."""


class SizeError(UsageError):
    """Error for images of different sizes in one batch."""

    @classmethod
    def between(cls, found: Sequence[int], expected: Sequence[int]) -> SizeError:
        """Returns the error for two unequal shapes that begin with height and width. It advises to crop or resize."""
        return cls(
            f"images differ in size ({found[0]}x{found[1]}, {expected[0]}x{expected[1]}), so they make no batch: "
            f"begin augment= with operations that give them one, {ONE_SIZE}; or put a function for images of any size "
            "into PerImage"
        )


class RowWriter:
    """Writes pixels into rows of a batch buffer.

    Every torch operation, even a view or the deletion of a tensor, releases and reacquires the GIL, for which threads
    queue. So views are made with numpy, or of all rows at once.

    Attributes:
        pixels: The rows.
        array: Their memory as numpy array (bfloat16 as bits), ``(B, ...)``.
        boxes: Crop box of each row in its source image: top, left, height, width.
        sizes: Height and width to which each box is resized.
        resizes: For each row, True if torch resizes it: rows of uint8 whose box is resized bilinearly and then not
            cropped.
    """

    def __init__(self, out: torch.Tensor, crops: Crops | None) -> None:
        """
        Args:
            out: ``(B, *shape)``; with crops ``(B, h, w, C)``.
            crops: numpy crops; None for whole images.
        """
        self.pixels = out
        self.array = as_numpy(out)
        self.boxes: list[tuple[int, int, int, int]] = []
        self.sizes: list[tuple[int, int]] = []
        self.resizes: list[bool] = []
        self._crops = crops
        if crops is None:
            return
        self.boxes = list(map(tuple, crops.box.tolist()))
        self.sizes = list(map(tuple, crops.size.tolist()))
        self._flips: list[bool] = [False] * len(self.boxes) if crops.flip is None else crops.flip.tolist()
        self._windows = list(map(tuple, crops.window[:, 2:].tolist()))
        whole = np.concatenate([crops.size * 0, crops.size], 1)
        resizes = (crops.size != crops.box[:, 2:]).any(1) & (crops.window == whole).all(1)
        if crops.sampling is not None:
            resizes &= crops.sampling == 0
        if out.dtype != torch.uint8:  # rounded differently
            resizes &= False
        self.resizes = resizes.tolist()
        self._planes = out.permute(0, 3, 1, 2).split(1)  # type: ignore[no-untyped-call]

    def write_image(self, row: int, pixels: NDArray[Any]) -> None:
        """Crops a whole image, ``(H, W, C)``, to the box of ``row``, and writes it as :meth:`write_box`. The box must
        lie within the image, which is not checked."""
        top, left, height, width = self.boxes[row]
        self.write_box(row, pixels[top : top + height, left : left + width])

    def write_box(self, row: int, pixels: NDArray[Any]) -> None:
        """Resizes, crops and mirrors the pixels of the row's box into the row.

        ``pixels``: ``(h, w, C)``. They may be a reduced version of the box, such as a scaled decoder returns.

        Raises:
            SizeError: The crop differs in size from the rows.
        """
        if not self.resizes[row]:
            found, expected = self._windows[row], self.array.shape[1:]
            if found != expected[:2]:
                raise SizeError.between(found, expected)
            write_crop(np.ascontiguousarray(pixels), self._crops, row, self.array[row])  # type: ignore[arg-type]
            return
        size, flip, out = self.sizes[row], self._flips[row], self._planes[row]
        if is_single_threaded():
            # Mirroring before or after resizing gives the same bytes. Here it replaces the copy that resizing makes of
            # non-contiguous input.
            source = _as_planes(pixels)
            _resize(torch.flip(source, (3,)) if flip else source, size, False, None, None, out=out)
            return
        # Mirroring before or after resizing gives the same bytes, so the smaller image is mirrored.
        flip_first = flip and pixels.size < out.numel()
        # torch would copy non-contiguous input with all its threads; numpy copies on this one.
        crop = np.array(pixels, order="C") if flip_first else np.ascontiguousarray(pixels)
        if flip_first:
            _mirror_row(crop)
        _resize(_as_planes(crop), size, False, None, None, out=out)
        if flip and not flip_first:
            _mirror_row(self.array[row])


def as_numpy(tensor: torch.Tensor) -> NDArray[Any]:
    """Returns a CPU tensor as numpy array over the same memory; bfloat16 as uint16 of the same bits."""
    array: NDArray[Any] = (tensor.view(torch.uint16) if tensor.dtype == torch.bfloat16 else tensor).numpy()
    return array


def _mirror_row(row: NDArray[Any]) -> None:
    """Mirrors ``row``, ``(H, W, C)``, left to right in place."""
    lines = max(1, SERIAL_ELEMENTS // (row.shape[1] * row.shape[2]))
    for first in range(0, row.shape[0], lines):
        part = torch.from_numpy(row[first : first + lines])
        part.copy_(torch.flip(part, (1,)))


def _as_planes(pixels: NDArray[Any]) -> torch.Tensor:
    """Returns ``(h, w, C)`` as a tensor ``(1, C, h, w)``, channels last, over the same memory.

    With numpy before 2.1, copies read-only ``pixels``. Do not write to the tensor if ``pixels`` is read-only."""
    planes = pixels.transpose(2, 0, 1)[None]
    if pixels.flags.writeable:
        return torch.from_numpy(planes)
    try:
        return from_dlpack(planes)  # from_numpy would warn
    except BufferError:  # numpy before 2.1
        return torch.from_numpy(planes.copy(order="K"))  # torch before 2.10 mixes layouts up, out of bounds
