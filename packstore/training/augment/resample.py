"""Resizes whole images, or a box of each image.

On the CPU torch's ``interpolate`` does it, for uint8 with the same kernel as while decoding. On other devices a batch
is multiplied by two matrices of weights, the same arithmetic in float32: within 1 of 255.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from packstore.core.errors import DecodeError, UsageError
from packstore.images.resize import resize_window
from packstore.images.sniff import MAX_PIXELS
from packstore.training.augment.base import SAMPLINGS, Size, is_channels_last


def check_area(height: int, width: int, size: Size) -> None:
    """Raises :class:`DecodeError` if resizing an image to ``size`` would exceed the limit of pixels.

    The limit is that of image files, or the number of pixels of the image itself if it is larger.
    """
    # torch resizes the rows first.
    most = max(max(height, size[0]) * size[1], size[0] * size[1])
    if most > max(MAX_PIXELS, height * width):
        raise DecodeError(
            f"the image of {height}x{width} would become one of {size[0]}x{size[1]}: {most:,} pixels on the way, more "
            f"than the limit of {MAX_PIXELS:,}; crop it before it is resized, or leave the record out"
        )


def resize_shown(
    pixels: NDArray[Any], size: Size, window: tuple[int, int, int, int], sampling: str = "bilinear"
) -> tuple[NDArray[Any], tuple[int, int, int, int]]:
    """Resizes pixels ``(H, W, C)`` to ``size``; of a small window, computes only the part in it.

    Returns the pixels, and the window in them (top, left, height, width). It may exceed them, as ``window`` may exceed
    ``size``.

    Raises :class:`DecodeError` as :func:`resize`.
    """
    (height, width), (top, left, rows, columns) = pixels.shape[:2], window
    y, x = min(max(top, 0), size[0]), min(max(left, 0), size[1])
    tall, wide = min(top + rows, size[0]) - y, min(left + columns, size[1]) - x
    large = size[0] * size[1] > max(height * width, 4 * rows * columns) and min(tall, wide) > 0
    if large and pixels.dtype == np.uint8 and sampling == "bilinear" and size[0] >= height and size[1] >= width:
        return resize_window(pixels, size, (y, x, tall, wide)), (top - y, left - x, rows, columns)
    # torch warns of arrays that are not writable, although it only reads this one.
    source = torch.from_numpy(pixels if pixels.flags.writeable else np.array(pixels))
    return resize(source.permute(2, 0, 1)[None], size, sampling)[0].permute(1, 2, 0).numpy(), window


def resize(images: Tensor, size: Size, sampling: str = "bilinear") -> Tensor:
    """Resizes ``images`` ``(B, C, H, W)`` to ``size``. Returns the same tensor if they have that size.

    On the CPU uint8 results equal torchvision's. For box and lanczos they equal Pillow's.

    Args:
        images: Floating point or integers. Results have the same dtype, rounded.
        size: Height and width.
        sampling: One of :data:`SAMPLINGS`.

    Raises:
        UsageError: ``"box"`` or ``"lanczos"`` for anything but uint8 RGB images.
        DecodeError: The results would be larger than any image may be, and than ``images``.
    """
    height, width = images.shape[-2:]
    if (height, width) == size:
        return images
    check_area(height, width, size)
    # For images that become one pixel wide torch 2.13 fails (uint8) or gives wrong values (float, in planes).
    by_products = images.device.type != "cpu" or (size[1] == 1 and not sampling.startswith("plain"))
    if by_products and sampling in _FILTERS:
        whole = torch.zeros((1, 4), dtype=torch.int64, device=images.device)  # one box for all images
        # Filled on the device: copying a tensor from the host would make the host wait.
        whole[:, 2], whole[:, 3] = height, width
        return resize_by_products(images, whole, size, sampling)
    if sampling in ("box", "lanczos"):
        return _resize_by_pillow(images, size, sampling)
    # torch has no such kernel for half precision; its plain kernels for bytes do not round as torchvision.
    kept = images.dtype in (torch.uint8, torch.float32, torch.float64)
    wide = images if kept else images.double() if images.dtype == torch.int32 else images.float()
    mode, plain = sampling.removeprefix("plain "), sampling.startswith("plain")
    if plain and images.dtype == torch.uint8 and images.device.type != "cpu":
        wide = images.float()
    named = {} if mode == "nearest" else {"align_corners": False, "antialias": not plain}
    result = torch.nn.functional.interpolate(wide, size, mode=mode, **named)
    if images.dtype == torch.uint8 and result.dtype != torch.uint8:
        result = result.round_().clamp_(0, 255)
    elif not images.dtype.is_floating_point and result.dtype != images.dtype:
        result = result.round_()
    return result.to(images.dtype)


def _resize_by_pillow(images: Tensor, size: Size, sampling: str) -> Tensor:
    """Resizes uint8 RGB images with Pillow, on the host."""
    if images.dtype != torch.uint8 or images.shape[1] != 3:
        raise UsageError(
            f"{sampling} resizes bytes of three channels, and these images are {images.dtype}: use bicubic"
        )
    from PIL import Image

    way = Image.Resampling.BOX if sampling == "box" else Image.Resampling.LANCZOS
    layout = torch.channels_last if is_channels_last(images) else torch.contiguous_format
    pixels = images.permute(0, 2, 3, 1).contiguous().cpu().numpy()
    # Rows first, then columns, as the engine: Pillow 13 chooses the order by the sizes, and versions before do not.
    across = [Image.fromarray(each).resize((size[1], images.shape[2]), way) for each in pixels]
    arrays = [np.asarray(each.resize((size[1], size[0]), way)) for each in across]
    result = torch.from_numpy(np.stack(arrays)).to(images.device)
    return result.permute(0, 3, 1, 2).contiguous(memory_format=layout)


def crop_and_resize(images: Tensor, box: Tensor, size: Size, sampling: Tensor | None = None) -> Tensor:
    """Crops the box of each image and resizes it to ``size``, into a new batch.

    Args:
        images: ``(B, C, H, W)``, uint8 or floating point.
        box: int64 ``(B, 4)``: top, left, height, width, within the image.
        size: ``(h, w)``.
        sampling: As in :class:`Crops`, on the device of the images. If it is given, the host waits for the device.

    Raises:
        UsageError: As :func:`resize`.
    """
    if images.device.type == "cpu":
        return crop_and_resize_each(images, box, size, sampling)
    if sampling is None:
        return resize_by_products(images, box, size)
    ways = sampling.cpu()
    layout = torch.channels_last if is_channels_last(images) else torch.contiguous_format
    shape = (len(images), images.shape[1], *size)
    result = torch.empty(shape, dtype=images.dtype, device=images.device, memory_format=layout)
    for way in sorted(set(ways.tolist())):
        rows = (ways == way).nonzero()[:, 0].to(images.device)
        part, boxes = images.index_select(0, rows), box.index_select(0, rows)
        if SAMPLINGS[way] in _FILTERS:
            result[rows] = resize_by_products(part, boxes, size, SAMPLINGS[way])
        else:
            result[rows] = crop_and_resize_each(part, boxes, size, ways.new_full((len(rows),), way))
    return result


def crop_and_resize_each(images: Tensor, box: Tensor, size: Size, sampling: Tensor | None = None) -> Tensor:
    """Crops and resizes as :func:`crop_and_resize`, but image by image. On a device, the host waits."""
    batch, channels = images.shape[:2]
    layout = torch.channels_last if is_channels_last(images) else torch.contiguous_format
    result = torch.empty((batch, channels, *size), dtype=images.dtype, memory_format=layout, device=images.device)
    ways = [0] * batch if sampling is None else sampling.tolist()
    for i, ((top, left, height, width), way) in enumerate(zip(box.tolist(), ways, strict=True)):
        part = images[i : i + 1, :, top : top + height, left : left + width]
        result[i] = resize(part, size, SAMPLINGS[way])[0]
    return result


def resize_by_products(images: Tensor, box: Tensor, size: Size, sampling: str = "bilinear") -> Tensor:
    """Crops and resizes as :func:`crop_and_resize`, by two products with matrices of weights. For any device.

    ``sampling``: ``"bilinear"`` or ``"bicubic"``.
    ``box``: may be ``(1, 4)``, one box for all images.
    """
    results = []
    step = max(1, _WEIGHTS // max(1, images.shape[-2] * size[0], images.shape[-1] * size[1]))
    for start in range(0, max(1, len(images)), step):
        part, boxes = images[start : start + step], box if len(box) == 1 else box[start : start + step]
        wide = part.double() if part.dtype in (torch.float64, torch.int32) else part.float()
        rows = resize_weights(boxes[:, 0], boxes[:, 2], images.shape[-2], size[0], sampling).to(wide.dtype)
        columns = resize_weights(boxes[:, 1], boxes[:, 3], images.shape[-1], size[1], sampling).to(wide.dtype)
        with _without_autocast(images.device.type):
            if sampling == "bilinear" or images.dtype != torch.uint8:
                product = torch.matmul(torch.matmul(rows[:, None], wide), columns[:, None].mT)
            else:  # torch's kernels resize horizontally first, and clip to bytes after that step
                product = torch.matmul(wide, columns[:, None].mT).round_().clamp_(0, 255)
                product = torch.matmul(rows[:, None], product)
        if images.dtype == torch.uint8:
            product = product.round_().clamp_(0, 255)
        elif not images.dtype.is_floating_point:
            product = product.round_()
        results.append(product.to(images.dtype))
    result = results[0] if len(results) == 1 else torch.cat(results)
    return result.contiguous(memory_format=torch.channels_last) if is_channels_last(images) else result


def _without_autocast(device: str) -> AbstractContextManager[object]:
    """Returns a context without autocast."""
    # Half precision would make pixels wrong by more than one.
    known = torch.amp.autocast_mode.is_autocast_available(device)
    return torch.autocast(device, enabled=False) if known else nullcontext()


_WEIGHTS = 1 << 23
"""Maximum number of weights along one side at a time: 64 MiB in float64, or 146 images from 256x256 to 224x224."""


def _triangle_filter(distance: Tensor) -> Tensor:
    """Computes the weights of the bilinear filter."""
    return (1 - distance.abs()).clamp(min=0)


def _cubic_filter(distance: Tensor, a: float = -0.5) -> Tensor:
    """Computes the weights of the bicubic filter, Keys' cubic convolution kernel."""
    distance = distance.abs()
    near = ((a + 2) * distance - (a + 3)) * distance * distance + 1
    far = (((distance - 5) * distance + 8) * distance - 4) * a
    return torch.where(distance < 1, near, torch.where(distance < 2, far, torch.zeros_like(distance)))


