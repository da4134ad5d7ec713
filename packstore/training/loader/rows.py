"""The rows of a batch buffer, and where the pixels of each come from: cropped, resized and mirrored on the way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.dlpack import from_dlpack

from packstore.core.errors import UsageError
from packstore.training.augment.base import Crops
from packstore.training.augment.operations import render
from packstore.training.single_threaded import is_single_threaded

# The kernel behind interpolate(antialias=True), with an output to write into and without interpolate's checks, which
# under the GIL cost more than this call.
_resize: Any = torch._C._nn._upsample_bilinear2d_aa
SERIAL_ELEMENTS = 32768
"""torch shares out work of more elements to its threads; where that cannot be switched off, pieces are no larger. See
:mod:`packstore.training.single_threaded`."""


class SizeError(UsageError):
    """Images of different sizes in one batch."""

    @classmethod
    def between(cls, found: Sequence[int], expected: Sequence[int]) -> SizeError:
        """The error for two shapes that begin with height and width."""
        return cls(
            f"images differ in size ({found[0]}x{found[1]}, {expected[0]}x{expected[1]}), so they make no batch: "
            "add an operation that gives them one before all others, for example augment=[RandomResizedCrop(224)]"
        )


class Rows:
    """Some rows of a batch buffer.

    Every torch operation, views and the end of a tensor too, gives the GIL away and has to get it back, for which
    threads wait in turn. So views are made with numpy, or of all rows at once.

    Attributes:
        pixels: The rows.
        array: Their memory as numpy has it (bfloat16 as bits), ``(B, ...)``.
        boxes: Top, left, height and width in its source image, of each row.
        sizes: Height and width to which that is resized.
        resizes: Whether resizing bilinearly, and perhaps mirroring, is all that is to be done with it.
    """

    def __init__(self, out: torch.Tensor, crops: Crops | None) -> None:
        """
        Args:
            out: ``(B, *shape)``; with crops ``(B, h, w, C)``.
            crops: numpy crops, where there are any.
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
        if out.dtype != torch.uint8:  # which are rounded in another way
            resizes &= False
        self.resizes = resizes.tolist()
        self._planes = out.permute(0, 3, 1, 2).split(1)  # type: ignore[no-untyped-call]

    def place(self, row: int, pixels: NDArray[Any]) -> None:
        """Crops a whole image, ``(H, W, C)``, and writes it."""
        top, left, height, width = self.boxes[row]
        self.place_box(row, pixels[top : top + height, left : left + width])

    def place_box(self, row: int, pixels: NDArray[Any]) -> None:
        """Writes the pixels of the row's box, ``(h, w, C)``; they may be scaled down already.

        Raises:
            SizeError: The result has another size than the rows.
        """
        if not self.resizes[row]:
            found, expected = self._windows[row], self.array.shape[1:]
            if found != expected[:2]:
                raise SizeError.between(found, expected)
            render(np.ascontiguousarray(pixels), self._crops, row, self.array[row])  # type: ignore[arg-type]
            return
        size, flip, out = self.sizes[row], self._flips[row], self._planes[row]
        if is_single_threaded():
            # To mirror before resizing or after gives the same bytes. Here it is no more than the copy that resizing
            # makes of what is not contiguous.
            source = _planes(pixels)
            _resize(torch.flip(source, (3,)) if flip else source, size, False, None, None, out=out)
            return
        # To mirror before resizing or after gives the same bytes; so the smaller of the two is mirrored.
        flip_first = flip and pixels.size < out.numel()
        # torch would copy what is not contiguous with all its threads; numpy does it on this one.
        crop = np.array(pixels, order="C") if flip_first else np.ascontiguousarray(pixels)
        if flip_first:
            _mirror(crop)
        _resize(_planes(crop), size, False, None, None, out=out)
        if flip and not flip_first:
            _mirror(self.array[row])


def as_numpy(tensor: torch.Tensor) -> NDArray[Any]:
    """A tensor's memory as numpy has it (bfloat16 as bits)."""
    array: NDArray[Any] = (tensor.view(torch.uint16) if tensor.dtype == torch.bfloat16 else tensor).numpy()
    return array


def _mirror(row: NDArray[Any]) -> None:
    """Mirrors ``row``, ``(H, W, C)``, left to right in place."""
    lines = max(1, SERIAL_ELEMENTS // (row.shape[1] * row.shape[2]))
    for first in range(0, row.shape[0], lines):
        part = torch.from_numpy(row[first : first + lines])
        part.copy_(torch.flip(part, (1,)))


def _planes(pixels: NDArray[Any]) -> torch.Tensor:
    """``(h, w, C)`` as a tensor ``(1, C, h, w)``, channels last, over the same memory; not to be written to where
    ``pixels`` is not."""
    planes = pixels.transpose(2, 0, 1)[None]
    if pixels.flags.writeable:
        return torch.from_numpy(planes)
    try:
        return from_dlpack(planes)  # from_numpy would warn
    except BufferError:  # numpy before 2.1
        return torch.from_numpy(planes.copy(order="K"))  # torch before 2.10 mixes layouts up, out of bounds
