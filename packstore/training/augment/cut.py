"""The crop of a single image, perhaps resized, padded and mirrored: what is made where the engine does not make it."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from packstore.training.augment.base import SAMPLINGS, Crops, PaddingMode, Size, is_channels_last
from packstore.training.augment.crop import fill_like, source_index
from packstore.training.augment.resample import check_area, resize, resize_shown

_Four = tuple[int, int, int, int]


class Cut(NamedTuple):
    """Crop of one image, perhaps resized, padded and mirrored. A row of :class:`Crops`, with the same attributes."""

    box: _Four
    size: Size
    window: _Four
    flip: bool = False
    pads: PaddingMode = "constant"
    fill: float | tuple[float, ...] = 0
    sampling: int = 0

    @classmethod
    def full(cls, height: int, width: int) -> Cut:
        """Returns the cut that shows a whole image."""
        return cls((0, 0, height, width), (height, width), (0, 0, height, width))

    @classmethod
    def of_rows(cls, crops: Crops, pads: PaddingMode) -> list[Cut]:
        """Returns the cut of each image of ``crops``, with padding of mode ``pads``."""
        none = [0] * len(crops)
        return [
            cls(tuple(box), (size[0], size[1]), tuple(window), bool(flip), pads, crops.fill, sampling)
            for box, size, window, flip, sampling in zip(
                crops.box.tolist(),
                crops.size.tolist(),
                crops.window.tolist(),
                none if crops.flip is None else crops.flip.tolist(),
                none if crops.sampling is None else crops.sampling.tolist(),
                strict=True,
            )
        ]

    @classmethod
    def of_row(cls, crops: Crops, row: int, pads: PaddingMode) -> Cut:
        """Returns the cut of image ``row`` of ``crops``, with padding of mode ``pads``."""
        box, size, window = (tuple(each[row].tolist()) for each in (crops.box, crops.size, crops.window))
        flip = crops.flip is not None and bool(crops.flip[row])
        sampling = 0 if crops.sampling is None else int(crops.sampling[row])
        return cls(box, size, window, flip, pads, crops.fill, sampling)

    @property
    def resizes(self) -> bool:
        """True if the box is resized."""
        return self.size != self.box[2:]

    @property
    def reaches_out(self) -> bool:
        """True if the window exceeds the resized box."""
        top, left, height, width = self.window
        return min(top, left) < 0 or top + height > self.size[0] or left + width > self.size[1]

    def compose(self, other: Cut) -> Cut | None:
        """Combines this cut and the cut after it into one cut, with at most one resize.

        Returns None if one cut cannot do both:

        - Both resize.
        - The second resizes padding of the first.
        - The second shows pixels outside the first. One cut can, if the first shows its whole box and the second pads
          it.
        - The first resizes, and the second pads with a fill that is not 0.
        """
        top, left, height, width = self.window
        if not other.resizes:
            tall, wide = other.window[2:]
            down, across = other.box[0] + other.window[0], other.box[1] + other.window[1]
            # Without a second resize, only the window changes.
            pads, fill = self.pads, self.fill
            if min(down, across) < 0 or down + tall > height or across + wide > width:
                # The second cut exceeds the first window: the source may have pixels there, or other padding.
                hides = self.resizes and other.fill != 0  # the engine has zeros around resized boxes
                if self.window != (0, 0, *self.size) or hides or other.box != (0, 0, height, width):
                    return None
                pads, fill = other.pads, other.fill
            window = top + down, left + _unmirror_left(across, wide, width, self.flip), tall, wide
            return self._replace(window=window, flip=self.flip != other.flip, pads=pads, fill=fill)
        if self.resizes or self.reaches_out:
            return None
        # The second box, in pixels of the source.
        y, x, rows, columns = other.box
        x = self.box[1] + left + _unmirror_left(x, columns, width, self.flip)
        box = self.box[0] + top + y, x, rows, columns
        down, across, tall, wide = other.window
        across = _unmirror_left(across, wide, other.size[1], self.flip)
        window = down, across, tall, wide
        return Cut(box, other.size, window, self.flip != other.flip, other.pads, other.fill, other.sampling)

    def __call__(self, images: Tensor) -> Tensor:
        """Returns the pixels of one image, or of several of one size, ``(B, C, H, W)``. May return a view.

        Raises :class:`DecodeError` if it would make an image of too many pixels.
        """
        top, left, height, width = self.box
        images = images[..., top : top + height, left : left + width]
        window = self.window
        if self.reaches_out:
            check_area(height, width, (window[2], window[3]))
        if self.resizes and len(images) == 1 and self.pads == "constant":
            pixels = images[0].permute(1, 2, 0).numpy()
            pixels, window = resize_shown(pixels, self.size, window, SAMPLINGS[self.sampling])
            images = torch.from_numpy(pixels).permute(2, 0, 1)[None]
        elif self.resizes:
            images = resize(images, self.size, SAMPLINGS[self.sampling])
        top, left, rows, columns = window
        if self.reaches_out:
            images = self._pad_window(images, window)
        else:
            images = images[..., top : top + rows, left : left + columns]
        return images.flip(-1) if self.flip else images

    @property
    def area(self) -> int:
        """Number of pixels that the cut computes, at most."""
        height, width = self.window[2:]
        if self.resizes and (self.sampling != 0 or self.pads != "constant"):  # as resize_shown
            height, width = max(height, self.size[0]), max(width, self.size[1])
        return height * width

    def _pad_window(self, images: Tensor, window: _Four) -> Tensor:
        """Returns a window of resized ``images``, with padding outside them."""
        (height, width), (top, left, rows, columns) = images.shape[-2:], window
        if self.pads != "constant":
            y, x = (
                source_index(torch.arange(first, first + count), length, self.pads).clip(0, length - 1)
                for first, count, length in ((top, rows, height), (left, columns, width))
            )
            return images[..., y[:, None], x]
        layout = torch.channels_last if is_channels_last(images) else torch.contiguous_format
        padded = torch.empty((*images.shape[:2], rows, columns), dtype=images.dtype, memory_format=layout)
        padded[:] = fill_like(self.fill, images)
        y0, y1 = max(0, -top), min(rows, height - top)
        x0, x1 = max(0, -left), min(columns, width - left)
        if y0 < y1 and x0 < x1:
            padded[..., y0:y1, x0:x1] = images[..., top + y0 : top + y1, left + x0 : left + x1]
        return padded


def _unmirror_left(left: int, cut_width: int, width: int, flip: bool) -> int:
    """Returns the first column of a crop in the image before mirroring."""
    return width - cut_width - left if flip else left


def write_crop(pixels: NDArray[Any], crops: Crops, index: int, out: NDArray[Any]) -> None:
    """Resizes, crops and mirrors the pixels of one box, as ``crops`` say for image ``index``, into ``out``.

    Args:
        pixels: ``(h, w, C)``, the box's pixels or a smaller version of them. Strides must not be negative.
        crops: numpy crops.
        index: Index of the image.
        out: ``(H, W, C)`` of the same dtype, with the height and width of the window. Every byte is written.

    Raises:
        DecodeError: As :func:`~packstore.training.augment.resample.resize`.
    """
    cut = Cut.of_row(crops, index, crops.pads)._replace(box=(0, 0, *pixels.shape[:2]))
    # torch warns of arrays that are not writable, although it only reads this one.
    image = torch.from_numpy(pixels if pixels.flags.writeable else np.array(pixels)).permute(2, 0, 1)[None]
    out[:] = cut(image)[0].permute(1, 2, 0).numpy()