_FILTERS = {"bilinear": _triangle_filter, "bicubic": _cubic_filter}
"""Filters: weight of a pixel by its distance in units of the scale."""


def resize_weights(start: Tensor, length: Tensor, source: int, target: int, sampling: str = "bilinear") -> Tensor:
    """Computes the weights of source pixels in target pixels along one side, float64 ``(B, target, source)``.

    The filter is that of Pillow and torch (``_compute_indices_weights_aa`` in UpSampleKernel.cpp). Shrinking widens it
    by the scale. It is clipped to the box, and the weights of each target pixel sum to 1.

    Args:
        start: int64 ``(B,)``: first pixel of the box.
        length: int64 ``(B,)``: length of the box.
        source: Pixels of the image along this side.
        target: Pixels of the result along this side.
        sampling: Name of a filter in ``_FILTERS``.
    """
    device = start.device
    scale = (length.double() / target)[:, None]
    support = scale.clamp(min=1.0)
    # In float64 throughout, whatever torch's default is: only then are halves exact.
    centre = scale * (torch.arange(target, device=device, dtype=torch.float64) + 0.5)
    pixel = (torch.arange(source, device=device, dtype=torch.float64) - start[:, None])[:, None]  # counted in the box
    distance = (pixel + 0.5 - centre[:, :, None]) * (1 / support[:, :, None])
    weight = _FILTERS[sampling](distance) * ((pixel >= 0) & (pixel < length[:, None, None]))
    return weight / weight.sum(-1, keepdim=True)
