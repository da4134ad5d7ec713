"""Warps, noises and erases images of a batch, with parameters per image.

The formulas of warps are from torchvision 0.28, ``transforms/v2/functional/_geometry.py``. Images are uint8 or floating
point ``(B, C, H, W)`` on any device; parameters are on the host and are copied there. All results are new tensors.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from packstore.core.errors import UsageError
from packstore.images.programs import ALL_WARP_FILLS, INTERPOLATIONS, unpack_fill
from packstore.training.augment.units import Units, make_channels
from packstore.training.random_draws import MASK, mix_bits


def warp_affine(
    images: Tensor, matrix: NDArray[np.float32], flags: NDArray[np.int32], units: Units | None = None
) -> Tensor:
    """Warps images. Each pixel of the result shows the source at ``matrix`` times its position.

    Args:
        images: ``(B, C, H, W)``.
        matrix: float32 ``(B, 6)``: maps pixels of the result to pixels of the image, both relative to the centres.
        flags: int32 ``(B,)``. All have the same interpolation and fill method, which is not checked.
        units: Units of normalised images; None for values of the pixels.

    Raises:
        UsageError: A fill colour that is not gray, for images that do not have three channels.
    """
    height, width = images.shape[-2:]
    device = images.device
    # linspace, as torchvision: halves are exact.
    x = torch.linspace((1.0 - width) * 0.5, (width - 1.0) * 0.5, width, device=device)
    y = torch.linspace((1.0 - height) * 0.5, (height - 1.0) * 0.5, height, device=device)[:, None]
    scaled = matrix / np.array([0.5 * width] * 3 + [0.5 * height] * 3, np.float32)
    m = [values[:, None, None] for values in _copy_to_device(scaled.T, device)]
    grid = torch.stack((x * m[0] + y * m[1] + m[2], x * m[3] + y * m[4] + m[5]), 3)
    return _sample_grid(images, grid, flags, units)


def warp_perspective(
    images: Tensor, coefficients: NDArray[np.float32], flags: NDArray[np.int32], units: Units | None = None
) -> Tensor:
    """Warps images by perspective ``coefficients``, float32 ``(B, 8)``, which map the result to the source.

    ``flags``, ``units`` and errors are those of :func:`warp_affine`.
    """
    height, width = images.shape[-2:]
    device = images.device
    x = torch.linspace(0.5, width - 0.5, width, device=device)
    y = torch.linspace(0.5, height - 0.5, height, device=device)[:, None]
    scaled = coefficients.copy()
    scaled[:, :3] /= np.float32(0.5 * width)
    scaled[:, 3:6] /= np.float32(0.5 * height)
    c = [values[:, None, None] for values in _copy_to_device(scaled.T, device)]
    below = x * c[6] + y * c[7] + 1
    across = (x * c[0] + y * c[1] + c[2]) / below - 1
    down = (x * c[3] + y * c[4] + c[5]) / below - 1
    return _sample_grid(images, torch.stack((across, down), 3), flags, units)


def _sample_grid(images: Tensor, grid: Tensor, flags: NDArray[np.int32], units: Units | None) -> Tensor:
    """Samples images at ``grid`` as ``torch.nn.functional.grid_sample``, and fills pixels outside."""
    mode, way = INTERPOLATIONS[flags[0] & 3], ALL_WARP_FILLS[flags[0] >> 2 & 3]
    values = images if images.dtype in (torch.float32, torch.float64) else images.float()
    black, scale = _black_and_scale(units, values)
    if units is not None:
        values = values - black  # so that zeros outside are black, as in images of bytes
    if way in ("blend", "number"):
        # As torchvision: a channel of ones gives the share of each pixel that is in the image.
        values = torch.cat((values, torch.ones_like(values[:, :1])), 1)
    edges = "border" if way == "edge" else "zeros"
    pixels = torch.nn.functional.grid_sample(values, grid.to(values.dtype), mode, edges, align_corners=False)
    if way != "zeros":
        fill = _copy_to_device(np.array([unpack_fill(each) for each in flags.tolist()], np.float32), images.device)
        fill = _match_channels(fill, images.shape[1]).to(pixels.dtype)[:, :, None, None] * scale
        if way == "edge":  # as Pillow: fill pixels whose centre is outside
            outside = (grid.abs() > 1).any(3)[:, None]
            pixels = torch.where(outside, fill, pixels)
        else:
            pixels, share = pixels[:, :-1], pixels[:, -1:]
            pixels = torch.where(share < 0.5, fill, pixels) if mode == "nearest" else (pixels - fill) * share + fill
    if units is not None:
        pixels = pixels + black
    if images.dtype == torch.uint8:
        pixels = pixels.round_().clamp_(0, 255)
    elif not images.dtype.is_floating_point:
        pixels = pixels.round_()
    return pixels.to(images.dtype)


def add_noise(images: Tensor, mean: Tensor, sigma: Tensor, seeds: NDArray[np.int64], clips: bool) -> Tensor:
    """Adds nearly normal noise to uint8 images. Clips results to 0 … 255 if ``clips``; else they wrap around.

    Args:
        images: uint8 ``(B, C, H, W)``.
        mean: Mean of the noise, float32 ``(B, 1, 1, 1)``, in values of bytes.
        sigma: Standard deviation of the noise, like ``mean``.
        seeds: int64 ``(B,)``: they determine the noise.
        clips: Whether to clip.
    """
    noise = torch.stack([_normal_noise(seed, images.shape[1:], images.device) for seed in seeds.tolist()])
    result = images.to(torch.int16) + (mean + noise * sigma).to(torch.int16)
    return (result.clamp_(0, 255) if clips else result).to(torch.uint8)


def erase_boxes(
    images: Tensor, boxes: NDArray[np.int64], values: NDArray[np.float32], units: Units | None = None
) -> Tensor:
    """Overwrites a box of each image by one colour.

    Args:
        images: ``(B, C, H, W)``.
        boxes: int64 ``(B, 4)``: top, left, height, width.
        values: float32 ``(B, 3)``: red, green and blue.
        units: As for :func:`warp_affine`.

    Raises:
        UsageError: A colour that is not gray, for images that do not have three channels.
    """
    device = images.device
    top, left, height, width = (each[:, None] for each in _copy_to_device(boxes.T, device))
    y, x = (torch.arange(length, device=device) for length in images.shape[-2:])
    rows, columns = (y >= top) & (y < top + height), (x >= left) & (x < left + width)
    black, scale = _black_and_scale(units, images)
    colours = _match_channels(_copy_to_device(values, device), images.shape[1])[:, :, None, None] * scale + black
    return torch.where((rows[:, :, None] & columns[:, None, :])[:, None], colours.to(images.dtype), images)


def _black_and_scale(units: Units | None, like: Tensor) -> tuple[Any, Any]:
    """Returns the value of black and the scale of units, each ``(C, 1, 1)``; 0 and 1 without units."""
    if units is None:
        return 0, 1
    dtype = torch.float64 if like.dtype == torch.float64 else torch.float32
    black, scale = (make_channels(each, dtype, like.device) for each in (units.shift, units.scale))
    return black, scale


def _match_channels(values: Tensor, channels: int) -> Tensor:
    """Adapts values of red, green and blue, ``(B, 3)``, to the number of channels: ``(B, channels)``."""
    if channels == 3:
        return values
    if bool((values != values[:, :1]).any()):
        raise UsageError(f"a colour fills images of three channels, and these have {channels}: give one number")
    return values[:, :1].expand(-1, channels)


def erase_with_noise(
    images: Tensor, boxes: NDArray[np.int64], seeds: NDArray[np.int64], units: Units | None = None
) -> Tensor:
    """Overwrites a box of each RGB image by random pixels of ImageNet's mean and deviation.

    ``boxes``: int64 ``(B, 4)``: top, left, height, width.
    ``seeds``: int64 ``(B,)``: they determine the pixels.
    ``units``: as for :func:`warp_affine`.
    """
    result, (black, scale) = images.clone(), _black_and_scale(units, images)
    for row, (top, left, height, width) in enumerate(boxes.tolist()):
        part = result[row, :, top : top + height, left : left + width]
        part.copy_(_random_pixels(int(seeds[row]), part.shape, images.device) * scale + black)
    return result


def _random_pixels(seed: int, shape: torch.Size, device: torch.device) -> Tensor:
    """Computes random pixels ``(C, H, W)`` of ImageNet's mean and deviation, whole float32 in 0 … 255."""
    both = torch.tensor(IMAGENET_BYTES).to(device, non_blocking=True)[:, : shape[0], None, None]
    return (_normal_noise(seed, shape, device) * both[1] + both[0]).round_().clamp_(0, 255)


