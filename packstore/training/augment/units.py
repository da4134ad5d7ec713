"""Units of floating point images: how colours become values of normalised stores, and how fills use them."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from packstore.core.errors import UsageError
from packstore.core.manifest import Column, Normalization

Values = float | tuple[float, ...]
"""One number for all channels, or one for each."""


@dataclass(frozen=True)
class Units:
    """Units of normalised images: a pixel value ``x`` is stored as ``x * scale + shift``, for each channel."""

    scale: tuple[float, ...]
    shift: tuple[float, ...]

    @classmethod
    def of_normalization(cls, normalization: Normalization | None, white: float, channels: int) -> Units:
        """Returns the units of ``(x / white - mean) / std``; without a normalisation, of ``x / white``."""
        mean, std = ((0.0,) * channels, (1.0,) * channels)
        if normalization is not None:
            mean, std = normalization.mean, normalization.std
        return cls(
            tuple(1 / (white * each) for each in std),
            tuple(-middle / each for middle, each in zip(mean, std, strict=True)),
        )

    @classmethod
    def of_column(cls, column: Column, normalization: Normalization | None) -> Units | None:
        """Returns the units of a column of images; None for files and whole numbers, whose values are the pixels'."""
        if column.layout != "CHW":
            return None
        return cls.of_normalization(normalization, column.pixels.white, column.pixels.channels)

    def convert(self, colour: Any) -> tuple[float, ...]:
        """Converts a colour, a number or one for each channel, to values of each channel.

        Raises :class:`UsageError` for another number of channels.
        """
        count = len(self.scale)
        each = tuple(colour) if isinstance(colour, list | tuple) else (colour,) * count
        if len(each) == 3 and len({*each}) == 1:
            # A gray colour fits any number of channels.
            each = each[:1] * count
        if len(each) != count:
            raise UsageError(
                f"the colour {colour!r} has {len(each)} channels, and the images have {count}: give one number"
            )
        return tuple(n * scale + shift for n, scale, shift in zip(each, self.scale, self.shift, strict=True))


def convert_colour(colour: Any, units: Units | None) -> Values:
    """Converts a colour to values of images in ``units``: a single number if all channels have the same."""
    values = units.convert(colour) if units is not None else colour
    if not isinstance(values, list | tuple):
        return float(values) if units is not None else values
    return values[0] if len({*values}) == 1 else tuple(values)


def with_units(operations: Iterable[Any], units: Units | None) -> tuple[Any, ...]:
    """Returns operations that convert their ``fill`` and ``value`` to ``units``, at any depth. None converts nothing.

    Copies operations that have other units. Other functions stay as they are.
    """
    return tuple(_copy_with_units(each, units) for each in operations)


def _copy_with_units(operation: Any, units: Units | None) -> Any:
    """Returns a copy of an operation, and of operations in it, with ``units``."""
    if getattr(operation, "image_units", units) == units:  # also of functions, which have none
        return operation
    copied = copy.copy(operation)
    object.__setattr__(copied, "image_units", units)
    for name, value in vars(operation).items():
        if type(value) is tuple:
            object.__setattr__(copied, name, with_units(value, units))
        elif hasattr(type(value), "image_units"):
            object.__setattr__(copied, name, _copy_with_units(value, units))
    return copied


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
