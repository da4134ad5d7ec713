"""Kernels that crop each image of a batch at its own position, mirror some, and fill pixels with a colour.

Two kernels give equal results. :func:`crop_rows`, for the CPU, copies whole rows: one ``index_select`` over all
possible row starts, which torch executes as one ``memcpy`` each on all its threads. :func:`crop_pixels`, for other
devices, gathers single pixels by computed indices.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from packstore.core.errors import UsageError
from packstore.training.augment.base import Size, Values, is_channels_last
from packstore.training.random_draws import Array


def crop(
    images: Tensor,
    top: Tensor,
    left: Tensor,
    size: Size,
    padding: int = 0,
    mode: str = "constant",
    fill: Values = 0,
    flip: Tensor | None = None,
) -> Tensor:
    """Crops ``images[b, :, top[b] : top[b] + h, left[b] : left[b] + w]`` for each ``b``, into new memory.

    Args:
        images: ``(B, C, H, W)``. Results of channels-last images are channels-last, all others contiguous.
        top: int64 ``(B,)``, each in [-padding, H + padding - h], on the device of the images. Not checked.
        left: int64 ``(B,)``, each in [-padding, W + padding - w]. Not checked.
        size: ``(h, w)``.
        padding: Pixels added on each side. At most H - 1 and W - 1 for ``reflect``, H and W for ``symmetric``.
        mode: ``"constant"``, ``"reflect"``, ``"edge"`` or ``"symmetric"``.
        fill: Value for ``"constant"``: a number, or a tuple with one for each channel.
        flip: bool ``(B,)``: which results are mirrored left to right; None mirrors nothing.
    """
    kernel = crop_rows if images.device.type == "cpu" else crop_pixels
    return kernel(images, top, left, size, padding, mode, fill, flip)


def crop_rows(
    images: Tensor,
    top: Tensor,
    left: Tensor,
    size: Size,
    padding: int = 0,
    mode: str = "constant",
    fill: Values = 0,
    flip: Tensor | None = None,
) -> Tensor:
    """Crops as :func:`crop`, by copying rows. For the CPU."""
    # Padded part by part, in memory that is used again and stays in the caches.
    step = max(1, min(len(images), _CHUNK_BYTES // max(1, images[:1].nbytes)))
    padded = PaddedImages.empty(step, images, padding, mode, fill) if padding else PaddedImages.around(images)
    result = padded.empty_crops(len(images), size)
    numbers = torch.arange(len(images), device="cpu")
    for start in range(0, len(images), step):
        part = slice(start, min(start + step, len(images)))
        if padding:
            padded.put_images(images[part])
        chosen = numbers[: part.stop - start] if padding else numbers[part]
        padded.crop_into(result[part], chosen, top[part], left[part], None if flip is None else flip[part])
    return _as_images(result)


# 1,024 CIFAR images: their padded copy and the result stay in the caches, and 75 µs of calls a part weigh little. Crop
# (padding 4) and flip of 8,192 at once: 1.4 million/s in parts of 256, 1.9 of 512, 2.0 of 1,024, 2.3 of 2,048, 1.9 in
# one; of 2,048 at once: 1.8 in parts of 512, 2.2 of 1,024, 1.9 in one (2 cores).
_CHUNK_BYTES = 3 << 20


class PaddedImages:
    """Images of one size in CPU memory with their padding, to make a crop by one copy.

    Attributes:
        pixels: Contiguous ``(N, P, T, L, E)``: images, planes, rows, columns, numbers of an element. The channels are
            either planes (E is 1) or elements (P is 1). L is the width with padding. T is the height. For constant
            padding there is one more row, of fill, for all rows above and below an image.
        height: Height of the images without padding.
        padding: Number of pixels at each side.
        mode: Mode of the padding, as for :func:`crop`.
    """

    def __init__(self, pixels: Tensor, height: int, padding: int, mode: str) -> None:
        self.pixels = pixels
        self.height = height
        self.padding = padding
        self.mode = mode

    @classmethod
    def around(cls, images: Tensor) -> PaddedImages:
        """Wraps ``images`` ``(N, C, H, W)`` without padding. Copies only images that need another memory layout."""
        pixels = _as_planes(images)
        return cls(pixels, pixels.shape[2], 0, "constant")

    @classmethod
    def empty(cls, count: int, like: Tensor, padding: int, mode: str, fill: Values) -> PaddedImages:
        """Allocates memory for ``count`` images with padding.

        Shape, dtype and memory format are those of the images in ``like`` ``(B, C, H, W)``. For constant padding all
        values are ``fill``.
        """
        _, planes, height, width, element = _as_planes(like[:1]).shape
        extra = int(padding > 0 and mode == "constant")
        pixels = like.new_empty((count, planes, height + extra, width + 2 * padding, element))
        if extra:
            pixels[:] = fill_like(fill, like).view((1, -1, 1, 1, 1) if element == 1 else (1, 1, 1, 1, -1))
        return cls(pixels, height, padding, mode)

    def put_images(self, images: Tensor) -> None:
        """Overwrites the first images with ``images`` ``(B, C, H, W)``, and pads them left and right.

        Constant padding is there already. Padding above and below is not written: :meth:`crop_into` reads rows of the
        image instead.
        """
        padding, mode = self.padding, self.mode
        source = images[..., None] if self.pixels.shape[4] == 1 else images.permute(0, 2, 3, 1)[:, None]
        width = source.shape[3]
        rows = self.pixels[: len(images), :, : self.height]
        rows[..., padding : width + padding, :] = source
        if mode == "edge":
            rows[..., :padding, :] = source[..., :1, :]
            rows[..., width + padding :, :] = source[..., -1:, :]
        elif mode != "constant":  # constant padding was filled in when the memory was allocated
            skip = int(mode == "reflect")  # the outermost column stands once, not twice
            rows[..., :padding, :] = source[..., skip : skip + padding, :].flip(-2)
            rows[..., width + padding :, :] = source[..., width - skip - padding : width - skip, :].flip(-2)

    def empty_crops(self, count: int, size: Size) -> Tensor:
        """Allocates memory for ``count`` crops of ``size``, in the layout of :attr:`pixels`."""
        return self.pixels.new_empty((count, self.pixels.shape[1], *size, self.pixels.shape[4]))

    def crop_into(self, out: Tensor, numbers: Tensor, top: Tensor, left: Tensor, flip: Tensor | None) -> None:
        """Crops the images at ``numbers`` into ``out``, a contiguous part of :meth:`empty_crops`. See :func:`crop`."""
        _, planes, tall, wide, element = self.pixels.shape
        rows, columns = out.shape[2:4]
        line = wide * element
        # Start of each row of a crop in its plane, then in the whole memory.
        begins = _row_offsets(self.height, rows, self.padding, self.mode, line).index_select(0, top + self.padding)
        begins += ((left + self.padding) * element + numbers * (planes * tall * line))[:, None]
        begins = begins[:, None] + torch.arange(planes, device="cpu")[:, None] * (tall * line)
        length = columns * element
        torch.index_select(_sliding_windows(self.pixels, length), 0, begins.view(-1), out=out.view(-1, length))
        if flip is not None:
            _mirror_rows(out, flip)


def _as_planes(images: Tensor) -> Tensor:
    """Returns images ``(B, C, H, W)`` as contiguous planes ``(B, P, H, W, E)``, see :attr:`PaddedImages.pixels`."""
    return images.permute(0, 2, 3, 1)[:, None] if is_channels_last(images) else images.contiguous()[..., None]


def _as_images(pixels: Tensor) -> Tensor:
    """Returns planes ``(B, P, H, W, E)`` as images ``(B, C, H, W)``, as a view."""
    return pixels[:, 0].permute(0, 3, 1, 2) if pixels.shape[1] == 1 and pixels.shape[4] > 1 else pixels[..., 0]


# Cached: callers must not change the result.
@functools.lru_cache(64)
def _row_offsets(height: int, rows: int, padding: int, mode: str, stride: int) -> Tensor:
    """Returns the offsets of a crop's rows in a padded plane, for each top: int64 ``(tops, rows)``."""
    tops = torch.arange(-padding, height + padding - rows + 1, device="cpu")
    y = tops[:, None] + torch.arange(rows, device="cpu")
    inner = source_index(y, height, mode)
    # Rows outside show the row of fill below the image. A row of the plane has ``stride`` numbers.
    return torch.where(y == inner, inner, height if mode == "constant" else inner) * stride


