"""Steps of programs in torch: each changes the images of a batch, with parameters per image. Results are new tensors.

The formulas are from torchvision 0.28, ``transforms/v2/functional/``: ``_geometry.py`` for warps, ``_color.py`` and
``_misc.py`` for colours.

- Warps and boxes: images are uint8 or floating point ``(B, C, H, W)`` on any device. Parameters are on the host, and
  are copied there.
- Colours: images are uint8 ``(B, 3, H, W)`` on any device, or gray ``(B, 1, H, W)`` for operations that torchvision
  defines for one channel. Parameters are float32 ``(B, 1, 1, 1)`` on the same device.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from packstore.core.errors import UsageError
from packstore.images.programs import ALL_WARP_FILLS, INTERPOLATIONS, unpack_fill
from packstore.training.augment.base import Units
from packstore.training.augment.crop import make_channels
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


def adjust_brightness(images: Tensor, factor: Tensor) -> Tensor:
    """Multiplies values by ``factor``, and clips to 0 … 255."""
    return _to_bytes(images.mul(factor))


def adjust_contrast(images: Tensor, factor: Tensor) -> Tensor:
    """Blends each image with the mean of its gray values. ``factor`` 0 gives the mean, 1 the image."""
    gray = _gray_values(images)
    # A sum of whole numbers does not depend on the order; a sum of float32 would.
    mean = gray.long().sum((-3, -2, -1), keepdim=True).double() / gray[0].numel()
    return _blend(images, mean.float(), factor)


def adjust_saturation(images: Tensor, factor: Tensor) -> Tensor:
    """Blends images with their gray versions. ``factor`` 0 gives gray, 1 the image."""
    return _blend(images, _gray_values(images), factor)


def adjust_hue(images: Tensor, shift: Tensor) -> Tensor:
    """Shifts the hue by ``shift``, -0.5 … 0.5, in HSV.

    A few values differ by 1 from torchvision's, because this rounds differently.
    """
    scaled = images.float()
    red, green, blue = scaled.unbind(1)
    low, high = torch.aminmax(scaled, dim=1)
    spread = high - low
    circle = spread * 6  # a position on the hue circle, times the spread: no division
    at = torch.where(high == green, blue - red + spread * 2, red - green + spread * 4)
    at = torch.where(high == red, green - blue, at) + shift[:, 0] * 6 * spread
    at = at + torch.where(at < 0, circle, 0.0)
    at = at - torch.where(at >= circle, circle, 0.0)
    parts = ((at - spread * 3).abs() - spread, *(spread * 2 - (at - spread * n).abs() for n in (2, 4)))
    shown = [low + torch.minimum(part.clamp(min=0), spread) for part in parts]
    # The factor by which torchvision converts 0 … 1 to bytes, which are then truncated.
    return torch.stack(shown, 1).mul_((255 + 1.0 - 1e-3) / 255).to(torch.uint8)


def convert_to_gray(images: Tensor) -> Tensor:
    """Converts images to gray, repeated in all channels."""
    return _gray_values(images).to(torch.uint8).expand_as(images).contiguous()


def invert(images: Tensor) -> Tensor:
    """Inverts: ``255 - images``."""
    return images.bitwise_not()


def posterize(images: Tensor, bits: Tensor) -> Tensor:
    """Keeps the highest ``bits`` (0 … 8) of each value, and zeroes the others."""
    return images & (256 - (1 << (8 - bits.int()))).to(torch.uint8)


def solarize(images: Tensor, threshold: Tensor) -> Tensor:
    """Inverts values of at least ``threshold``."""
    return torch.where(images >= threshold, images.bitwise_not(), images)


def solarize_add(images: Tensor, added: Tensor, threshold: Tensor) -> Tensor:
    """Adds ``added`` to values below ``threshold``, and clips to 255 (timm, ``data/auto_augment.py``)."""
    return torch.where(images < threshold, (images + added).clamp_(max=255).to(torch.uint8), images)


def autocontrast(images: Tensor) -> Tensor:
    """Stretches each channel of an image to 0 … 255. A channel of one value stays unchanged."""
    values = images.float()
    low, high = values.amin((-2, -1), keepdim=True), values.amax((-2, -1), keepdim=True)
    flat = high == low
    scale = high.sub_(low).mul_(1.0 / 255).masked_fill_(flat, 1.0)
    return _to_bytes(values.sub_(low.masked_fill_(flat, 0.0)).div_(scale))


def equalize(images: Tensor) -> Tensor:
    """Equalizes the histogram of each channel of an image, as Pillow does.

    A channel stays unchanged if fewer than 255 of its pixels are below its highest value.
    """
    batch, channels, height, width = images.shape
    pixels = height * width
    flat = images.reshape(batch, channels, pixels).long()
    counts = torch.zeros((batch, channels, 256), dtype=torch.int64, device=images.device)
    counts.scatter_add_(-1, flat, torch.ones_like(flat))
    below = counts.cumsum(-1)
    last = counts.gather(-1, below.argmax(-1, keepdim=True))  # of the highest value that occurs
    # The pixels for each of 255 steps, without those of the highest value.
    unit = (pixels - last) // 255
    table = torch.nn.functional.pad((below[..., :-1] + unit // 2) // unit.clamp(min=1), (1, 0)).clamp_(0, 255)
    table = torch.where(unit > 0, table, torch.arange(256, device=images.device))
    return table.to(torch.uint8).gather(-1, flat).view_as(images)


def adjust_sharpness(images: Tensor, factor: Tensor) -> Tensor:
    """Blends images with smoothed versions. ``factor`` 0 smooths, 1 gives the image, above 1 sharpens.

    The outermost pixels stay. Images with a side of less than three pixels are only copied.
    """
    height, width = images.shape[-2:]
    if height <= 2 or width <= 2:
        return images.clone()
    # The kernel, 1 1 1 / 1 5 1 / 1 1 1 over 13, in whole numbers: no sum is halfway between two values.
    whole = images.to(torch.int16)
    rows = whole[..., :-2, :] + whole[..., 1:-1, :] + whole[..., 2:, :]
    sums = rows[..., :-2] + rows[..., 1:-1] + rows[..., 2:]
    inner = whole[..., 1:-1, 1:-1]
    smooth = ((sums + 4 * inner) * 2 + 13).div_(26, rounding_mode="floor")
    result = images.clone()
    values = inner.float()
    result[..., 1:-1, 1:-1] = _to_bytes(torch.addcmul(values, smooth.float().sub_(values), _one_minus(factor)))
    return result


def gaussian_blur(images: Tensor, size: tuple[int, int], sigma: Tensor) -> Tensor:
    """Blurs images with a Gaussian kernel. Reflects them at the edges, as often as the kernel needs.

    Args:
        images: uint8 ``(B, C, H, W)``, of any number of channels.
        size: Width and height of the kernel, odd.
        sigma: float32 ``(B, 2)``: standard deviation across and down.
    """
    batch, channels, height, width = images.shape
    across, down = size
    rows_shown, columns_shown = (
        _reflect_indices(n, reach // 2, images.device) for n, reach in ((height, down), (width, across))
    )
    padded = images.float().index_select(2, rows_shown).index_select(3, columns_shown)
    columns = _gaussian_kernel(across, sigma[:, 0]).repeat_interleave(channels, 0)[:, None, None, :]
    rows = _gaussian_kernel(down, sigma[:, 1]).repeat_interleave(channels, 0)[:, None, :, None]
    planes = padded.reshape(1, batch * channels, *padded.shape[-2:])
    for weights in (rows, columns):
        planes = torch.nn.functional.conv2d(planes, weights, groups=batch * channels)
    return planes.view(batch, channels, height, width).round_().to(torch.uint8)


def _reflect_indices(length: int, reach: int, device: torch.device) -> Tensor:
    """Returns pixel indices for a row of ``length`` that is padded by ``reach`` at both ends."""
    place = torch.arange(-reach, length + reach, device=device)
    # A kernel larger than the image reflects several times.
    period = max(1, 2 * length - 2)
    place = place.remainder(period)
    return torch.minimum(place, period - place) if length > 1 else place * 0


def _gaussian_kernel(size: int, sigma: Tensor) -> Tensor:
    """Computes the weights of a Gaussian blur, ``(B, size)``, for each of ``sigma`` ``(B,)``."""
    # Positions are divided by the root of 2, so that the weights are exp(-(x / sigma)**2).
    limit = (size - 1) / (2.0 * 2.0**0.5)
    x = torch.linspace(-limit, limit, size, dtype=torch.float32, device=sigma.device)
    return torch.softmax((x / sigma[:, None]).pow_(2).neg_(), 1)


def permute_channels(images: Tensor, order: Tensor) -> Tensor:
    """Reorders channels: channel ``c`` of the result is channel ``order[b, c]`` of the image."""
    return images.gather(1, order[:, :, None, None].expand_as(images))


def _gray_values(images: Tensor) -> Tensor:
    """Computes gray values, rounded down: float32 ``(B, 1, H, W)``."""
    if images.shape[1] == 1:
        return images.float()
    red, green, blue = images.unbind(1)
    return red.mul(0.2989).add_(green, alpha=0.587).add_(blue, alpha=0.114).floor_()[:, None]


def _blend(images: Tensor, other: Tensor, ratio: Tensor) -> Tensor:
    """Computes ``images * ratio + other * (1 - ratio)``, clipped to 0 … 255, as uint8."""
    return _to_bytes(torch.addcmul(images.mul(ratio), other, _one_minus(ratio)))


def _one_minus(ratio: Tensor) -> Tensor:
    """Computes ``1 - ratio`` in float64, and rounds it to float32."""
    return (1.0 - ratio.double()).float()  # as torchvision, whose ratio is a Python float


def _to_bytes(values: Tensor) -> Tensor:
    """Clips ``values`` to 0 … 255 in place, and truncates them to uint8."""
    return values.clamp_(0, 255).to(torch.uint8)
