"""Cutting each image of a batch at a place of its own, and mirroring some: the kernels.

Two ways give the same result. :func:`crop_rows`, for the CPU, copies whole rows: one ``index_select`` over all places
where a row could begin, which torch does as one ``memcpy`` each on all its threads. :func:`crop_pixels`, for other
devices, gathers single pixels, mirrored or not, by indices that are worked out there.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from packstore.augment.base import Size, is_channels_last


def crop(
    images: Tensor,
    top: Tensor,
    left: Tensor,
    size: Size,
    padding: int = 0,
    mode: str = "constant",
    fill: float = 0,
    flip: Tensor | None = None,
) -> Tensor:
    """``images[b, :, top[b] : top[b] + h, left[b] : left[b] + w]`` for each ``b``, in new memory.

    Args:
        images: ``(B, C, H, W)``; channels-last images stay so, all others come out contiguous.
        top: int64 ``(B,)``, each in [-padding, H + padding - h], on the device of the images.
        left: Likewise.
        size: ``(h, w)``.
        padding: Pixels that each side has more than the image; at most H - 1 and W - 1 to reflect, H and W to mirror.
        mode: ``"constant"``, ``"reflect"``, ``"edge"`` or ``"symmetric"``.
        fill: For ``"constant"``.
        flip: bool ``(B,)``: which of the results are mirrored left to right.
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
    fill: float = 0,
    flip: Tensor | None = None,
) -> Tensor:
    """:func:`crop` by copying rows."""
    (rows, columns), (height, width) = size, images.shape[-2:]
    # As (B, P, H, W, E): P planes of elements that are single numbers, or one plane of pixels.
    last = is_channels_last(images)
    pixels = images.permute(0, 2, 3, 1)[:, None] if last else images.contiguous()[..., None]
    batch, planes, _, _, element = pixels.shape
    result = images.new_empty((batch, planes, rows, columns, element))
    extra = int(bool(padding) and mode == "constant")  # a row of fill under each plane
    stride = (width + 2 * padding) * element
    plane = (height + extra) * stride

    step = max(1, min(batch, _CHUNK_BYTES // max(1, pixels[:1].nbytes)))
    scratch = images.new_empty(step * planes * plane) if padding else images
    if extra:
        scratch.fill_(fill)
    table = _row_table(height, rows, padding, mode, stride)
    steps = torch.arange(step)[:, None] * (planes * plane)
    down = torch.arange(planes)[:, None] * plane
    top, left = top + padding, ((left + padding) * element)[:, None]
    for start in range(0, batch, step):
        part = slice(start, min(start + step, batch))
        source = pixels[part]
        if padding:
            source = _pad_columns(source, scratch, height + extra, padding, mode)
        begins = (table.index_select(0, top[part]) + left[part]).add_(steps[: len(source)])[:, None] + down
        target = result[part]
        torch.index_select(
            _windows(source, columns * element), 0, begins.view(-1), out=target.view(-1, columns * element)
        )
        if flip is not None:
            _mirror(target, flip[part])
    return result[:, 0].permute(0, 3, 1, 2) if last else result[..., 0]


# 1,024 CIFAR images: their padded copy and the result stay in the caches, and 75 µs of calls a part weigh little. Crop
# (padding 4) and flip of 8,192 at once: 1.4 million/s in parts of 256, 1.9 of 512, 2.0 of 1,024, 2.3 of 2,048, 1.9 in
# one; of 2,048 at once: 1.8 in parts of 512, 2.2 of 1,024, 1.9 in one (2 cores).
_CHUNK_BYTES = 3 << 20


@functools.lru_cache(64)
def _row_table(height: int, rows: int, padding: int, mode: str, stride: int) -> Tensor:
    """Where in a padded plane each of ``rows`` begins, int64 ``(tops, rows)``, a line for each possible top."""
    y = torch.arange(-padding, height + padding - rows + 1)[:, None] + torch.arange(rows)
    inner = source_index(y, height, mode)
    return torch.where(y == inner, inner, height if mode == "constant" else inner) * stride


def _pad_columns(pixels: Tensor, scratch: Tensor, tall: int, padding: int, mode: str) -> Tensor:
    """``pixels`` ``(b, P, H, W, E)`` copied to ``scratch``, padded left and right, as ``(b, P, tall, wide, E)``."""
    batch, planes, height, width, element = pixels.shape
    padded = scratch[: batch * planes * tall * (width + 2 * padding) * element]
    padded = padded.view(batch, planes, tall, width + 2 * padding, element)
    rows = padded[:, :, :height]
    rows[..., padding : width + padding, :] = pixels
    if mode == "edge":
        rows[..., :padding, :] = pixels[..., :1, :]
        rows[..., width + padding :, :] = pixels[..., -1:, :]
    elif mode != "constant":  # there the fill is in place, around what is copied every time
        skip = int(mode == "reflect")  # the outermost column stands once, not twice
        rows[..., :padding, :] = pixels[..., skip : skip + padding, :].flip(-2)
        rows[..., width + padding :, :] = pixels[..., width - skip - padding : width - skip, :].flip(-2)
    return padded


def _windows(source: Tensor, length: int) -> Tensor:
    """Every run of ``length`` elements of what contiguous ``source`` holds, as overlapping rows."""
    return source.as_strided((max(0, source.numel() - length + 1), length), (1, 1))


def crop_pixels(
    images: Tensor,
    top: Tensor,
    left: Tensor,
    size: Size,
    padding: int = 0,
    mode: str = "constant",
    fill: float = 0,
    flip: Tensor | None = None,
) -> Tensor:
    """:func:`crop` by one gather of pixels."""
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
        found = flat.gather(1, index.view(batch, rows * columns, 1).expand(-1, -1, channels))
        result = found.view(batch, rows, columns, channels).permute(0, 3, 1, 2)
    else:
        flat = images.reshape(batch, channels, height * width)
        found = flat.gather(2, index.view(batch, 1, rows * columns).expand(-1, channels, -1))
        result = found.view(batch, channels, rows, columns)
    return result if outside is None else result.masked_fill_(outside, fill)


def source_index(index: Tensor, length: int, mode: str) -> Tensor:
    """The pixel of [0, ``length``) that padding shows at ``index``; for ``"constant"`` the nearest."""
    if mode == "reflect":
        return (length - 1) - ((length - 1) - index.abs()).abs()
    if mode == "symmetric":
        index = torch.where(index < 0, -1 - index, index)
        return torch.where(index >= length, 2 * length - 1 - index, index)
    return index.clamp(0, length - 1)


def mirror(images: Tensor, flip: Tensor) -> Tensor:
    """``images`` ``(B, C, H, W)``, mirrored left to right where ``flip`` ``(B,)`` is true, in new memory."""
    if images.device.type != "cpu":
        return torch.where(flip[:, None, None, None], images.flip(-1), images)
    last = is_channels_last(images)
    pixels = images.permute(0, 2, 3, 1)[:, None] if last else images.contiguous()[..., None]
    result = torch.empty_like(pixels)
    step = max(1, _CHUNK_BYTES // max(1, pixels[:1].nbytes))
    for start in range(0, len(images), step):
        part = result[start : start + step].copy_(pixels[start : start + step])
        _mirror(part, flip[start : start + step])
    return result[:, 0].permute(0, 3, 1, 2) if last else result[..., 0]


def _mirror(pixels: Tensor, flip: Tensor) -> None:
    """Mirrors some of contiguous ``pixels`` ``(b, P, H, W, E)`` in place."""
    chosen = flip.nonzero()[:, 0]
    turned = pixels.index_select(0, chosen).flip(3)
    # index_copy_ works element by element: with wider elements there are fewer (uint8: 8 times as fast).
    size = pixels[0].nbytes
    wide = next(t for t in (torch.int64, torch.int32, torch.int16, torch.uint8) if size % t.itemsize == 0)
    words = size // wide.itemsize
    pixels.view(-1).view(wide).view(-1, words).index_copy_(0, chosen, turned.view(-1).view(wide).view(-1, words))