def _sliding_windows(source: Tensor, length: int) -> Tensor:
    """Returns a view of contiguous ``source`` with a row for each window of ``length`` elements."""
    return source.as_strided((max(0, source.numel() - length + 1), length), (1, 1))  # rows overlap


def crop_pixels(
    images: Tensor,
    top: Tensor,
    left: Tensor,
    size: Size,
    padding: int = 0,
    mode: str = "constant",
    fill: Values = 0,
    flip: Tensor | None = None,
) -> Tensor:
    """Crops as :func:`crop`, by gathering pixels. For any device."""
    (rows, columns), (height, width) = size, images.shape[-2:]
    across = torch.arange(columns, device=images.device)
    if flip is not None:
        across = torch.where(flip[:, None], (columns - 1) - across, across)
    y = top[:, None] + torch.arange(rows, device=images.device)
    x = left[:, None] + across
    inner_y, inner_x = source_index(y, height, mode), source_index(x, width, mode)
    index = (inner_y * width)[:, :, None] + inner_x[:, None, :]
    outside = None
    if padding and mode == "constant":
        outside = ((y != inner_y)[:, :, None] | (x != inner_x)[:, None, :])[:, None]
    batch, channels = images.shape[:2]
    if is_channels_last(images):
        flat = images.permute(0, 2, 3, 1).reshape(batch, height * width, channels)
        pixels = flat.gather(1, index.view(batch, rows * columns, 1).expand(-1, -1, channels))
        result = pixels.view(batch, rows, columns, channels).permute(0, 3, 1, 2)
    else:
        flat = images.reshape(batch, channels, height * width)
        pixels = flat.gather(2, index.view(batch, 1, rows * columns).expand(-1, channels, -1))
        result = pixels.view(batch, channels, rows, columns)
    if outside is None:
        return result
    if isinstance(fill, tuple):
        return torch.where(outside, fill_like(fill, images), result)
    return result.masked_fill_(outside, fill)


