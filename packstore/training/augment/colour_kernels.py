"""Colour operations on uint8 batches, with a parameter per image: the arithmetic of torchvision's ``transforms.v2``.

The formulas are from torchvision 0.28, ``transforms/v2/functional/_color.py`` and ``_misc.py``. Images are uint8 ``(B,
3, H, W)`` on any device, or gray ``(B, 1, H, W)`` for operations that torchvision defines for one channel; parameters
are float32 ``(B, 1, 1, 1)`` on the same device. All results are new tensors.
"""

from __future__ import annotations

import torch
from torch import Tensor


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
