"""Kernels that resize whole images, or a box of each image.

On the CPU torch's ``interpolate`` does it, for uint8 with the very kernel that decoding uses. On other devices a batch
is two products with matrices of weights, which is the same arithmetic in float32: within 1 of 255.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from packstore.training.augment.base import Size, is_channels_last


def resize(images: Tensor, size: Size) -> Tensor:
    """``images`` ``(B, C, H, W)`` resized to ``size`` (antialiased, bilinear), or as they are if they have it."""
    height, width = images.shape[-2:]
    if (height, width) == size:
        return images
    # For images that become one pixel wide torch 2.13 fails (uint8) or gives wrong values (float, in planes).
    if images.device.type != "cpu" or size[1] == 1:
        whole = torch.zeros((1, 4), dtype=torch.int64, device=images.device)  # one box for all
        # Filled there: for a tensor that comes from the host, the host would wait.
        whole[:, 2], whole[:, 3] = height, width
        return resize_by_products(images, whole, size)
    # Of half precision torch has no such kernel.
    wide = images if images.dtype in (torch.uint8, torch.float32, torch.float64) else images.float()
    result = torch.nn.functional.interpolate(wide, size, mode="bilinear", align_corners=False, antialias=True)
    return result.to(images.dtype)


def crop_and_resize(images: Tensor, box: Tensor, size: Size) -> Tensor:
    """The boxes of ``images``, resized to ``size``, antialiased and bilinear.

    Args:
        images: ``(B, C, H, W)``, uint8 or floating point.
        box: int64 ``(B, 4)``: top, left, height, width, within the image.
        size: ``(h, w)``.
    """
    if images.device.type == "cpu":
        return crop_and_resize_each(images, box, size)
    return resize_by_products(images, box, size)


def crop_and_resize_each(images: Tensor, box: Tensor, size: Size) -> Tensor:
    """:func:`crop_and_resize`, image by image."""
    batch, channels = images.shape[:2]
    layout = torch.channels_last if is_channels_last(images) else torch.contiguous_format
    result = torch.empty((batch, channels, *size), dtype=images.dtype, memory_format=layout, device="cpu")
    for i, (top, left, height, width) in enumerate(box.tolist()):
        result[i] = resize(images[i : i + 1, :, top : top + height, left : left + width], size)[0]
    return result


def resize_by_products(images: Tensor, box: Tensor, size: Size) -> Tensor:
    """:func:`crop_and_resize` by two products with matrices of weights: rows first, then columns.

    ``box`` may be a single one, ``(1, 4)``, for all images.
    """
    results = []
    step = max(1, _WEIGHTS // max(1, images.shape[-2] * size[0], images.shape[-1] * size[1]))
    for start in range(0, max(1, len(images)), step):
        part, boxes = images[start : start + step], box if len(box) == 1 else box[start : start + step]
        wide = part if part.dtype == torch.float64 else part.float()
        rows = weights(boxes[:, 0], boxes[:, 2], images.shape[-2], size[0]).to(wide.dtype)
        columns = weights(boxes[:, 1], boxes[:, 3], images.shape[-1], size[1]).to(wide.dtype)
        with _full_precision(images.device.type):
            product = torch.matmul(torch.matmul(rows[:, None], wide), columns[:, None].mT)
        if images.dtype == torch.uint8:
            product = product.round_().clamp_(0, 255)
        results.append(product.to(images.dtype))
    result = results[0] if len(results) == 1 else torch.cat(results)
    return result.contiguous(memory_format=torch.channels_last) if is_channels_last(images) else result


def _full_precision(device: str) -> AbstractContextManager[object]:
    """Without autocast: in half precision pixels would be off by more than one."""
    known = torch.amp.autocast_mode.is_autocast_available(device)
    return torch.autocast(device, enabled=False) if known else nullcontext()


_WEIGHTS = 1 << 23
"""Most weights along one side at a time: 64 MiB in float64. 146 images of 256x256 that become 224x224."""


def weights(start: Tensor, length: Tensor, source: int, target: int) -> Tensor:
    """Weights of source pixels in target pixels along one side, float64 ``(B, target, source)``.

    The triangle filter of Pillow and torch (``_compute_indices_weights_aa`` in UpSampleKernel.cpp), as wide as the
    scale where it shrinks, cut off at the box and normalised.

    Args:
        start: int64 ``(B,)``: first pixel of the box.
        length: int64 ``(B,)``: its pixels.
        source: Pixels of the image along this side.
        target: Pixels wanted.
    """
    device = start.device
    scale = (length.double() / target)[:, None]
    support = scale.clamp(min=1.0)
    # In float64 throughout, whatever torch's default is: only then are halves exact.
    centre = scale * (torch.arange(target, device=device, dtype=torch.float64) + 0.5)
    pixel = (torch.arange(source, device=device, dtype=torch.float64) - start[:, None])[:, None]  # counted in the box
    distance = (pixel + 0.5 - centre[:, :, None]).abs() / support[:, :, None]
    weight = (1 - distance).clamp(min=0) * ((pixel >= 0) & (pixel < length[:, None, None]))
    return weight / weight.sum(-1, keepdim=True)