def source_index(index: Array, length: Any, mode: str) -> Array:
    """Maps indices to the pixels that padding of ``mode`` shows there. Indices in [0, ``length``) stay.

    ``"constant"`` and ``"edge"`` map to the nearest pixel; ``"reflect"`` and ``"symmetric"`` reach one length beyond.
    """
    if mode == "reflect":
        return (length - 1) - abs((length - 1) - abs(index))
    if mode == "symmetric":  # x ^ (x >> 63) is -1 - x if x is negative, else x
        index = index ^ (index >> 63)
        index = length - 1 - index
        return length - 1 - (index ^ (index >> 63))
    return index.clip(0, length - 1)


def mirror_images(images: Tensor, flip: Tensor) -> Tensor:
    """Mirrors the images ``(B, C, H, W)`` with true ``flip`` ``(B,)`` left to right, in new memory."""
    if images.device.type != "cpu":
        return torch.where(flip[:, None, None, None], images.flip(-1), images)
    pixels = _as_planes(images)
    result = torch.empty_like(pixels)
    step = max(1, _CHUNK_BYTES // max(1, pixels[:1].nbytes))
    for start in range(0, len(images), step):
        part = result[start : start + step].copy_(pixels[start : start + step])
        _mirror_rows(part, flip[start : start + step])
    return _as_images(result)


def _mirror_rows(pixels: Tensor, flip: Tensor) -> None:
    """Mirrors planes ``(b, P, H, W, E)`` with true ``flip``, in place."""
    chosen = flip.nonzero()[:, 0]
    turned = pixels.index_select(0, chosen).flip(3)
    # index_copy_ works element by element: with wider elements there are fewer (uint8: 8 times as fast).
    size = pixels[0].nbytes
    wide = next(t for t in (torch.int64, torch.int32, torch.int16, torch.uint8) if size % t.itemsize == 0)
    words = size // wide.itemsize
    pixels.view(-1).view(wide).view(-1, words).index_copy_(0, chosen, turned.view(-1).view(wide).view(-1, words))


def check_fill(fill: Any, limits: Any) -> None:
    """Raises :class:`UsageError` unless ``fill``, a number or one for each channel, is from ``limits.min`` to
    ``limits.max``."""
    for value in fill if isinstance(fill, tuple) else (fill,):
        if not limits.min <= value <= limits.max:
            raise UsageError(f"fill should be {limits.min} … {limits.max} for these images, got {fill!r}")


def fill_like(fill: Values, images: Tensor) -> Tensor:
    """Returns ``fill`` as a tensor ``(C, 1, 1)`` of the images' dtype and device; with one number, ``(1, 1, 1)``.

    Raises :class:`UsageError` for values beyond a dtype of whole numbers.
    """
    if not images.dtype.is_floating_point:
        check_fill(fill, torch.iinfo(images.dtype))
    return make_channels(fill if isinstance(fill, tuple) else (fill,), images.dtype, images.device)


def make_channels(values: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Returns values of channels as a tensor ``(C, 1, 1)``. Copies nothing to a device: the host might wait for it."""
    return torch.stack([torch.full((1, 1), value, dtype=dtype, device=device) for value in values])


def pad_constant(images: Tensor, edges: tuple[int, int, int, int], fill: Values) -> Tensor:
    """Pads ``(B, C, H, W)`` with ``fill``. ``edges``: pixels at the left, right, top and bottom.

    Raises :class:`UsageError` for values beyond a dtype of whole numbers.
    """
    value = fill_like(fill, images)
    if not isinstance(fill, tuple):
        return torch.nn.functional.pad(images, edges, value=fill)
    (left, _, top, _), (height, width) = edges, images.shape[-2:]
    padded = torch.nn.functional.pad(images, edges)  # keeps the memory format
    padded[:] = value
    padded[..., top : top + height, left : left + width] = images
    return padded