IMAGENET_BYTES = ((123.675, 116.28, 103.53), (58.395, 57.12, 57.375))
"""Mean and standard deviation of ImageNet's pixels, in values of 255 (torchvision's 0.485 … 0.225)."""


def _normal_noise(seed: int, shape: torch.Size, device: torch.device) -> Tensor:
    """Computes nearly normal numbers from a seed, float32 ``(C, H, W)``, equal on any device."""
    channels, height, width = shape
    place = torch.arange(height * width * channels, device=device)
    bits = mix_bits((place * _GOLDEN + seed) & MASK)
    # A sum of four random bytes: nearly normal, but never beyond 3.45 standard deviations.
    total = (bits & 255) + (bits >> 8 & 255) + (bits >> 16 & 255) + (bits >> 24)
    values: Tensor = (total - 510).float() / _DEVIATION
    return values.view(height, width, channels).permute(2, 0, 1)


_GOLDEN = 0x9E3779B9
_DEVIATION = ((256**2 - 1) / 3) ** 0.5
"""Standard deviation of a sum of four random bytes."""


def _copy_to_device(values: NDArray[Any], device: torch.device) -> Tensor:
    """Copies an array to a device, if possible without making the host wait."""
    return torch.from_numpy(np.ascontiguousarray(values)).to(device, non_blocking=True)  # may share memory on the CPU
